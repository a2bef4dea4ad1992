"""Many operations at once on several devices: the same tensors, one realize, arrays compared."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from baregrad.base.options import options
from baregrad.dtypes import DType, dtypes
from baregrad.tensor import Tensor

Function = Callable[..., Any]

# The device that is compared with REF.
DEVICE = os.environ.get("TENSOR_TESTS_DEVICE", "CPU")

FLOATS = (dtypes.float32, dtypes.float64, dtypes.float16, dtypes.bfloat16)
SIGNED = (dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64)
UNSIGNED = (dtypes.uint8, dtypes.uint16, dtypes.uint32, dtypes.uint64)
INTEGERS = SIGNED + UNSIGNED
SPECIAL = (
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, float("inf"), float("-inf"),
    float("nan"), 1e-3, 6.1e-5, 5.96e-8, 1e-38, 1e-40, 1e-45, -1e-45, 65504.0, -65504.0, 1e38,
    3.4e38, -3.4e38, 16777217.0, 2147483648.0, -2147483649.0, 0.1, 7.0, 88.7, -87.3, 127.0, 1e5,
)  # fmt: skip


def floats(dtype: DType, count: int | None = None, seed: int = 0) -> np.ndarray[Any, Any]:
    """Special values, or `count` random ones of many magnitudes, as float64."""
    if count is None:
        return np.array(SPECIAL)
    rng = np.random.default_rng(seed)
    return np.asarray(rng.normal(size=count) * 2.0 ** rng.integers(-6, 6, count))


def integers(dtype: DType, count: int | None = None, seed: int = 0) -> np.ndarray[Any, Any]:
    """The corners of an integer dtype, or `count` random values of its whole range."""
    low, high = int(dtype.min), int(dtype.max)
    if count is None:
        values = [0, 1, 2, 3, 7, low, low + 1, high, high - 1, high // 2, 5, dtype.bits]
        if low < 0:
            values += [-1, -2, -7]
        return np.array(values, dtype.name)
    drawn = np.random.default_rng(seed).integers(low, high, count, dtype.name, endpoint=True)
    return np.asarray(drawn)


def every_pair(values: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], ...]:
    """All pairs of values, as two vectors."""
    left, right = np.meshgrid(values, values)
    return left.ravel(), right.ravel()


def as_array(tensor: Tensor) -> np.ndarray[Any, Any]:
    """The elements; bfloat16 as float32."""
    if tensor.dtype is dtypes.bfloat16:
        return tensor.cast(dtypes.float32).numpy()
    return tensor.numpy()


def on_device(
    device: str, functions: Sequence[Function], arrays: Sequence[tuple[Any, DType]]
) -> list[np.ndarray[Any, Any]]:
    """Each function of the same tensors, all computed together."""
    with options.override(device=device):
        tensors = [Tensor(array, dtype=dtype) for array, dtype in arrays]
        made: list[Tensor] = []
        for function in functions:
            result = function(*tensors)
            made.extend(result if isinstance(result, tuple | list) else [result])
        made[0].realize(*made[1:])
        return [as_array(tensor) for tensor in made]


def bits_differ(found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Where two arrays differ; any NaN equals any other, but zeros have signs."""
    assert found.shape == wanted.shape
    assert found.dtype == wanted.dtype
    if found.dtype.kind != "f":
        return np.asarray(found != wanted)
    kind = f"u{found.dtype.itemsize}"
    same = found.view(kind) == wanted.view(kind)
    return np.asarray(~(same | (np.isnan(found) & np.isnan(wanted))))


def report(names: Sequence[str], bad: Sequence[tuple[str, Any, Any, Any]]) -> str:
    """A readable list of the first differences."""
    lines = [
        f"{name} at {place}: {found!r} instead of {wanted!r}"
        for name, place, found, wanted in bad[:20]
    ]
    return "\n".join([f"{len(bad)} of {len(names)} differ", *lines])


def assert_same_bits(
    rows: Sequence[tuple[str, Function]], arrays: Sequence[tuple[Any, DType]]
) -> None:
    """Every function gives the same bits on the device and on the reference device."""
    names = [name for name, _ in rows]
    functions = [function for _, function in rows]
    found = on_device(DEVICE, functions, arrays)
    wanted = on_device("REF", functions, arrays)
    bad: list[tuple[str, Any, Any, Any]] = []
    for name, ours, theirs in zip(names, found, wanted, strict=True):
        differs = bits_differ(ours, theirs)
        if DEVICE != "CPU" and name in ("maximum", "minimum"):
            # Of zeros of both signs they give either: GPUs order them, processors take the second.
            differs &= (ours != 0) | (theirs != 0)
        if differs.any():
            place = tuple(int(i) for i in np.argwhere(differs)[0])
            inputs = [a[place] if np.shape(a) == ours.shape else "?" for a, _ in arrays]
            bad.append((f"{name} of {inputs}", place, ours[place], theirs[place]))
    assert not bad, report(names, bad)


def ulps(
    found: np.ndarray[Any, Any], exact: np.ndarray[Any, Any], dtype: DType
) -> np.ndarray[Any, Any]:
    """The distance of `found` from `exact` (float64) in units of the last place of `dtype`.

    Below the smallest normal number the unit stays that of the smallest normal number's.
    """
    bits = {"float16": (10, -14), "bfloat16": (7, -126), "float32": (23, -126)}
    mantissa, lowest = bits.get(dtype.name, (52, -1022))
    with np.errstate(all="ignore"):
        scale = np.floor(np.log2(np.abs(exact)))
        scale = np.where(np.isfinite(scale), np.maximum(scale, lowest), lowest)
        distance = np.abs(found.astype(np.longdouble) - exact) / 2.0 ** (scale - mantissa)
    same = (found == exact) | (np.isnan(found) & np.isnan(exact))
    return np.asarray(np.where(same, 0.0, distance), np.float64)
