"""Elements that are looked for: among sorted ones, among others, in bins, the most frequent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from baregrad.base.errors import ArgumentError, DTypeError, ShapeError
from baregrad.dtypes import dtypes, promote
from baregrad.tensor.array.axes import one_axis, plain
from baregrad.tensor.array.tensor_like import Operand, Tensor
from baregrad.tensor.ops import picking, sorting
from baregrad.tensor.ops.reductions import Extreme


def searchsorted(
    x: Tensor, values: Operand, *, right: bool = False, side: str | None = None,
    sorter: Tensor | None = None, out_int32: bool = False,
) -> Tensor:
    """Return where values would go in rows that ascend, before equal ones or with `right` behind.

    x: (M,) for values of any shape, or (..., M) for values (..., N) of the same axes in front.
    side: "left" or "right" in the place of `right`. sorter: what brings `x` into order. NaN comes
    after all numbers. Places are found by halves, in log2(M) steps for all values at once.
    """
    if side not in (None, "left", "right"):
        raise ArgumentError("searchsorted has no such side", found=repr(side))
    if right and side == "left":
        raise ArgumentError("one side, not both", found="right=True and side='left'")
    behind = right if side is None else side == "right"
    held: Any = x if sorter is None else picking.take_along_dim(x, sorter, -1)
    wanted: Any = values if hasattr(values, "cast") else held.new_tensor(
        values, dtype=dtypes.float64 if isinstance(values, float) else None
    )
    if not x.ndim or (x.ndim > 1 and wanted.shape[:-1] != x.shape[:-1]):
        raise ShapeError(
            "values are searched in rows of their own, or all in one row",
            found=f"{list(wanted.shape)} in {list(x.shape)}",
        )
    both = promote(held.dtype, wanted.dtype)
    held, wanted = held.detach().cast(both), wanted.detach().cast(both)
    count = held.shape[-1]
    low = wanted.zeros_like(dtype=dtypes.int64)
    step = 1 << (count.bit_length() - 1) if count and 0 not in wanted.shape else 0
    while step:
        place = low + step
        at = place.clamp(max=count) - 1
        value = held[at] if held.ndim == 1 else picking.gather(held, held.ndim - 1, at)
        goes = value <= wanted if behind else value < wanted
        if both.is_float:
            goes = goes | (wanted.isnan() & (True if behind else ~value.isnan()))
        low = ((place <= count) & goes).where(place, low)
        step >>= 1
    return low.int() if out_int32 else low  # type: ignore[no-any-return]


def bucketize(
    x: Tensor, boundaries: Tensor, *, right: bool = False, out_int32: bool = False
) -> Tensor:
    """Return which bin each element lies in: `searchsorted` of `x` in boundaries (M,)."""
    return searchsorted(boundaries, x, right=right, out_int32=out_int32)


def isin(
    x: Tensor, test_elements: Operand, *, assume_unique: bool = False, invert: bool = False
) -> Tensor:
    """Return whether each element is one of others. NaN is none of them."""
    a: Any = x
    others: Any = test_elements if hasattr(test_elements, "cast") else a.new_tensor(test_elements)
    both = promote(a.dtype, others.dtype)
    a, others = a.detach().cast(both), others.detach().cast(both).reshape(-1)
    count = others.shape[0]
    if not count:
        found = a.zeros_like(dtype=dtypes.bool)
    else:
        ordered = sorting.sort(others, 0)[0]
        found = ordered[searchsorted(ordered, a).clamp(max=count - 1)] == a
    made: Tensor = ~found if invert else found
    return made


def histc(x: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """Return how many elements lie in each of equal bins from min to max; others do not count.

    With both equal they are the least and the greatest element, which are read.
    """
    a: Any = x.detach().reshape(-1)
    a = a if x.dtype.bits >= 32 else a.float()
    if not x.dtype.is_float:
        raise DTypeError("histc is of floats", found=x.dtype)
    if bins < 1 or max < min:
        raise ArgumentError(
            "bins from a number to a greater one", found=f"{bins} from {min} to {max}"
        )
    low, high = float(min), float(max)
    if low == high and a.shape[0]:
        low, high = float(a.min().item()), float(a.max().item())
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ArgumentError("bins have finite ends", found=f"{low} to {high}")
    if low == high:
        low, high = low - 1, high + 1
    place = ((a - low) * (bins / (high - low))).floor().clamp(0, bins - 1)
    inside = (a >= low) & (a <= high)
    places = inside.where(place, bins).cast(dtypes.int64)
    found: Tensor = picking.bincount(places, minlength=bins + 1)[:bins].cast(x.dtype)
    return found


def mode(x: Tensor, dim: int = -1, keepdim: bool = False) -> Extreme[Tensor]:
    """Return the most frequent element along an axis, the least of those, and where it is last."""
    axis = one_axis(dim, x.ndim)
    if not x.ndim:
        return Extreme(x.clone(), x.zeros_like(dtype=dtypes.int64))
    if not x.shape[axis]:
        raise ShapeError("the most frequent of no elements", found=list(x.shape))
    a: Any = x
    ordered = sorting.sort(a.detach().movedim(axis, -1))[0]
    counts = searchsorted(ordered, ordered, right=True) - searchsorted(ordered, ordered)
    value = picking.take_along_dim(ordered, counts.argmax(-1, True), -1).movedim(-1, axis)
    extent = x.shape[axis]
    places = extent - 1 - (a.detach() == value).flip(axis).argmax(axis, True)
    values = picking.take_along_dim(a, places, axis)
    if not keepdim:
        values, places = values.squeeze(axis), places.squeeze(axis)
    return Extreme(values, places)


def nanmedian(
    x: Tensor, dim: int | None = None, keepdim: bool = False
) -> Tensor | Extreme[Tensor]:
    """Return the lower median of what is not NaN, of all, or (values, indices) along an axis."""
    if dim is None and 0 in x.shape:
        return sorting.median(x)
    a: Any = x
    flat = a.reshape(-1) if dim is None else a
    axis = 0 if dim is None else one_axis(dim, x.ndim)
    if not flat.ndim:
        return Extreme(a.clone(), a.zeros_like(dtype=dtypes.int64))
    if not flat.shape[axis]:
        raise ShapeError("the median of no elements", found=list(x.shape))
    # NaN comes last in order.
    order = sorting.argsort(flat, axis)
    numbers = (~flat.isnan()).sum(axis, True)
    place = ((numbers - 1).clamp(min=0) // 2).cast(dtypes.int64)
    places = picking.take_along_dim(order, place, axis)
    values = picking.take_along_dim(flat, places, axis)
    if dim is None:
        middle: Tensor = values.reshape(())
        return middle
    if not keepdim:
        values, places = values.squeeze(axis), places.squeeze(axis)
    return Extreme(values, places)


def nanquantile(
    x: Tensor, q: float | Tensor, dim: int | None = None, keepdim: bool = False, *,
    interpolation: str = "linear",
) -> Tensor:
    """Return `quantile` of what is not NaN; NaN where nothing is."""
    return sorting.quantile_in_order(x, plain(q), dim, keepdim, interpolation, True)


def unique_consecutive(
    x: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Tensor | tuple[Tensor, ...]:
    """Return elements, or parts along an axis, that differ from the ones before; computes them."""
    a: Any = x.detach()
    rows = a.reshape(-1) if dim is None else a.movedim(one_axis(dim, x.ndim), 0)
    other: Any = rows[1:] != rows[:-1]
    if rows.ndim > 1:
        other = other.any(tuple(range(1, rows.ndim)))
    begins = rows.new_ones(min(rows.shape[0], 1), dtype=dtypes.bool).cat(other)
    kept = rows[begins]
    numbers = begins.cast(dtypes.int64).cumsum(0) - 1
    found = [kept if dim is None else kept.movedim(0, one_axis(dim, x.ndim))]
    if return_inverse:
        found.append(numbers.reshape(x.shape) if dim is None else numbers)
    if return_counts:
        found.append(picking.bincount(numbers, minlength=kept.shape[0]))
    return found[0] if len(found) == 1 else tuple(found)


def unravel_index(x: Tensor, shape: int | Sequence[int]) -> tuple[Tensor, ...]:
    """Return the places along each axis of a shape of places in its elements, rows after rows."""
    extents = [shape] if isinstance(shape, int) else list(shape)
    if x.dtype.kind not in ("int", "uint"):
        raise DTypeError("places are integers", found=x.dtype)
    left: Any = x.cast(dtypes.int64)
    found = []
    for extent in reversed(extents):
        found.append(left % extent)
        left = left // extent
    return tuple(reversed(found))


def nonzero_static(x: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    """Return the first `size` places of elements that are not 0, a row each, and fills behind.

    (size, axes), whatever the numbers are: nothing is read.
    """
    a: Any = x.detach()
    flags = (a != 0).reshape(-1)
    count = flags.shape[0]
    number = flags.cast(dtypes.int64).cumsum(0)
    wanted = type(a).arange(1, size + 1, device=x.device)
    place = searchsorted(number, wanted)
    inside = place < count
    parts = unravel_index(place.clamp(max=max(count - 1, 0)), x.shape) if count else \
        [wanted.zeros_like()] * x.ndim
    rows = [inside.where(part, fill_value) for part in parts]
    found: Tensor = rows[0].stack(*rows[1:], dim=1) if rows else wanted.new_zeros(size, 0)
    return found


def combinations(x: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """Return all choices of r elements of a vector, a row each, in order of their places."""
    if x.ndim != 1 or r < 0:
        raise ShapeError("choices of elements of a vector", found=f"{r} of {list(x.shape)}")
    if not r:
        return x[:0]
    import itertools

    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    rows = np.array(list(choose(range(x.shape[0]), r)), dtype=np.int64).reshape(-1, r)
    a: Any = x
    found: Tensor = a[type(a)._real()(rows, device=x.device)]
    return found
