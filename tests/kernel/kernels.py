"""Hand-built kernels for the tests, and a run of them at every level."""

from __future__ import annotations

from typing import Any

import numpy as np

from baregrad.dtypes import DType, dtypes
from baregrad.ir.core import index
from baregrad.ir.core.attrs import KernelInfo, Out, Param, Reduce, Scan
from baregrad.ir.core.monoid import Monoid, arg_extreme, primitive
from baregrad.ir.core.node import Node, alu, cast, const, range_node
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.alu import to_raw
from baregrad.ir.evaluate.kernel_level import evaluate_kernel
from baregrad.ir.evaluate.loop_level import evaluate_loop

F32 = dtypes.float32
I64 = dtypes.int64


def param(slot: int, *shape: Any, dtype: DType = F32) -> Node:
    return Node(Ops.PARAM, dtype, (), Param(slot, tuple(shape)))


def at(array: Node, *indices: Any) -> Node:
    nodes = tuple(index.as_node(i) for i in indices)
    return Node(Ops.INDEX, array.dtype, (array, *nodes))


def out(
    array: Node, value: Node, *indices: Any, monoid: Monoid | None = None, atomic: bool = False
) -> Node:
    nodes = tuple(index.as_node(i) for i in indices)
    return Node(Ops.OUT, dtypes.token, (array, value, *nodes), Out(monoid, atomic=atomic))


def kernel(*outs: Node, name: str = "k") -> Node:
    return Node(Ops.KERNEL, dtypes.token, outs, KernelInfo(name))


def reduce(op: Any, value: Node, *axes: Node) -> Node:
    monoid = primitive(op, value.dtype)
    return Node(Ops.REDUCE, value.dtype, (value, *axes), Reduce(monoid))


def guard(condition: Node, value: Node) -> Node:
    return Node(Ops.GUARD, value.dtype, (condition, value))


def elementwise(*shape: int, dtype: DType = F32) -> Node:
    axes = [range_node(e, i) for i, e in enumerate(shape)]
    x = at(param(1, *shape, dtype=dtype), *axes)
    y = at(param(2, *shape, dtype=dtype), *axes)
    value = alu(Ops.ADD, alu(Ops.MUL, x, const(3, dtype)), y)
    return kernel(out(param(0, *shape, dtype=dtype), value, *axes))


def bias(m: int, n: int) -> Node:
    i, j = range_node(m, 0), range_node(n, 1)
    value = alu(Ops.MAX, alu(Ops.ADD, at(param(1, m, n), i, j), at(param(2, n), j)), const(0, F32))
    return kernel(out(param(0, m, n), value, i, j))


def transpose(m: int, n: int) -> Node:
    i, j = range_node(m, 0), range_node(n, 1)
    return kernel(out(param(0, m, n), at(param(1, n, m), j, i), i, j))


def row_reduce(m: int, n: int, op: Any = Ops.ADD, dtype: DType = F32) -> Node:
    i, j = range_node(m, 0), range_node(n, 1)
    value = reduce(op, at(param(1, m, n, dtype=dtype), i, j), j)
    return kernel(out(param(0, m, dtype=dtype), value, i))


def column_reduce(m: int, n: int, op: Any = Ops.ADD, dtype: DType = F32) -> Node:
    i, j = range_node(n, 0), range_node(m, 1)
    value = reduce(op, at(param(1, m, n, dtype=dtype), j, i), j)
    return kernel(out(param(0, n, dtype=dtype), value, i))


def whole_reduce(m: int, n: int) -> Node:
    i, j = range_node(m, 0), range_node(n, 1)
    x = at(param(1, m, n), i, j)
    return kernel(out(param(0), reduce(Ops.ADD, alu(Ops.MUL, x, x), i, j)))


def softmax(m: int, n: int) -> Node:
    i, j, a, b = range_node(m, 0), range_node(n, 1), range_node(n, 2), range_node(n, 3)
    x = param(1, m, n)
    top = reduce(Ops.MAX, at(x, i, a), a)
    total = reduce(Ops.ADD, alu(Ops.EXP, alu(Ops.SUB, at(x, i, b), top)), b)
    value = alu(Ops.DIV, alu(Ops.EXP, alu(Ops.SUB, at(x, i, j), top)), total)
    return kernel(out(param(0, m, n), value, i, j))


