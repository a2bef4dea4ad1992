"""Schedules applied to kernels: copies of operands, with the guards of what they read."""

from __future__ import annotations

import pytest

from baregrad.base.errors import ScheduleError
from baregrad.ir.core import index
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel import (
    Schedule,
    apply_schedule,
    parse_schedule,
)
from baregrad.kernel.facts.analysis import by_id
from tests.kernel import kernels as k
from tests.kernel.test_lowering import check


def packed(a: bool, b: bool) -> Schedule:
    """A matmul with copied panels of both operands and every tail."""
    return parse_schedule(
        "Schedule(split('i1', outer='i1o', i1u=2, i1v=8, tail='i1t'), bind('i1u', 'unroll'), "
        "bind('i1v', 'vector'), bind('i1t', 'vector'), split('i0', outer='i0o', i0u=3, "
        "tail='i0t'), bind('i0u', 'unroll'), bind('i0t', 'unroll'), split('i1o', outer='i1p', "
        "i1q=2, tail='i1r'), reorder('i1p', 'i0o', 'i1q'), bind('i1p', 'pool'), "
        "stage_input(2, 'i1q', 'r2', 'i1u', 'i1v'), stage_input(1, 'r2', 'i0u'))"
    )


@pytest.mark.parametrize("a", [False, True])
@pytest.mark.parametrize("b", [False, True])
def test_a_packed_matmul(a: bool, b: bool) -> None:
    loop = check(k.matmul(11, 87, 13, a, b), packed(a, b))
    scratch = [n for n in toposort(loop) if n.op is Ops.ALLOC and n.arg.space == "scratch"]
    assert len(scratch) >= 2


def test_a_guarded_read_is_copied_with_its_guard() -> None:
    kernel = k.conv(1, 3, 8, 9, 16, 3, 1, 1)
    schedule = parse_schedule(
        "Schedule(split('i3', outer='i3o', i3v=8), bind('i3v', 'vector'), "
        "bind('i1', 'unroll'), reorder('i3o', 'i2'), stage_input(1, 'r4', 'r5', 'r6', 'i3v'))"
    )
    loop = check(kernel, schedule)
    for node in toposort(loop):
        if node.op is Ops.STORE and node.src[1].op is Ops.FMA:
            assert not node.src[1].has(Ops.GUARD)


def final_axes(kernel: Node, schedule: str) -> list[tuple[str, str, int]]:
    """The axes of an applied kernel in the order of their loops: name, unit and extent."""
    applied = apply_schedule(kernel, parse_schedule(schedule))
    axes = {node for node in toposort(applied) if node.op is Ops.RANGE}
    return [(axis.arg.axis, axis.arg.bind, int(axis.src[0].arg)) for axis in by_id(axes)]


def test_axes_are_numbered_in_the_order_of_the_loops() -> None:
    assert final_axes(k.elementwise(6, 32), "Schedule()") == [("i0", "loop", 6), ("i1", "loop", 32)]
    text = "Schedule(split('i1', outer='o', v=8), bind('v', 'vector'), reorder('o', 'i0'))"
    assert final_axes(k.elementwise(6, 32), text) == [
        ("o", "loop", 4), ("i0", "loop", 6), ("v", "vector", 8),
    ]


def test_a_tail_is_an_output_or_a_reduction_of_its_own() -> None:
    kernel = k.row_reduce(5, 37)
    rows = parse_schedule("Schedule(split('i0', outer='o', u=2, tail='t'))")
    applied = apply_schedule(kernel, rows)
    assert len(applied.src) == 2
    steps = parse_schedule("Schedule(split('r1', outer='o', u=8, tail='t'))")
    applied = apply_schedule(kernel, steps)
    assert len(applied.src) == 1
    assert sum(node.op is Ops.REDUCE for node in toposort(applied)) == 2
    # Two pieces each: four parts of the sums, two for each part of the output.
    both = apply_schedule(kernel, parse_schedule(
        "Schedule(split('i0', outer='a', b=2, tail='c'), split('r1', outer='d', e=8, tail='f'))"
    ))
    assert len(both.src) == 2
    assert sum(node.op is Ops.REDUCE for node in toposort(both)) == 4


def test_arrays_are_addressed_by_one_offset() -> None:
    applied = apply_schedule(k.transpose(6, 8), parse_schedule("Schedule()"))
    arrays = [node for node in toposort(applied) if node.op is Ops.PARAM]
    assert {array.arg.shape for array in arrays} == {(48,)}
    (out,) = applied.src
    i, j = by_id({node for node in toposort(applied) if node.op is Ops.RANGE})
    assert index.linear(out.src[2]) == ({i: 8, j: 1}, 0)
    (read,) = [node for node in toposort(applied) if node.op is Ops.INDEX]
    assert index.linear(read.src[1]) == ({j: 6, i: 1}, 0)


def test_the_first_step_that_is_not_legal_is_named() -> None:
    with pytest.raises(ScheduleError, match="bind\\('nowhere'"):
        apply_schedule(k.elementwise(4), parse_schedule(
            "Schedule(bind('i0', 'unroll'), bind('nowhere', 'unroll'))"
        ))
    # A copy that no access can use is found once all steps are known.
    with pytest.raises(ScheduleError, match="no access of that input"):
        apply_schedule(k.matmul(4, 4, 4), parse_schedule("Schedule(stage_input(1, 'i1'))"))
