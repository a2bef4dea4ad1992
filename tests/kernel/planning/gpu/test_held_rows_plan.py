"""Schedules of rows that threads hold: all loops over a row lie as what is held of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from baregrad.ir.core.node import Node, range_node, toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel import choose_schedule
from baregrad.kernel.facts.analysis import facts_of
from baregrad.kernel.language.schedule import Bind, Split
from baregrad.kernel.loops.held_rows import hold_rows, row_axes
from baregrad.kernel.planning.gpu.gpu_plan import GpuPlan
from baregrad.kernel.planning.gpu.held_rows_plan import (
    BLOCK,
    UNITS,
    plan_held_rows,
    plan_short_rows,
)
from baregrad.render import get
from tests.kernel import kernels as k
from tests.kernel.gpu_kernels import HOPPER, check_gpu


def held(kernel: Node) -> GpuPlan:
    """The plan of a kernel whose rows are held."""
    plan = GpuPlan(facts_of(hold_rows(kernel, HOPPER)), HOPPER)
    assert plan_held_rows(plan)
    return plan


def tile_of(plan: GpuPlan) -> list[int]:
    """The extents of what is held: steps, warps, threads and lanes."""
    (stage, *_) = [node for node in toposort(*plan.facts.outs) if node.op is Ops.STAGE]
    sizes = {axis.arg.axis: int(axis.src[0].arg) for axis in stage.src[1:]}
    return [sizes.get(name, 1) for name, _ in UNITS]


@pytest.mark.parametrize("make", [k.softmax, k.layer_norm], ids=lambda make: make.__name__)
@pytest.mark.parametrize("length", [25, 33, 128, 1000, 4096, 8192])
def test_every_loop_over_a_row_is_in_the_same_parts(
    make: Callable[[int, int], Node], length: int
) -> None:
    plan = held(make(64, length))
    steps, *tile = tile_of(plan)
    units = {step.axis: step.unit for step in plan.steps if isinstance(step, Bind)}
    names = {plan.name(axis) for axis in row_axes(plan.facts)}
    splits = {s.axis: s for s in plan.steps if isinstance(s, Split) and s.axis in names}
    # The maximum or the mean, the sum, and the results.
    assert len(splits) == len(names) >= 3
    for split in splits.values():
        assert [size for _, size in split.parts] == [0, *tile] and split.masked
        for (part, _), (_, unit), size in zip(split.parts, UNITS, (steps, *tile), strict=True):
            assert units.get(part) == (unit if size > 1 else None)
    # A row of several warps has a block; shorter ones share one.
    (rows,) = [plan.name(axis) for axis in plan.facts.data if plan.name(axis) not in names]
    if tile[0] > 1:
        assert units[rows] == "grid"
        return
    (shared,) = [s for s in plan.steps if isinstance(s, Split) and s.axis not in splits]
    assert shared.axis == rows and shared.parts[1][1] == max(BLOCK // tile[1], 1)


@pytest.mark.parametrize("rows", [1, 5, 17])
def test_numbers_of_rows_that_fill_no_block(rows: int) -> None:
    kernel = k.softmax(rows, 40)
    check_gpu(kernel, held(kernel).schedule())


@pytest.mark.parametrize("kernel", [
    k.elementwise(8, 64), k.row_reduce(8, 64), k.matmul(8, 8, 16), k.softmax(8, 4),
], ids=["map", "sum", "product", "short rows"])  # fmt: skip
def test_other_kernels_are_left_to_others(kernel: Node) -> None:
    plan = GpuPlan(facts_of(hold_rows(kernel, HOPPER)), HOPPER)
    assert not plan_held_rows(plan)
    assert plan.steps == [] and plan.reasons == []


def test_it_is_said_how_rows_are_held() -> None:
    for length, who in ((64, "held in registers by"), (8192, "held in registers by a block")):
        plan = held(k.softmax(64, length))
        ((text, *facts),) = plan.reasons
        assert who in text.format(*facts)


# A machine that few threads keep busy, as an interpreter is.
SMALL = replace(HOPPER, busy_threads=32)


@pytest.mark.parametrize("make", [k.softmax, k.layer_norm, k.row_reduce])
@pytest.mark.parametrize("length", [2, 3, 5, 6, 8, 13, 20, 24])
def test_threads_have_whole_rows_of_a_few_neighbours(
    make: Callable[[int, int], Node], length: int
) -> None:
    """None makes the sums of another one's row, and all of its accesses are wide."""
    kernel = make(300, length)
    schedule = choose_schedule(kernel, SMALL)
    units = {step.axis: step.unit for step in schedule.steps if isinstance(step, Bind)}
    along = {axis for axis, unit in units.items() if unit.startswith("thread")}
    assert along == {"i0_t0"}
    parts = dict(p for step in schedule.steps if isinstance(step, Split) for p in step.parts)
    each = parts.get("i0_u1", 1)
    assert each * length <= 32
    # 300 rows can be shared out by fours at most.
    assert 4 * each * length % 16 == 0 or each == 4 or 2 * each * length > 32
    program = check_gpu(kernel, schedule, SMALL)
    text = get("ptx").render(program, HOPPER)
    wide = [width for width in (4, 2) if each * length % width == 0]
    if wide:
        assert f"ld.global.v{wide[0]}.f32" in text
    if wide and make is not k.row_reduce:
        assert f"st.global.v{wide[0]}.f32" in text


@pytest.mark.parametrize(("rows", "length"), [(301, 3), (1001, 5), (299, 2), (77, 7)])
def test_rows_that_no_access_divides_are_several_at_once(rows: int, length: int) -> None:
    """Threads read rows beside each other, and wait for those of a thread together."""
    kernel = k.softmax(rows, length)
    schedule = choose_schedule(kernel, replace(HOPPER, busy_threads=16))
    (split,) = [s for s in schedule.steps if isinstance(s, Split) and s.axis == "i0"]
    assert [name for name, _ in split.parts] == ["i0_o", "i0_u0", "i0_t1"]
    assert dict(split.parts)["i0_u0"] == 4 if length > 2 else 2
    check_gpu(kernel, schedule, SMALL)


@pytest.mark.parametrize(("rows", "length"), [(300, 25), (300, 100), (20, 3)])
def test_longer_and_fewer_rows_are_shared(rows: int, length: int) -> None:
    plan = GpuPlan(facts_of(k.softmax(rows, length)), SMALL)
    facts = plan.facts
    row = [axis for axis in facts.data if plan.name(axis) == "i1"]
    assert not plan_short_rows(plan, [axis for axis in facts.data if axis not in row], row)
    assert not plan.steps


@pytest.mark.parametrize("length", [0, 1])
def test_sums_of_one_number_of_each_row_or_none_have_no_rows(length: int) -> None:
    """As a convolution of one tap that steps over some numbers has."""
    i, r = range_node(300, 0), range_node(length, 1)
    total = k.reduce(Ops.ADD, k.at(k.param(1, 300, 3), i, r), r)
    kernel = k.kernel(k.out(k.param(0, 300), total, i))
    plan = GpuPlan(facts_of(kernel), SMALL)
    assert not plan_short_rows(plan, plan.facts.data, [])
    check_gpu(kernel, choose_schedule(kernel, SMALL), SMALL)
