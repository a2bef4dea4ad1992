"""One axis split for a tile: vectors, registers, loops and tails, which cover it once."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest

from baregrad.base.bits import is_power_of_two
from baregrad.dtypes import dtypes
from baregrad.ir.core.index import upper
from baregrad.ir.core.node import Node
from baregrad.kernel import Schedule
from baregrad.kernel.applying.axes import table_after
from baregrad.kernel.facts.analysis import facts_of
from baregrad.kernel.facts.axis_table import AxisTable
from baregrad.kernel.language.schedule import Bind, StageInput
from baregrad.kernel.planning.common.tiling import CpuPlan, PlannedAxis, merged, parts_of, powers_of
from baregrad.kernel.planning.first_schedule import Choice
from baregrad.target.cpu import CpuTarget
from tests.kernel import kernels as k
from tests.kernel.coverage import once, reached
from tests.kernel.test_lowering import AVX


def test_only_powers_of_two_of_vectors_are_one_value() -> None:
    # Compilers take others apart lane by lane.
    assert [merged(count, 16) for count in range(1, 9)] == [
        (1, 16), (1, 32), (3, 16), (1, 64), (5, 16), (3, 32), (7, 16), (2, 64),
    ]  # fmt: skip


def plan_of(kernel: Node, target: CpuTarget = AVX) -> CpuPlan:
    return CpuPlan(facts_of(kernel), target)


def finished(plan: CpuPlan) -> AxisTable:
    """The table of axes after the steps of a plan, none of which is refused."""
    return table_after(plan.facts, Schedule(tuple(plan.steps)), plan.target)


WAYS: tuple[Callable[[CpuPlan, PlannedAxis], None], ...] = (
    lambda plan, axis: plan.vectorise(axis, 8),
    lambda plan, axis: plan.vectorise(axis, 8, 3),
    lambda plan, axis: plan.vectorise(axis, 8, 4, wide=True),
    lambda plan, axis: plan.vectorise(axis, 8, 2, carried=True),
    lambda plan, axis: plan.vectorise(axis, 8, 6, carried=True, wide=True),
    lambda plan, axis: plan.vectorise_masked(axis, 8),
    lambda plan, axis: plan.unroll(axis, 5),
    lambda plan, axis: plan.keep(axis),
)


@pytest.mark.parametrize("way", WAYS, ids=range(len(WAYS)))
@pytest.mark.parametrize("extent", [1, 3, 7, 8, 13, 16, 23, 24, 40, 61, 64])
def test_vectors_registers_and_tails_cover_an_axis_once(extent: int, way: object) -> None:
    kernel = k.elementwise(extent)
    plan = plan_of(kernel)
    (axis,) = plan.axes
    way(plan, axis)  # type: ignore[operator]
    table = finished(plan)
    assert reached(table, table.pieces_of(facts_of(kernel).data[0])) == once(extent)
    # The loops that are left have the trips that the plan says.
    trips = {name: upper(one.extent) for name, one in table.axes.items() if one.unit == "loop"}
    assert {name: count for name, count in trips.items() if count > 1} == {
        name: count for name, count in axis.loops if count > 1
    }


@pytest.mark.parametrize("extent", [8, 11, 24, 29, 63])
def test_vectors_that_loops_carry_are_powers_of_two(extent: int) -> None:
    """Compilers split others lane by lane."""
    plan = plan_of(k.elementwise(extent))
    plan.vectorise(plan.axes[0], 8, 3, carried=True)
    for axis in finished(plan).axes.values():
        if axis.unit == "vector":
            assert isinstance(axis.extent, int)
            assert is_power_of_two(axis.extent) and axis.extent <= 8


@pytest.mark.parametrize("size", range(1, 20))
def test_falling_powers_of_two_add_up(size: int) -> None:
    kernel = k.elementwise(size)
    steps, tiles = powers_of("i0", size)
    table = table_after(facts_of(kernel), Schedule(tuple(steps)), AVX)
    sizes = [upper(table.axes[name].extent) for (name,) in tiles]
    assert sum(sizes) == size
    assert sizes == sorted(sizes, reverse=True) and all(map(is_power_of_two, sizes))


def test_whole_tiles_and_the_rest() -> None:
    for size, tile in product(range(1, 40), range(1, 9)):
        parts = parts_of(size, tile)
        assert sum(each * count for each, count in parts) == size
        assert all(each == tile for each, count in parts[:-1])


def test_neighbouring_axes_are_one_where_every_access_sees_them_so() -> None:
    def axes(kernel: Node) -> list[tuple[str, int]]:
        return [(axis.name, axis.size) for axis in plan_of(kernel).axes]

    assert axes(k.elementwise(4, 5, 6)) == [("i0_i1_i2", 120)]
    assert axes(k.transpose(4, 5)) == [("i0", 4), ("i1", 5)]
    assert axes(k.bias(4, 5)) == [("i0", 4), ("i1", 5)]
    assert axes(k.whole_reduce(4, 5)) == [("r0_r1", 20)]
    # What is computed with its own place stays an axis.
    assert axes(k.arg_max(4, 5)) == [("i0", 4), ("r1", 5)]


def test_lanes_are_those_of_the_widest_element_that_moves() -> None:
    for dtype, lanes in ((dtypes.float32, 8), (dtypes.float64, 4), (dtypes.int8, 32),
                         (dtypes.float16, 8)):
        assert plan_of(k.elementwise(64, dtype=dtype)).lanes == lanes


def test_an_expression_has_the_lanes_of_one_axis() -> None:
    plan = plan_of(k.transpose(16, 24))
    rows, columns = plan.axes
    assert not plan.meets_vector(rows)
    plan.vectorise(columns, 8)
    assert plan.meets_vector(rows)
    assert not plan.meets_vector(columns)


def test_chunks_are_of_one_size_where_a_copy_lies_over_them() -> None:
    plan = plan_of(k.matmul(24, 16, 8))
    for axis in plan.axes:
        plan.keep(axis)
    free = plan.schedule(["i0", "i1", "r2"], Bind("i0", "pool", 7))
    assert Bind("i0", "pool", 7) in free.steps
    plan.stages.append(StageInput(1, ("i0", "r2")))
    held = plan.schedule(["i0", "i1", "r2"], Bind("i0", "pool", 7))
    assert Bind("i0", "pool", 6) in held.steps


def test_reasons_are_put_into_words_when_they_are_asked_for() -> None:
    plan = plan_of(k.elementwise(4))
    plan.because("{} of {}", 3, "axes")
    assert plan.reasons == [("{} of {}", 3, "axes")]
    assert Choice(Schedule(), tuple(plan.reasons)).why() == ("3 of axes",)
