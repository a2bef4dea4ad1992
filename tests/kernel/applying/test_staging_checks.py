"""Steps about arrays that are refused: streams, prefetches, and copies without room."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from baregrad.base.errors import ScheduleError
from baregrad.ir.core.node import Node
from baregrad.kernel import apply_schedule, lower, parse_schedule
from baregrad.kernel.applying.axes import table_after
from baregrad.kernel.applying.staging_checks import check_room, nodes_of, shares_of
from baregrad.kernel.facts.analysis import facts_of
from baregrad.kernel.facts.axis_table import table_for
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
from tests.kernel.applying.test_axes import refusal
from tests.kernel.gpu_kernels import HOPPER
from tests.kernel.test_lowering import AVX


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


def test_capacity_is_checked() -> None:
    big = k.matmul(64, 64, 4096)
    small = replace(AVX, l3_bytes=1 << 16)
    text = "Schedule(stage_input(2, 'r2', 'i1'))"
    with pytest.raises(ScheduleError, match="no room in the caches: found 1048576 bytes"):
        lower(big, small, parse_schedule(text))
    assert "lies in registers" in refusal(k.elementwise(5000), "Schedule(bind('i0', 'vector'))")
    wide = "Schedule(bind('i0', 'unroll'), bind('i1', 'vector'))"
    assert "far more than registers hold" in refusal(k.elementwise(500, 500), wide)


@pytest.mark.parametrize("nbytes", [4 * 8 * 16 - 1, 4 * 8 * 16])
def test_a_copy_has_room_for_all_its_elements_or_none(nbytes: int) -> None:
    facts, target = facts_of(k.matmul(8, 16, 8)), replace(AVX, l3_bytes=nbytes)
    table = table_for(facts, target)
    step = stage_input(2, "r2", "i1")
    if nbytes < 4 * 8 * 16:
        with pytest.raises(ScheduleError, match=f"found 512 bytes, wanted at most {nbytes}"):
            check_room(table, step, [8, 16])
    else:
        check_room(table, step, [8, 16])
    # Where nothing is known of the machine there is room.
    check_room(table_for(facts), step, [1 << 20, 1 << 20])


def test_the_axes_that_a_loop_is_a_part_of() -> None:
    facts = facts_of(k.softmax(4, 12))
    text = "Schedule(split('r2', outer='a', b=3), split('b', outer='c', d=3))"
    table = table_after(facts, parse_schedule(text), AVX)
    named = {node.arg.id: node for node in facts.axes}
    assert nodes_of(table, "d") == {named[2]}
    merged = table_after(facts_of(k.elementwise(4, 5)), parse_schedule(
        "Schedule(collapse('i0', 'i1', name='f'), split('f', outer='o', u=4))"
    ), AVX)
    assert nodes_of(merged, "u") == set(facts_of(k.elementwise(4, 5)).data)


def test_each_loop_asks_for_what_the_one_before_left() -> None:
    table = table_after(facts_of(k.softmax(12, 40)), Schedule(), AVX)
    step = prefetch(1, 160, r2=2 * 4, r3=4)
    first, second = shares_of(table, step)
    assert (first, second) == (("r2", 160, 8), ("r3", 160 + 40 * 8, 4))
