"""The order of joined axes, and how many elements of a factor one copy takes."""

from __future__ import annotations

import pytest

from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.index import variable
from baregrad.ir.core.node import Node, alu, cast, range_node
from baregrad.ir.core.op import Ops
from baregrad.kernel import facts_of
from baregrad.kernel.planning.gpu.gemm_copies import FactorCopy, Orders, in_boxes, orders_of
from baregrad.kernel.planning.gpu.gemm_factors import gemm_factors
from baregrad.kernel.planning.gpu.gpu_plan import GpuPlan
from tests.kernel import kernels as k
from tests.kernel.contractions import contraction, convolution
from tests.kernel.gpu_kernels import HOPPER

F16, F32 = dtypes.float16, dtypes.float32


def orders(kernel: Node) -> Orders:
    plan = GpuPlan(facts_of(kernel), HOPPER)
    factors = gemm_factors(plan)
    assert factors is not None
    return orders_of(plan, factors)


def sizes(axes: list[Node]) -> list[int]:
    return [int(axis.src[0].arg) for axis in axes]


def test_neighbours_are_copied_along_or_across() -> None:
    found = orders(contraction((32,), (64,), (48,), "ax", "xn", "an"))
    assert (found.left, found.right) == (FactorCopy(False, 8), FactorCopy(True, 8))
    found = orders(contraction((32,), (64,), (48,), "xa", "nx", "an"))
    assert (found.left, found.right) == (FactorCopy(True, 8), FactorCopy(False, 8))


def test_symbolic_numbers_of_neighbours_make_no_chunks() -> None:
    """Nobody knows where the last chunk would end; those along the other axis stay whole."""
    many = variable("many", 1, 64)
    i, j, q = (range_node(size, place) for place, size in enumerate((32, 64, many)))
    reads = k.at(k.param(1, 32, 64, dtype=F16), i, q), k.at(k.param(2, 64, 64, dtype=F16), q, j)
    total = k.reduce(Ops.ADD, alu(Ops.MUL, *(cast(read, F32) for read in reads)), q)
    found = orders(k.kernel(k.out(k.param(0, 32, 64), total, i, j)))
    assert (found.left, found.right) == (FactorCopy(False, 1), FactorCopy(True, 8))


def test_the_depth_is_in_the_order_of_both_factors_if_they_agree() -> None:
    kernel = contraction((32,), (64,), (4, 24), "ayx", "nyx", "an")
    found = orders(kernel)
    assert sizes(found.depth) == [24, 4]
    assert (found.left.lanes, found.right.lanes) == (8, 8)


@pytest.mark.parametrize("zeros", [0, 1])
def test_channels_that_lie_innermost_are_innermost_in_the_depth(zeros: int) -> None:
    """Filters and images of the order that convolutions store them in, with or without zeros."""
    n, side, c, o, taps = 2, 8, 24, 16, 3
    axes = [range_node(e, i) for i, e in enumerate((n, o, side, side, c, taps, taps))]
    image, filters, row, column, channel, r, q = axes
    edge = side + taps - 1 - 2 * zeros
    y, z = (index.add(index.add(a, b), -zeros) for a, b in ((row, r), (column, q)))
    x = k.at(k.param(1, n, edge, edge, c, dtype=F16), image, y, z, channel)
    if zeros:
        x = k.guard(index.both(index.inside(y, edge), index.inside(z, edge)), x)
    w = k.at(k.param(2, o, taps, taps, c, dtype=F16), filters, r, q, channel)
    value = alu(Ops.MUL, cast(x, F32), cast(w, F32))
    total = k.reduce(Ops.ADD, value, channel, r, q)
    found = orders(k.kernel(k.out(k.param(0, n, o, side, side), total, *axes[:4])))
    assert found.depth == [r, q, channel]
    assert (found.left, found.right) == (FactorCopy(False, 8), FactorCopy(False, 8))


def test_windows_along_rows_are_copied_one_by_one() -> None:
    found = orders(convolution(2, 8, 8, 16, 3, True))
    assert {found.left.lanes, found.right.lanes} == {8, 1}


def test_the_order_does_not_depend_on_how_many_rows_there_are() -> None:
    few, many = (orders(contraction((rows,), (40,), (6, 16), "axy", "nyx", "an"))
                 for rows in (17, 4096))  # fmt: skip
    assert sizes(few.depth) == sizes(many.depth)


def test_axes_that_lie_together_inside_a_side_are_one_run() -> None:
    """Images in channels, of which rows and columns lie together: 196 is a multiple of 4."""
    found = orders(contraction((16,), (3, 14, 14), (32,), "ax", "nxop", "anop"))
    assert found.right == FactorCopy(True, 4)


@pytest.mark.parametrize("backwards", [False, True])
def test_what_is_read_backwards_is_no_box(backwards: bool) -> None:
    """Of matrices that are taken from the last to the first, none is a dimension of a map."""
    b, i, j, q = (range_node(size, place) for place, size in enumerate((4, 64, 64, 64)))
    which = index.as_node(index.sub(3, b)) if backwards else b
    reads = (
        k.at(k.param(1, 4, 64, 64, dtype=F16), which, i, q),
        k.at(k.param(2, 4, 64, 64, dtype=F16), b, j, q),
    )
    total = k.reduce(Ops.ADD, alu(Ops.MUL, *(cast(read, F32) for read in reads)), q)
    plan = GpuPlan(facts_of(k.kernel(k.out(k.param(0, 4, 64, 64), total, b, i, j))), HOPPER)
    factors = gemm_factors(plan)
    assert factors is not None
    how = orders_of(plan, factors)
    sides = (factors.left, how.rows, how.left), (factors.right, how.columns, how.right)
    found = [in_boxes(one, own, how.depth, copy, 8) for one, own, copy in sides]
    assert sorted(found) == [not backwards, True]


@pytest.mark.parametrize(("inner", "boxes"), [(192, True), (96, False)])
def test_an_engine_copies_panels_that_lie_in_one_run(inner: int, boxes: bool) -> None:
    """Columns of several images: where images are whole panels each of those is a box."""
    kernel = contraction((256,), (4, inner), (128,), "ax", "nxo", "nao")
    plan = GpuPlan(facts_of(kernel), HOPPER)
    factors = gemm_factors(plan)
    assert factors is not None
    how = orders_of(plan, factors)
    assert in_boxes(factors.right, how.columns, how.depth, how.right, 8) is boxes
