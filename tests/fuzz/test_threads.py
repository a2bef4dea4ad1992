"""Threads that run random programs at once find what each finds alone."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad.base.options import options
from baregrad.engine.session import current_session
from baregrad.tensor import Tensor
from baregrad.testing.fuzz_threads import Arrays, Task, differs, fuzz, together, trained

pytestmark = pytest.mark.differential


def test_threads_find_what_they_find_alone() -> None:
    with options.override(verify=False):
        assert not fuzz(3, seed=0)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_rounds_of_threads_find_what_they_find_alone() -> None:
    with options.override(verify=False):
        assert not fuzz(500, seed=1000)


def test_a_model_is_trained_the_same_way_each_time() -> None:
    first = trained(3)
    assert not differs([trained(3)], [first])
    assert first[0]["loss"] != first[-1]["loss"]


def test_other_bits_are_a_difference() -> None:
    left: Arrays = [{"v": np.array([0.0])}]
    right: Arrays = [{"v": np.array([-0.0])}]
    assert "run 0, call 0, v" in differs([left], [right])
    assert not differs([left], [left])


def test_what_a_thread_raises_is_found_and_the_session_is_one() -> None:
    sessions = []

    def good() -> list[Arrays]:
        sessions.append(current_session())
        return [[{"v": (Tensor([1.0]) + 1).numpy()}]]

    def bad() -> list[Arrays]:
        raise ValueError("so")

    first, second, third = together([good, bad, good])
    assert first.found[0][0]["v"].tolist() == third.found[0][0]["v"].tolist() == [2.0]
    line = bad.__code__.co_firstlineno + 1
    assert second.raised == f"ValueError: so (line {line} of {__file__})"
    assert sessions == [current_session()] * 2


def test_a_task_has_programs_of_its_own() -> None:
    assert len(Task((1, 2), 1)()) == 5
