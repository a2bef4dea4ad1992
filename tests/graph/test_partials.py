"""Long reductions to few values in two steps."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad.graph import canonicalise
from baregrad.ir.core.attrs import Reduce
from baregrad.ir.core.monoid import primitive
from baregrad.ir.core.node import Node, alu, toposort
from baregrad.ir.core.op import Ops
from tests.graph.gpu_graphs import F32, RNG, argument, changed
from tests.schedule.graphs import check, param, sink


def test_long_sums_are_made_in_parts() -> None:
    x = param(0, 512, 1024)
    plan = check([x.sum(), x.max(), (x * x).mean()], kernels=2, tolerance=1e-3)
    assert plan.arena_nbytes == 3 * 256


@pytest.mark.parametrize("shape", [(1 << 19,), (2, 1 << 18), (1, 300007), (64, 3, 64, 64)])
def test_parts_of_odd_shapes(shape: tuple[int, ...]) -> None:
    x = param(0, *shape)
    last = tuple(axis for axis in range(len(shape)) if axis != 1) or (0,)
    check([x.sum(), x.sum(*last)], tolerance=1e-2)


@pytest.mark.parametrize(
    ("shape", "parts"),
    (((1 << 19,), 64), ((1 << 23,), 128), ((1 << 12, 1 << 12), 256), ((1 << 26,), 256)),
)
def test_longer_sums_have_more_parts(shape: tuple[int, ...], parts: int) -> None:
    """Threads wait for the last part to end, so it is a smaller share of what takes longer."""
    made = canonicalise(sink(param(0, *shape).sum()))
    (stored,) = [node for node in toposort(made) if node.op is Ops.CONTIGUOUS]
    assert stored.shape == (parts,)


def parts(root: Node) -> int:
    """How many results are stored on the way; 0 where there is one step."""
    stored = [node for node in toposort(root) if node.op is Ops.CONTIGUOUS]
    return max([int(np.prod(node.shape)) for node in stored], default=0)


def test_long_sums_to_few_values_keep_a_gpu_busy() -> None:
    total = Reduce(primitive(Ops.ADD, F32), (0, 1))
    x = argument(0, F32, 1024, 300)
    made = changed(
        Node(Ops.REDUCE, F32, (x,), total), [RNG.standard_normal((1024, 300)).astype(np.float32)]
    )
    assert parts(made) == 32
    few = Node(Ops.REDUCE, F32, (argument(0, F32, 64, 64),), total)
    assert parts(changed(few, [np.ones((64, 64), np.float32)])) == 0


def test_products_with_much_to_sum_are_cut() -> None:
    m, n, depth = 8, 12, 1 << 14

    def spread(value: Node, place: tuple[int, ...]) -> Node:
        one = Node(Ops.RESHAPE, F32, (value,), place)
        return Node(Ops.EXPAND, F32, (one,), (m, n, depth))

    left = spread(argument(0, F32, m, depth), (m, 1, depth))
    right = spread(argument(1, F32, n, depth), (1, n, depth))
    value = Node(
        Ops.REDUCE, F32, (alu(Ops.MUL, left, right),), Reduce(primitive(Ops.ADD, F32), (2,))
    )
    arrays = [RNG.standard_normal((e, depth)).astype(np.float32) * 0.01 for e in (m, n)]
    assert parts(changed(value, arrays)) == 8 * m * n
