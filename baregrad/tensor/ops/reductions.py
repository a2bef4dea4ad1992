"""Reductions: sums, products, extremes, statistics, norms and softmax, with PyTorch's dtypes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Generic, NamedTuple

from baregrad.base.errors import ArgumentError, DTypeError, ShapeError
from baregrad.dtypes import DType, array_dtype, dtypes
from baregrad.ir.core import index
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Op, Ops
from baregrad.tensor.array import nodes
from baregrad.tensor.array.axes import Axes, one_axis, plain, several_axes
from baregrad.tensor.array.core import check_float
from baregrad.tensor.array.operands import accumulator, float_dtype, result, stepwise
from baregrad.tensor.array.tensor_like import Tensor, TensorLike
from baregrad.tensor.ops.elementwise import unary


class Extreme(NamedTuple, Generic[Tensor]):
    """The result of a reduction along one axis that also says where."""

    values: Tensor
    indices: Tensor


def reduce(x: Tensor, op: Op, node: Node, axes: tuple[int, ...], keepdim: bool) -> Tensor:
    """A tensor of `node` folded over axes."""
    folded = nodes.reduce(op, node, axes)
    if keepdim:
        folded = nodes.keep(folded, axes, x.ndim)
    return result(folded, x)


def _sum_dtype(x: Tensor, dtype: object) -> DType:
    if dtype is not None:
        return array_dtype(dtype)
    return x.dtype if x.dtype.kind == "float" else dtypes.int64


def _accumulate(x: Tensor, op: Op, axes: tuple[int, ...], keepdim: bool, dtype: DType) -> Tensor:
    """A fold in `dtype`, accumulated in float32 when that is narrower."""
    wide = accumulator(dtype)
    return reduce(x, op, nodes.cast(x.node, wide), axes, keepdim).cast(dtype)


def sum(x: Tensor, dim: Axes = None, keepdim: bool = False, *, dtype: object = None) -> Tensor:
    """Return the sum over axes, all by default; integers and bools sum as int64."""
    axes = several_axes(dim, x.ndim)
    return _accumulate(x, Ops.ADD, axes, keepdim, _sum_dtype(x, dtype))


def prod(x: Tensor, dim: Axes = None, keepdim: bool = False, *, dtype: object = None) -> Tensor:
    """Return the product over axes, all by default; integers and bools multiply as int64."""
    axes = several_axes(dim, x.ndim)
    return _accumulate(x, Ops.MUL, axes, keepdim, _sum_dtype(x, dtype))


def count_over(x: Tensor, axes: tuple[int, ...]) -> int | Node:
    """How many elements a reduction over axes folds into one."""
    return index.product(x.shape[axis] for axis in axes)


def mean(x: Tensor, dim: Axes = None, keepdim: bool = False, *, dtype: object = None) -> Tensor:
    """Return the mean over axes, all by default. Raises DTypeError unless floating point."""
    found = x.dtype if dtype is None else array_dtype(dtype)
    check_float(found, "the mean")
    axes = several_axes(dim, x.ndim)
    wide = accumulator(found)
    total = reduce(x, Ops.ADD, nodes.cast(x.node, wide), axes, keepdim)
    return (total / count_over(x, axes)).cast(found)


def nansum(x: Tensor, dim: Axes = None, keepdim: bool = False) -> Tensor:
    """Return the sum over axes with NaN counted as 0."""
    return sum(x if x.dtype.kind != "float" else x.isnan().where(0, x), dim, keepdim)


def nanmean(x: Tensor, dim: Axes = None, keepdim: bool = False) -> Tensor:
    """Return the mean over axes of the elements that are not NaN; NaN where there are none."""
    check_float(x.dtype, "nanmean")
    return nansum(x, dim, keepdim) / x.isnan().logical_not().sum(dim, keepdim)


def _bool_axes(dim: Axes, ndim: int) -> tuple[int, ...]:
    """The axes of `any` and `all`: of all reductions theirs alone goes over no axis for ()."""
    return () if isinstance(dim, Sequence) and not dim else several_axes(dim, ndim)


def all(x: Tensor, dim: Axes = None, keepdim: bool = False) -> Tensor:
    """Return whether every element over axes is nonzero; whether each is, for no axes ()."""
    axes = _bool_axes(dim, x.ndim)
    return reduce(x, Ops.AND, (x != 0).node, axes, keepdim)


def any(x: Tensor, dim: Axes = None, keepdim: bool = False) -> Tensor:
    """Return whether some element over axes is nonzero; whether each is, for no axes ()."""
    axes = _bool_axes(dim, x.ndim)
    return reduce(x, Ops.OR, (x != 0).node, axes, keepdim)


def count_nonzero(x: Tensor, dim: Axes = None) -> Tensor:
    """Return how many elements over axes are nonzero, as int64."""
    return sum(x != 0, dim)


# --- extremes -----------------------------------------------------------------------------------


def _nonempty(x: Tensor, axes: tuple[int, ...], what: str) -> Tensor:
    """`x`, which has elements along some axes: known now, or checked where variables are bound."""
    for axis in axes:
        extent = x.shape[axis]
        if extent.__class__ is not int:
            if index.lower(extent) < 1:
                # Windows of one element, which an empty axis has not.
                x = x.unfold(axis, 1, 1).reshape(x.shape)
        elif extent == 0:
            raise ShapeError(
                f"{what} of no elements",
                found=f"shape {list(x.shape)}, axis {axis} is empty",
                wanted="at least one element",
            )
    return x


def _settled(x: Tensor) -> Node:
    """The value of `x`, stored if its gradient will look for it among sums.

    The gradient compares elements with the extreme, and two kernels may round a sum differently.
    """
    value = x.node
    if x.requires_grad and value.mask & Ops.REDUCE.bit:
        return Node(Ops.CONTIGUOUS, value.dtype, (value,))
    return value


def amax(x: Tensor, dim: Axes = None, keepdim: bool = False) -> Tensor:
    """Return the largest over axes; NaN if one is. The gradient is shared among equals."""
    axes = several_axes(dim, x.ndim)
    x = _nonempty(x, axes, "the maximum")
    return reduce(x, Ops.MAX, _settled(x), axes, keepdim)


def amin(x: Tensor, dim: Axes = None, keepdim: bool = False) -> Tensor:
    """Return the smallest over axes; NaN if one is. The gradient is shared among equals."""
    axes = several_axes(dim, x.ndim)
    x = _nonempty(x, axes, "the minimum")
    return reduce(x, Ops.MIN, _settled(x), axes, keepdim)


def aminmax(x: Tensor, dim: int | None = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest over an axis, or over all."""
    dim = None if dim is None else one_axis(dim, x.ndim)
    return amin(x, dim, keepdim), amax(x, dim, keepdim)