def sum_of_row_logs(m: int, n: int) -> Node:
    """A sum over rows of y times the logarithm of the row's sum: the loss of a classifier."""
    i, a = range_node(m, 0), range_node(n, 1)
    row = reduce(Ops.ADD, alu(Ops.EXP, at(param(1, m, n), i, a)), a)
    value = alu(Ops.MUL, at(param(2, m), i), alu(Ops.LOG, row))
    return kernel(out(param(0), reduce(Ops.ADD, value, i)))


def smallest_column_sum(m: int, n: int) -> Node:
    i, j = range_node(m, 0), range_node(n, 1)
    total = reduce(Ops.ADD, at(param(1, m, n), i, j), i)
    return kernel(out(param(0), reduce(Ops.MIN, total, j)))


def rows_scaled_by_columns(m: int, n: int) -> Node:
    """Two reductions whose lanes would both be wanted where their results meet."""
    i, j, a, b = range_node(m, 0), range_node(n, 1), range_node(m, 2), range_node(n, 3)
    x = param(1, m, n)
    row = reduce(Ops.MAX, at(x, i, b), b)
    column = reduce(Ops.ADD, alu(Ops.SUB, at(x, a, j), reduce(Ops.MAX, at(x, a, b), b)), a)
    return kernel(out(param(0, m, n), alu(Ops.MUL, row, column), i, j))


def layer_norm(m: int, n: int) -> Node:
    i, j, a, b = range_node(m, 0), range_node(n, 1), range_node(n, 2), range_node(n, 3)
    x = param(1, m, n)
    scale = const(1 / max(n, 1), F32)
    mean = alu(Ops.MUL, reduce(Ops.ADD, at(x, i, a), a), scale)
    away = alu(Ops.SUB, at(x, i, b), mean)
    variance = alu(Ops.MUL, reduce(Ops.ADD, alu(Ops.MUL, away, away), b), scale)
    root = alu(Ops.SQRT, alu(Ops.ADD, variance, const(1e-5, F32)))
    value = alu(Ops.DIV, alu(Ops.SUB, at(x, i, j), mean), root)
    value = alu(Ops.ADD, alu(Ops.MUL, value, at(param(2, n), j)), at(param(3, n), j))
    return kernel(out(param(0, m, n), value, i, j))


def arg_max(m: int, n: int, dtype: DType = F32) -> Node:
    i, j = range_node(m, 0), range_node(n, 1)
    monoid = arg_extreme(Ops.MAX, dtype)
    place = Node(Ops.CAST, I64, (j,))
    value = at(param(1, m, n, dtype=dtype), i, j)
    both = Node(Ops.REDUCE, dtype, (value, place, j), Reduce(monoid))
    return kernel(out(param(0, m, dtype=I64), Node(Ops.PROJ, I64, (both,), 1), i))


def matmul(m: int, n: int, k: int, a_t: bool = False, b_t: bool = False, batch: int = 0,
           dtype: DType = F32) -> Node:
    first = [range_node(batch, 0)] if batch else []
    lead = [batch] if batch else []
    i, j, r = (range_node(e, len(first) + p) for p, e in enumerate((m, n, k)))
    a = param(1, *lead, *((k, m) if a_t else (m, k)), dtype=dtype)
    b = param(2, *lead, *((n, k) if b_t else (k, n)), dtype=dtype)
    left = at(a, *first, *((r, i) if a_t else (i, r)))
    right = at(b, *first, *((j, r) if b_t else (r, j)))
    total = reduce(Ops.ADD, alu(Ops.MUL, left, right), r)
    return kernel(out(param(0, *lead, m, n, dtype=dtype), total, *first, i, j), name="matmul")


