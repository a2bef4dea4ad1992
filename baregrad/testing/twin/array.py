"""The array of a twin: its elements, its dtype, casts, and operands brought to one dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np

from baregrad.dtypes import (
    DType,
    as_dtype,
    dtypes,
    promote_with_scalar,
    result_type,
    scalar_dtype,
)
from baregrad.testing.twin.casts import Array, converted, rounded, stored


class Uncovered(Exception):
    """What the twin has no answer to."""


class TwinArray:
    """An array with a dtype: floats are kept in float64, others in their own."""

    def __init__(self, array: Any, dtype: DType) -> None:
        self.array = stored(array, dtype)
        self.dtype = dtype

    def __getattr__(self, name: str) -> Any:
        raise Uncovered(name)

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""
        return tuple(self.array.shape)

    def _like(self, array: Any, dtype: DType) -> Self:
        return type(self)(array, dtype)

    def _moved(self, array: Array) -> Self:
        return self._like(array, self.dtype)

    def cast(self, dtype: object) -> Self:
        """The elements in another dtype."""
        wanted = as_dtype(dtype)
        array = converted(self.array, self.dtype, wanted)
        if wanted.kind == "float":
            array = rounded(array, wanted)
        return self._like(array, wanted)

    def long(self) -> Self:
        """In int64."""
        return self.cast(dtypes.int64)

    def int(self) -> Self:
        """In int32."""
        return self.cast(dtypes.int32)

    def _own(self, value: Any) -> Array:
        """A value in this dtype."""
        made = value if isinstance(value, TwinArray) else self._like(value, scalar_dtype(value))
        array = made.array
        if made.dtype.kind == "float" and made.dtype is not self.dtype:
            # A result is rounded to the dtype in which its operands meet, and then to this one.
            array = rounded(array, made.dtype)
        return converted(array, made.dtype, self.dtype)

    def _float(self, function: Callable[[Array], Array]) -> Self:
        """A function of the elements in float64, in this dtype or else in float32."""
        dtype = self.dtype if self.dtype.kind == "float" else dtypes.float32
        with np.errstate(all="ignore"):
            return self._like(function(self.array.astype(np.float64)), dtype)

    def _meet(self, other: Any) -> tuple[Array, Array, DType]:
        """Both arrays in the dtype in which they meet, and that."""
        if isinstance(other, TwinArray):
            dtype = met(self, other)
            return (
                converted(self.array, self.dtype, dtype),
                converted(other.array, other.dtype, dtype),
                dtype,
            )
        dtype = promote_with_scalar(self.dtype, other)
        mine = converted(self.array, self.dtype, dtype)
        own = scalar_dtype(other)
        return mine, converted(np.asarray(other), own, dtype), dtype

    def _meet_as_factor(self, other: Any) -> tuple[Array, Array, DType]:
        """As `_meet`, but a number beside an array of 16-bit floats is rounded to float32 alone."""
        a, b, dtype = self._meet(other)
        if dtype is not self.dtype or dtype.kind != "float" or dtype.bits != 16:
            return a, b, dtype
        if isinstance(other, TwinArray):
            if self.array.ndim and not other.array.ndim and other.dtype.kind != "bool":
                b = converted(other.array, other.dtype, dtypes.float32)
        else:
            b = converted(np.asarray(other), scalar_dtype(other), dtypes.float32)
        return a, b, dtype


def met(*twins: TwinArray) -> DType:
    """The dtype in which arrays meet; those without axes count less."""
    axes = [twin.dtype for twin in twins if twin.array.ndim]
    return result_type(axes, [twin.dtype for twin in twins if not twin.array.ndim])
