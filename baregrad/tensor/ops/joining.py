"""Joining and splitting along axes, and padding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from baregrad.base.errors import ArgumentError, ShapeError
from baregrad.dtypes import dtypes, promote
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Pad
from baregrad.ir.core.node import Node, const
from baregrad.ir.core.op import Ops
from baregrad.tensor.array import nodes
from baregrad.tensor.array.axes import one_axis, own_axis, plain
from baregrad.tensor.array.operands import as_stored, check_stored, result
from baregrad.tensor.array.tensor_like import Tensor, TensorLike


def _several(x: Tensor | Sequence[Tensor], others: tuple[Tensor, ...]) -> list[Tensor]:
    """The tensors of cat(a, b), a.cat(b) and cat([a, b])."""
    first = [x] if isinstance(x, TensorLike) else list(x)
    found = [*first, *others]
    if not found or not all(isinstance(one, TensorLike) for one in found):
        raise ShapeError(
            "joining wants at least one tensor, and tensors alone", found=f"{found}"[:80]
        )
    return found


def _axis_behind(
    x: Tensor | Sequence[Tensor], others: tuple[Tensor | int, ...], dim: int
) -> tuple[tuple[Tensor, ...], int]:
    """What stands behind a sequence of tensors is the axis, as in PyTorch: cat([a, b], 1)."""
    if len(others) == 1 and not isinstance(x, TensorLike) and isinstance(others[0], int):
        return (), others[0]
    return cast("tuple[Tensor, ...]", others), dim


def cat(x: Tensor | Sequence[Tensor], *others: Tensor | int, dim: int = 0) -> Tensor:
    """Return tensors one after the other along an axis: a.cat(b), or Tensor.cat([a, b], dim).

    The other extents must agree. Empty tensors of one axis are skipped, as in PyTorch.
    """
    tensors, dim = _axis_behind(x, others, dim)
    parts = _several(x, tensors)
    kept = [
        p for p in parts if not (p.ndim == 1 and p.shape[0].__class__ is int and not p.shape[0])
    ]
    kept = kept or parts[:1]
    dtype = promote(*(part.dtype for part in parts))
    ndim = kept[0].ndim
    if not ndim:
        raise ShapeError("tensors without axes cannot be joined", hint="use stack()")
    axis = one_axis(dim, ndim)
    for part in kept:
        same = part.ndim == ndim and all(
            a == b
            for i, (a, b) in enumerate(zip(part.shape, kept[0].shape, strict=True))
            if i != axis
        )
        if not same:
            raise ShapeError(
                f"cat along axis {dim} wants equal extents in the other axes",
                found=" and ".join(str(list(p.shape)) for p in kept),
            )
    joined = nodes.concatenate(tuple(nodes.cast(part.node, dtype) for part in kept), axis)
    return result(joined, *parts)


def stack(x: Tensor | Sequence[Tensor], *others: Tensor | int, dim: int = 0) -> Tensor:
    """Return tensors of one shape along a new axis: a.stack(b), or Tensor.stack([a, b], dim)."""
    tensors, dim = _axis_behind(x, others, dim)
    parts = _several(x, tensors)
    if any(part.shape != parts[0].shape for part in parts):
        raise ShapeError(
            "stack wants one shape", found=" and ".join(str(list(p.shape)) for p in parts)
        )
    axis = one_axis(dim, parts[0].ndim + 1)
    return cat([part.unsqueeze(axis) for part in parts], dim=axis)


def hstack(x: Tensor | Sequence[Tensor], *others: Tensor) -> Tensor:
    """Return tensors joined along axis 1, or axis 0 where they have one axis."""
    parts = [p.reshape(1) if not p.ndim else p for p in _several(x, others)]
    return cat(parts, dim=0 if parts[0].ndim == 1 else 1)


def vstack(x: Tensor | Sequence[Tensor], *others: Tensor) -> Tensor:
    """Return tensors joined along axis 0, those of one axis as rows."""
    parts = [p.reshape(1, -1) if p.ndim < 2 else p for p in _several(x, others)]
    return cat(parts, dim=0)


def split(x: Tensor, sizes: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Return views of parts of an axis: of one size each, the last perhaps less, or of `sizes`."""
    axis = own_axis(dim, x.ndim)
    extent = x.shape[axis]
    sizes = plain(sizes)
    if isinstance(sizes, int):
        if sizes <= 0:
            raise ShapeError("split wants a positive size", found=sizes)
        sizes = [min(sizes, extent - at) for at in range(0, extent, sizes)] or [0]
    if sum(sizes) != extent:
        raise ShapeError(
            f"split's sizes do not add up to axis {dim}", found=f"{list(sizes)}", wanted=extent
        )
    parts = []
    start = 0
    for size in sizes:
        parts.append(x.narrow(axis, start, size))
        start += size
    return tuple(parts)


