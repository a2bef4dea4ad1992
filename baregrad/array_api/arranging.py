"""Shapes, places, order and sets: functions that move elements or look for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from baregrad.array_api.values import INTEGERS, Axes, Value, axes_of, both, joined, one_axis_of
from baregrad.base.errors import ArgumentError, DTypeError, ShapeError
from baregrad.dtypes import DType, dtypes
from baregrad.tensor import Tensor
from baregrad.tensor.array import nodes


class UniqueAll(NamedTuple):
    """Values that differ, where each comes first, where each element's is, how many it has."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """Values that differ, and how many elements each has."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """Values that differ, and where each element's is."""

    values: Tensor
    inverse_indices: Tensor


# --- shapes ---------------------------------------------------------------------------------------


def broadcast_arrays(*arrays: Tensor) -> list[Tensor]:
    """Return arrays that are expanded to each other's shape."""
    shape = nodes.broadcast_shapes(*(x.shape for x in arrays))
    return [x.expand(*shape) for x in arrays]


def broadcast_to(x: Tensor, /, shape: tuple[int, ...]) -> Tensor:
    """Return an array expanded to a shape."""
    return x.broadcast_to(*shape) if shape else x.reshape(())


def concat(arrays: Sequence[Tensor], /, *, axis: int | None = 0) -> Tensor:
    """Return arrays joined along an axis, or all of their elements in a row for None."""
    if not arrays:
        raise ShapeError("concat joins arrays", found="none", wanted="at least one")
    dtype = joined(*(x.dtype for x in arrays))
    given = [x.cast(dtype) for x in arrays]
    if axis is None:
        return Tensor.cat(*(x.reshape(-1) for x in given), dim=0)
    return Tensor.cat(*given, dim=axis)


def expand_dims(x: Tensor, /, axis: int = 0) -> Tensor:
    """Return an array with one more axis, of one element."""
    return x.unsqueeze(axis)


def flip(x: Tensor, /, *, axis: Axes = None) -> Tensor:
    """Return an array whose order is turned round along axes."""
    axes = axes_of(axis, x.ndim)
    return x.flip(*axes) if axes else x


def moveaxis(x: Tensor, source: Any, destination: Any, /) -> Tensor:
    """Return an array some of whose axes are at other places."""
    return x.movedim(source, destination)


def permute_dims(x: Tensor, /, axes: tuple[int, ...]) -> Tensor:
    """Return an array with its axes in another order."""
    return x.permute(*axes) if axes else x


def repeat(x: Tensor, repeats: int | Tensor, /, *, axis: int | None = None) -> Tensor:
    """Return each element several times, along an axis or of all elements in a row."""
    if axis is None:
        x, axis = x.reshape(-1), 0
    if isinstance(repeats, Tensor):
        if repeats.dtype.kind not in INTEGERS:
            raise DTypeError("elements are repeated a whole number of times", found=repeats.dtype)
        if repeats.shape not in ((), (1,), (x.shape[axis],)):
            raise ShapeError(
                "each element has a number of repeats, or all have one",
                found=f"{list(repeats.shape)} for an axis of {x.shape[axis]}",
            )  # fmt: skip
        if repeats.numel() and (repeats < 0).any().item():
            raise ArgumentError("a number of repeats is negative", found=repeats.tolist())
        times = repeats.expand(x.shape[axis]) if repeats.ndim == 0 or repeats.shape == (1,) else (
            repeats
        )
        ends = times.cast(dtypes.int64).cumsum(0)
        count = int(ends[-1].item()) if x.shape[axis] else 0
        places = Tensor.arange(count, device=x.device)
        owners = (ends.unsqueeze(0) <= places.unsqueeze(1)).cast(dtypes.int64).sum(dim=1)
        return x.index_select(axis, owners)
    return x.repeat_interleave(repeats, axis)


def reshape(x: Tensor, /, shape: tuple[int, ...], *, copy: bool | None = None) -> Tensor:
    """Return the elements in another shape."""
    found = x.reshape(tuple(shape))
    return found.clone() if copy else found


def roll(x: Tensor, /, shift: int | tuple[int, ...], *, axis: Axes = None) -> Tensor:
    """Return elements moved along axes, those that leave coming in at the other end."""
    if isinstance(axis, tuple) and isinstance(shift, int):
        shift = (shift,) * len(axis)
    return x.roll(shift, axis)


def squeeze(x: Tensor, /, axis: int | tuple[int, ...]) -> Tensor:
    """Return an array without some of its axes of one element."""
    for each in axes_of(axis, x.ndim):
        if x.shape[each] != 1:
            raise ShapeError("squeeze takes axes of one element", found=f"shape {list(x.shape)}")
    return x.squeeze(axis)


def stack(arrays: Sequence[Tensor], /, *, axis: int = 0) -> Tensor:
    """Return arrays along a new axis."""
    dtype = joined(*(x.dtype for x in arrays))
    return Tensor.stack(*(x.cast(dtype) for x in arrays), dim=axis)


