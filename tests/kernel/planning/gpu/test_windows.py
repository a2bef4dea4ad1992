"""Overlapping reads on a GPU: tiles of results, each element loaded once and as many at a time."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from baregrad import render
from baregrad.dtypes import DType, dtypes
from baregrad.engine.compiler import Compiler
from baregrad.ir.core import index
from baregrad.ir.core.node import Node, alu, cast, range_node
from baregrad.ir.core.op import Ops
from baregrad.kernel import choose_schedule
from baregrad.kernel.language.schedule import Bind, Collapse
from tests.kernel import kernels as k
from tests.kernel.gpu_kernels import HOPPER, check_gpu
from tests.kernel.loops.test_written_sums import (
    depthwise_gradient,
    distances,
    largest_places,
    window,
)

BF16 = dtypes.bfloat16
# A machine that few threads keep busy, so that small kernels have tiles as large ones do.
SMALL = replace(HOPPER, busy_threads=1)


def depthwise(n: int, c: int, h: int, w: int, taps: int, stride: int, dtype: DType) -> Node:
    """A depthwise convolution padded by half its filter, summed in float32."""
    sizes = ((h - 1) // stride + 1, (w - 1) // stride + 1)
    b, f, y, x = (range_node(e, p) for p, e in enumerate((n, c, *sizes)))
    u, v = range_node(taps, 4), range_node(taps, 5)
    row, col = (
        index.sub(index.add(index.mul(a, stride), t), taps // 2) for a, t in ((y, u), (x, v))
    )
    inside = index.both(index.inside(row, h), index.inside(col, w))
    read = k.guard(inside, cast(k.at(k.param(1, n, c, h, w, dtype=dtype), b, f, row, col), k.F32))
    tap = cast(k.at(k.param(2, c, taps, taps, dtype=dtype), f, u, v), k.F32)
    total = k.reduce(Ops.ADD, alu(Ops.MUL, read, tap), u, v)
    return k.kernel(k.out(k.param(0, n, c, *sizes, dtype=dtype), cast(total, dtype), b, f, y, x))


def blurred(m: int, n: int) -> Node:
    """The sum of each element and its neighbours to the left and above, where there are any."""
    i, j = range_node(m, 0), range_node(n, 1)
    x = k.param(1, m, n)
    left = k.guard(index.less(0, j), k.at(x, i, index.sub(j, 1)))
    above = k.guard(index.less(0, i), k.at(x, index.sub(i, 1), j))
    total = alu(Ops.ADD, alu(Ops.ADD, left, above), k.at(x, i, j))
    return k.kernel(k.out(k.param(0, m, n), total, i, j))


def repeated(m: int, n: int, times: int) -> Node:
    """Each element of a row so many times."""
    i, j = range_node(m, 0), range_node(n * times, 1)
    read = k.at(k.param(1, m, n), i, index.floordiv(j, times))
    return k.kernel(k.out(k.param(0, m, n * times), read, i, j))


def reversed_rows(m: int, n: int) -> Node:
    i, j = range_node(m, 0), range_node(n, 1)
    read = k.at(k.param(1, m, n), i, index.sub(n - 1, j))
    return k.kernel(k.out(k.param(0, m, n), read, i, j))


def has_tiles(kernel: Node) -> bool:
    """Whether a thread makes several results, or several sums."""
    steps = choose_schedule(kernel, SMALL).steps
    return any(isinstance(step, Bind) and step.unit == "unroll" for step in steps)


def accesses(kernel: Node, pattern: str = r"(?:ld|st)\.global\S*") -> dict[str, int]:
    """How often the text of a kernel has each kind of access to memory, or of another word."""
    *_, last = Compiler(HOPPER, render.get("ptx"), None, None).stages(kernel)
    found: dict[str, int] = {}
    for word in re.findall(pattern, str(last.result)):
        found[word] = found.get(word, 0) + 1
    return found


@pytest.mark.parametrize("shape", [
    (1, 2, 8, 16, 3, 1), (1, 3, 7, 7, 3, 1), (2, 2, 5, 13, 3, 1), (1, 2, 14, 14, 5, 1),
    (1, 2, 9, 15, 3, 2), (1, 1, 6, 8, 7, 1), (1, 1, 1, 40, 3, 1),
])
def test_depthwise_convolutions(shape: tuple[int, int, int, int, int, int]) -> None:
    kernel = depthwise(*shape, dtypes.float32)
    assert has_tiles(kernel)
    check_gpu(kernel, choose_schedule(kernel, SMALL), SMALL)


@pytest.mark.parametrize("shape", [(2, 3, 6, 16, 3), (1, 2, 9, 14, 3), (1, 2, 40, 56, 5)])
def test_gradients_by_filters(shape: tuple[int, int, int, int, int]) -> None:
    kernel = depthwise_gradient(*shape)
    assert has_tiles(kernel)
    check_gpu(kernel, choose_schedule(kernel, SMALL), SMALL)


@pytest.mark.parametrize(("taps", "step"), [(2, 2), (3, 2), (3, 1)])
def test_pooling(taps: int, step: int) -> None:
    kernel = window(6, 24, taps, step, Ops.MAX)
    assert has_tiles(kernel)
    check_gpu(kernel, choose_schedule(kernel, SMALL), SMALL)


def test_places_of_the_largest() -> None:
    kernel = largest_places(6, 24, 3, 2)
    assert has_tiles(kernel)
    check_gpu(kernel, choose_schedule(kernel, SMALL), SMALL)


def test_stencils_that_are_written_by_hand() -> None:
    kernel = blurred(12, 40)
    assert has_tiles(kernel)
    check_gpu(kernel, choose_schedule(kernel, SMALL), SMALL)


@pytest.mark.parametrize("kernel", [
    repeated(6, 20, 2), repeated(3, 8, 3), reversed_rows(5, 24), reversed_rows(2, 10),
])
def test_what_is_read_at_other_places_along_a_row(kernel: Node) -> None:
    assert has_tiles(kernel)
    check_gpu(kernel, choose_schedule(kernel, SMALL), SMALL)


@pytest.mark.parametrize("kernel", [
    k.matmul(12, 24, 5), k.matmul(7, 9, 3, b_t=True), distances(12, 16, 3),
])
def test_short_sums_of_each_with_each(kernel: Node) -> None:
    assert has_tiles(kernel)
    check_gpu(kernel, choose_schedule(kernel, SMALL), SMALL)


def test_a_thread_reads_a_row_of_a_product_once_for_its_columns() -> None:
    # Eight rows of four columns: four of either factor's steps at once.
    found = accesses(k.matmul(8192, 4096, 4))
    assert found == {"ld.global.v4.f32": 8 + 4, "st.global.v4.f32": 8}


def far_factor(m: int, heads: int, n: int, depth: int, beside: bool) -> Node:
    """Short products by a factor whose neighbours are far from each other, as those of heads are.

    beside: the heads of a result lie between its rows and columns.
    """
    axes = (m, heads, n) if beside else (heads, m, n)
    places = [range_node(size, at) for at, size in enumerate(axes)]
    h, i = places[:2][::-1] if beside else places[:2]
    j, r = places[2], range_node(depth, 3)
    left, right = k.at(k.param(1, m, heads, depth), i, h, r), k.at(
        k.param(2, n, heads, depth), j, h, r
    )
    total = k.reduce(Ops.ADD, alu(Ops.MUL, left, right), r)
    return k.kernel(k.out(k.param(0, *axes), total, *places))


@pytest.mark.parametrize("beside", [False, True])
def test_rows_share_a_factor_whose_neighbours_are_far_from_each_other(beside: bool) -> None:
    kernel = far_factor(16, 6, 40, 3, beside)
    steps = choose_schedule(kernel, SMALL).steps
    units = {step.axis: step.unit for step in steps if isinstance(step, Bind)}
    rows = "i0" if beside else "i1"
    assert [unit for axis, unit in units.items() if axis.startswith(rows)].count("unroll") == 1
    check_gpu(kernel, choose_schedule(kernel, SMALL), SMALL)
    # Three elements of the factor for eight rows of it, of which each has three of its own.
    found = accesses(far_factor(4096, 6, 4096, 3, beside))
    assert sum(count for name, count in found.items() if name.startswith("ld")) <= 3 + 8 * 3


def test_halves_of_rows_are_read_as_they_lie() -> None:
    i, j = range_node(4096, 0), range_node(4096, 1)
    x = k.param(1, 4096, 8192)
    both = alu(Ops.MUL, k.at(x, i, j), k.at(x, i, index.add(j, 4096)))
    kernel = k.kernel(k.out(k.param(0, 4096, 4096), both, i, j))
    assert accesses(kernel) == {"ld.global.v4.f32": 2, "st.global.v4.f32": 1}


def test_what_fills_no_accesses_is_spread_element_by_element() -> None:
    steps = choose_schedule(reversed_rows(8, 1 << 20 | 5), SMALL).steps
    assert any(isinstance(step, Collapse) for step in steps)


def test_what_is_read_at_other_places_is_moved_at_once() -> None:
    wide = {"ld.global.v4.f32": 1, "st.global.v4.f32": 1}
    assert accesses(reversed_rows(4096, 4096)) == wide
    assert accesses(repeated(4096, 2048, 2)) == {"ld.global.v2.f32": 1, "st.global.v4.f32": 1}


def test_a_thread_loads_rows_at_once_for_four_rows_of_eight_results() -> None:
    kernel = depthwise(64, 256, 56, 56, 3, 1, BF16)
    found = accesses(kernel)
    # Six rows of eight neighbours with one more on either side, and nine weights.
    assert found == {"ld.global.v4.b32": 6, "ld.global.b16": 6 * 2 + 9, "st.global.v4.b32": 4}
    # The first and the last row and column may be outside; all else is inside, and not asked.
    assert accesses(kernel, r"setp\.lt") == {"setp.lt": 4}


def test_a_thread_reads_stretches_once_for_all_places_of_a_window() -> None:
    found = accesses(depthwise_gradient(1, 512, 56, 56, 3))
    # Eight neighbours of one image, and of three rows of the other with one more on either side.
    assert found == {"ld.global.v4.f32": 2 + 3 * 2, "ld.global.f32": 3 * 2, "st.global.f32": 9}


def test_small_kernels_have_a_thread_for_each_result() -> None:
    assert accesses(depthwise(1, 2, 8, 8, 3, 1, BF16))["st.global.b16"] == 1
