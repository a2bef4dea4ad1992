"""The estimate: lines and rounds counted by hand; good schedules are known from bad ones."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from operator import mul

import pytest

from baregrad.base.errors import ScheduleError
from baregrad.ir.core.node import Node
from baregrad.kernel import Schedule, apply_schedule, choose_schedule, parse_schedule
from baregrad.kernel.facts.analysis import ArrayAccess, facts_of, iterations
from baregrad.kernel.language.schedule import split, vectorise
from baregrad.kernel.search import estimated_ns
from baregrad.kernel.search.estimate import chunks_of, footprint, nests_of, rounds_outside, speedup
from tests.kernel import kernels as k
from tests.kernel.search.accepted import AVX


def test_the_estimate_knows_good_from_bad() -> None:
    target = replace(AVX, cores=4)
    matmul = k.matmul(512, 512, 512)
    good = estimated_ns(matmul, choose_schedule(matmul, target), target)
    assert good < 0.3 * estimated_ns(matmul, Schedule(), target)
    ew = k.elementwise(2048, 2048)
    chosen = choose_schedule(ew, target)
    alone = Schedule(tuple(s for s in chosen.steps if getattr(s, "unit", "") != "pool"))
    assert estimated_ns(ew, chosen, target) < 0.5 * estimated_ns(ew, alone, target)
    # Along a column each element is a line of its own.
    rows = Schedule((split("i1", outer="o", v=8), vectorise("v")))
    columns = Schedule((split("i0", outer="o", v=8), vectorise("v")))
    assert estimated_ns(ew, rows, target) < 0.5 * estimated_ns(ew, columns, target)


# --- what is counted ------------------------------------------------------------------------------


def lines_touched(access: ArrayAccess, axes: list[Node], line: int) -> int:
    """The lines of an array that some loops meet, from its beginning, by enumeration."""
    size = access.array.dtype.itemsize
    strides = [access.stride(axis) or 0 for axis in axes]
    found = set()
    for place in product(*[range(iterations((axis,))) for axis in axes]):
        at = sum(map(mul, place, strides)) * size
        found.update({at // line, (at + size - 1) // line})
    return len(found)


@pytest.mark.parametrize(("rows", "columns"), [(8, 64), (16, 256), (3, 16), (64, 1024)])
def test_a_footprint_is_the_lines_that_loops_meet(rows: int, columns: int) -> None:
    for kernel in (k.transpose(columns, rows), k.elementwise(rows, columns)):
        (nest,) = nests_of(apply_schedule(kernel, Schedule(), AVX))
        for access in (*nest.reads, *nest.writes):
            for axis in nest.axes:
                wanted = 64 * lines_touched(access, [axis], 64)
                assert footprint(access, [axis], 64) == wanted
            # All of a matrix is no more than it has, whatever line is met how often.
            whole = footprint(access, list(nest.axes), 64)
            assert 4 * rows * columns <= whole <= 4 * rows * columns + 64


def test_loops_along_which_an_array_stands_still_bring_nothing_in_again() -> None:
    facts = facts_of(k.matmul(7, 5, 3))
    i, j, r = (*facts.data, *facts.reduced)
    a, b = (next(x for x in facts.accesses if x.array.arg.slot == slot) for slot in (1, 2))
    orders = ([i, j], [j, i], [j], [i, j, r])
    assert [rounds_outside(a, outside) for outside in orders] == [7, 35, 1, 105]
    assert [rounds_outside(b, outside) for outside in orders] == [35, 5, 5, 105]


@pytest.mark.parametrize(("chunks", "cores", "busy"), [
    (1, 4, 1), (4, 4, 4), (5, 4, 2.5), (8, 4, 4), (7, 1, 1), (1000, 4, 4), (3, 8, 3),
])  # fmt: skip
def test_cores_wait_for_the_last_chunk(chunks: int, cores: int, busy: float) -> None:
    assert speedup(chunks, replace(AVX, cores=cores)) == pytest.approx(busy, rel=0.02)


def test_each_output_reduction_and_copy_is_a_nest() -> None:
    text = "Schedule(bind('i0', 'pool', grain=2), stage_input(2, 'r2', 'i1'))"
    schedule = parse_schedule(text)
    applied = apply_schedule(k.matmul(8, 6, 5), schedule, AVX)
    nests = nests_of(applied)
    assert sorted(iterations(nest.axes) for nest in nests) == [5 * 6, 8 * 6, 8 * 6 * 5]
    (total,) = [nest for nest in nests if nest.sums]
    # A product and an addition for each step.
    assert total.flops == 2.0
    assert [len(nest.writes) for nest in nests] == [1, 0, 0]
    assert chunks_of(applied, schedule) == 4
    assert chunks_of(apply_schedule(k.matmul(8, 6, 5), Schedule(), AVX), Schedule()) == 1


def test_what_registers_do_not_hold_is_stored_and_loaded() -> None:
    """8 registers hold most of 8 accumulators, and few of 48."""
    kernel = k.matmul(24, 64, 64)
    for rows, spilled in ((4, False), (24, True)):
        text = (f"Schedule(split('i0', outer='m', u={rows}), split('i1', outer='n', v=16),"
                "bind('u', 'unroll'), bind('v', 'vector'))")
        few, many = (estimated_ns(kernel, parse_schedule(text), replace(AVX, vector_registers=n))
                     for n in (8, 32))
        assert (few > many) == spilled
    with pytest.raises(ScheduleError):
        estimated_ns(kernel, parse_schedule("Schedule(bind('nowhere', 'vector'))"), AVX)
