"""Schedules of writes that keep their order: pieces of rows, and lanes where neighbours are."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Scan
from baregrad.ir.core.monoid import primitive
from baregrad.ir.core.node import Node, alu, const, range_node, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.verify.verify import verify
from baregrad.kernel import choose, lower
from baregrad.kernel.language.schedule import Bind, Reorder, Split
from baregrad.target.cpu import cpu_row_named
from tests.kernel import kernels as k
from tests.render.harness import compiled, host
from tests.render.harness import lower as linearised

AVX512 = cpu_row_named("x86-64-avx512")


def scatter_columns(rows: int, m: int, n: int) -> Node:
    """out[i, index[j]] += x[i, j], x being (m, n) and out (m, rows)."""
    i, j = range_node(m, 0), range_node(n, 1)
    places, x = k.param(1, n, dtype=dtypes.int32), k.param(2, m, n)
    place = index.as_node(Node(Ops.CAST, dtypes.index, (k.at(places, j),)))
    how = primitive(Ops.ADD, dtypes.float32)
    return k.kernel(k.out(k.param(0, m, rows), k.at(x, i, j), i, place, monoid=how))


def test_rows_are_written_in_pieces_of_several_vectors() -> None:
    choice = choose(k.scatter_add(512, 512, 2048), AVX512)
    splits = [step for step in choice.schedule.steps if isinstance(step, Split)]
    vectors = next(step.tile for step in splits if step.axis == "i1o")
    tile = next(step.tile for step in splits if step.axis == "i1")
    assert 256 <= vectors * tile * 4 <= 1024
    (order,) = [step.axes for step in choice.schedule.steps if isinstance(step, Reorder)]
    assert order[1] == "i0"
    assert any("pieces of" in reason for reason in choice.why())


def test_there_are_no_lanes_across_rows_of_neighbours() -> None:
    choice = choose(scatter_columns(512, 512, 2048), AVX512)
    units = {step.unit for step in choice.schedule.steps if isinstance(step, Bind)}
    assert units == {"pool"}
    assert any("another axis has the neighbours" in reason for reason in choice.why())


@pytest.mark.parametrize("columns", [4, 33, 512, 1000, 2048, 2060])
def test_rows_that_meet_are_added_in_order(columns: int) -> None:
    node = k.scatter_add(3, 7, columns)
    arrays = k.arguments(node)
    wanted = np.array(arrays[0])
    for row, place in zip(arrays[1], arrays[2], strict=True):
        wanted[place] += row
    found = k.run_loop(lower(node, AVX512, choose(node, AVX512).schedule), arrays)
    np.testing.assert_array_equal(found[0], wanted)


@pytest.mark.slow
def test_threads_share_a_scan_that_is_joined_with_its_argument() -> None:
    """The steps of a scan stand inside all other loops, that over the two arrays as well."""
    i, j, which, p = range_node(30, 0), range_node(100, 1), range_node(2, 2), range_node(20, 3)
    here = k.at(k.param(1, 30, 100, 20), i, j, p)
    running = Node(Ops.SCAN, k.F32, (here, j), Scan(primitive(Ops.MAX, k.F32)))
    first = alu(Ops.CMPEQ, which, const(0, dtypes.index))
    value = alu(Ops.WHERE, first, here, running)
    node = k.kernel(k.out(k.param(0, 30, 100, 2, 20), value, i, j, which, p))
    schedule = choose(node, AVX512).schedule
    assert any(isinstance(step, Bind) and step.unit == "pool" for step in schedule.steps)
    arrays = k.arguments(node)
    found = k.run_loop(lower(node, AVX512, schedule), arrays)[0]
    np.testing.assert_array_equal(found[:, :, 0], arrays[1])
    np.testing.assert_array_equal(found[:, :, 1], np.maximum.accumulate(arrays[1], 1))


def test_rows_of_a_symbolic_length_do_not_meet() -> None:
    """Strides have no numbers then; each axis is an index of its own all the same."""
    n = index.variable("n", 1, 4096)
    i, j, a = range_node(64, 0), range_node(n, 1), range_node(n, 2)
    x = k.param(1, 64, n)
    total = k.reduce(Ops.ADD, k.at(x, i, a), a)
    node = k.kernel(k.out(k.param(0, 64, n), alu(Ops.DIV, k.at(x, i, j), total), i, j))
    choice = choose(node, host())
    assert not any("keep their order" in reason for reason in choice.why())
    loop = lower(node, host(), choice.schedule)
    verify(loop, "loop")
    (pool,) = [one.src[0] for one in toposort(loop)
               if one.op is Ops.LOOP and one.src[0].arg.bind == "pool"]
    run = compiled(linearised(loop))
    for length in (1, 31, 300):
        given = np.random.default_rng(length).uniform(1, 2, (64, length)).astype(np.float32)
        found = np.zeros_like(given)
        run([found, given], variables={"n": length}, chunks=(0, pool.src[0].arg // loop.arg.grain))
        np.testing.assert_allclose(found, given / given.sum(1, keepdims=True), rtol=1e-5)