def extreme(op: Op, x: Tensor, axis: int, keepdim: bool) -> Extreme[Tensor]:
    """The extreme along an axis and where it stands first."""
    if x.ndim == 0:
        return Extreme(x.clone(), x.zeros_like(dtype=dtypes.int64))
    x = _nonempty(x, (axis,), "the extreme")
    places = nodes.iota_along(x.shape, axis)
    both = nodes.arg_reduce(op, x.node, places, (axis,))
    values, indices = nodes.part(both, 0, x.dtype), nodes.part(both, 1, dtypes.int64)
    if keepdim:
        values, indices = (nodes.keep(part, (axis,), x.ndim) for part in (values, indices))
    return Extreme(result(values, x), result(indices, x))


def max(
    x: Tensor, dim: int | Tensor | None = None, keepdim: bool = False
) -> Tensor | Extreme[Tensor]:
    """Return the largest of all elements, or (values, indices) along an axis.

    Given a tensor instead of an axis, return the elementwise maximum.
    """
    if dim is None:
        return amax(x)
    if isinstance(dim, TensorLike):
        return x.maximum(dim)
    return extreme(Ops.MAX, x, one_axis(plain(dim), x.ndim), keepdim)


def min(
    x: Tensor, dim: int | Tensor | None = None, keepdim: bool = False
) -> Tensor | Extreme[Tensor]:
    """Return the smallest of all elements, or (values, indices) along an axis.

    Given a tensor instead of an axis, return the elementwise minimum.
    """
    if dim is None:
        return amin(x)
    if isinstance(dim, TensorLike):
        return x.minimum(dim)
    return extreme(Ops.MIN, x, one_axis(plain(dim), x.ndim), keepdim)


