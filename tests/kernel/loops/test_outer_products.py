"""Which products a sum may take unrounded."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from baregrad.base.options import options
from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.attrs import StageInfo
from baregrad.ir.core.node import Node, alu, cast, const, range_node
from baregrad.ir.core.op import Ops
from baregrad.kernel.loops.outer_products import sums_outer
from baregrad.tensor import Tensor
from baregrad.tensor.jit.jit import jit
from tests.kernel import kernels as k

I, J, R = range_node(6, 0), range_node(5, 1), range_node(3, 2)
LINE = index.add(index.mul(I, 5), J)
X, Y, ROW, TAPS = k.param(1, 6, 5), k.param(2, 6, 5), k.param(3, 5), k.param(4, 3)
LONG = k.param(5, 40)
HALF = k.param(6, 6, 5, dtype=dtypes.bfloat16)


def mul(a: Node, b: Node) -> Node:
    return alu(Ops.MUL, a, b)


def widened(x: Node) -> Node:
    return cast(x, dtypes.float32)


SLID = index.sub(index.add(I, R), 1)
INSIDE = index.both(index.less(-1, SLID), index.less(SLID, 6))
TOTAL = k.reduce(Ops.ADD, k.at(X, I, range_node(5, 9)), range_node(5, 9))
PLACE = range_node(5, 8)
KEPT = Node(
    Ops.STAGE, dtypes.float32,
    (k.at(LONG, index.add(index.mul(I, 5), PLACE)), PLACE), StageInfo("scratch"),
)
START, END = index.variable("start", 0, 9), index.variable("end", 10, 20)
OUTER = {
    "matrices": mul(k.at(X, I, R), k.at(Y, J, R)),
    "an outer product": mul(k.at(LONG, I), k.at(ROW, J)),
    "a window": mul(k.at(LONG, index.add(I, R)), k.at(TAPS, R)),
    "a padded window": mul(k.guard(INSIDE, k.at(LONG, SLID)), k.at(TAPS, R)),
    "a padded window, guarded": k.guard(INSIDE, mul(k.at(LONG, SLID), k.at(TAPS, R))),
    "rows that overlap": mul(k.at(LONG, index.add(index.mul(I, 4), J)), k.at(ROW, J)),
    "a kept row of a matrix": mul(k.at(X, R, J), Node(Ops.INDEX, dtypes.float32, (KEPT, J))),
    "exact": mul(widened(k.at(HALF, I, J)), widened(k.at(HALF, I, J))),
}
ROUNDED = {
    "a square": mul(k.at(X, I, J), k.at(X, I, J)),
    "a guarded square": k.guard(index.less(J, I), mul(k.at(X, I, J), k.at(X, I, J))),
    "two arrays": mul(k.at(X, I, J), k.at(Y, I, J)),
    "a turned one": mul(k.at(X, I, J), k.at(Y, J, I)),
    "a row for all rows": mul(k.at(ROW, J), k.at(X, I, J)),
    "a number": mul(k.at(X, I, J), const(3.0, dtypes.float32)),
    "rows that lie together": mul(k.at(LONG, LINE), k.at(ROW, J)),
    "a square of a window": mul(k.at(LONG, index.add(I, R)), k.at(LONG, index.add(I, R))),
    "two pieces at a place": mul(
        k.at(LONG, index.add(index.add(I, R), START)), k.at(LONG, index.add(index.add(I, R), END))
    ),
    "a row of a piece": mul(k.at(X, I, J), k.at(LONG, index.add(J, START))),
    "a kept row": mul(k.at(X, I, J), Node(Ops.INDEX, dtypes.float32, (KEPT, J))),
    "a sum beside": mul(k.at(X, I, J), TOTAL),
    "nothing but a sum": k.at(X, I, J),
}


@pytest.mark.parametrize("name", OUTER)
def test_larger_products_are_not_rounded(name: str) -> None:
    assert sums_outer(OUTER[name])


@pytest.mark.parametrize("name", ROUNDED)
def test_products_that_something_may_store_are_rounded(name: str) -> None:
    assert not sums_outer(ROUNDED[name])


# Sizes whose sums have one order in all plans.
@pytest.mark.parametrize("shape,function", [
    ((40, 1024), lambda x, w: x * x), ((40, 1024), lambda x, w: x * w),
    ((16, 12), lambda x, w: x.silu()),
    ((2, 4), lambda x, w: x.unsqueeze(0).expand(3, -1, -1).silu()),
])
def test_a_sum_has_the_same_bits_whether_its_products_are_stored(
    shape: tuple[int, int], function: Callable[[Tensor, Tensor], Tensor]
) -> None:
    random = np.random.default_rng(3)
    x, w = (Tensor(random.standard_normal(s).astype(np.float32)) for s in (shape, shape[1:]))

    def both() -> tuple[Tensor, ...]:
        product = function(x, w)
        stored = product.clone().realize()
        return function(x, w).sum(-1), stored.sum(-1), product.sum(-1), product, product.flip(0)

    alone = function(x, w).sum(-1).numpy()
    for found in (both(), jit(both)()):
        for one in found[:3]:
            np.testing.assert_array_equal(one.numpy(), alone)


@pytest.mark.parametrize("shape", [(8, 6, 3), (8, 5, 9), (13, 7, 6), (13, 9, 17)])
def test_products_of_a_tail_are_rounded_as_those_of_whole_vectors(
    shape: tuple[int, int, int],
) -> None:
    """Which columns are a tail depends on what is computed beside the product."""
    depth, rows, columns = shape
    drawn = np.random.default_rng(depth).standard_normal
    with options.override(device="CPU"):
        x, y, m = (
            Tensor(drawn(sizes).astype(np.float32))
            for sizes in ((depth, rows), (depth, columns), (rows, columns))
        )
        alone = (x.T @ y).numpy()
        beside = x.T @ y
        moved = m * 0.9 + beside
        Tensor.realize(beside, moved, m - moved * 0.1)
        np.testing.assert_array_equal(beside.numpy(), alone)
