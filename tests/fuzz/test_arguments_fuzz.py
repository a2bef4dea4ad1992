"""Hostile arguments: every call that fails raises an error of the tree, and says what of."""

from __future__ import annotations

import pytest

from baregrad.testing.fuzz_arguments import fuzz, problem_of
from baregrad.testing.fuzz_calls import draw, targets

# What a call may take, however busy the machine is.
MINUTES = 3.0


def test_some_calls_fail_as_they_should() -> None:
    found = fuzz(1000, seed=0, longest_s=MINUTES * 60)
    assert not found, "\n".join(map(str, found))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.timeout(1800)
def test_twenty_thousand_calls_fail_as_they_should(seed: int) -> None:
    found = fuzz(20_000, seed=seed, longest_s=MINUTES * 60)
    assert not found, "\n".join(map(str, found))


def test_calls_are_drawn_from_the_seed_and_the_number_alone() -> None:
    assert [draw(3, place) for place in range(20)] == [draw(3, place) for place in range(20)]
    assert draw(3, 0) != draw(4, 0)
    assert len({target.text for target in targets()}) > 500


@pytest.mark.parametrize(("call", "says"), [
    ("Tensor.sum(1)", None),  # of the tree
    ("Tensor([1.0]).sum(0, 1, 2, 3)", None),  # Python's word on how many
    ("made((3,)).sum(nothing=1)", None),
    ("made((3,)).sum()", None),
    ("io.safe_load('no such file')", None),
    ("nn.Module()(1)", None),
    ("Tensor._make(1, 'REF')", "AttributeError"),
    ("nn.Module.train(1)", "AttributeError"),
])  # fmt: skip
def test_what_is_a_finding(call: str, says: str | None) -> None:
    found = problem_of(call, "REF")
    assert found is None if says is None else found is not None and says in found