def byte_product(
    m: int, n: int, inner: int, a_t: bool = False, b_t: bool = False, batch: int = 0,
    types: tuple[DType, DType] = (dtypes.int8, dtypes.int8),
) -> Node:
    """A product of matrices of bytes, summed as int32."""
    first = [range_node(batch, 0)] if batch else []
    lead = [batch] if batch else []
    i, j, r = (range_node(e, len(first) + p) for p, e in enumerate((m, n, inner)))
    a = param(1, *lead, *((inner, m) if a_t else (m, inner)), dtype=types[0])
    b = param(2, *lead, *((n, inner) if b_t else (inner, n)), dtype=types[1])
    left = at(a, *first, *((r, i) if a_t else (i, r)))
    right = at(b, *first, *((j, r) if b_t else (r, j)))
    total = reduce(Ops.ADD, alu(Ops.MUL, cast(left, dtypes.int32), cast(right, dtypes.int32)), r)
    return kernel(out(param(0, *lead, m, n, dtype=dtypes.int32), total, *first, i, j))


def brain_product(
    m: int, n: int, inner: int, a_t: bool = False, b_t: bool = False, dtype: DType = dtypes.bfloat16
) -> Node:
    """A product of matrices of bfloat16, summed in float32 and written as `dtype`."""
    i, j, r = (range_node(e, p) for p, e in enumerate((m, n, inner)))
    a = param(1, *((inner, m) if a_t else (m, inner)), dtype=dtypes.bfloat16)
    b = param(2, *((n, inner) if b_t else (inner, n)), dtype=dtypes.bfloat16)
    left, right = at(a, *((r, i) if a_t else (i, r))), at(b, *((j, r) if b_t else (r, j)))
    products = alu(Ops.MUL, cast(left, dtypes.float32), cast(right, dtypes.float32))
    total = cast(reduce(Ops.ADD, products, r), dtype)
    return kernel(out(param(0, m, n, dtype=dtype), total, i, j))


