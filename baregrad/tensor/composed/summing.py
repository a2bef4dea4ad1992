"""Sums over axes of two tensors, and areas below what points show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from baregrad.base.errors import ShapeError
from baregrad.tensor.array.axes import one_axis
from baregrad.tensor.array.tensor_like import Tensor


def tensordot(
    x: Tensor, other: Tensor, dims: int | Sequence[Any] = 2
) -> Tensor:
    """Return sums of products over axes: the last of `x` with the first of `other`, or as named.

    dims: how many, or the axes of `x` and those of `other`. Raises ShapeError where these differ.
    """
    a: Any = x
    b: Any = other
    if isinstance(dims, int):
        if not 0 <= dims <= min(x.ndim, other.ndim):
            raise ShapeError(
                "both have the axes that are summed over",
                found=f"{dims} axes of {list(x.shape)} and {list(other.shape)}",
            )
        left, right = list(range(x.ndim - dims, x.ndim)), list(range(dims))
    else:
        first, second = [[one] if isinstance(one, int) else list(one) for one in dims]
        left = [one_axis(axis, x.ndim) for axis in first]
        right = [one_axis(axis, other.ndim) for axis in second]
    if [a.shape[i] for i in left] != [b.shape[i] for i in right] or len(set(left)) < len(left):
        raise ShapeError(
            "axes that are summed over have one extent",
            found=f"{list(x.shape)} and {list(other.shape)} over {dims}",
        )
    kept = [i for i in range(x.ndim) if i not in left]
    others = [i for i in range(other.ndim) if i not in right]
    rows, columns = [a.shape[i] for i in kept], [b.shape[i] for i in others]
    inner = math.prod(a.shape[i] for i in left)
    flat = a.permute(*kept, *left).reshape(math.prod(rows), inner) if x.ndim else a.reshape(1, 1)
    across = b.permute(*right, *others).reshape(inner, math.prod(columns)) if other.ndim else \
        b.reshape(1, 1)
    return (flat @ across).reshape(*rows, *columns)  # type: ignore[no-any-return]


def _areas(y: Any, x: Any, dx: float, dim: int) -> Any:
    """The areas between neighbours along an axis, which is brought behind the others."""
    if not y.ndim:
        raise ShapeError("areas are between points along an axis", found="no axes")
    rows = y.movedim(one_axis(dim, y.ndim), -1)
    sides = rows[..., 1:] + rows[..., :-1]
    if x is None:
        return sides * (dx / 2)
    widths = x if x.ndim == 1 else x.movedim(one_axis(dim, x.ndim), -1)
    return sides * (widths[..., 1:] - widths[..., :-1]) / 2


def trapezoid(y: Tensor, x: Tensor | None = None, *, dx: float = 1, dim: int = -1) -> Tensor:
    """Return the area below points y along an axis, at places x, or dx apart, by trapezoids."""
    return _areas(y, x, dx, dim).sum(-1)  # type: ignore[no-any-return]


def cumulative_trapezoid(
    y: Tensor, x: Tensor | None = None, *, dx: float = 1, dim: int = -1
) -> Tensor:
    """Return the running area of `trapezoid`, from the second point on."""
    running: Tensor = _areas(y, x, dx, dim).cumsum(-1).movedim(-1, one_axis(dim, y.ndim))
    return running
