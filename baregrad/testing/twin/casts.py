"""Casts of NumPy arrays as dtypes have them: what wraps, what saturates, what is rounded."""

from __future__ import annotations

from typing import Any

import numpy as np

from baregrad.dtypes import DType

Array = np.ndarray[Any, Any]


def stored(array: Any, dtype: DType) -> Array:
    """Elements as they are kept: float64 for floats, the dtype's own for others."""
    with np.errstate(all="ignore"):
        return np.asarray(array).astype(np.float64 if dtype.kind == "float" else dtype.name)


def converted(array: Array, old: DType, dtype: DType) -> Array:
    """A cast: floats to integers saturate, with 0 for NaN; integers wrap."""
    if dtype.kind == "bool":
        return np.asarray(array != 0)
    if old.kind == "float" and dtype.kind != "float":
        low, high = int(dtype.min), int(dtype.max)
        with np.errstate(all="ignore"):
            whole = np.trunc(np.nan_to_num(array, nan=0.0))
            inside = np.clip(whole, float(low), float(high))
            found = np.where(inside >= high, 0, inside).astype(dtype.name)
            found[np.asarray(whole >= high)] = high
        return found
    if old.kind != "float" and dtype.kind == "float":
        # One rounding alone: a wide integer has more bits than float64.
        name = dtype.name if dtype.name in ("float32", "float64") else "float64"
        found = array.astype(name).astype(np.float64)
        return rounded(found, dtype) if dtype.bits < 32 else found
    if dtype.kind == "float" and dtype is not old:
        # Also of as many bits: float16 has digits that bfloat16 lacks.
        return rounded(array, dtype)
    return stored(array, dtype)


def rounded(array: Array, dtype: DType) -> Array:
    """float64 elements rounded to a floating dtype."""
    with np.errstate(all="ignore"):
        if dtype.name == "bfloat16":
            bits: Array = array.astype(np.float32).view(np.uint32).astype(np.uint64)
            bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
            found = bits.astype(np.uint32).view(np.float32)
            return np.where(np.isnan(array), np.nan, found).astype(np.float64)
        return array.astype(dtype.name).astype(np.float64)