def tile(x: Tensor, repetitions: tuple[int, ...], /) -> Tensor:
    """Return an array several times along each axis."""
    return x.tile(*repetitions) if repetitions else x.clone()


def unstack(x: Tensor, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """Return the parts along an axis."""
    return tuple(x.unbind(axis))


# --- places ---------------------------------------------------------------------------------------


def take(x: Tensor, indices: Tensor, /, *, axis: int | None = None) -> Tensor:
    """Return parts along an axis, by places in it."""
    return x.index_select(one_axis_of(x, axis), indices)


def take_along_axis(x: Tensor, indices: Tensor, /, *, axis: int = -1) -> Tensor:
    """Return elements by their places along an axis."""
    return x.take_along_dim(indices.cast(dtypes.int64), axis)


def argmax(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Return where the greatest elements come first."""
    return x.argmax(axis, keepdims)


def argmin(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Return where the least elements come first."""
    return x.argmin(axis, keepdims)


def count_nonzero(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return how many elements are not 0, along axes."""
    axes = axes_of(axis, x.ndim)
    marks = (x != 0).cast(dtypes.int64)
    return marks.sum(dim=axes, keepdim=keepdims) if axes else marks


def nonzero(x: Tensor, /) -> tuple[Tensor, ...]:
    """Return the places of elements that are not 0, an array for each axis."""
    if not x.ndim:
        raise ShapeError("nonzero is of arrays with axes", found="shape []")
    return tuple(x.nonzero(as_tuple=True))


def where(condition: Tensor, x1: Value, x2: Value, /) -> Tensor:
    """Return elements of the first where a condition holds, else of the second."""
    one, other = both(x1, x2)
    return condition.where(one, other)


def searchsorted(
    x1: Tensor, x2: Tensor, /, *, side: str = "left", sorter: Tensor | None = None
) -> Tensor:
    """Return where elements of x2 would go in x1, which ascends, before or after equal ones."""
    if x1.ndim != 1:
        raise ShapeError("searchsorted looks in one row", found=f"shape {list(x1.shape)}")
    held, wanted = both(x1, x2)
    return held.searchsorted(wanted, side=side, sorter=sorter)


# --- order ----------------------------------------------------------------------------------------


def argsort(
    x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True
) -> Tensor:
    """Return the places of elements in order along an axis, equal ones as they are."""
    return x.argsort(axis, descending)


def sort(
    x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True
) -> Tensor:
    """Return elements in order along an axis."""
    return x.sort(axis, descending)[0]


# --- sets -----------------------------------------------------------------------------------------


def unique_all(x: Tensor, /) -> UniqueAll:
    """Return values that differ, in order, NaN and NaN among them, and all about them."""
    row = x.reshape(-1)
    count = row.shape[0]
    if not count:
        none = Tensor.zeros(0, dtype=dtypes.int64, device=x.device)
        return UniqueAll(row, none, none.reshape(x.shape), none)
    order = _order(row)
    ordered = row[order]
    starts = Tensor.cat(
        Tensor.ones(1, dtype=dtypes.bool, device=x.device), ordered[1:] != ordered[:-1], dim=0
    )
    (firsts,) = starts.nonzero(as_tuple=True)
    ends = Tensor.cat(
        firsts[1:], Tensor.full((1,), count, dtype=dtypes.int64, device=x.device), dim=0
    )
    owners = starts.cast(dtypes.int64).cumsum(0) - 1
    inverse = Tensor.zeros(count, dtype=dtypes.int64, device=x.device).scatter(0, order, owners)
    return UniqueAll(
        ordered[firsts], order[firsts], inverse.reshape(x.shape), ends - firsts
    )


def _order(row: Tensor) -> Tensor:
    """Where the elements of a row lie in rising order; complex ones by their real parts first."""
    if not row.is_complex():
        return row.argsort(0)
    # A zero of either sign is one value.
    real, imag = row.real + 0.0, row.imag + 0.0
    order = imag.argsort(0, stable=True)
    found: Tensor = order[real[order].argsort(0, stable=True)]
    return found


def unique_counts(x: Tensor, /) -> UniqueCounts:
    """Return values that differ, and how many elements each has."""
    found = unique_all(x)
    return UniqueCounts(found.values, found.counts)


def unique_inverse(x: Tensor, /) -> UniqueInverse:
    """Return values that differ, and where each element's is."""
    found = unique_all(x)
    return UniqueInverse(found.values, found.inverse_indices)


def unique_values(x: Tensor, /) -> Tensor:
    """Return values that differ."""
    return unique_all(x).values


def astype(
    x: Tensor, dtype: DType, /, *, copy: bool = True, device: str | None = None
) -> Tensor:
    """Return an array of another dtype."""
    found = x.cast(dtype)
    found = found if device is None else found.to(device)
    return found.clone() if copy and found is x else found
