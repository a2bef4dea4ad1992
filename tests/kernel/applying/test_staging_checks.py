"""Steps about arrays that are refused: streams, prefetches, and copies without room."""

from __future__ import annotations

from typing import Any

import pytest

from baregrad.base.errors import ScheduleError
from baregrad.ir.core.node import Node
from baregrad.kernel import apply_schedule, parse_schedule
from baregrad.kernel.language.schedule import (
    Reorder,
    Schedule,
    prefetch,
    split,
    stage_input,
    stream_output,
    vectorise,
)
from tests.kernel import kernels as k
from tests.kernel.gpu_kernels import HOPPER


@pytest.mark.parametrize(
    ("kernel", "slot", "target"),
    [
        (k.elementwise(64), 1, None),
        (k.elementwise(64), 9, None),
        (k.scatter_add(4, 8, 16), 0, None),
        (k.elementwise(64), 0, HOPPER),
    ],
)
def test_streams_that_cannot_be(kernel: Node, slot: int, target: Any) -> None:
    with pytest.raises(ScheduleError, match=rf"stream_output\({slot}\) is not legal"):
        apply_schedule(kernel, Schedule((stream_output(slot),)), target)


def test_loops_of_rows_may_ask_for_shares_and_others_may_not() -> None:
    kernel = k.softmax(12, 40)
    for name, error in (
        ("r2", ""), ("r3", ""), ("i1", ""), ("i0", "not inside a row"), ("x", "not there"),
    ):
        schedule = Schedule((prefetch(1, 64, **{name: 64}),))
        if error:
            with pytest.raises(ScheduleError, match=error):
                apply_schedule(kernel, schedule)
        else:
            apply_schedule(kernel, schedule)
    for steps, error in (
        ((prefetch(1, 64, r2=6),), "whole elements"),
        ((prefetch(1, 64, r2=64), vectorise("r2")), "loops of a constant size"),
        ((prefetch(1, 64, r2=64), split("r2", outer="o", i=8)), "not there"),
        ((prefetch(1, 64, i1=64), Reorder(("i1", "i0"))), "not inside a row"),
        ((stage_input(1, "r2"), prefetch(1, 64, r3=64)), "copies"),
    ):
        with pytest.raises(ScheduleError, match=error):
            apply_schedule(kernel, Schedule(steps))
        assert parse_schedule(str(Schedule(steps))) == Schedule(steps)


@pytest.mark.parametrize(
    ("kernel", "steps", "target"),
    [
        (k.elementwise(64), (prefetch(9, 64),), None),
        (k.elementwise(64), (prefetch(0, 64),), HOPPER),
        (k.elementwise(64), (stream_output(0), prefetch(0, 64)), None),
        (k.elementwise(64), (prefetch(0, 64), stream_output(0)), None),
    ],
)
def test_arrays_that_cannot_be_asked_for(kernel: Node, steps: Any, target: Any) -> None:
    with pytest.raises(ScheduleError, match="is not legal"):
        apply_schedule(kernel, Schedule(steps), target)
    assert parse_schedule(str(Schedule(steps))) == Schedule(steps)
