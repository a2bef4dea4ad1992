"""Cases that go wrong in every way that a side can, for workers to find."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from baregrad.apps.beside.draws import Draw
from baregrad.apps.beside.tensor_case import TensorCase
from baregrad.apps.beside.work import SideWork


class Numbers:
    """`theirs` on PyTorch's side, ones where it is exact, and `ours` on ours."""

    def __init__(self, ours: Callable[[], Any], theirs: tuple[float, ...]) -> None:
        self.ours = ours
        self.theirs = theirs

    def on_ours(self, side: object) -> SideWork:
        return SideWork(
            self.ours, lambda: [np.asarray(self.ours(), np.float32)], 4, facts={"flops": 8}
        )

    def on_peer(self, side: object) -> SideWork:
        return SideWork(
            lambda: None, lambda: [np.array(self.theirs, np.float32)], exact=lambda: [np.ones(3)]
        )


def magnified(row: str) -> TensorCase:
    """1 - y * y near y = 1, whose errors in float32 are 1e-2, and once 10 % more than that."""
    more = 1.1 if row.endswith("wrong") else 1.0
    return TensorCase(
        (Draw((64,), "float32", 0.01, 6.5),),
        # Ours take y from below, as a tanh that rounds otherwise may.
        lambda x: (1 - (x.tanh() * (1 - 2.0**-24)) ** 2) * more,
        lambda torch, x: 1 - x.tanh() ** 2, is_smooth=row != "jumps",
    )


def case_of(question: dict[str, Any]) -> Numbers | TensorCase:
    if question["row"].startswith(("magnified", "jumps")):
        return magnified(question["row"])

    def fails() -> None:
        raise ValueError("no such luck")

    ways: dict[str, Callable[[], Any]] = {
        "fine": lambda: np.ones(3), "wrong": lambda: np.array([1.0, 1.0, 1.5]),
        "overflows": lambda: np.array([1, np.inf, 1]),
        "overflows elsewhere": lambda: np.array([np.inf, 1, 1]),
        "overflows down": lambda: np.array([1, -np.inf, 1]),
        "hangs": lambda: time.sleep(100), "fails": fails, "exits": lambda: os._exit(7),
    }
    theirs = (1, np.inf, 1) if question["row"].startswith("overflows") else (1, 1, 1)
    return Numbers(ways[question["row"]], theirs)
