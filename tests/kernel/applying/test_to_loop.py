"""The loop level: which reductions share a loop, what stands outside, what is a condition."""

from __future__ import annotations

import pytest

from baregrad.base.errors import CompilerBug
from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.node import Node, alu, cast, const, range_node, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.loop_level import evaluate_loop
from baregrad.kernel import (
    Schedule,
    lower,
    parse_schedule,
)
from baregrad.kernel.applying.to_loop import to_loop
from baregrad.kernel.language.schedule import parallelise, vectorise
from tests.kernel import kernels as k
from tests.kernel.test_lowering import AVX, check


def loops(node: Node) -> list[Node]:
    return [below for below in toposort(node) if below.op is Ops.LOOP]


def test_reductions_over_one_axis_share_a_loop() -> None:
    i, j = range_node(5, 0), range_node(9, 1)
    x = k.at(k.param(2, 5, 9), i, j)
    total, top = k.reduce(Ops.ADD, x, j), k.reduce(Ops.MAX, x, j)
    kernel = k.kernel(k.out(k.param(0, 5), total, i), k.out(k.param(1, 5), top, i))
    assert len(loops(check(kernel, Schedule()))) == 2


def test_a_reduction_that_reads_another_has_a_loop_of_its_own() -> None:
    i, j = range_node(5, 0), range_node(9, 1)
    x = k.at(k.param(1, 5, 9), i, j)
    away = alu(Ops.SUB, x, k.reduce(Ops.MAX, x, j))
    kernel = k.kernel(k.out(k.param(0, 5), k.reduce(Ops.ADD, away, j), i))
    loop = check(kernel, Schedule())
    outer = next(n for n in toposort(loop) if n.op is Ops.LOOP and n.src[0].arg.axis == "i0")
    assert sum(item.op is Ops.LOOP for item in outer.src[1].src) == 2


def test_what_does_not_depend_on_a_loop_stands_outside_it() -> None:
    loop = check(k.softmax(3, 9), Schedule())
    row = loops(loop)[-1]
    assert row.src[0].arg.axis == "i0"
    assert sum(item.op is Ops.LOOP for item in row.src[1].src) == 3


def test_a_guard_that_is_the_same_for_a_loop_becomes_an_if() -> None:
    i, j = range_node(6, 0), range_node(9, 1)
    shifted = index.add(i, -2)
    x = k.at(k.param(1, 6, 9), shifted, j)
    value = k.guard(index.inside(shifted, 6), alu(Ops.MUL, x, x))
    kernel = k.kernel(k.out(k.param(0, 6), k.reduce(Ops.ADD, value, j), i))
    loop = check(kernel, Schedule())
    test = next(node for node in toposort(loop) if node.op is Ops.IF)
    assert test.src[1].op is Ops.LOOP
    assert not loop.has(Ops.GUARD)


@pytest.mark.parametrize("lanes", ["", "i0", "r1", "r2"])
def test_a_sum_whose_axes_come_from_the_sum_that_it_reads_alone(lanes: str) -> None:
    i, j, n = range_node(8, 0), range_node(8, 1), range_node(8, 2)
    inner = k.reduce(Ops.ADD, k.at(k.param(2, 8, 8), i, n), n)
    outer = k.reduce(Ops.ADD, alu(Ops.MUL, k.at(k.param(1, 8), j), inner), j)
    both = alu(Ops.ADD, outer, inner)
    kernel = k.kernel(k.out(k.param(0, 8), both, i))
    check(kernel, Schedule((vectorise(lanes),) if lanes else ()))


def test_an_output_off_the_parallel_axis_is_written_once() -> None:
    i, j = range_node(6, 0), range_node(4, 1)
    x = k.param(2, 6)
    first = k.out(k.param(0, 6), k.at(x, i), i)
    other = k.out(k.param(1, 4), cast(const(3, dtypes.int64), dtypes.float32), j)
    kernel = k.kernel(first, other)
    loop = lower(kernel, AVX, Schedule((parallelise("i0"),)))
    arrays = k.arguments(kernel)
    arrays[1][:] = 0
    evaluate_loop(loop, [arrays[s] for s in range(3)], chunks=(0, 5))
    assert (arrays[1] == 0).all()
    evaluate_loop(loop, [arrays[s] for s in range(3)], chunks=(5, 6))
    assert (arrays[1] == 3).all()


def test_a_reduction_stands_as_far_out_as_its_axes_allow() -> None:
    """The sum of a column does not depend on the row: its loop is not inside that of rows."""
    for order, inside in (("'i0', 'i1'", True), ("'i1', 'i0'", False)):
        schedule = parse_schedule(f"Schedule(reorder({order}))")
        loop = check(k.rows_scaled_by_columns(6, 5), schedule)
        (rows,) = [below for below in loops(loop) if below.src[0].arg.axis == "i0"]
        assert ("r2" in {below.src[0].arg.axis for below in loops(rows.src[1])}) == inside


def test_a_tuple_is_stepped_through_spare_registers() -> None:
    """The place of a largest is not changed before it has been compared with."""
    loop = check(k.arg_max(5, 9), Schedule())
    kinds = sorted(str(node.dtype) for node in toposort(loop) if node.op is Ops.ALLOC)
    assert kinds == ["float32", "float32", "int64", "int64"]


def test_accumulators_have_a_place_for_each_point_of_a_tile() -> None:
    text = "Schedule(split('i0', outer='o', u=3), bind('u', 'unroll'), bind('i1', 'vector'))"
    loop = check(k.matmul(6, 8, 5), parse_schedule(text))
    (held,) = [node for node in toposort(loop) if node.op is Ops.ALLOC]
    assert (held.arg.space, held.arg.shape) == ("register", (3, 8))
    # They are cleared for each tile, and stepped in one loop.
    stores = [node for node in toposort(loop) if node.op is Ops.STORE and node.src[0] is held]
    assert [store.src[1].op for store in stores] == [Ops.CONST, Ops.FMA]


def test_lanes_of_a_reduction_are_folded_at_its_end() -> None:
    loop = check(k.row_reduce(5, 32), parse_schedule(
        "Schedule(split('r1', outer='o', v=8), bind('v', 'vector'))"
    ))
    folds = [node for node in toposort(loop) if node.op is Ops.REDUCE]
    assert len(folds) == 1
    (inner,) = [below for below in loops(loop) if below.src[0].arg.axis == "o"]
    assert folds[0] not in toposort(inner)


def test_a_kernel_has_one_parallel_axis() -> None:
    i, j = range_node(4, 0, "a", "pool"), range_node(4, 1, "b", "pool")
    place = index.add(index.mul(i, 4), j)
    kernel = k.kernel(k.out(k.param(0, 16), k.at(k.param(1, 16), place), place))
    with pytest.raises(CompilerBug, match="several parallel axes"):
        to_loop(kernel, True)


def test_what_is_folded_at_once_is_added_to_0_once() -> None:
    """Not each element: 0 is added to the sum of all, so that one of -0 is 0."""
    i, j = range_node(5, 0), range_node(8, 1)
    total = k.reduce(Ops.ADD, k.at(k.param(1, 5, 8), i, j), j)
    kernel = k.kernel(k.out(k.param(0, 5), total, i))
    loop = check(kernel, parse_schedule("Schedule(bind('r1', 'unroll'))"))
    (added,) = [node for node in toposort(loop) if node.op is Ops.ADD and node.dtype == k.F32]
    assert Ops.REDUCE in [operand.op for operand in added.src]
