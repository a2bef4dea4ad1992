"""Sums of comparisons: of all pairs, and of what searches find."""

from __future__ import annotations

import pytest

from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.node import Node, alu, const, range_node
from baregrad.ir.core.op import Ops
from baregrad.kernel import choose_schedule, facts_of
from baregrad.kernel.facts.pairs import ALL_THREADS, is_of_all_pairs, searchers
from baregrad.kernel.language.schedule import Bind
from tests.kernel import kernels as k
from tests.kernel.gpu_kernels import HOPPER, check_gpu


@pytest.mark.parametrize(("kernel", "wanted"), (
    (k.all_pairs(3, 70, 40), True),
    # Neighbours read what lies beside each other, or nothing twice; and floats have an order.
    (k.column_reduce(40, 70, Ops.MAX), False), (k.row_reduce(40, 70, Ops.MAX), False),
    (k.matmul(8, 8, 8), False),
), ids=("pairs", "columns", "rows", "product"))  # fmt: skip
def test_pairs_are_of_what_neighbours_share(kernel: Node, wanted: bool) -> None:
    facts = facts_of(kernel)
    assert is_of_all_pairs(facts, frozenset(facts.data)) == wanted


def chased(count: int, steps: int, reads: int, dtype: DType = dtypes.int32) -> Node:
    """Sums of what so many reads, each of the place that the one before found, come to."""
    i, j = range_node(count, 0), range_node(steps, 1)
    table = k.param(1, 1 << 8, dtype=dtypes.int32)
    found = Node(Ops.CAST, dtypes.int32, (alu(Ops.ADD, i, j),))
    for _ in range(reads):
        near = alu(Ops.AND, found, const((1 << 8) - 1, dtypes.int32))
        found = k.at(table, Node(Ops.CAST, dtypes.index, (near,)))
    if dtype is dtypes.float32:
        found = Node(Ops.CAST, dtypes.float32, (found,))
    return k.kernel(k.out(k.param(0, count, dtype=found.dtype), k.reduce(Ops.ADD, found, j), i))


@pytest.mark.parametrize(("steps", "reads", "dtype", "wanted"), (
    (15, 5, dtypes.int32, 16), (15, 2, dtypes.int32, 1), (40, 5, dtypes.int32, 1),
    (15, 5, dtypes.float32, 1),
), ids=("searches", "few reads", "more than a warp", "floats"))  # fmt: skip
def test_lanes_are_for_chains_of_reads(steps: int, reads: int, dtype: DType, wanted: int) -> None:
    facts = facts_of(chased(100, steps, reads, dtype))
    assert searchers(facts, HOPPER, 100, steps) == wanted


def test_more_results_than_a_machine_has_threads_for_have_one_each() -> None:
    facts = facts_of(chased(100, 15, 5))
    most = ALL_THREADS * HOPPER.units // 16
    assert [searchers(facts, HOPPER, points, 15) for points in (most, most + 1)] == [16, 1]


@pytest.mark.parametrize("shape", [(3, 70, 40), (2, 33, 600), (40, 9, 130)])
def test_neighbours_of_all_pairs_are_threads_of_a_warp(shape: tuple[int, int, int]) -> None:
    """What they are compared with is read once for all of them."""
    kernel = k.all_pairs(*shape)
    schedule = choose_schedule(kernel, HOPPER)
    check_gpu(kernel, schedule)
    steps = schedule.steps
    along = [step.axis[0] for step in steps if isinstance(step, Bind) and step.unit == "thread"]
    assert along and "r" not in along


def test_many_results_of_all_pairs_have_a_thread_each() -> None:
    few, many = (str(choose_schedule(k.all_pairs(rows, 128, 128), HOPPER)) for rows in (4, 2000))
    assert "thread_y" in few and "thread_y" not in many
