"""Sums and other numbers of many elements along axes."""

from __future__ import annotations

import math
from collections.abc import Callable

from baregrad.array_api.values import Axes, axes_of, one_axis_of, wide
from baregrad.dtypes import DType, dtypes
from baregrad.tensor import Tensor


def sum(
    x: Tensor, /, *, axis: Axes = None, dtype: DType | None = None, keepdims: bool = False
) -> Tensor:
    """Return sums along axes, of integers in 64 bits."""
    axes = axes_of(axis, x.ndim)
    given = wide(x, dtype)
    return given.sum(dim=axes, keepdim=keepdims, dtype=given.dtype) if axes else given


def prod(
    x: Tensor, /, *, axis: Axes = None, dtype: DType | None = None, keepdims: bool = False
) -> Tensor:
    """Return products along axes, of integers in 64 bits."""
    found = wide(x, dtype)
    for each in sorted(axes_of(axis, x.ndim), reverse=True):
        found = found.prod(dim=each, keepdim=keepdims, dtype=found.dtype)
    return found


def mean(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return means along axes."""
    axes = axes_of(axis, x.ndim)
    return x.mean(dim=axes, keepdim=keepdims) if axes else x


def max(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the greatest elements along axes, NaN where there is one."""
    axes = axes_of(axis, x.ndim)
    return x.amax(dim=axes, keepdim=keepdims) if axes else x


def min(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the least elements along axes, NaN where there is one."""
    axes = axes_of(axis, x.ndim)
    return x.amin(dim=axes, keepdim=keepdims) if axes else x


def var(
    x: Tensor, /, *, axis: Axes = None, correction: float = 0.0, keepdims: bool = False
) -> Tensor:
    """Return the means of squared distances from the mean, of `correction` elements less."""
    axes = axes_of(axis, x.ndim)
    count = math.prod(x.shape[each] for each in axes)
    apart = x - mean(x, axis=axis, keepdims=True)
    return sum(apart * apart, axis=axis, keepdims=keepdims) / (count - correction)


def std(
    x: Tensor, /, *, axis: Axes = None, correction: float = 0.0, keepdims: bool = False
) -> Tensor:
    """Return the roots of `var`."""
    return var(x, axis=axis, correction=correction, keepdims=keepdims).sqrt()


def all(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return whether all elements along axes hold."""
    axes = axes_of(axis, x.ndim)
    given = x.cast(dtypes.bool)
    return given.all(dim=axes, keepdim=keepdims) if axes else given


def any(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return whether one element along axes holds."""
    axes = axes_of(axis, x.ndim)
    given = x.cast(dtypes.bool)
    return given.any(dim=axes, keepdim=keepdims) if axes else given


def cumulative_sum(
    x: Tensor,
    /,
    *,
    axis: int | None = None,
    dtype: DType | None = None,
    include_initial: bool = False,
) -> Tensor:
    """Return running sums along an axis, with `include_initial` from 0 on."""
    return _running(Tensor.cumsum, 0, x, axis, dtype, include_initial)


def cumulative_prod(
    x: Tensor,
    /,
    *,
    axis: int | None = None,
    dtype: DType | None = None,
    include_initial: bool = False,
) -> Tensor:
    """Return running products along an axis, with `include_initial` from 1 on."""
    return _running(Tensor.cumprod, 1, x, axis, dtype, include_initial)


def _running(
    fold: Callable[..., Tensor],
    first: int,
    x: Tensor,
    axis: int | None,
    dtype: DType | None,
    include_initial: bool,
) -> Tensor:
    """Running results of a fold along an axis, after the `first` one where it is included."""
    given, place = wide(x, dtype), one_axis_of(x, axis)
    found = fold(given, place, dtype=given.dtype) if x.ndim else given
    if not include_initial:
        return found
    shape = list(found.shape)
    shape[place] = 1
    start = Tensor.full(tuple(shape), first, dtype=found.dtype, device=found.device)
    return Tensor.cat(start, found, dim=place)


def diff(
    x: Tensor,
    /,
    *,
    axis: int = -1,
    n: int = 1,
    prepend: Tensor | None = None,
    append: Tensor | None = None,
) -> Tensor:
    """Return the distances of neighbours along an axis, n times over."""
    parts = [part for part in (prepend, x, append) if part is not None]
    given = Tensor.cat(*parts, dim=axis) if len(parts) > 1 else x
    return given.diff(n, axis)
