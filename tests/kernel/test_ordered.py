"""Schedules of writes that keep their order: pieces of rows, and lanes where neighbours are."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad.dtypes import dtypes
from baregrad.ir import index
from baregrad.ir.attrs import Scan
from baregrad.ir.monoid import primitive
from baregrad.ir.node import Node, alu, const, range_node
from baregrad.ir.op import Ops
from baregrad.kernel import choose, lower
from baregrad.kernel.schedule_value import Bind, Reorder, Split
from baregrad.target.cpu import cpu_row_named
from tests.kernel import kernels as k

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


def test_threads_share_a_scan_that_is_joined_with_its_argument() -> None:
    """The steps of a scan stand inside all other loops, that over the two arrays as well."""
    i, j, which, p = range_node(30, 0), range_node(400, 1), range_node(2, 2), range_node(20, 3)
    here = k.at(k.param(1, 30, 400, 20), i, j, p)
    running = Node(Ops.SCAN, k.F32, (here, j), Scan(primitive(Ops.MAX, k.F32)))
    first = alu(Ops.CMPEQ, which, const(0, dtypes.index))
    value = alu(Ops.WHERE, first, here, running)
    node = k.kernel(k.out(k.param(0, 30, 400, 2, 20), value, i, j, which, p))
    schedule = choose(node, AVX512).schedule
    assert any(isinstance(step, Bind) and step.unit == "pool" for step in schedule.steps)
    arrays = k.arguments(node)
    found = k.run_loop(lower(node, AVX512, schedule), arrays)[0]
    np.testing.assert_array_equal(found[:, :, 0], arrays[1])
    np.testing.assert_array_equal(found[:, :, 1], np.maximum.accumulate(arrays[1], 1))
