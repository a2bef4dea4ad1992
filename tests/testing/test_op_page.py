"""The page of operations is what the code says, and its calls are what PyTorch makes of them."""

from __future__ import annotations

import pytest

from baregrad.base.options import options
from baregrad.testing.op_page import beside_torch
from baregrad.testing.op_page.beside_torch import DrawnCall, compare, compared
from baregrad.testing.op_page.facts import facts_of
from baregrad.testing.op_page.page import ops_page
from baregrad.testing.op_page.samples import DIFFERENCES, operations
from tests.house.source import ROOT


def test_the_page_is_what_the_code_says() -> None:
    written = (ROOT / "docs" / "ops.md").read_text()
    assert written == ops_page(operations()), "write it anew: baregrad ops > docs/ops.md"


def test_every_operation_has_a_call_that_works() -> None:
    found = [facts_of(name) for name in ("sum", "conv2d", "where", "unique", "floor", "rand")]
    assert all(one.shape for one in found)
    reads = {one.name: one.reads for one in found}
    assert reads == {"sum": False, "conv2d": False, "where": False, "unique": True,
                     "floor": False, "rand": False}  # fmt: skip
    gradients = {one.name: one.gradient for one in found}
    assert gradients["conv2d"] == "yes" and gradients["rand"] == "no"
    assert set(DIFFERENCES) <= set(operations())


@pytest.mark.differential
def test_the_calls_are_what_pytorch_makes_of_them() -> None:
    """One case of each; `python -m baregrad.testing.op_page.beside_torch` draws more."""
    told, alone = [], []
    with options.override(device="REF"):
        for number, name in enumerate(compared()):
            case = DrawnCall(name, "float32", False, number % 3 == 0, number, 7)
            found = compare(case)
            if found.outcome in ("different", "refused"):
                told.append(f"{case}: {found.outcome}, {found.how}")
            elif found.outcome == "none":
                alone.append(name)
    assert told == [], "\n".join(told)
    # PyTorch has them by other names, not for floats, or without gradients, as what Python computes
    # of each element.
    assert len(alone) < 32, alone


def test_a_difference_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    case = DrawnCall("byte", "float32", False, False, 0, 0)
    with options.override(device="REF"):
        assert compare(case).outcome == "documented"
        monkeypatch.setattr(beside_torch, "DIFFERENCES", {})
        assert compare(case).outcome == "different"
        assert compare(case._replace(name="sum")).outcome == "same"
