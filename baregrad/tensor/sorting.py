"""Sorting, and what follows from it: topk, median, kthvalue, unique.

Elements are compared by integer keys in which NaN is above every number, then by position, so every
sort is stable. Short axes are ranked by counting; long ones pass through a bitonic network.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from baregrad.base.errors import ArgumentError, ShapeError
from baregrad.dtypes import dtypes
from baregrad.ir.attrs import Pad
from baregrad.ir.node import Node, const
from baregrad.ir.op import Ops
from baregrad.tensor import nodes
from baregrad.tensor.axes import one_axis
from baregrad.tensor.core import check_shape_is_int
from baregrad.tensor.operands import result
from baregrad.tensor.reductions import Extreme

if TYPE_CHECKING:
    from baregrad.tensor.tensor import Tensor

COUNTED = 1024  # the longest axis that is ranked by comparing every pair
REPEATED = 16  # the most elements that topk finds one after the other


# --- keys ---------------------------------------------------------------------------------------


def sort_keys(x: Node, descending: bool) -> Node:
    """Integers in the order of the elements of `x`: NaN the greatest, both zeros equal."""
    if x.dtype.kind == "bool":
        key = nodes.cast(x, dtypes.uint8)
    elif x.dtype.kind == "float":
        key = _float_keys(x)
    else:
        key = x
    return Node(Ops.NOT, key.dtype, (key,)) if descending else key


def _float_keys(x: Node) -> Node:
    signed = next(row for row in _SIGNED if row.bits == x.dtype.bits)
    zero = const(0.0, x.dtype)
    plain = nodes.where(nodes.alu(Ops.CMPEQ, x, zero), zero, x)
    bits = Node(Ops.BITCAST, signed, (plain,))
    # Negative numbers are ordered by falling magnitude: their bits below the sign are flipped.
    sign = nodes.alu(Ops.SHR, bits, const(signed.bits - 1, signed))
    mirrored = nodes.alu(Ops.AND, sign, const(int(signed.max), signed))
    key = nodes.alu(Ops.XOR, bits, mirrored)
    unordered = nodes.alu(Ops.CMPNE, x, x)
    return nodes.where(unordered, const(int(signed.max), signed), key)


_SIGNED = (dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64)


# --- order --------------------------------------------------------------------------------------


def order(x: Node, descending: bool) -> Node:
    """The positions of the last axis's elements in sorted order, int64."""
    keys = sort_keys(x, descending)
    extent = x.shape[-1]
    if extent <= 1:
        return nodes.iota_along(x.shape, len(x.shape) - 1)
    return _by_counting(keys) if extent <= COUNTED else _by_network(keys)


def _by_counting(keys: Node) -> Node:
    """Each element's rank is how many stand before it; the ranks are then inverted."""
    *front, extent = keys.shape
    ndim = len(keys.shape)
    square = (*front, extent, extent)
    mine = nodes.broadcast(nodes.unsqueeze(keys, ndim), square)
    other = nodes.broadcast(nodes.unsqueeze(keys, ndim - 1), square)
    earlier = nodes.alu(
        Ops.CMPLT, nodes.iota_along(square, ndim), nodes.iota_along(square, ndim - 1)
    )
    tied = nodes.alu(Ops.AND, nodes.alu(Ops.CMPEQ, other, mine), earlier)
    before = nodes.alu(Ops.OR, nodes.alu(Ops.CMPLT, other, mine), tied)
    ranks = nodes.reduce(Ops.ADD, nodes.cast(before, dtypes.int64), (ndim,))
    places = [nodes.iota_along(keys.shape, axis) for axis in range(ndim - 1)]
    base = nodes.full(0, keys.shape, dtypes.int64)
    return nodes.scatter(base, nodes.iota_along(keys.shape, ndim - 1), (*places, ranks), None)


def _by_network(keys: Node) -> Node:
    """A bitonic network over (key, position) pairs, padded to a power of two.

    Source: Batcher, "Sorting networks and their applications", 1968.
    """
    *front, extent = keys.shape
    total = 1 << (extent - 1).bit_length()
    last = len(front)
    pads = (*(Pad() for _ in front), Pad(0, total - extent))
    shape = (*front, total)
    places = nodes.iota_along(shape, last)
    inside = nodes.alu(Ops.CMPLT, places, const(extent, dtypes.int64))
    # Padding has the greatest key, and later positions than any element with that key.
    padded = nodes.where(inside, nodes.pad(keys, pads), const(int(keys.dtype.max), keys.dtype))
    size = 2
    while size <= total:
        distance = size // 2
        while distance:
            padded, places = _compare(padded, places, distance, size)
            distance //= 2
        size *= 2
    return nodes.cut(places, last, 0, extent)


