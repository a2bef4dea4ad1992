"""Plans of reductions: the largest decides, what it reads, and what a step of a tile takes."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from baregrad.ir.core.node import Node, alu, range_node
from baregrad.ir.core.op import Ops
from baregrad.kernel.facts.analysis import facts_of
from baregrad.kernel.planning.common.tiling import parts_of
from baregrad.kernel.planning.cpu.sum_plan import (
    SPARE_REGISTERS,
    STEP_CYCLES,
    SumPlan,
    accesses_below,
    cycles_of_tiles,
)
from tests.kernel import kernels as k
from tests.kernel.test_lowering import AVX


def plan_of(kernel: Node) -> SumPlan:
    return SumPlan(facts_of(kernel), AVX)


def test_the_largest_reduction_is_the_main_one() -> None:
    i, j, r = range_node(4, 0), range_node(5, 1), range_node(100, 2)
    small = k.reduce(Ops.ADD, k.at(k.param(1, 4, 5), i, j), j)
    large = k.reduce(Ops.ADD, k.at(k.param(2, 4, 100), i, r), r)
    kernel = k.kernel(k.out(k.param(0, 4), alu(Ops.MUL, small, large), i))
    plan = plan_of(kernel)
    assert plan.main.node is large
    assert [read.array.arg.slot for read in plan.reads] == [2]
    assert [axis.name for axis in plan.own()] == ["r2"]


def test_reads_of_reductions_inside_are_theirs() -> None:
    i, a, b = range_node(3, 0), range_node(9, 1), range_node(9, 2)
    x, y = k.param(1, 3, 9), k.param(2, 9)
    top = k.reduce(Ops.MAX, k.at(x, i, b), b)
    total = k.reduce(Ops.ADD, alu(Ops.MUL, alu(Ops.SUB, k.at(x, i, a), top), k.at(y, a)), a)
    assert [read.array.arg.slot for read in accesses_below(total)] == [1, 2]
    assert [read.array.arg.slot for read in accesses_below(top)] == [1]
    (looked,) = [read for read in accesses_below(k.reduce(
        Ops.ADD, k.at(x, i, a), a)) if read.array.arg.slot == 1]
    assert looked.axes == {i, a}


def test_axes_that_an_operand_does_not_move_along_are_used_again() -> None:
    plan = plan_of(k.matmul(6, 8, 5))
    rows, columns, _ = plan.axes
    left, right = plan.reads
    assert plan.reused([right], columns) == [rows]
    assert plan.reused([left], rows) == [columns]
    assert plan.reused([left, right], columns) == [rows]
    assert plan_of(k.row_reduce(6, 8)).reused(plan_of(k.row_reduce(6, 8)).reads, rows) == []


def test_a_step_takes_as_long_as_the_slowest_of_its_parts() -> None:
    target = replace(AVX, fma_per_cycle=2, fma_latency=4, loads_per_cycle=2.0, vector_registers=16)
    plan = SumPlan(facts_of(k.matmul(6, 8, 5)), target)
    assert plan.cycles(4, 2, 1) == 4 + STEP_CYCLES  # latency
    assert plan.cycles(12, 2, 1) == 6 + STEP_CYCLES  # products
    assert plan.cycles(4, 20, 1) == 10 + STEP_CYCLES  # loads
    held = 16 - SPARE_REGISTERS - 4
    assert plan.cycles(4, 2, held) < float("inf") == plan.cycles(4, 2, held + 1)


@pytest.mark.parametrize(("size", "tile", "steps"), [(7, 3, 4), (8, 4, 5), (5, 5, 1)])
def test_tiles_and_their_rests_are_added_up(size: int, tile: int, steps: int) -> None:
    lanes, rows = parts_of(size, tile), parts_of(9, steps)

    def cycles(vectors: int, each: int) -> float:
        return 10.0 * vectors + each

    one_by_one = [min(tile, size - start) for start in range(0, size, tile)]
    other = [min(steps, 9 - start) for start in range(0, 9, steps)]
    wanted = sum(cycles(v, 2 * s) for v, s in product(one_by_one, other))
    assert cycles_of_tiles(lanes, rows, cycles, 2) == wanted


def test_states_of_a_tuple_share_the_registers() -> None:
    assert plan_of(k.row_reduce(6, 80)).registers == AVX.vector_registers
    assert plan_of(k.arg_max(6, 80)).registers == AVX.vector_registers // 2
