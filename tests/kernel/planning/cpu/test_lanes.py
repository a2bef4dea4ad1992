"""The axis across the lanes: where loads are adjacent, no lane meets another, and tails are few."""

from __future__ import annotations

import pytest

from baregrad.ir.core.node import Node, alu, range_node
from baregrad.ir.core.op import Ops
from baregrad.kernel.facts.analysis import facts_of
from baregrad.kernel.planning.cpu.lanes import (
    MASK_COST,
    TAIL_COST,
    TILE_VECTORS,
    access_cycles,
    broadcast_cycles,
    lane_axis,
    utilisation,
)
from baregrad.kernel.planning.cpu.sum_plan import SumPlan
from tests.kernel import kernels as k
from tests.kernel.test_lowering import AVX, AVX512


def plan_of(kernel: Node) -> SumPlan:
    return SumPlan(facts_of(kernel), AVX)


@pytest.mark.parametrize(("kernel", "name"), [
    (k.row_reduce(64, 256), "r1"),
    (k.column_reduce(256, 64), "i0"),
    (k.matmul(64, 64, 64), "i1"),
    # Both operands lie along the sum: one element for each row and column has no neighbour.
    (k.matmul(64, 64, 256, False, True), "i1"),
    (k.matmul(1, 4, 4096, False, True), "r2"),
    (k.conv(4, 16, 32, 14, 14, 3), "i1"),
    (k.row_reduce(1, 4), None),
])  # fmt: skip
def test_lanes_lie_where_loads_cost_least(kernel: Node, name: str | None) -> None:
    found = lane_axis(plan_of(kernel))
    assert (None if found is None else found.name) == name


@pytest.mark.parametrize(("rows", "op", "name"), [
    (64, Ops.EXP, "i0"), (64, Ops.NEG, None), (6, Ops.EXP, None),
])  # fmt: skip
def test_short_sums_of_costly_functions_lie_side_by_side(
    rows: int, op: Ops, name: str | None
) -> None:
    """In the order of scalars: what is summed does not change the order of a sum."""
    i, j = range_node(rows, 0), range_node(5, 1)
    value = k.reduce(Ops.ADD, alu(op, k.at(k.param(1, rows, 5), i, j)), j)
    found = lane_axis(plan_of(k.kernel(k.out(k.param(0, rows), value, i))))
    assert (None if found is None else found.name) == name


@pytest.mark.parametrize(("rows", "size", "op", "name"), [
    (1, 600, Ops.EXP, "r1"), (3, 600, Ops.EXP, "r1"), (1, 600, Ops.NEG, None),
    (1, 40, Ops.EXP, None),
])  # fmt: skip
def test_long_sums_of_costly_functions_gather_what_lies_apart(
    rows: int, size: int, op: Ops, name: str | None
) -> None:
    """Three elements of each six of a row, whatever number of rows is summed."""
    i, j, q = range_node(rows, 0), range_node(size, 1), range_node(3, 2)
    read = k.at(k.param(1, rows, size, 6), i, j, q)
    value = k.reduce(Ops.ADD, alu(op, read), j, q)
    found = lane_axis(plan_of(k.kernel(k.out(k.param(0, rows), value, i))))
    assert (None if found is None else found.name) == name


@pytest.mark.parametrize("lanes", [8, 16])
def test_lanes_are_busy_but_for_tails(lanes: int) -> None:
    tile = TILE_VECTORS * lanes
    assert utilisation(tile, lanes) == utilisation(4 * tile, lanes) == 1.0
    assert utilisation(1000 * tile + 1, lanes) == 1.0
    # A tile and one more lane: the lane takes a tail's time by itself.
    assert utilisation(tile + 1, lanes) == pytest.approx((tile + 1) / tile / (1 + TAIL_COST))
    # Three lanes are a vector of two and one of one.
    assert utilisation(3, lanes) == pytest.approx(3 / tile / (2 * TAIL_COST))
    assert all(0 < utilisation(size, lanes) <= 1.0 for size in range(lanes, 40 * lanes))


def test_loads_that_are_read_again_cost_less() -> None:
    plan = plan_of(k.matmul(64, 64, 64))
    rows, columns, depth = plan.axes
    left, right = plan.reads
    near, _ = access_cycles(right, columns, 1, 0.5, 8)
    far, _ = access_cycles(left, rows, 1, 0.5, 8)
    assert near == 0.5 / 8 and far == 1.0
    # A copy pays where the same elements are read often: far lanes come from it.
    costs = [access_cycles(left, rows, reads, 0.5, 8)[1] for reads in (1, 4, 16, 64)]
    assert costs == sorted(costs, reverse=True) and costs[-1] < far / 8
    # What does not run along the lanes is one element for all of a tile.
    assert access_cycles(left, columns, 1, 0.5, 8) == (0.5 / (TILE_VECTORS * 8),) * 2
    assert broadcast_cycles(plan, left) == 0.5
    assert broadcast_cycles(plan_of(k.matmul(64, 64, 64, True)), left) == 0.5
    assert depth.reduced


def test_conditions_on_lanes_cost_more() -> None:
    plan = plan_of(k.conv(2, 4, 8, 9, 9, 3, 1, 1))
    image = next(read for read in plan.reads if read.guarded)
    (columns,) = [axis for axis in plan.axes if axis.name == "i3"]
    cost, _ = access_cycles(image, columns, 1, 3.0, 8)
    assert cost == pytest.approx(MASK_COST * 0.5 / 8)
    assert broadcast_cycles(plan, image) == 3.0


def test_neighbouring_axes_are_collapsed_for_lanes() -> None:
    """Rows and columns of a small image together fill vectors that neither does alone."""
    plan = SumPlan(facts_of(k.conv(8, 32, 4, 6, 6, 1)), AVX512)
    found = lane_axis(plan)
    assert found is not None and found.size >= AVX512.lanes(4)
    assert found in plan.axes
    names = [step.name for step in plan.steps if hasattr(step, "name")]
    assert found.name in names or len(found.nodes) == 1
