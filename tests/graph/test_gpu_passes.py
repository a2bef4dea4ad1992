"""Passes over graphs that GPUs alone have: they change what is computed by nothing but rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from baregrad.dtypes import DType, dtypes
from baregrad.graph import canonicalise
from baregrad.ir.core.attrs import Param, Reduce, Scan, Scatter
from baregrad.ir.core.monoid import primitive
from baregrad.ir.core.node import Node, alu, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.tensor_level import evaluate_all
from baregrad.ir.verify.verify import verify
from baregrad.target import gpu_row

HOPPER = gpu_row("sm_90a")
F32, F64, I32 = dtypes.float32, dtypes.float64, dtypes.int32
RNG = np.random.default_rng(3)


def param(slot: int, dtype: DType, *shape: int) -> Node:
    return Node(Ops.PARAM, dtype, (), Param(slot, shape))


def changed(value: Node, arrays: list[Any]) -> Node:
    """The graph for a GPU, after a check that it gives what the graph as it was gives."""
    sink = Node(Ops.SINK, dtypes.token, (value,))
    made = canonicalise(sink, None, HOPPER)
    verify(made, "tensor")
    given = dict(enumerate(arrays))
    (wanted,) = evaluate_all(sink.src, given)
    (found,) = evaluate_all(made.src, given)
    assert found.shape == wanted.shape
    if value.dtype.kind == "float":
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    else:
        np.testing.assert_array_equal(found, wanted)
    return made


def scanned(op: Any, dtype: DType, axis: int, *shape: int) -> Node:
    scan = Scan(primitive(op, dtype), axis)
    return Node(Ops.SCAN, dtype, (param(0, dtype, *shape),), scan)


def extents(root: Node) -> list[int]:
    """How long the running folds are."""
    scans = [node for node in toposort(root) if node.op is Ops.SCAN]
    return sorted(node.shape[node.arg.axis] for node in scans)


@pytest.mark.parametrize(
    ("op", "dtype", "axis", "shape", "lengths"),
    (
        (Ops.ADD, F32, 0, (1024,), [16, 64]),
        (Ops.ADD, F64, 1, (3, 601), [10, 64]),
        (Ops.MAX, I32, 1, (2, 1536, 3), [24, 64]),
        (Ops.MUL, I32, 0, (512, 2), [8, 64]),
        # Of a prime length, which no piece divides, and no neutral element to go on with.
        (Ops.MAX, I32, 0, (601,), [601]),
        (Ops.ADD, F32, 0, (200,), [200]),
        (Ops.ADD, F32, 1, (1 << 16, 256), [256]),
        (Ops.ADD, dtypes.float16, 0, (1024,), [1024]),
        (Ops.ADD, F32, 0, (32768,), [8, 64, 64]),
    ),
    ids=str,
)
def test_long_running_folds_are_cut(
    op: Any, dtype: DType, axis: int, shape: tuple[int, ...], lengths: list[int]
) -> None:
    node = scanned(op, dtype, axis, *shape)
    if np.prod(shape) > 1 << 20:
        made = canonicalise(Node(Ops.SINK, dtypes.token, (node,)), None, HOPPER)
    else:
        small = RNG.integers(-3, 4, shape) if dtype.kind == "int" else RNG.standard_normal(shape)
        made = changed(node, [small.astype(dtype.numpy)])
    assert extents(made) == lengths


def parts(root: Node) -> int:
    """How many results are stored on the way; 0 where there is one step."""
    stored = [node for node in toposort(root) if node.op is Ops.CONTIGUOUS]
    return max([int(np.prod(node.shape)) for node in stored], default=0)


def test_long_sums_to_few_values_keep_a_gpu_busy() -> None:
    total = Reduce(primitive(Ops.ADD, F32), (0, 1))
    x = param(0, F32, 1024, 300)
    made = changed(
        Node(Ops.REDUCE, F32, (x,), total), [RNG.standard_normal((1024, 300)).astype(np.float32)]
    )
    assert parts(made) == 32
    few = Node(Ops.REDUCE, F32, (param(0, F32, 64, 64),), total)
    assert parts(changed(few, [np.ones((64, 64), np.float32)])) == 0


def test_products_with_much_to_sum_are_cut() -> None:
    m, n, depth = 8, 12, 1 << 14

    def spread(value: Node, place: tuple[int, ...]) -> Node:
        one = Node(Ops.RESHAPE, F32, (value,), place)
        return Node(Ops.EXPAND, F32, (one,), (m, n, depth))

    left = spread(param(0, F32, m, depth), (m, 1, depth))
    right = spread(param(1, F32, n, depth), (1, n, depth))
    value = Node(
        Ops.REDUCE, F32, (alu(Ops.MUL, left, right),), Reduce(primitive(Ops.ADD, F32), (2,))
    )
    arrays = [RNG.standard_normal((e, depth)).astype(np.float32) * 0.01 for e in (m, n)]
    assert parts(changed(value, arrays)) == 8 * m * n


@pytest.mark.parametrize("rows", (640, 601, 100))
def test_long_sums_by_index_are_cut(rows: int) -> None:
    base, values = param(0, F32, 7, 5), param(1, F32, rows, 5)
    places = param(2, dtypes.int64, rows, 1)
    line = Node(Ops.RESHAPE, dtypes.int64, (Node(Ops.IOTA, dtypes.int64, (), 5),), (1, 5))
    columns = Node(Ops.EXPAND, dtypes.int64, (line,), (rows, 5))
    chosen = Node(Ops.EXPAND, dtypes.int64, (places,), (rows, 5))
    adding = Scatter(primitive(Ops.ADD, F32))
    node = Node(Ops.SCATTER, F32, (base, values, chosen, columns), adding)
    made = changed(
        node,
        [
            RNG.standard_normal((7, 5)).astype(np.float32),
            RNG.standard_normal((rows, 5)).astype(np.float32),
            RNG.integers(0, 7, (rows, 1)),
        ],
    )
    (found,) = (one for one in toposort(made) if one.op is Ops.SCATTER)
    # 640 rows are 40 parts of 16; 601 is a prime number.
    assert found.shape == ((40, 7, 5) if rows == 640 else (7, 5))