def chunk(x: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """Return at most `chunks` views of equal size along an axis, the last perhaps smaller."""
    chunks = plain(chunks)
    if chunks <= 0:
        raise ShapeError("chunk wants a positive number", found=chunks)
    extent = x.shape[own_axis(dim, x.ndim)]
    size = -(-extent // chunks)
    return split(x, size if size else [0] * chunks, dim)


# A tensor each: more would take minutes to make.
_MOST_PARTS = 1 << 20


def tensor_split(x: Tensor, parts: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Return views cut at given positions, or `parts` of them as equal as possible."""
    extent = x.shape[own_axis(dim, x.ndim)]
    parts = plain(parts)
    if isinstance(parts, int):
        if not 0 < parts < _MOST_PARTS:
            raise ShapeError(
                "tensor_split wants a positive number of parts", found=parts,
                wanted=f"1 to {_MOST_PARTS - 1}",
            )
        size, rest = divmod(extent, parts)
        return split(x, [size + (i < rest) for i in range(parts)], dim)
    ends = [min(max(p + extent if p < 0 else p, 0), extent) for p in parts] + [extent]
    return split(x, [max(b - a, 0) for a, b in zip([0, *ends], ends, strict=False)], dim)


def unbind(x: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """Return the views along an axis, which goes."""
    axis = own_axis(dim, x.ndim)
    return tuple(x.narrow(axis, i, 1).squeeze(axis) for i in range(x.shape[axis]))


def meshgrid(*axes: Tensor | Sequence[Tensor], indexing: str = "ij") -> tuple[Tensor, ...]:
    """Return coordinate arrays of the grid that vectors span; "xy" exchanges the first two axes."""
    given: Any = axes
    if len(axes) == 1 and not isinstance(axes[0], TensorLike):
        given = tuple(axes[0])
    vectors = [axis.reshape(-1) for axis in _several((), given)]
    if indexing not in ("ij", "xy"):
        raise ArgumentError(f"indexing is 'ij' or 'xy', not {indexing!r}")
    swap = indexing == "xy" and len(vectors) > 1
    if swap:
        vectors[0], vectors[1] = vectors[1], vectors[0]
    shape = tuple(vector.shape[0] for vector in vectors)
    grids = []
    for i, vector in enumerate(vectors):
        beside = tuple(extent if i == j else 1 for j, extent in enumerate(shape))
        grids.append(vector.reshape(beside).expand(shape))
    if swap:
        grids[0], grids[1] = grids[1], grids[0]
    return tuple(grids)


# --- padding ------------------------------------------------------------------------------------


def pad(
    x: Tensor, pad: Sequence[Any], mode: str = "constant", value: bool | int | float | None = None
) -> Tensor:
    """Return `x` with more around it: pad lists (before, after) from the last axis backwards.

    mode: constant (of `value`, 0 by default), reflect, replicate or circular. Negative amounts
    cut. Raises ShapeError for more pairs than axes, or amounts that a mode cannot give.
    """
    if len(pad) % 2 or len(pad) > 2 * x.ndim:
        raise ShapeError(
            "pad wants (before, after) for some of the last axes",
            found=f"{list(pad)} for {x.ndim} axes",
        )
    for amount in pad:
        known = isinstance(amount, int | np.integer) and not isinstance(amount, bool)
        if not isinstance(amount, Node) and not (known and -(1 << 62) < amount < 1 << 62):
            raise ArgumentError(
                "pad wants a flat list of amounts, of the last axis first",
                found=f"{amount!r} in {list(pad)!r}",
                wanted="integers, as in pad((left, right, top, bottom))",
            )
    pad = [int(amount) if isinstance(amount, np.integer) else amount for amount in pad]
    pairs = [(axis, pad[2 * i], pad[2 * i + 1]) for i, axis in enumerate(_last_axes(x, len(pad)))]
    if mode == "constant":
        return _pad_constant(x, pairs, 0 if value is None else value)
    if mode not in ("reflect", "replicate", "circular"):
        raise ArgumentError(f"mode is constant, reflect, replicate or circular, not {mode!r}")
    # The last axis last: the rows that are padded are then chosen inside of each choice of columns.
    for axis, before, after in reversed(pairs):
        x = _pad_with_own(x, axis, before, after, mode)
    return x


def _last_axes(x: Tensor, count: int) -> list[int]:
    return [x.ndim - 1 - i for i in range(count // 2)]


def _pad_constant(
    x: Tensor, pairs: list[tuple[int, Any, Any]], value: bool | int | float
) -> Tensor:
    y = x
    for axis, before, after in pairs:
        cut_before, cut_after = (max(-n, 0) if isinstance(n, int) else 0 for n in (before, after))
        if cut_before or cut_after:
            y = y.narrow(axis, cut_before, y.shape[axis] - cut_before - cut_after)
    pads = [Pad() for _ in x.shape]
    for axis, before, after in pairs:
        lo, hi = (max(n, 0) if isinstance(n, int) else n for n in (before, after))
        pads[axis] = Pad(lo, hi)
    padded = nodes.pad(y.node, tuple(pads))
    if x.dtype.kind == "uint" and value < 0:
        raise ArgumentError(
            f"a padding that {x.dtype} has not", found=value, wanted="0 or more",
            hint="what fits: 255 for -1 of uint8",
        )
    # What a PAD puts in is 0.0; -0.0 has to be chosen.
    if value != 0 or math.copysign(1.0, value) < 0:
        inside = nodes.pad(nodes.full(True, y.shape, dtypes.bool), tuple(pads))
        padded = nodes.where(inside, padded, as_stored(value, x.dtype))
    return result(padded, x)


def _pad_with_own(x: Tensor, axis: int, before: int, after: int, mode: str) -> Tensor:
    """`x` padded along one axis with elements of its own."""
    extent = x.shape[axis]
    limit = {"reflect": extent - 1, "circular": extent, "replicate": None}[mode]
    if limit is not None and max(before, after) > limit:
        raise ShapeError(
            f"{mode} padding is at most {limit} here",
            found=f"{before}, {after} on axis {axis} of extent {extent}",
        )
    cut_before, cut_after = max(-before, 0), max(-after, 0)
    y = x.narrow(axis, cut_before, extent - cut_before - cut_after)
    before, after = max(before, 0), max(after, 0)
    if mode == "reflect":
        low = y.narrow(axis, 1, before).flip(axis)
        high = y.narrow(axis, y.shape[axis] - 1 - after, after).flip(axis)
    elif mode == "circular":
        low = y.narrow(axis, y.shape[axis] - before, before)
        high = y.narrow(axis, 0, after)
    else:
        low = _edge(y, axis, 0, before)
        high = _edge(y, axis, y.shape[axis] - 1, after)
    return cat([low, y, high], dim=axis)


def _edge(x: Tensor, axis: int, at: int, count: int) -> Tensor:
    shape = tuple(count if i == axis else extent for i, extent in enumerate(x.shape))
    return x.narrow(axis, at, 1).expand(shape)


# --- triangles ----------------------------------------------------------------------------------


def _triangle(x: Tensor, diagonal: Any, lower: bool) -> Tensor:
    if x.ndim < 2:
        raise ShapeError("a triangle is of matrices", found=f"{x.ndim} axes", wanted="at least 2")
    shape = x.shape[-2:]
    if diagonal.__class__ is int:
        check_stored(diagonal, diagonal, dtypes.int64)
        # Outside of any matrix, and still so beside the number of a row.
        diagonal = max(-(1 << 62), min(diagonal, 1 << 62))
    rows, columns = nodes.iota_along(shape, 0), nodes.iota_along(shape, 1)
    edge = nodes.add(rows, nodes.size_as(diagonal, dtypes.int64))
    op = Ops.CMPLE
    kept = nodes.alu(op, columns, edge) if lower else nodes.alu(op, edge, columns)
    zero = const(0, x.dtype)
    return result(nodes.where(nodes.broadcast(kept, x.shape), x.node, zero), x)


def tril(x: Tensor, diagonal: int | Node = 0) -> Tensor:
    """Return `x` with zeros above a diagonal of its last two axes."""
    return _triangle(x, diagonal, lower=True)


def triu(x: Tensor, diagonal: int | Node = 0) -> Tensor:
    """Return `x` with zeros below a diagonal of its last two axes."""
    return _triangle(x, diagonal, lower=False)


def diag_embed(x: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Return matrices, of two axes, with the last axis of `x` on a diagonal, zeros elsewhere."""
    rows, columns = one_axis(dim1, x.ndim + 1), one_axis(dim2, x.ndim + 1)
    if rows == columns:
        raise ShapeError("a diagonal is of two axes", found=f"axes {dim1} and {dim2}")
    made = _on_diagonal(x, offset)
    if (rows, columns) == (x.ndim - 1, x.ndim):
        return made
    # The order of axes by which those two come to their places.
    order = [*range(x.ndim - 1)]
    for place, axis in sorted(((rows, x.ndim - 1), (columns, x.ndim))):
        order.insert(place, axis)
    return made.permute(*order)


def _on_diagonal(x: Tensor, offset: int) -> Tensor:
    count, offset = x.shape[own_axis(-1, x.ndim)], plain(offset)
    side = count + abs(offset)
    row, column = max(-offset, 0), max(offset, 0)
    pads = [Pad() for _ in x.shape[:-1]]
    # Laid out as one axis, the diagonal's elements have a distance of side + 1.
    start = row * side + column
    end = index.sub(side * side, start + max((count - 1) * (side + 1) + 1, 0))
    flat = nodes.pad(x.node, (*pads, Pad(start, end, side)))
    return result(nodes.reshape(flat, (*x.shape[:-1], side, side)), x)


def diag(x: Tensor, diagonal: int = 0) -> Tensor:
    """Return the matrix with a vector on its diagonal, or the diagonal of a matrix."""
    if x.ndim == 1:
        return diag_embed(x, diagonal)
    if x.ndim == 2:
        return x.diagonal(diagonal).clone()
    raise ShapeError("diag is of vectors and matrices", found=f"{x.ndim} axes")