def _compare(keys: Node, places: Node, distance: int, size: int) -> tuple[Node, Node]:
    """One stage: elements `distance` apart are put in order, alternately up and down by `size`."""
    *front, total = keys.shape
    last = len(front)
    blocks = (*front, total // (2 * distance), 2, distance)
    half = (*front, total // (2 * distance), 1, distance)
    pairs = [nodes.reshape(part, blocks) for part in (keys, places)]
    (low_key, low_place), (high_key, high_place) = (
        [nodes.cut(part, last + 1, side, side + 1) for part in pairs] for side in (0, 1)
    )
    greater = nodes.alu(Ops.CMPLT, high_key, low_key)
    tied = nodes.alu(Ops.CMPEQ, high_key, low_key)
    later = nodes.alu(Ops.AND, tied, nodes.alu(Ops.CMPLT, high_place, low_place))
    wrong = nodes.alu(Ops.OR, greater, later)
    block = nodes.iota_along(half, last)
    down = nodes.alu(
        Ops.AND,
        nodes.alu(Ops.FLOORDIV, block, const(size // (2 * distance), dtypes.int64)),
        const(1, dtypes.int64),
    )
    swap = nodes.alu(Ops.CMPNE, nodes.cast(wrong, dtypes.int64), down)
    swapped = []
    for low, high in ((low_key, high_key), (low_place, high_place)):
        first, second = nodes.where(swap, high, low), nodes.where(swap, low, high)
        joined = nodes.reshape(nodes.concatenate((first, second), last + 1), keys.shape)
        swapped.append(Node(Ops.CONTIGUOUS, joined.dtype, (joined,)))
    return swapped[0], swapped[1]


# --- functions ----------------------------------------------------------------------------------


def argsort(x: Tensor, dim: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """Return the positions of the elements along an axis in sorted order; always stable."""
    check_shape_is_int(x.shape, "sorting")
    axis = one_axis(dim, x.ndim)
    if not x.ndim:
        return x.zeros_like(dtype=dtypes.int64)
    moved = x.detach().movedim(axis, -1)
    return result(order(moved.node, descending), x.detach()).movedim(-1, axis)


def sort(x: Tensor, dim: int = -1, descending: bool = False, stable: bool = True) -> Extreme:
    """Return (values, indices) along an axis in sorted order; NaN counts as the greatest."""
    places = argsort(x, dim, descending)
    return Extreme(x.take_along_dim(places, dim) if x.ndim else x.clone(), places)


def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Extreme:
    """Return the k largest (or smallest) elements along an axis, in order, and where they stand."""
    axis = one_axis(dim, x.ndim)
    extent = x.shape[axis] if x.ndim else 1
    if not 0 <= k <= extent:
        raise ShapeError("topk cannot find so many", found=f"k = {k}", wanted=f"0 to {extent}")
    if x.ndim and extent > COUNTED and k <= REPEATED and x.dtype.bits < 64:
        places = _one_by_one(x, k, axis, largest)
    else:
        places = argsort(x, axis, descending=largest)
        places = places.narrow(axis, 0, k) if x.ndim else places
    return Extreme(x.take_along_dim(places, axis) if x.ndim else x.clone(), places)


def _one_by_one(x: Tensor, k: int, axis: int, largest: bool) -> Tensor:
    """The positions of the k greatest, each found among those that are left."""
    keys = nodes.cast(sort_keys(x.detach().node, not largest), dtypes.int64)
    own = nodes.iota_along(x.shape, axis)
    found = []
    for _ in range(k):
        place = nodes.keep(
            nodes.part(nodes.arg_reduce(Ops.MAX, keys, own, (axis,)), 1, dtypes.int64),
            (axis,),
            x.ndim,
        )
        found.append(result(place, x.detach()))
        taken = nodes.alu(Ops.CMPEQ, own, nodes.broadcast(place, x.shape))
        keys = nodes.where(taken, const(int(dtypes.int64.min), dtypes.int64), keys)
    return found[0].cat(*found[1:], dim=axis) if found else x.narrow(axis, 0, 0).long()


def kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Extreme:
    """Return the k-th smallest element along an axis, k counted from 1, and where it stands."""
    axis = one_axis(dim, x.ndim)
    extent = x.shape[axis] if x.ndim else 1
    if not 1 <= k <= extent:
        raise ShapeError("there is no such element", found=f"k = {k}", wanted=f"1 to {extent}")
    if not x.ndim:
        return Extreme(x.clone(), x.zeros_like(dtype=dtypes.int64))
    places = argsort(x, axis).narrow(axis, k - 1, 1)
    values = x.take_along_dim(places, axis)
    if not keepdim:
        values, places = values.squeeze(axis), places.squeeze(axis)
    return Extreme(values, places)


def median(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor | Extreme:
    """Return the lower median of all, or (values, indices) along an axis; NaN if one is."""
    if dim is None:
        found = median(x.ravel(), 0)
        return found.values if isinstance(found, Extreme) else found
    axis = one_axis(dim, x.ndim)
    extent = x.shape[axis] if x.ndim else 1
    if not extent:
        raise ShapeError("the median of no elements", found=f"shape {list(x.shape)}")
    middle = kthvalue(x, (extent + 1) // 2, axis, True)
    values, places = middle.values, middle.indices
    if x.dtype.kind == "float" and x.ndim:
        broken = x.isnan()
        some = broken.any(axis, True)
        first = broken.argmax(axis, True)
        places = some.where(first, places)
        values = x.take_along_dim(places, axis)
    if not keepdim and x.ndim:
        values, places = values.squeeze(axis), places.squeeze(axis)
    return Extreme(values, places)


def quantile(x: Tensor, q: float, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Return the q-th quantile along an axis (or of all), linear between neighbours."""
    if not 0 <= q <= 1:
        raise ArgumentError(f"a quantile is from 0 to 1, not {q}")
    y = x.ravel() if dim is None else x
    axis = 0 if dim is None else one_axis(dim, x.ndim)
    place = q * (y.shape[axis] - 1)
    low = int(place)
    ordered = sort(y, axis).values
    below = ordered.narrow(axis, low, 1)
    above = ordered.narrow(axis, min(low + 1, y.shape[axis] - 1), 1)
    found = below.lerp(above, place - low)
    found = y.isnan().any(axis, True).where(float("nan"), found)
    if dim is None:
        return found.reshape((1,) * x.ndim if keepdim else ())
    return found if keepdim else found.squeeze(axis)