def conv(n: int, c: int, o: int, h: int, w: int, taps: int, stride: int = 1, pad: int = 0,
         groups: int = 1) -> Node:
    oh, ow = ((e + 2 * pad - taps) // stride + 1 for e in (h, w))
    b, f, y, x = (range_node(e, p) for p, e in enumerate((n, o, oh, ow)))
    r, u, v = (range_node(e, 4 + p) for p, e in enumerate((c // groups, taps, taps)))
    source, weight = param(1, n, c, h, w), param(2, o, c // groups, taps, taps)
    row = index.add(index.add(index.mul(y, stride), u), -pad)
    col = index.add(index.add(index.mul(x, stride), v), -pad)
    channel = index.add(index.mul(index.floordiv(f, o // groups), c // groups), r)
    loaded = at(source, b, channel, row, col)
    if pad:
        loaded = guard(index.both(index.inside(row, h), index.inside(col, w)), loaded)
    value = reduce(Ops.ADD, alu(Ops.MUL, loaded, at(weight, f, r, u, v)), r, u, v)
    return kernel(out(param(0, n, o, oh, ow), value, b, f, y, x), name="conv")


def conv_weight_gradient(
    n: int, c: int, o: int, h: int, w: int, taps: int, stride: int = 1, pad: int = 0
) -> Node:
    oh, ow = ((e + 2 * pad - taps) // stride + 1 for e in (h, w))
    f, r, u, v = (range_node(e, p) for p, e in enumerate((o, c, taps, taps)))
    b, y, x = (range_node(e, 4 + p) for p, e in enumerate((n, oh, ow)))
    gradient, source = param(1, n, o, oh, ow), param(2, n, c, h, w)
    row = index.add(index.add(index.mul(y, stride), u), -pad)
    col = index.add(index.add(index.mul(x, stride), v), -pad)
    loaded = at(source, b, r, row, col)
    if pad:
        loaded = guard(index.both(index.inside(row, h), index.inside(col, w)), loaded)
    value = reduce(Ops.ADD, alu(Ops.MUL, at(gradient, b, f, y, x), loaded), b, y, x)
    return kernel(out(param(0, o, c, taps, taps), value, f, r, u, v))


def places_of_minima(length: int, columns: int) -> Node:
    """Where the least of each column is."""
    i, j = range_node(columns, 0), range_node(length, 1)
    value, place = at(param(1, length, columns), j, i), Node(Ops.CAST, dtypes.int64, (j,))
    how = Reduce(arg_extreme(Ops.MIN, dtypes.float32))
    both = Node(Ops.REDUCE, dtypes.float32, (value, place, j), how)
    found = Node(Ops.PROJ, dtypes.int64, (both,), 1)
    return kernel(out(param(0, columns, dtype=dtypes.int64), found, i))


def all_pairs(rows: int, length: int, others: int) -> Node:
    """How many of some others each element of a row is more than."""
    r, i, j = range_node(rows, 0), range_node(length, 1), range_node(others, 2)
    own = at(param(1, rows, length, dtype=dtypes.int64), r, i)
    other = at(param(2, rows, others, dtype=dtypes.int64), r, j)
    below = Node(Ops.CAST, dtypes.int32, (alu(Ops.CMPLT, other, own),))
    found = param(0, rows, length, dtype=dtypes.int32)
    return kernel(out(found, reduce(Ops.ADD, below, j), r, i))


def cumsum(m: int, n: int, along: int = 1) -> Node:
    i, j = range_node(m, 0), range_node(n, 1)
    axis = (i, j)[along]
    value = Node(Ops.SCAN, F32, (at(param(1, m, n), i, j), axis), Scan(primitive(Ops.ADD, F32)))
    return kernel(out(param(0, m, n), value, i, j))


def gather(rows: int, m: int, n: int) -> Node:
    i, j = range_node(m, 0), range_node(n, 1)
    row = Node(Ops.CAST, dtypes.index, (at(param(2, m, dtype=I64), i),))
    return kernel(out(param(0, m, n), at(param(1, rows, n), row, j), i, j))


def scatter_add(
    rows: int, m: int, n: int, dtype: DType = F32, atomic: bool = False, op: Any = Ops.ADD
) -> Node:
    i, j = range_node(m, 0), range_node(n, 1)
    row = Node(Ops.CAST, dtypes.index, (at(param(2, m, dtype=I64), i),))
    value, monoid = at(param(1, m, n, dtype=dtype), i, j), primitive(op, dtype)
    total = param(0, rows, n, dtype=dtype)
    return kernel(out(total, value, row, j, monoid=monoid, atomic=atomic))


def pad_rows_of_sums(m: int, n: int, lo: int) -> Node:
    """Row sums with `lo` zeros before them: a guard over a reduction."""
    i, j = range_node(m + lo, 0), range_node(n, 1)
    row = index.add(i, -lo)
    total = reduce(Ops.ADD, at(param(1, m, n), row, j), j)
    return kernel(out(param(0, m + lo), guard(index.inside(row, m), total), i))


def arguments(node: Node, seed: int = 0, rows: int = 3) -> dict[int, Any]:
    """Random arrays for the slots of a kernel; integers stay small, indices below `rows`."""
    from baregrad.ir.core.node import toposort

    generator = np.random.default_rng(seed)
    arrays: dict[int, Any] = {}
    for leaf in toposort(node):
        if leaf.op is Ops.PARAM:
            shape = tuple(int(e) for e in leaf.arg.shape)
            if leaf.dtype is dtypes.bool:
                arrays[leaf.arg.slot] = generator.integers(0, 2, shape).astype(np.bool_)
            elif leaf.dtype.kind == "float":
                values = generator.standard_normal(shape).astype(np.float32)
                # What NumPy has no dtype for is stored as codes.
                plain = leaf.dtype.numpy
                arrays[leaf.arg.slot] = (
                    to_raw(values, leaf.dtype) if plain is None else values.astype(plain)
                )
            else:
                high = rows if leaf.arg.slot == 2 else 100
                arrays[leaf.arg.slot] = generator.integers(0, high, shape).astype(leaf.dtype.numpy)
    return arrays


def run_kernel(node: Node, arrays: dict[int, Any]) -> dict[int, Any]:
    copies = {slot: np.array(array) for slot, array in arrays.items()}
    evaluate_kernel(node, copies)
    return copies


def run_loop(node: Node, arrays: dict[int, Any]) -> dict[int, Any]:
    copies = {slot: np.array(array) for slot, array in arrays.items()}
    evaluate_loop(node, [copies[slot] for slot in range(len(copies))])
    return copies


def assert_equal(left: dict[int, Any], right: dict[int, Any], scale: float = 1.0) -> None:
    for slot, expected in left.items():
        found = right[slot]
        if expected.dtype.kind == "f":
            np.testing.assert_allclose(found, expected, rtol=2e-4 * scale, atol=2e-5 * scale)
        else:
            np.testing.assert_array_equal(found, expected)
