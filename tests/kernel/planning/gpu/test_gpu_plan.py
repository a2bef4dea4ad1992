"""The plan of a GPU's schedule: axes by their strides, wide accesses, a thread for each point."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from baregrad.dtypes import DType, dtypes
from baregrad.ir.core import index
from baregrad.ir.core.index import variable
from baregrad.ir.core.node import Node, cast, range_node
from baregrad.ir.core.op import Ops
from baregrad.kernel.facts.analysis import facts_of
from baregrad.kernel.language.schedule import Bind, Collapse, Split
from baregrad.kernel.planning.gpu.gpu_plan import GpuPlan
from tests.kernel import kernels as k
from tests.kernel.gpu_kernels import HOPPER, check_gpu

F32 = dtypes.float32


def plan_of(kernel: Node) -> GpuPlan:
    return GpuPlan(facts_of(kernel), HOPPER)


def axes_of(plan: GpuPlan) -> list[Node]:
    """The axes of the results, by their numbers."""
    return sorted(plan.facts.data, key=lambda axis: axis.arg.id)


def permuted(shape: Sequence[int], order: Sequence[int]) -> Node:
    """An array whose axes are written in another order."""
    axes = [range_node(extent, place) for place, extent in enumerate(shape)]
    value = k.at(k.param(1, *shape), *axes)
    out = k.param(0, *[shape[place] for place in order])
    return k.kernel(k.out(out, value, *[axes[place] for place in order]))


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_axes_are_sorted_as_an_array_has_them(order: tuple[int, ...]) -> None:
    shape = (3, 5, 7)
    plan = plan_of(permuted(shape, order))
    strides = np.empty([shape[place] for place in order], np.uint8).strides
    wanted = sorted(range(3), key=lambda axis: -strides[order.index(axis)])
    found = plan.by_stride(axes_of(plan), plan.write)
    assert [axis.arg.id for axis in found] == wanted


def test_axes_that_an_array_does_not_have_come_first() -> None:
    plan = plan_of(k.bias(6, 9))
    (row,) = [one for one in plan.facts.accesses if not one.write and len(one.axes) == 1]
    rows, columns = axes_of(plan)
    assert plan.by_stride([columns, rows], row) == [rows, columns]


def test_several_axes_are_one_under_a_new_name() -> None:
    plan = plan_of(k.elementwise(3, 4, 5, 6))
    axes = axes_of(plan)
    names = [plan.joined(axes[:2]), plan.joined(axes[2:3]), plan.joined(axes[2:])]
    assert names[1] == plan.name(axes[2]) and len(set(names)) == 3
    assert plan.steps == [
        Collapse((plan.name(axes[0]), plan.name(axes[1])), names[0]),
        Collapse((plan.name(axes[2]), plan.name(axes[3])), names[2]),
    ]


def test_a_grid_has_no_axis_of_one_point_and_none_that_may_have_none() -> None:
    """Else what is not along it would not be written either."""
    maybe = variable("maybe", 0, 4)
    rows, columns, none = range_node(6, 0), range_node(1, 1), range_node(maybe, 2)
    total = k.out(k.param(0, 6, 1), k.at(k.param(1, 6, 1), rows, columns), rows, columns)
    part = k.out(k.param(2, maybe, 6), k.at(k.param(3, maybe, 6), none, rows), none, rows)
    plan = plan_of(k.kernel(total, part))
    assert plan.uncertain == {none}
    plan.grid([rows, columns, none])
    assert plan.steps == [Bind(plan.name(rows), "grid")]
    plan.parts([none], [("thread", 32)])
    assert len(plan.steps) == 1
    # Where everything is along it there is nothing else to be written.
    assert plan_of(k.kernel(part)).uncertain == frozenset()


def test_two_axes_of_one_value_lie_across_different_threads() -> None:
    plan = plan_of(k.elementwise(40, 50))
    rows, columns = axes_of(plan)
    plan.parts([columns], [("thread", 32)])
    before = list(plan.steps)
    assert plan.meets([rows], frozenset({"thread"}))
    plan.parts([rows], [("thread", 16)], "grid")
    assert plan.steps == before
    assert not plan.meets([rows], frozenset({"thread_y"}))
    assert not plan.meets([columns], frozenset({"thread"}))
    plan.parts([rows], [("thread_y", 4)], "grid")
    splits = [step for step in plan.steps if isinstance(step, Split)]
    units = {step.axis: step.unit for step in plan.steps if isinstance(step, Bind)}
    assert [[size for _, size in step.parts] for step in splits] == [[0, 32], [0, 4]]
    assert [[units.get(name) for name, _ in step.parts] for step in splits] == [
        [None, "thread"], ["grid", "thread_y"],
    ]  # fmt: skip


@pytest.mark.parametrize("shape", [(5,), (32,), (100,), (3, 41), (2, 3, 64), (1, 7, 1), ()])
@pytest.mark.parametrize(("block", "lanes", "vectors"), [(64, 1, 1), (128, 4, 1), (32, 2, 3)])
def test_each_point_has_one_thread(
    shape: tuple[int, ...], block: int, lanes: int, vectors: int
) -> None:
    kernel = k.elementwise(*shape)
    plan = plan_of(kernel)
    plan.spread(axes_of(plan), block, lanes, vectors)
    program = check_gpu(kernel, plan.schedule())
    assert program.arg.block[0] <= block
    size = int(np.prod(shape, dtype=int))
    # No more than are needed, but for the rest of a warp.
    assert program.arg.block[0] < -(-size // (lanes * vectors)) + HOPPER.warp_lanes


@pytest.mark.parametrize("rows", [1, 3, 8, 21])
def test_each_row_has_its_part_of_a_block(rows: int) -> None:
    kernel = k.row_reduce(rows, 40)
    plan = plan_of(kernel)
    plan.spread_rows(axes_of(plan), 4)
    plan.parts(list(plan.facts.reduced), [("thread", 16)])
    block = check_gpu(kernel, plan.schedule()).arg.block
    assert block == ((16, 4, 1) if rows > 1 else (16, 1, 1))


# --- wide accesses -------------------------------------------------------------------------------


def shifted(count: int, pad: int, first: int, dtype: DType = F32) -> Node:
    """Two rows of a number of elements in rows with a pad, from a place on."""
    i, j = range_node(2, 0), range_node(count, 1)
    source = k.param(1, 2, count + pad, dtype=dtype)
    value = k.at(source, i, index.add(j, first))
    return k.kernel(k.out(k.param(0, 2, count, dtype=dtype), value, i, j))


def widest(count: int, pad: int, first: int, nbytes: int) -> int:
    """The most elements that one access moves, when none of all rows may be unaligned or left."""
    lanes = min(HOPPER.load_bytes // nbytes, 8 if nbytes > 1 else 16)
    while lanes > 1:
        begins = [
            place for row in range(2)
            for place in (row * count, row * (count + pad) + first)
        ]  # fmt: skip
        if count % lanes == 0 and all(place % lanes == 0 for place in begins):
            break
        lanes //= 2
    return lanes


@pytest.mark.parametrize("count", [16, 24, 36, 50, 33])
@pytest.mark.parametrize(("pad", "first"), [(4, 0), (4, 4), (8, 2), (16, 1), (2, 0), (3, 0)])
@pytest.mark.parametrize("dtype", [dtypes.int8, dtypes.float16, F32, dtypes.float64])
def test_accesses_are_as_wide_as_all_rows_let_them(
    count: int, pad: int, first: int, dtype: DType
) -> None:
    plan = plan_of(shifted(count, pad, first, dtype))
    assert plan.lanes(axes_of(plan)) == widest(count, pad, first, max(dtype.itemsize, 1))


@pytest.mark.parametrize(("count", "whole", "lanes"), [
    (64, False, 4), (66, False, 2), (67, False, 1), (67, True, 4), (3, True, 2), (4, True, 4),
])  # fmt: skip
def test_what_fills_no_access_may_be_done_apart(count: int, whole: bool, lanes: int) -> None:
    plan = plan_of(k.elementwise(count))
    assert plan.lanes(axes_of(plan), whole) == lanes


def test_the_narrowest_array_has_the_widest_access() -> None:
    i = range_node(256, 0)
    value = cast(k.at(k.param(1, 256, dtype=dtypes.float16), i), F32)
    plan = plan_of(k.kernel(k.out(k.param(0, 256), value, i)))
    assert plan.lanes(axes_of(plan)) == HOPPER.load_bytes // 2


def test_neighbours_that_are_none_in_some_array_are_moved_one_by_one() -> None:
    plan = plan_of(k.transpose(64, 64))
    assert plan.lanes(axes_of(plan)) == 1
    # An array that does not run along the axis does not mind.
    plan = plan_of(k.rows_scaled_by_columns(64, 64))
    assert plan.lanes(plan.by_stride(axes_of(plan), plan.write)) > 1


def test_axes_that_lie_together_are_one_row() -> None:
    plan = plan_of(k.elementwise(3, 5, 4))
    axes = axes_of(plan)
    assert plan.together(axes) == axes and plan.lanes(axes) == 4
    plan = plan_of(shifted(6, 2, 0))
    rows, columns = axes_of(plan)
    assert plan.together([rows, columns]) == [columns]


def test_what_runs_in_order_is_known() -> None:
    plan = plan_of(k.cumsum(4, 20, 1))
    (along,) = [axis for axis in plan.facts.data if plan.is_serial(axis)]
    assert along.src[0].arg == 20
    assert not any(map(plan.is_serial, axes_of(plan_of(k.row_reduce(4, 20, Ops.MAX)))))
