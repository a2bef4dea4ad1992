"""Axis arguments: negative axes, one or several, checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from baregrad.base.errors import IndexOutOfRange, ShapeError

Axes = int | Sequence[int] | None


def plain(value: Any) -> Any:
    """Python's own number for one of NumPy's; anything else as it is."""
    # A time span counts as an integer with NumPy.
    return value.item() if isinstance(value, np.generic) and value.dtype.kind in "biuf" else value


def one_axis(axis: int, ndim: int) -> int:
    """The axis counted from 0. Raises IndexOutOfRange; a tensor without axes has axes 0 and -1."""
    limit = max(ndim, 1)
    axis = plain(axis)
    if not isinstance(axis, int) or isinstance(axis, bool):
        raise ShapeError("an axis is an integer", found=f"{type(axis).__name__} {axis!r:.40}")
    if not -limit <= axis < limit:
        raise IndexOutOfRange(
            f"there is no axis {axis}", found=f"{ndim} axes", wanted=f"{-limit} to {limit - 1}"
        )
    return axis % limit


def own_axis(axis: int, ndim: int) -> int:
    """The axis counted from 0, of a tensor that has axes. Raises IndexOutOfRange where none is."""
    if not ndim:
        raise IndexOutOfRange("a tensor without axes has none to go along", found=f"axis {axis!r}")
    return one_axis(axis, ndim)


def several_axes(axes: Axes, ndim: int) -> tuple[int, ...]:
    """Axes counted from 0, in order; all for None. Raises ShapeError for one given twice."""
    axes = plain(axes)
    if axes is None:
        return tuple(range(ndim))
    if isinstance(axes, int):
        return (one_axis(axes, ndim),) if ndim else (one_axis(axes, ndim),)[:0]
    if not isinstance(axes, Sequence):
        raise ShapeError(
            "axes are integers",
            found=f"{type(axes).__name__} {axes!r:.40}",
            wanted="an int or several",
        )
    found = [one_axis(axis, ndim) for axis in axes]
    if len(set(found)) != len(found):
        raise ShapeError("an axis is named twice", found=str(list(axes)))
    if not found:
        return tuple(range(ndim))
    return tuple(sorted(found)) if ndim else ()
