"""Cases that go wrong in every way that a side can, for workers to find."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

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


def case_of(question: dict[str, Any]) -> Numbers:
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
