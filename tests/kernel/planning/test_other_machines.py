"""What the rules choose for machines with more cores and other vectors than the one at hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from baregrad.dtypes import dtypes
from baregrad.ir.core.monoid import primitive
from baregrad.ir.core.node import Node, alu, cast, range_node
from baregrad.ir.core.op import Ops
from baregrad.ir.verify.verify import verify
from baregrad.kernel import lower
from baregrad.kernel.codegen import to_linear
from baregrad.target.cpu import CPU_ROWS, CpuTarget
from baregrad.target.gpu import GPU_ROWS, GpuTarget
from tests.kernel import kernels as k

F32 = dtypes.float32
ROWS = pytest.mark.parametrize("row", CPU_ROWS, ids=lambda row: row.name)


def gram(n: int, depth: int, by_columns: bool = False) -> Node:
    """The products of an array's n rows with each other, or of its columns."""
    i, j, r = range_node(n, 0), range_node(n, 1), range_node(depth, 2)
    x = k.param(1, depth, n) if by_columns else k.param(1, n, depth)
    left, right = ((r, i), (r, j)) if by_columns else ((i, r), (j, r))
    total = k.reduce(Ops.ADD, alu(Ops.MUL, k.at(x, *left), k.at(x, *right)), r)
    return k.kernel(k.out(k.param(0, n, n), total, i, j))


def scatter_middle(a: int, b: int, c: int) -> Node:
    """Sums at places along the middle one of three axes."""
    i, j, n = range_node(a, 0), range_node(b, 1), range_node(c, 2)
    place = cast(k.at(k.param(2, a, b, c, dtype=dtypes.int64), i, j, n), dtypes.index)
    value = k.at(k.param(1, a, b, c), i, j, n)
    return k.kernel(k.out(k.param(0, a, b, c), value, i, place, n, monoid=primitive(Ops.ADD, F32)))


def awkward() -> Iterator[Node]:
    """Kernels that no tile, chunk or panel divides evenly, and large ones."""
    for n in (33, 49, 97, 127, 129):
        for depth in (64, 1500, 4095):
            yield gram(n, depth)
            yield gram(n, depth, by_columns=True)
    for m, n, depth in ((33, 129, 1500), (97, 1, 4095), (1, 1023, 513), (255, 257, 1000)):
        for left in (False, True):
            for right in (False, True):
                yield k.matmul(m, n, depth, a_t=left, b_t=right)
    yield k.matmul(49, 33, 127, batch=5)
    for stride, pad in ((1, 0), (1, 1), (2, 1)):
        yield k.conv(3, 17, 33, 28, 28, 3, stride, pad)
    # Copies of what windows of 121 taps reach: far fewer elements than windows times taps.
    yield k.conv(1, 16, 33, 48, 48, 11, 1, 5)
    yield k.conv(1, 64, 33, 48, 48, 11, 1, 5)
    yield scatter_middle(300, 2, 50)
    yield scatter_middle(97, 129, 255)
    for m, n in ((33, 65537), (1023, 97), (65537, 3)):
        yield k.row_reduce(m, n)
        yield k.column_reduce(m, n)
        yield k.softmax(m, n)
        yield k.layer_norm(m, n)
        yield k.arg_max(m, n)
        yield k.transpose(m, n)
        yield k.cumsum(m, n)
        yield k.cumsum(m, n, along=0)


@pytest.mark.few(8)
@ROWS
@pytest.mark.parametrize("cores", [1, 3, 4, 16, 64])
def test_what_is_chosen_is_legal(row: CpuTarget, cores: int) -> None:
    target = replace(row, cores=cores)
    for kernel in awkward():
        loop = lower(kernel, target)
        verify(loop, "loop")
        verify(to_linear(loop, target), "linear")


@pytest.mark.parametrize("row", GPU_ROWS, ids=lambda row: row.name)
def test_what_is_chosen_is_legal_on_gpus(row: GpuTarget) -> None:
    """Also where blocks have little shared memory, and elements are wide."""
    wide = [
        k.matmul(m, n, depth, dtype=dtype)
        for m, n, depth in ((197, 48, 2049), (31, 256, 500), (100, 255, 1500))
        for dtype in (F32, dtypes.float64)
    ]
    for kernel in (*wide, *awkward()):
        loop = lower(kernel, row)
        verify(loop, "loop")
        verify(to_linear(loop, row), "linear")


@pytest.mark.few(8)
@ROWS
@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize(("n", "depth"), [(33, 68), (17, 130), (25, 9)])
def test_products_with_itself_are_right(
    row: CpuTarget, n: int, depth: int, by_columns: bool
) -> None:
    """In panels, for caches that hold little: copies of one array, and chunks of one iteration."""
    kernel = gram(n, depth, by_columns)
    small = replace(row, l1_bytes=1 << 13, l2_bytes=1 << 14, l3_bytes=1 << 15, cores=16)
    arrays = k.arguments(kernel)
    expected = k.run_kernel(kernel, arrays)
    for target in (replace(row, cores=16), small):
        loop = lower(kernel, target)
        verify(loop, "loop")
        k.assert_equal(expected, k.run_loop(loop, arrays))