def _where_extreme(op: Op, x: Tensor, dim: int | None, keepdim: bool) -> Tensor:
    if dim is not None:
        return extreme(op, x, one_axis(dim, x.ndim), keepdim).indices
    found = extreme(op, x.ravel(), 0, False).indices
    return found.reshape((1,) * x.ndim) if keepdim else found


def argmax(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Return where the largest element stands first: in the flattened tensor, or along an axis."""
    return _where_extreme(Ops.MAX, x, dim, keepdim)


def argmin(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Return where the smallest element stands first: in the flattened tensor, or along an axis."""
    return _where_extreme(Ops.MIN, x, dim, keepdim)


# --- statistics ---------------------------------------------------------------------------------


def var(
    x: Tensor,
    dim: Axes | bool = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float = 1,
) -> Tensor:
    """Return the variance over axes: squared distances from the mean over (count - correction)."""
    check_float(x.dtype, "the variance")
    return _variance(x, dim, unbiased, keepdim, correction, accumulator(x.dtype)).cast(x.dtype)


def _variance(
    x: Tensor, dim: Axes | bool, unbiased: bool | None, keepdim: bool, correction: float,
    squares: DType,
) -> Tensor:
    """The variance in the dtype that squared distances are added up in."""
    dim, unbiased = _over(dim, unbiased)
    if unbiased is not None:
        correction = 1 if unbiased else 0
    axes = several_axes(dim, x.ndim)
    y = x.cast(accumulator(x.dtype))
    distance = (y - mean(y, axes or None, True) if axes else y - y).cast(squares)
    total = sum(distance.square(), axes or None, keepdim) if axes else distance.square()
    count = count_over(x, axes)
    if isinstance(count, int):
        freedom = count - correction
        return total / (freedom if freedom > 0 else 0)
    return total / index.sub(count, int(correction))


def std(
    x: Tensor,
    dim: Axes | bool = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float = 1,
) -> Tensor:
    """Return the standard deviation over axes, the root of `var`."""
    check_float(x.dtype, "the standard deviation")
    # In float64, which has the square of every distance whose root is a number of the others.
    squared = _variance(x, dim, unbiased, keepdim, correction, dtypes.float64)
    # The root has no derivative at 0; that of the deviation is taken as 0 there, as PyTorch does.
    zero = squared == 0
    return zero.where(squared, zero.where(1, squared).sqrt()).cast(x.dtype)


def var_mean(
    x: Tensor, dim: Axes | bool = None, unbiased: bool | None = None, keepdim: bool = False, *,
    correction: float = 1,
) -> tuple[Tensor, Tensor]:
    """Return the variance and the mean over axes."""
    axes, unbiased = _over(dim, unbiased)
    return var(x, axes, unbiased, keepdim, correction=correction), mean(x, axes, keepdim)


def std_mean(
    x: Tensor, dim: Axes | bool = None, unbiased: bool | None = None, keepdim: bool = False, *,
    correction: float = 1,
) -> tuple[Tensor, Tensor]:
    """Return the standard deviation and the mean over axes."""
    axes, unbiased = _over(dim, unbiased)
    return std(x, axes, unbiased, keepdim, correction=correction), mean(x, axes, keepdim)


def _over(dim: Axes | bool, unbiased: bool | None) -> tuple[Axes, bool | None]:
    """Axes, and whether the estimate is unbiased, which alone may stand first."""
    return (None, dim) if isinstance(dim, bool) else (dim, unbiased)


def norm(x: Tensor, p: float | str = 2, dim: Axes = None, keepdim: bool = False) -> Tensor:
    """Return the p-norm over axes, all by default; p may be inf, -inf, 0 or "fro" (which is 2)."""
    check_float(x.dtype, "the norm")
    if isinstance(p, str) and p not in ("fro", "inf", "-inf"):
        raise ArgumentError("there is no such norm", found=repr(p), wanted="a number or 'fro'")
    order = 2.0 if p == "fro" else float(p)
    y = x.cast(accumulator(x.dtype))
    if order == math.inf:
        found = amax(y.abs(), dim, keepdim)
    elif order == -math.inf:
        found = amin(y.abs(), dim, keepdim)
    elif order == 0:
        found = sum(stepwise((y != 0).cast(y.dtype), y), dim, keepdim)
    elif order == 1:
        found = sum(y.abs(), dim, keepdim)
    else:
        found = _power_norm(y, order, dim, keepdim)
    return found.cast(x.dtype)


def _power_norm(y: Tensor, order: float, dim: Axes, keepdim: bool) -> Tensor:
    # Neither the power nor the root has a derivative at 0; the norm's there is taken as 0, as
    # PyTorch does.
    if order == 2:
        total = sum(y.square(), dim, keepdim)
    else:
        powers = (y == 0).where(1, y.abs()) ** order
        total = sum((y == 0).where(0 if order > 0 else math.inf, powers), dim, keepdim)
    if order < 0:
        return total ** (1 / order)
    zero = total == 0
    safe = zero.where(1, total)
    root = safe.sqrt() if order == 2 else safe ** (1 / order)
    return zero.where(total, root)


# --- softmax ------------------------------------------------------------------------------------


def _highest(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """The largest over axes, which stay, or -inf of none; no gradient goes there."""
    return reduce(x, Ops.MAX, _settled(x), axes, True).detach()


def logsumexp(x: Tensor, dim: Axes, keepdim: bool = False) -> Tensor:
    """Return log(sum(exp(x))) over axes without overflow."""
    dtype = float_dtype(x.dtype)
    y = x.cast(accumulator(dtype))
    axes = several_axes(dim, x.ndim)
    if count_over(x, axes) == 0:
        return sum(y, dim, keepdim).log().cast(dtype)
    high = _highest(y, axes)
    shift = high.isinf().where(0, high)
    total = sum((y - shift).exp(), dim, True).log() + shift
    if not keepdim and axes:
        total = total.reshape(tuple(e for i, e in enumerate(x.shape) if i not in axes))
    return total.cast(dtype)


def softmax(x: Tensor, dim: int, dtype: object = None) -> Tensor:
    """Return exp(x) over its sum along an axis.

    Of 16 bits' the powers are nearly that, off by 2**-17 at most: the result is rounded more.
    """
    target = float_dtype(x.dtype) if dtype is None else array_dtype(dtype)
    dim = one_axis(dim, x.ndim)
    y = x.cast(accumulator(target))
    if x.ndim == 0:
        return (y - y).exp().cast(target)
    weights = y
    if 0 not in x.shape:
        below = y - _highest(y, (dim,))
        weights = unary(Ops.EXP_NEAR, below) if target.bits == 16 else below.exp()
    # One division a row: those of the elements would take longer than their exponentials.
    return (weights * sum(weights, dim, True).reciprocal()).cast(target)


def softmin(x: Tensor, dim: int, dtype: object = None) -> Tensor:
    """Return softmax(-x) along an axis."""
    return softmax(-x, dim, dtype)


def log_softmax(x: Tensor, dim: int, dtype: object = None) -> Tensor:
    """Return the logarithm of `softmax` along an axis, computed without leaving logarithms."""
    target = float_dtype(x.dtype) if dtype is None else array_dtype(dtype)
    dim = one_axis(dim, x.ndim)
    y = x.cast(accumulator(target))
    if x.ndim == 0 or 0 in x.shape:
        return (y - y).cast(target)
    shifted, total = log_parts(y, dim)
    return (shifted - total).cast(target)


def log_parts(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Return `x` less its maximum along an axis, and the logarithm of the sum of their powers.

    Their difference is `log_softmax`. `x` is of floats that sums are taken in, and not empty.
    """
    shifted = x - _highest(x, (dim,))
    return shifted, sum(shifted.exp(), dim, True).log()


def check_integer(x: Tensor, what: str) -> None:
    """Raise DTypeError unless `x` is of integers."""
    if x.dtype.kind not in ("int", "uint"):
        raise DTypeError(
            f"{what} are integers", found=f"dtype {x.dtype}", hint="cast them, for example long()"
        )
