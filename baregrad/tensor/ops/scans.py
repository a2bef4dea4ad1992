"""Running sums, products and extremes along an axis."""

from __future__ import annotations

from typing import Any

from baregrad.base.errors import ShapeError
from baregrad.dtypes import DType, array_dtype, dtypes
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Op, Ops
from baregrad.tensor.array import nodes
from baregrad.tensor.array.axes import one_axis
from baregrad.tensor.array.core import check_float
from baregrad.tensor.array.operands import accumulator, result
from baregrad.tensor.array.tensor_like import Tensor
from baregrad.tensor.autograd.gradients_structure import record_places
from baregrad.tensor.ops.joining import cat
from baregrad.tensor.ops.reductions import Extreme


def _running(op: Op, x: Tensor, axis: int, dtype: DType) -> Tensor:
    if not x.ndim:
        return x.cast(dtype).clone()
    wide = accumulator(dtype)
    scanned: Node = nodes.scan(op, nodes.cast(x.node, wide), axis)
    return result(nodes.cast(scanned, dtype), x)


def _dtype(x: Tensor, dtype: object) -> DType:
    if dtype is not None:
        return array_dtype(dtype)
    return x.dtype if x.dtype.kind == "float" else dtypes.int64


def cumsum(x: Tensor, dim: int, *, dtype: object = None) -> Tensor:
    """Return the running sum along an axis; integers and bools sum as int64."""
    return _running(Ops.ADD, x, one_axis(dim, x.ndim), _dtype(x, dtype))


def cumprod(x: Tensor, dim: int, *, dtype: object = None) -> Tensor:
    """Return the running product along an axis; integers and bools multiply as int64."""
    return _running(Ops.MUL, x, one_axis(dim, x.ndim), _dtype(x, dtype))


def _records(op: Op, x: Tensor, dim: int) -> Extreme[Tensor]:
    axis = one_axis(dim, x.ndim)
    if not x.ndim:
        return Extreme(x.clone(), x.zeros_like(dtype=dtypes.int64))
    values = nodes.scan(op, x.node, axis)
    places = record_places(x.node, values, axis)
    return Extreme(result(values, x), result(places, x))


def cummax(x: Tensor, dim: int) -> Extreme[Tensor]:
    """Return the running maximum along an axis, and where it was last attained."""
    return _records(Ops.MAX, x, dim)


def cummin(x: Tensor, dim: int) -> Extreme[Tensor]:
    """Return the running minimum along an axis, and where it was last attained."""
    return _records(Ops.MIN, x, dim)


def logcumsumexp(x: Tensor, dim: int) -> Tensor:
    """Return log(cumsum(exp(x))) along an axis, each sum shifted by its own largest element.

    Infinite elements give the gradients of `logsumexp`.
    """
    check_float(x.dtype, "logcumsumexp")
    axis = one_axis(dim, x.ndim)
    if not x.ndim or 0 in x.shape:
        return x.clone()
    y = x.cast(accumulator(x.dtype))
    ones = nodes.full(1, y.shape, y.dtype)
    highest, total = nodes.running_scaled_sum(y.node, ones, axis)
    return (result(total, y).log() + result(highest, y)).cast(x.dtype)


def diff(
    x: Tensor, n: int = 1, dim: int = -1, prepend: Tensor | None = None,
    append: Tensor | None = None,
) -> Tensor:
    """Return the n-th difference of neighbours along an axis; of bools whether they differ.

    prepend, append: what stands before and behind along that axis.
    """
    axis = one_axis(dim, x.ndim)
    if n > 0 and (prepend is not None or append is not None):
        x = cat([one for one in (prepend, x, append) if one is not None], dim=axis)
    if n < 0 or not x.ndim:
        raise ShapeError(
            "differences are of neighbours along an axis", found=f"n = {n} of {x.ndim} axes",
            wanted="n from 0 on, and an axis",
        )
    # Of fewer there are no more than none.
    extent: Any = x.shape[axis]
    for _ in range(n if isinstance(extent, Node) else min(n, extent)):
        count = max(x.shape[axis] - 1, 0)
        before, after = x.narrow(axis, 0, count), x.narrow(axis, x.shape[axis] - count, count)
        x = after ^ before if x.dtype is dtypes.bool else after - before
    return x
