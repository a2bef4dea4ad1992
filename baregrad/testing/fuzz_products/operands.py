"""Numbers for tensors in any layout, and how results are read and compared."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt

from baregrad.dtypes import DType, decode, dtypes, encode, finfo
from baregrad.tensor import Tensor

Array = npt.NDArray[Any]


def numbers(rng: np.random.Generator, shape: Sequence[int], dtype: DType, whole: bool) -> Array:
    """Numbers that a dtype has, as float64: small whole ones, or normal ones."""
    if dtype.kind == "bool":
        return rng.integers(0, 2, shape).astype(np.float64) * (rng.random(shape) < 0.3)
    if not dtype.is_float:
        low, high = max(int(dtype.min), -128), min(int(dtype.max), 127)
        return rng.integers(low, high + 1, shape).astype(np.float64)
    if whole:
        return rng.integers(-4, 5, shape).astype(np.float64)
    return rounded(rng.standard_normal(shape), dtype)


def rounded(values: Array, dtype: DType) -> Array:
    """Float64 as a dtype has it."""
    if dtype is dtypes.float64:
        return values
    return decode(encode(values, dtype), dtype).astype(np.float64)


def tensor_of(values: Array, dtype: DType) -> Tensor:
    """A tensor of numbers that its dtype has, in order; nothing is computed."""
    raw = encode(values, dtype) if dtype.is_float else values.astype(dtype.numpy)
    return Tensor(raw.tobytes(), dtype=dtype).reshape(values.shape)


def laid_out(rng: Random, values: Array, dtype: DType) -> Tensor:
    """A tensor of numbers whose axes lie in any order in memory, sometimes part of more.

    It may be every other element of an axis, or read backwards; of an axis along which all numbers
    are equal it may have one.
    """
    order = list(range(values.ndim))
    if rng.random() < 0.6:
        rng.shuffle(order)
    stored = values.transpose(order)
    whole, cuts = stored, []
    for axis, size in enumerate(stored.shape):
        how = rng.random()
        step = 2 if how < 0.03 else 1
        backwards = 0.03 <= how < 0.06
        before, behind = (rng.choice((0, 1, 8)), rng.choice((1, 3, 8))) if how > 0.93 else (0, 0)
        if backwards:
            whole = np.flip(whole, axis)
        if step == 2:
            whole = np.repeat(whole, 2, axis)
        if before or behind:
            pads = [(before, behind) if one == axis else (0, 0) for one in range(whole.ndim)]
            whole = np.pad(whole, pads, constant_values=1)
        cuts.append((slice(before, before + step * size, step), backwards))
    found = tensor_of(whole, dtype)
    if whole.shape != stored.shape:
        found = found[tuple([cut for cut, _ in cuts])]
    turned = [axis for axis, (_, backwards) in enumerate(cuts) if backwards]
    found = found.flip(turned) if turned else found
    return found.permute([order.index(axis) for axis in range(values.ndim)]) if order else found


def values_of(found: Tensor) -> Array:
    """The numbers of a tensor as float64, or as they are where they are no floats."""
    if not found.dtype.is_float or found.dtype is dtypes.float64:
        return found.numpy()
    return decode(found._raw(), found.dtype).astype(np.float64)


def contracted(equation: str, a: Array, b: Array, exact_below: float = 0.0) -> Array:
    """A contraction of two arrays in float64, by NumPy's `matmul` of the axes as matrices.

    exact_below: in float32, which has all whole numbers up to 2**24, if no sum may be larger.
    """
    terms, out = equation.split("->")
    left, right = terms.split(",")
    batch = [one for one in left if one in right and one in out]
    summed = [one for one in left if one in right and one not in out]
    rows = [one for one in left if one not in right]
    columns = [one for one in right if one not in left]
    sizes = {**dict(zip(left, a.shape, strict=True)), **dict(zip(right, b.shape, strict=True))}
    kind = np.float32 if 0 < exact_below < 2**24 else np.float64

    def matrix(values: Array, term: str, groups: Sequence[Sequence[str]]) -> Array:
        order = [term.index(one) for group in groups for one in group]
        shape = [int(np.prod([sizes[one] for one in group])) for group in groups]
        return np.ascontiguousarray(values.transpose(order), dtype=kind).reshape(shape)

    found = matrix(a, left, (batch, rows, summed)) @ matrix(b, right, (batch, summed, columns))
    axes = [*batch, *rows, *columns]
    shaped = found.reshape([sizes[one] for one in axes]).astype(np.float64)
    return shaped.transpose([axes.index(one) for one in out])


def roundings(exact: Array, size: Array | float, depth: int, dtype: DType) -> Array:
    """How far a sum may be off: its own rounding twice, and that of each addition before it.

    size: of the magnitudes of its `depth` addends. Sums are kept in float32, or float64. Matrix
    units cut what they add, so each addition may lose a whole last digit of the sum of magnitudes.
    """
    summed = 2.0**-52 if dtype is dtypes.float64 else 2.0**-23
    info = finfo(dtype)
    return (depth + 4) * summed * size + 2 * info.eps * (np.abs(exact) + 4) + info.smallest_normal


def differences(found: Array, wanted: Array, allowed: Array | float) -> str | None:
    """What is wrong with results that may be off by so much, None for nothing."""
    bound = np.broadcast_to(np.asarray(allowed), wanted.shape)
    with np.errstate(invalid="ignore"):
        near = np.abs(found.astype(np.float64) - wanted) <= bound
        wrong = ~(near | (found == wanted))
    if not wrong.any():
        return None
    place = tuple(int(axis) for axis in np.argwhere(wrong)[0])
    return (
        f"{int(wrong.sum())} of {wrong.size} differ, the first at {list(place)}: {found[place]}, "
        f"wanted {wanted[place]} within {bound[place]:.3g}"
    )


def misshapen(found: Tensor, shape: Sequence[int], dtype: DType) -> str | None:
    """What is wrong with a result's shape or dtype."""
    if found.dtype is dtype and found.shape == tuple(shape):
        return None
    return f"{list(found.shape)} of {found.dtype}, wanted {list(shape)} of {dtype}"
