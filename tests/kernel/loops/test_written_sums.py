"""Short sums over windows that slide along an output are operations, one after the other."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad.ir.core import index
from baregrad.ir.core.attrs import Reduce
from baregrad.ir.core.monoid import arg_extreme
from baregrad.ir.core.node import Node, alu, range_node, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.verify.verify import verify
from baregrad.kernel.facts.analysis import facts_of
from baregrad.kernel.loops.written_sums import STRETCHES, window_axes, write_sums
from tests.kernel import kernels as k
from tests.kernel.gpu_kernels import HOPPER


def window(m: int, n: int, taps: int, step: int, op: object = Ops.ADD) -> Node:
    """Sums or maxima of windows of so many elements that begin `step` apart."""
    i, j, r = range_node(m, 0), range_node(n, 1), range_node(taps, 2)
    read = k.at(k.param(1, m, (n - 1) * step + taps), i, index.add(index.mul(j, step), r))
    return k.kernel(k.out(k.param(0, m, n), k.reduce(op, read, r), i, j))


def largest_places(m: int, n: int, taps: int, step: int) -> Node:
    """The place of the largest element of each such window."""
    i, j, r = range_node(m, 0), range_node(n, 1), range_node(taps, 2)
    read = k.at(k.param(1, m, (n - 1) * step + taps), i, index.add(index.mul(j, step), r))
    place = Node(Ops.CAST, k.I64, (r,))
    both = Node(Ops.REDUCE, read.dtype, (read, place, r), Reduce(arg_extreme(Ops.MAX, read.dtype)))
    return k.kernel(k.out(k.param(0, m, n, dtype=k.I64), Node(Ops.PROJ, k.I64, (both,), 1), i, j))


def depthwise_gradient(n: int, c: int, h: int, w: int, taps: int) -> Node:
    """The gradient of a depthwise convolution by its filter, padded by half of that."""
    f, u, v = (range_node(e, p) for p, e in enumerate((c, taps, taps)))
    b, y, x = (range_node(e, 3 + p) for p, e in enumerate((n, h, w)))
    row, col = (index.sub(index.add(a, t), taps // 2) for a, t in ((y, u), (x, v)))
    inside = index.both(index.inside(row, h), index.inside(col, w))
    read = k.guard(inside, k.at(k.param(1, n, c, h, w), b, f, row, col))
    value = alu(Ops.MUL, k.at(k.param(2, n, c, h, w), b, f, y, x), read)
    return k.kernel(k.out(k.param(0, c, taps, taps), k.reduce(Ops.ADD, value, b, y, x), f, u, v))


def written(kernel: Node) -> Node:
    """The kernel with what is written out, after comparing what both compute."""
    found = write_sums(kernel, HOPPER)
    verify(found, "kernel")
    arrays = k.arguments(kernel)
    k.assert_equal(k.run_kernel(kernel, arrays), k.run_kernel(found, arrays))
    return found


def count(root: Node, op: object) -> int:
    return sum(node.op is op for node in toposort(root))


@pytest.mark.parametrize("op", [Ops.ADD, Ops.MAX, Ops.MUL])
@pytest.mark.parametrize(("taps", "step"), [(3, 1), (2, 2), (3, 2), (5, 3)])
def test_windows_that_overlap_or_lie_side_by_side(taps: int, step: int, op: object) -> None:
    found = written(window(2, 12, taps, step, op))
    assert not found.has(Ops.REDUCE)
    assert count(found, Ops.INDEX) == taps


def distances(m: int, n: int, width: int) -> Node:
    """The square of the distance of each point of m from each of n."""
    i, j, r = range_node(m, 0), range_node(n, 1), range_node(width, 2)
    a, b = k.at(k.param(1, m, width), i, r), k.at(k.param(2, n, width), j, r)
    apart = alu(Ops.SUB, a, b)
    return k.kernel(k.out(k.param(0, m, n), k.reduce(Ops.ADD, alu(Ops.MUL, apart, apart), r), i, j))


@pytest.mark.parametrize("kernel", [k.matmul(20, 24, 5), distances(9, 12, 3)])
def test_short_sums_of_each_with_each(kernel: Node) -> None:
    assert not written(kernel).has(Ops.REDUCE)


def test_places_of_the_largest() -> None:
    found = written(largest_places(2, 12, 3, 2))
    assert not found.has(Ops.REDUCE, Ops.PROJ)
    assert count(found, Ops.INDEX) == 3


def test_a_depthwise_convolution_is_a_chain_with_one_rounding_each() -> None:
    found = written(k.conv(2, 3, 3, 6, 8, 3, pad=1, groups=3))
    assert not found.has(Ops.REDUCE)
    assert count(found, Ops.FMA) == 8
    assert count(found, Ops.MUL) > 0


@pytest.mark.parametrize("own", [True, False], ids=["squares", "products"])
@pytest.mark.parametrize("taps", [3, 5])
def test_products_that_may_be_stored_are_rounded_before_they_are_summed(
    taps: int, own: bool
) -> None:
    i, j, r = range_node(2, 0), range_node(12, 1), range_node(taps, 2)
    slots = (1, 1) if own else (1, 2)
    a, b = (k.at(k.param(slot, 2, 11 + taps), i, index.add(j, r)) for slot in slots)
    total = k.reduce(Ops.ADD, alu(Ops.MUL, a, b), r)
    kernel = k.kernel(k.out(k.param(0, 2, 12), total, i, j))
    found = written(kernel)
    assert not found.has(Ops.REDUCE, Ops.FMA)
    arrays = k.arguments(kernel)
    products = arrays[slots[0]].reshape(2, -1) * arrays[slots[1]].reshape(2, -1)
    wanted = products[:, :12]
    for tap in range(1, taps):
        wanted = wanted + products[:, tap : tap + 12]
    result = k.run_kernel(found, arrays)[0]
    np.testing.assert_array_equal(result.reshape(2, 12), wanted)


def test_stretches_of_a_gradient_by_a_filter() -> None:
    found = written(depthwise_gradient(2, 2, 10, 24, 3))
    (reduction,) = facts_of(found).reductions
    sizes = {axis.arg.axis: axis.src[0].arg for axis in reduction.own}
    assert sizes[STRETCHES] == 3
    assert sorted(axis.src[0].arg for axis in window_axes(reduction)) == [3, 3]
    # Of each image as many reads as a stretch has elements.
    assert count(found, Ops.INDEX) == 16


def test_taps_of_one_channel_are_few_sides_but_for_matrix_units() -> None:
    found = written(k.conv_weight_gradient(2, 1, 20, 12, 16, 3, pad=1))
    (reduction,) = facts_of(found).reductions
    assert STRETCHES in {axis.arg.axis for axis in reduction.own}
    assert not written(k.conv(2, 2, 12, 8, 8, 3, pad=1)).has(Ops.REDUCE)


@pytest.mark.parametrize(("width", "stretches"), [(14, 2), (7, 1), (25, 5), (16, 2), (9, 3)])
def test_stretches_fill_rows(width: int, stretches: int) -> None:
    found = written(depthwise_gradient(1, 1, 16, width, 3))
    (reduction,) = facts_of(found).reductions
    assert {axis.arg.axis: axis.src[0].arg for axis in reduction.own}[STRETCHES] == stretches


def every_so_many(parts: int, count: int, width: int, apart: bool) -> Node:
    """Sums of so many rows each, as many apart as there are sums or side by side."""
    i, r, x = (range_node(size, at) for at, size in enumerate((parts, count, width)))
    place = index.add(index.mul(r, parts), i) if apart else index.add(index.mul(i, count), r)
    read = k.at(k.param(1, parts * count, width), place, x)
    return k.kernel(k.out(k.param(0, parts), k.reduce(Ops.ADD, read, r, x), i))


@pytest.mark.parametrize("kernel", [
    pytest.param(every_so_many(13, 2, 64, True), id="rows of one sum far apart"),
    pytest.param(every_so_many(13, 2, 64, False), id="long rows side by side"),
    pytest.param(k.conv(2, 16, 16, 6, 6, 3, pad=1), id="a product of matrices"),
    pytest.param(k.conv(1, 1, 16, 12, 12, 3), id="one of few steps"),
    pytest.param(window(2, 12, 8, 8), id="parts of a long sum"),
    pytest.param(window(2, 100, 65, 1), id="windows of too many"),
    pytest.param(k.row_reduce(4, 5), id="rows"),
    pytest.param(k.matmul(20, 24, 8), id="a deeper product"),
    pytest.param(depthwise_gradient(1, 1, 60, 13, 3), id="rows of a prime number"),
    pytest.param(depthwise_gradient(1, 1, 3, 64, 17), id="a long window"),
    pytest.param(k.arg_max(4, 9), id="places"),
])
def test_what_is_left_as_it_is(kernel: Node) -> None:
    assert write_sums(kernel, HOPPER) is kernel
