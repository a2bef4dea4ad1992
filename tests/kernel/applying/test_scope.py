"""Chunks of the parallel axis, and sums that are kept in the output."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.node import const, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.core.substitution import substitute
from baregrad.ir.evaluate.kernel_level import evaluate_kernel
from baregrad.ir.evaluate.linear_level import evaluate_linear
from baregrad.ir.evaluate.loop_level import evaluate_loop
from baregrad.kernel import (
    Schedule,
    choose_schedule,
    lower,
    parse_schedule,
)
from baregrad.kernel.applying.axes import table_after
from baregrad.kernel.applying.scope import chunks_of, flat_array, is_chunks
from baregrad.kernel.facts.analysis import facts_of
from baregrad.kernel.facts.axis_table import Axis
from baregrad.kernel.language.schedule import parallelise
from tests.kernel import kernels as k
from tests.kernel.applying.test_to_loop import loops
from tests.kernel.planning.cpu.test_gemm_blocked import BLOCKS, SMALL, allocations
from tests.kernel.test_lowering import AVX, arguments_at, check
from tests.render.harness import compiled
from tests.render.harness import lower as linearised


@pytest.mark.parametrize("grain", [256, 1])
def test_a_symbolic_parallel_axis_of_no_iterations_runs_its_tail_alone(grain: int) -> None:
    length = index.variable("n", 0, 1 << 20)
    kernel = k.elementwise(length)
    schedule = choose_schedule(kernel, AVX)
    assert "pool" in str(schedule)
    steps = [replace(s, grain=grain) if "pool" in str(s) else s for s in schedule.steps]
    loop = lower(kernel, AVX, Schedule(tuple(steps)))
    for value in (0, 3, 31, 70):
        arrays = arguments_at(kernel, value)
        expected = {slot: np.array(array) for slot, array in arrays.items()}
        evaluate_kernel(kernel, expected, {"n": value})
        evaluate_loop(loop, [arrays[slot] for slot in sorted(arrays)], {"n": value})
        k.assert_equal(expected, arrays)


@pytest.mark.parametrize("rows", [11, 12])
@pytest.mark.parametrize("grain", [1, 2, 3, 5, 12, 100])
def test_chunks_together_make_the_whole(rows: int, grain: int) -> None:
    kernel = k.row_reduce(rows, 6)
    loop = lower(kernel, AVX, Schedule((parallelise("i0", grain),)))
    trips = next(n for n in loops(loop) if n.src[0].arg.bind == "pool").src[0].src[0].arg
    chunks = trips // loop.arg.grain
    assert chunks == -(-rows // grain)
    arrays = k.arguments(kernel)
    expected = k.run_kernel(kernel, arrays)
    for chunk in reversed(range(chunks)):
        evaluate_loop(loop, [arrays[0], arrays[1]], chunks=(chunk, chunk + 1))
    k.assert_equal(expected, arrays)


@pytest.mark.parametrize("route", ["linear", "llvm", "c"])
@pytest.mark.parametrize(("rows", "grain"), [(12, 4), (11, 4), (12, 1)])
def test_a_chunk_is_the_same_rows_at_every_level(rows: int, grain: int, route: str) -> None:
    kernel = k.row_reduce(rows, 6)
    loop = lower(kernel, AVX, Schedule((parallelise("i0", grain),)))
    assert loop.arg.grain == (grain if rows % grain == 0 else 1)
    arrays = k.arguments(kernel)
    expected = k.run_kernel(kernel, arrays)[0]
    found = [np.full_like(arrays[0], np.nan), arrays[1]]
    program = linearised(loop)
    if route == "linear":
        evaluate_linear(program, found, chunks=(1, 2))
    else:
        compiled(program, route)(found, chunks=(1, 2))
    done = slice(grain, 2 * grain)
    np.testing.assert_allclose(found[0][done], expected[done], rtol=1e-5)
    assert np.isnan(np.delete(found[0], done, 0)).all()


def test_sums_are_kept_where_they_are_written() -> None:
    """No array of sums beside the output, no loop that clears it: the first step starts at 0."""
    loop = lower(k.matmul(6, 32, 16), SMALL, parse_schedule(BLOCKS.format(ki=8, near="'r', 'ki'")))
    scratch = [node.arg.shape for node in allocations(loop) if node.arg.space == "scratch"]
    assert sorted(scratch) == [(2, 8, 2, 4), (3, 2, 4)]
    sums = [
        node for node in toposort(loop) if node.op is Ops.STORE and node.src[0].op is Ops.PARAM
    ]
    assert len(sums) == 1
    assert sums[0].has(Ops.GUARD)


def test_what_reads_a_sum_has_it_whole() -> None:
    """With more to do than to write the sum, it is made in memory of its own first."""
    i, j, r = k.range_node(6, 0), k.range_node(32, 1), k.range_node(16, 2)
    product = k.alu(Ops.MUL, k.at(k.param(1, 6, 16), i, r), k.at(k.param(2, 16, 32), r, j))
    total = k.reduce(Ops.ADD, product, r)
    value = k.alu(Ops.MAX, total, k.const(0, k.F32))
    kernel = k.kernel(k.out(k.param(0, 6, 32), value, i, j))
    loop = check(kernel, parse_schedule(BLOCKS.format(ki=8, near="'r', 'ki'")), SMALL)
    assert sum(node.arg.space == "scratch" for node in allocations(loop)) == 3


def test_a_sum_of_what_the_output_may_be_written_over_is_made_elsewhere() -> None:
    """The second step would read what the first one wrote."""
    i, j, r = k.range_node(6, 0), k.range_node(8, 1), k.range_node(16, 2)
    product = k.alu(Ops.MUL, k.at(k.param(1, 6, 8), i, j), k.at(k.param(2, 16), r))
    kernel = k.kernel(k.out(k.param(0, 6, 8), k.reduce(Ops.ADD, product, r), i, j))
    schedule = parse_schedule("Schedule(reorder('r2', 'i0', 'i1'), stage_reduce('r2', 'i0', 'i1'))")
    loop = check(kernel, schedule, SMALL)
    assert [node.arg.shape for node in allocations(loop) if node.arg.space == "scratch"] == [(6, 8)]


@pytest.mark.parametrize(("text", "alone"), [
    ("bind('i0', 'pool', grain=4)", True),
    ("bind('i0', 'pool')", False),  # each iteration is one
    ("bind('i0', 'pool', grain=5)", False),  # the last one is shorter
    ("reorder('i1', 'i0'), bind('i0', 'pool', grain=4)", False),  # it is not outermost
    ("stage_input(2, 'r2', 'i1'), bind('i0', 'pool', grain=4)", False),  # done once a chunk
    ("split('i0', outer='o', u=3, tail='t'), bind('o', 'pool', grain=2)", False),
])  # fmt: skip
def test_chunks_are_iterations_of_one_loop_where_nothing_is_done_once_a_chunk(
    text: str, alone: bool
) -> None:
    kernel = k.matmul(16, 6, 5)
    table = table_after(facts_of(kernel), parse_schedule(f"Schedule({text})"), AVX)
    (name,) = [name for name, axis in table.axes.items() if axis.unit == "pool"]
    assert is_chunks(table, name) == alone


@pytest.mark.parametrize("extent", [1, 7, 12, 13])
@pytest.mark.parametrize("grain", [1, 4, 12, 100])
def test_chunks_have_all_iterations_once(extent: int, grain: int) -> None:
    chunk, inner = chunks_of(Axis("i", extent, False, "i"), grain, 3)
    found = []
    for number in range(index.upper(chunk.src[0])):
        at = {chunk: const(number, dtypes.index)}
        length = index.as_dim(substitute(inner.src[0], at))
        assert isinstance(length, int)
        found += [number * grain + place for place in range(length)]
    assert found == list(range(extent))


def test_an_array_of_several_axes_is_one_of_as_many_elements() -> None:
    table = table_after(facts_of(k.transpose(6, 8)), parse_schedule("Schedule()"), AVX)
    n = index.variable("n", 1, 9)
    assert flat_array(k.param(1, 6, 8), table, frozenset()).arg.shape == (48,)
    line = k.param(1, 48)
    assert flat_array(line, table, frozenset()) is line
    (size,) = flat_array(k.param(1, 6, n), table, frozenset()).arg.shape
    assert size is index.as_node(index.mul(n, 6))
    words = flat_array(k.param(1, 6, 8, dtype=dtypes.int8), table, frozenset((1,)))
    assert (words.dtype, words.arg.shape) == (dtypes.int32, (12,))
