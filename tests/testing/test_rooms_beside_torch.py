"""The calls of the rooms beside methods are what PyTorch makes of them."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from baregrad.base.options import options
from baregrad.testing.op_page import rooms_beside_torch
from baregrad.testing.op_page.beside_torch import is_as_near
from baregrad.testing.op_page.rooms import CALLS

FEW = 6


@pytest.mark.differential
@pytest.mark.parametrize("part", [
    pytest.param(part, marks=pytest.mark.slow if part else []) for part in range(FEW)
])  # fmt: skip
def test_the_calls_are_what_pytorch_makes_of_them(part: int) -> None:
    """`python -m baregrad.testing.op_page.rooms_beside_torch` draws more."""
    told = []
    with options.override(device="REF"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(part, len(CALLS), FEW):
            case = rooms_beside_torch.RoomCase(
                CALLS[number], "float64", (2, 3, 5, 4, 3), False, number % 3 == 0, number, 7
            )
            found = rooms_beside_torch.compare(case)
            if found.outcome in ("different", "refused"):
                told.append(f"{case}: {found.outcome}, {found.how}")
    assert told == [], "\n".join(told)


def test_a_difference_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    case = rooms_beside_torch.RoomCase("x[0]", "float32", (2, 3, 5, 4, 3), False, False, 0, 0)
    with options.override(device="REF"):
        assert rooms_beside_torch.compare(case).outcome == "same"
        ours, theirs = rooms_beside_torch.sides()
        mixed = (ours, type(theirs)(**{**vars(theirs), "cast": lambda x, _: x.double() + 1}))
        monkeypatch.setattr(rooms_beside_torch, "sides", lambda: mixed)
        assert rooms_beside_torch.compare(case).outcome == "different"


def test_what_is_larger_than_a_dtypes_numbers_is_any_that_is_not_finite() -> None:
    values = {"x": np.array([1e20, 1.0], np.float32)}

    def squares(arrays: dict[str, Any], dtype: str) -> list[tuple[str, Any]]:
        with np.errstate(all="ignore"):
            return [(dtype, np.asarray(arrays["x"], dtype) ** 2)]

    for first, second, near in (
        (-np.inf, 1.0, True), (np.nan, 1.0, True), (3e38, 1.0, False), (np.inf, 2.0, False),
        (np.inf, np.inf, False),
    ):  # fmt: skip
        found = ("float32", np.array([first, second]))
        assert is_as_near(found, "float32", values, 0, squares) is near, (first, second)
