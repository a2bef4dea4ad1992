"""Arrays and scalars in, arrays of one dtype out: what the other files of this room share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from baregrad.base.errors import ArgumentError, DTypeError, ShapeError
from baregrad.dtypes import DType, complex_of, dtypes, promote
from baregrad.tensor import Tensor
from baregrad.tensor.array.axes import own_axis

Scalar: TypeAlias = bool | int | float | complex
Value: TypeAlias = Tensor | Scalar
Axes: TypeAlias = int | tuple[int, ...] | None

INTEGERS = ("int", "uint")


def joined(*dtypes_: DType) -> DType:
    """The dtype that arrays meet in, whether or not they have axes."""
    return promote(*dtypes_)


def both(x: Value, y: Value) -> tuple[Tensor, Tensor]:
    """Two operands as arrays of one dtype, a Python scalar in that of the other."""
    if not isinstance(x, Tensor) and not isinstance(y, Tensor):
        raise DTypeError("one operand is an array", found=f"{x!r:.40} and {y!r:.40}")
    if not isinstance(x, Tensor):
        assert isinstance(y, Tensor)
        return scalar(x, y), y
    if not isinstance(y, Tensor):
        return x, scalar(y, x)
    dtype = joined(x.dtype, y.dtype)
    return x.cast(dtype), y.cast(dtype)


def scalar(value: Scalar, beside: Tensor) -> Tensor:
    """A Python scalar as an array without axes, of the dtype of another one where that has it."""
    dtype = beside.dtype
    if isinstance(value, complex):
        dtype = complex_of(dtype)
    elif isinstance(value, float) and dtype.kind not in ("float", "complex"):
        dtype = dtypes.float32
    elif not isinstance(value, bool) and dtype.kind == "bool":
        dtype = dtypes.int64
    if isinstance(value, int) and dtype.kind in INTEGERS:
        low, high = extent(dtype)
        if not low <= value <= high:
            raise ArgumentError(
                "a number has no place in the dtype of the array beside it",
                found=f"{value} and {dtype}", wanted=f"{low} to {high}", hint="cast the array",
            )  # fmt: skip
    return Tensor.full((), value, dtype=dtype, device=beside.device)


def extent(dtype: DType) -> tuple[int, int]:
    """The least and the greatest number of a dtype of integers."""
    return int(dtype.min), int(dtype.max)


def axes_of(axis: Axes, count: int) -> tuple[int, ...]:
    """The axes that are meant: all of them for None."""
    if axis is None:
        return tuple(range(count))
    given: Sequence[Any] = axis if isinstance(axis, tuple) else (axis,)
    found = tuple(own_axis(each, count) for each in given)
    if len(set(found)) < len(found):
        raise ShapeError("an axis is named twice", found=list(given))
    return found


def one_axis_of(x: Tensor, axis: int | None) -> int:
    """The axis that is meant, which may be left out where there is no other."""
    if axis is None and x.ndim > 1:
        raise ArgumentError("an array of several axes needs `axis`", found=f"shape {list(x.shape)}")
    return axis or 0


def wide(x: Tensor, dtype: DType | None) -> Tensor:
    """x in the dtype that its elements are added up in: that given, or 64 bits of an integer."""
    if dtype is not None:
        return x.cast(dtype)
    if x.dtype.kind == "uint":
        return x.cast(dtypes.uint64)
    return x.cast(dtypes.int64) if x.dtype.kind in ("int", "bool") else x
