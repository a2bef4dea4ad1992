"""Sorting, and what follows from it: topk, median, kthvalue, unique.

Elements are compared by integer keys in which NaN is above every number, then by position, so every
sort is stable. Key and position are packed into one word where they fit. An axis's greatest few are
found down a tree of its parts' extremes, of a short axis each among those below the one before, and
a single one somewhere in the order by counting.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from baregrad.base.errors import ArgumentError, ShapeError
from baregrad.base.options import is_gpu
from baregrad.dtypes import DType, check_computed, dtypes
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Pad
from baregrad.ir.core.node import Node, const
from baregrad.ir.core.op import Ops
from baregrad.tensor.array import nodes
from baregrad.tensor.array.axes import one_axis, plain
from baregrad.tensor.array.core import check_float, check_shape_is_int
from baregrad.tensor.array.operands import result
from baregrad.tensor.array.tensor_like import Tensor, TensorLike
from baregrad.tensor.ops.picking import bincount, scatter
from baregrad.tensor.ops.reductions import Extreme, extreme

REPEATED = 16  # the most elements that topk finds one after the other
# The shortest axis whose least few are found down a tree, and the twigs of each of its parts.
LEAST_TREE = 256
TWIGS = 8
TOP = 64  # minima that are few enough to be compared each with each
MOST_RANKED = 1024  # words that are compared each with each
# What a GPU does while a kernel begins: words that are passed over, comparisons of each with each.
ELEMENTS, FEW_PAIRS = 1 << 15, 1 << 18
COUNTED = 64  # the least of which one is found by counting: a sort of 32 takes half as long


# --- keys ---------------------------------------------------------------------------------------


def sort_keys(x: Node, descending: bool) -> Node:
    """Integers in the order of the elements of `x`: NaN the greatest, both zeros equal."""
    check_computed(x.dtype)
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
    places = nodes.iota_along(x.shape, len(x.shape) - 1)
    if extent <= 1:
        return places
    if not _fits_in_words(keys.dtype, extent):
        return _sorted(keys, places)
    return _places_in(_sorted(_packed(keys)))


def _fits_in_words(dtype: DType, extent: int) -> bool:
    return dtype.bits <= 32 and extent <= 1 << 31


def _packed(keys: Node) -> Node:
    """Keys and positions along the last axis as words of 64 bits, in the same order."""
    wide = dtypes.int64 if keys.dtype.kind == "int" else dtypes.uint64
    places = nodes.cast(nodes.iota_along(keys.shape, len(keys.shape) - 1), wide)
    high = nodes.alu(Ops.SHL, nodes.cast(keys, wide), const(32, wide))
    return nodes.alu(Ops.OR, high, places)


def _places_in(words: Node) -> Node:
    """The positions that words were packed with."""
    low = nodes.alu(Ops.AND, words, const((1 << 32) - 1, words.dtype))
    return nodes.cast(low, dtypes.int64)


def _sorted(*words: Node) -> Node:
    """The last of some arrays in the order of all of them; no two elements are equal in all."""
    return Node(Ops.SORT, words[-1].dtype, words)


def _stored(x: Node) -> Node:
    return Node(Ops.CONTIGUOUS, x.dtype, (x,))


def _is_less(words: tuple[Node, ...], others: tuple[Node, ...]) -> Node:
    """Where the words come before others, in the order of a dictionary."""
    less = nodes.alu(Ops.CMPLT, words[-1], others[-1])
    for word, other in zip(words[-2::-1], others[-2::-1], strict=True):
        tied = nodes.alu(Ops.AND, nodes.alu(Ops.CMPEQ, word, other), less)
        less = nodes.alu(Ops.OR, nodes.alu(Ops.CMPLT, word, other), tied)
    return less


# --- selection ----------------------------------------------------------------------------------


def _place_of_kth(keys: Node, k: int, nan_first: bool) -> Node:
    """Where the k-th least of `sort_keys` stands along the last axis, of extent 1 then; int64.

    Its key is the greatest before which fewer than k others come; where it stands among those that
    are equal is found alike. That takes a pass over all for each bit, a sort several. nan_first: it
    is the first NaN, the one after all numbers, if there are some.
    """
    keys = _stored(_unsigned(keys))
    *front, extent = keys.shape
    counts = dtypes.int32 if extent < 1 << 31 else dtypes.int64
    last = len(front)
    places = nodes.iota_along(keys.shape, last, counts)
    shape = (*front, 1)

    def number_of(chosen: Node) -> Node:
        ones = nodes.cast(chosen, counts)
        return nodes.keep(nodes.reduce(Ops.ADD, ones, (last,)), (last,), last + 1)

    wanted: Node = const(k, counts)
    if nan_first:
        of_nan = const(int(keys.dtype.max), keys.dtype)
        numbers = number_of(nodes.alu(Ops.CMPNE, keys, of_nan))
        some = nodes.alu(Ops.CMPLT, numbers, const(extent, counts))
        after = nodes.alu(Ops.ADD, numbers, const(1, counts))
        wanted = nodes.where(some, after, wanted)

    def are_few(number: Node) -> Node:
        return nodes.alu(Ops.CMPLT, number, wanted)

    key = _greatest(
        keys.dtype, keys.dtype.bits, shape,
        lambda trial: are_few(number_of(nodes.alu(Ops.CMPLT, keys, trial))),
    )  # fmt: skip
    before = number_of(nodes.alu(Ops.CMPLT, keys, key))
    equal = nodes.alu(Ops.CMPEQ, keys, key)

    def is_enough(trial: Node) -> Node:
        chosen = nodes.alu(Ops.AND, equal, nodes.alu(Ops.CMPLT, places, trial))
        return are_few(nodes.alu(Ops.ADD, before, number_of(chosen)))

    place = _greatest(counts, (extent - 1).bit_length(), shape, is_enough)
    return nodes.cast(place, dtypes.int64)


def _unsigned(keys: Node) -> Node:
    """Keys as unsigned integers in the same order."""
    if keys.dtype.kind == "uint":
        return keys
    dtype = next(row for row in _UNSIGNED if row.bits == keys.dtype.bits)
    bits = Node(Ops.BITCAST, dtype, (keys,))
    return nodes.alu(Ops.XOR, bits, const(1 << (dtype.bits - 1), dtype))


_UNSIGNED = (dtypes.uint8, dtypes.uint16, dtypes.uint32, dtypes.uint64)


def _greatest(
    dtype: DType, bits: int, shape: tuple[int, ...], fits: Callable[[Node], Node]
) -> Node:
    """The greatest integers of `bits` bits that fit, where 0 does and all below one that does."""
    found = nodes.full(0, shape, dtype)
    for bit in reversed(range(bits)):
        trial = nodes.alu(Ops.OR, found, const(1 << bit, dtype))
        found = nodes.where(fits(trial), trial, found)
    return found


# --- the least few ------------------------------------------------------------------------------


def _is_tree_worth(extent: int, k: int) -> bool:
    """Whether the least few are found by a tree of minima: else a sort, or k searches, are soon."""
    return extent >= LEAST_TREE and TWIGS * 2 * k <= extent


def _is_tree_short(extent: int, k: int) -> bool:
    """Whether the k-th alone is found sooner down a tree than by some dozens of passes over all."""
    return _is_tree_worth(extent, k) and (TWIGS * k) ** 2 <= min(16 * extent, MOST_RANKED**2)


def _least(words: Node, k: int, device: str) -> Node:
    """The k least of words along the last axis, in order, down a tree of minima.

    No more than k parts of the axis have one of the k least: those whose minima are the least. So
    the whole axis is read once, and from then on k parts a level, each cut into `TWIGS`. Those lie
    a level's size apart, so that minima are of neighbours side by side.
    """
    *front, extent = words.shape
    if k == 1:
        least = nodes.reduce(Ops.MIN, words, (len(front),))
        return _stored(nodes.keep(least, (len(front),), len(front) + 1))
    depth = 0
    while _parts(extent, depth + 1) >= k and _parts(extent, depth) > max(TOP, TWIGS * k):
        depth += 1
    spared = max(3 * depth + 2 - k, 0) * ELEMENTS
    if is_gpu(device) and (k - 1) * _most(words) <= spared:
        return _one_after_the_other(words, k)
    levels = [_padded(words, TWIGS**depth)]
    for _ in range(depth):
        parts = (*front, TWIGS, levels[-1].shape[-1] // TWIGS)
        minima = nodes.reduce(Ops.MIN, nodes.reshape(levels[-1], parts), (len(front),))
        levels.append(_stored(minima))
    found = _first(levels[depth], k)
    for level in reversed(range(depth)):
        # Each of them is the minimum of a part, whose twigs are looked at.
        size = const(levels[level + 1].shape[-1], dtypes.int64)
        part = nodes.alu(Ops.MOD, _places_in(found), size)
        shape = (*front, k, TWIGS)
        twig = nodes.mul(nodes.iota_along(shape, len(front) + 1), size)
        place = nodes.add(nodes.broadcast(nodes.unsqueeze(part, len(front) + 1), shape), twig)
        places = [nodes.iota_along(shape, axis) for axis in range(len(front))]
        twigs = _stored(nodes.gather(levels[level], *places, place))
        found = _first(nodes.reshape(twigs, (*front, k * TWIGS)), k)
    return found


def _one_after_the_other(words: Node, k: int) -> Node:
    """The k least of words along the last axis, in order, each by a pass over all."""
    last = len(words.shape) - 1
    found: list[Node] = []
    left = words
    for _ in range(k):
        least = _stored(nodes.keep(nodes.reduce(Ops.MIN, left, (last,)), (last,), last + 1))
        found.append(least)
        after = nodes.alu(Ops.CMPLT, nodes.broadcast(least, words.shape), words)
        left = nodes.where(after, words, const(int(words.dtype.max), words.dtype))
    return nodes.concatenate(tuple(found), last)


def _parts(extent: int, depth: int) -> int:
    """How many parts of a tree's level there are."""
    return -(-extent // int(TWIGS**depth))


def _padded(words: Node, size: int) -> Node:
    """Words with others behind them, none alike and all greater, to whole parts of `size`."""
    *front, extent = words.shape
    more = -extent % size
    if not more:
        return words
    last = len(front)
    pads = (*(Pad() for _ in front), Pad(0, more))
    shape = (*front, extent + more)
    places = nodes.iota_along(shape, last)
    inside = nodes.alu(Ops.CMPLT, places, const(extent, dtypes.int64))
    top = const(int(words.dtype.max) - shape[-1], words.dtype)
    above = nodes.add(nodes.cast(places, words.dtype), top)
    return nodes.where(inside, nodes.pad(words, pads), above)


def _first(words: Node, k: int) -> Node:
    """The k least of a few words, in order: each counts those below it."""
    *front, extent = words.shape
    last = len(front)
    if extent > MOST_RANKED:
        return nodes.cut(_sorted(words), last, 0, k)
    rank = _ranks(words)
    shape = (*front, k, extent)
    hit = nodes.alu(
        Ops.CMPEQ, nodes.broadcast(nodes.unsqueeze(rank, last), shape),
        nodes.iota_along(shape, last, dtypes.int32),
    )
    word = nodes.broadcast(nodes.unsqueeze(words, last), shape)
    chosen = nodes.where(hit, word, const(int(words.dtype.max), words.dtype))
    return _stored(nodes.reduce(Ops.MIN, chosen, (last + 1,)))


def _are_few(x: Tensor, extent: int) -> bool:
    """Whether a GPU compares elements each with each, of axes of so many, while a kernel begins."""
    return is_gpu(x.device) and _most(x.node) * extent <= FEW_PAIRS


def _most(x: Node) -> int:
    """How many elements there may be."""
    return index.upper(index.product(x.shape))


def _ranks(words: Node) -> Node:
    """How many words along the last axis are below each."""
    *front, extent = words.shape
    last = len(front)
    shape = (*front, extent, extent)
    own = nodes.broadcast(nodes.unsqueeze(words, last + 1), shape)
    other = nodes.broadcast(nodes.unsqueeze(words, last), shape)
    below = nodes.cast(nodes.alu(Ops.CMPLT, other, own), dtypes.int32)
    return _stored(nodes.reduce(Ops.ADD, below, (last + 1,)))


def _place_by_rank(x: Node, k: int, nan_first: bool) -> Node:
    """Where the k-th least of few elements stands along the last axis: each counts those below it.

    nan_first: it is the first that is no number, if there is one.
    """
    last = len(x.shape) - 1
    words = _packed(sort_keys(x, False))
    rank = _ranks(words)
    wanted = nodes.full(k - 1, rank.shape, rank.dtype)
    if nan_first:
        # A number that is none comes after all those that are some.
        numbers = nodes.cast(nodes.alu(Ops.CMPEQ, x, x), rank.dtype)
        before = nodes.keep(nodes.reduce(Ops.ADD, numbers, (last,)), (last,), last + 1)
        some = nodes.alu(Ops.CMPLT, before, const(x.shape[-1], rank.dtype))
        wanted = nodes.where(some, before, const(k - 1, rank.dtype))
    hit = nodes.alu(Ops.CMPEQ, rank, wanted)
    places = nodes.iota_along(x.shape, last)
    chosen = nodes.where(hit, places, const(0, places.dtype))
    return nodes.keep(nodes.reduce(Ops.ADD, chosen, (last,)), (last,), last + 1)


def _place_near_an_end(x: Tensor, k: int, from_last: bool) -> Node:
    """Where the k-th element along the last axis stands, or the k-th from the last, in order."""
    # The order from the last is that of the flipped elements: the last of equal ones comes first.
    keys = sort_keys((x.flip(-1) if from_last else x).node, from_last)
    least = _least(_packed(keys), k, x.device)
    place = _places_in(nodes.cut(least, x.ndim - 1, k - 1, k))
    return nodes.alu(Ops.SUB, const(x.shape[-1] - 1, place.dtype), place) if from_last else place


# --- functions ----------------------------------------------------------------------------------


def argsort(x: Tensor, dim: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """Return the positions of the elements along an axis in sorted order; always stable."""
    check_shape_is_int(x.shape, "sorting")
    axis = one_axis(dim, x.ndim)
    if not x.ndim:
        return x.zeros_like(dtype=dtypes.int64)
    moved = x.detach().movedim(axis, -1)
    return result(order(moved.node, descending), x.detach()).movedim(-1, axis)


def sort(
    x: Tensor, dim: int = -1, descending: bool = False, stable: bool = True
) -> Extreme[Tensor]:
    """Return (values, indices) along an axis in sorted order; NaN counts as the greatest."""
    places = argsort(x, dim, descending)
    return Extreme(x.take_along_dim(places, dim) if x.ndim else x.clone(), places)


def topk(
    x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> Extreme[Tensor]:
    """Return the k largest (or smallest) elements along an axis, in order, and where they stand."""
    axis = one_axis(dim, x.ndim)
    extent = x.shape[axis] if x.ndim else 1
    if not 0 <= k <= extent:
        raise ShapeError("topk cannot find so many", found=f"k = {k}", wanted=f"0 to {extent}")
    if k == 1 and x.ndim and (largest or x.dtype.kind != "float"):
        return extreme(Ops.MAX if largest else Ops.MIN, x, axis, True)
    keys = sort_keys(x.detach().node, largest) if x.ndim else x.node
    are_few = x.ndim > 0 and _are_few(x, extent)
    if k > 1 and (are_few or _is_tree_worth(extent, k)) and _fits_in_words(keys.dtype, extent):
        moved = result(keys, x.detach()).movedim(axis, -1)
        words = _packed(moved.node)
        found = _first(words, k) if are_few else _least(words, k, x.device)
        places = result(_places_in(found), moved).movedim(-1, axis)
        return Extreme(x.take_along_dim(places, axis), places)
    stages = math.comb((extent - 1).bit_length() + 1, 2)
    # A stage of the network takes about as long as two thirds of a search for the greatest.
    if x.ndim and k <= REPEATED and 3 * k <= 2 * stages and x.dtype.bits < 64:
        places = _one_by_one(x, k, axis, largest)
    else:
        places = argsort(x, axis, descending=largest)
        places = places.narrow(axis, 0, k) if x.ndim else places
    return Extreme(x.take_along_dim(places, axis) if x.ndim else x.clone(), places)


def _one_by_one(x: Tensor, k: int, axis: int, largest: bool) -> Tensor:
    """The positions of the k greatest, each found among those that come after the one before."""
    keys = nodes.cast(sort_keys(x.detach().node, not largest), dtypes.int64)
    own = nodes.iota_along(x.shape, axis)
    found = []
    left = keys
    for _ in range(k):
        pair = nodes.arg_reduce(Ops.MAX, left, own, (axis,))
        key, place = (
            nodes.keep(_stored(nodes.part(pair, i, dtypes.int64)), (axis,), x.ndim) for i in (0, 1)
        )
        found.append(result(place, x.detach()))
        last, at = (nodes.broadcast(part, x.shape) for part in (key, place))
        after = _is_less((keys, at), (last, own))
        left = nodes.where(after, keys, const(int(dtypes.int64.min), dtypes.int64))
    return found[0].cat(*found[1:], dim=axis) if found else x.narrow(axis, 0, 0).long()


def kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Extreme[Tensor]:
    """Return the k-th smallest element along an axis, k counted from 1, and where it stands."""
    axis, k = one_axis(dim, x.ndim), plain(k)
    extent = x.shape[axis] if x.ndim else 1
    if not 1 <= k <= extent:
        raise ShapeError("there is no such element", found=f"k = {k}", wanted=f"1 to {extent}")
    return _kth(x, k, axis, keepdim, False)


def _kth(x: Tensor, k: int, axis: int, keepdim: bool, nan_first: bool) -> Extreme[Tensor]:
    """`kthvalue`; with nan_first the first NaN, if there is one."""
    if not x.ndim:
        return Extreme(x.clone(), x.zeros_like(dtype=dtypes.int64))
    check_shape_is_int(x.shape, "sorting")
    nan_first = nan_first and x.dtype.kind == "float"
    extent = x.shape[axis]
    if _fits_in_words(x.dtype, extent) and _are_few(x, extent):
        moved = x.detach().movedim(axis, -1)
        places = result(_place_by_rank(moved.node, k, nan_first), moved).movedim(-1, axis)
    elif extent >= COUNTED:
        moved = x.detach().movedim(axis, -1)
        near = min(k, extent + 1 - k)
        if not nan_first and _is_tree_short(extent, near) and _fits_in_words(x.dtype, extent):
            place = _place_near_an_end(moved, near, near < k)
        else:
            place = _place_of_kth(sort_keys(moved.node, False), k, nan_first)
        places = result(place, moved).movedim(-1, axis)
    else:
        places = argsort(x, axis).narrow(axis, k - 1, 1)
        if nan_first:
            broken = x.isnan()
            places = broken.any(axis, True).where(broken.argmax(axis, True), places)
    values = x.take_along_dim(places, axis)
    if not keepdim:
        values, places = values.squeeze(axis), places.squeeze(axis)
    return Extreme(values, places)


def median(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor | Extreme[Tensor]:
    """Return the lower median of all, or (values, indices) along an axis; NaN if one is.

    That of no floats at all is NaN too. The gradient of that of all is shared among equals. Raises
    ShapeError for no integers, and an empty axis.
    """
    if dim is None:
        if x.dtype.kind == "float" and 0 in x.shape:
            return x.new_full((), math.nan)
        _check_elements(x, x.numel())
        middle = _kth(x.detach().ravel(), (x.numel() + 1) // 2, 0, False, True).values
        if not x.requires_grad:
            return middle
        return ((x == middle) | x.isnan()).where(x, -math.inf).amax()
    axis = one_axis(dim, x.ndim)
    extent = x.shape[axis] if x.ndim else 1
    _check_elements(x, extent)
    return _kth(x, (extent + 1) // 2, axis, keepdim, True)


def _check_elements(x: Tensor, count: int) -> None:
    if not count:
        raise ShapeError("the median of no elements", found=f"shape {list(x.shape)}")


def quantile(
    x: Tensor, q: float | Tensor, dim: int | None = None, keepdim: bool = False, *,
    interpolation: str = "linear",
) -> Tensor:
    """Return the q-th quantile along an axis (or of all); several q's (Q,) are a first axis.

    interpolation: linear, lower, higher, nearest or midpoint, between the two neighbours. NaN where
    an element is.
    """
    q = plain(q)
    if isinstance(q, TensorLike) or interpolation != "linear":
        return quantile_in_order(x, q, dim, keepdim, interpolation)
    if not 0 <= q <= 1:
        raise ArgumentError(f"a quantile is from 0 to 1, not {q}")
    axis = 0 if dim is None else one_axis(dim, x.ndim)
    if not x.ndim:
        dim = None
    y = x.ravel() if dim is None else x
    place = q * (y.shape[axis] - 1)
    low = int(place)
    below = kthvalue(y, low + 1, axis, True).values
    above = kthvalue(y, min(low + 2, y.shape[axis]), axis, True).values
    found = below.lerp(above, place - low)
    found = y.isnan().any(axis, True).where(float("nan"), found)
    if dim is None:
        return found.reshape((1,) * x.ndim if keepdim else ())
    return found if keepdim else found.squeeze(axis)


def quantile_in_order(
    x: Tensor, q: Any, dim: int | None, keepdim: bool, interpolation: str,
    is_nan_left_out: bool = False,
) -> Tensor:
    """`quantile` by a sort of all, of one or several q's, with NaN as it is or left out."""
    if interpolation not in ("linear", "lower", "higher", "nearest", "midpoint"):
        raise ArgumentError("quantile has no such interpolation", found=repr(interpolation))
    check_float(x.dtype, "quantile")
    several = isinstance(q, TensorLike) and q.ndim == 1
    if not isinstance(q, TensorLike):
        if not 0 <= q <= 1:
            raise ArgumentError(f"a quantile is from 0 to 1, not {q}")
        shares: Any = x.detach().new_full((1,), q)
    else:
        shares = q.cast(x.dtype).reshape(-1)
    flat: Any = x.ravel() if dim is None else x
    axis = flat.ndim - 1 if dim is None else one_axis(dim, x.ndim)
    rows = flat.movedim(axis, -1) if flat.ndim else flat.reshape(1)
    extent = rows.shape[-1]
    if not extent:
        raise ShapeError("the quantile of no elements", found=list(x.shape))
    ordered = sort(rows)[0]
    broken = rows.isnan()
    count = (~broken).sum(-1, True) if is_nan_left_out else \
        broken.any(-1, True).where(0, extent)
    rank = shares * (count - 1).clamp(min=0).cast(x.dtype)
    low, high = rank.detach().floor(), rank.detach().ceil()
    if interpolation == "lower":
        high = low
    elif interpolation == "higher":
        low = high
    elif interpolation == "nearest":
        low = high = rank.detach().round()
    below = ordered.take_along_dim(low.cast(dtypes.int64), -1)
    above = ordered.take_along_dim(high.cast(dtypes.int64), -1)
    found = below if interpolation in ("lower", "higher", "nearest") else \
        below.lerp(above, 0.5 if interpolation == "midpoint" else rank - low)
    found = (count > 0).where(found, float("nan"))
    if several:
        found = found.movedim(-1, 0)
        front: tuple[Any, ...] = (shares.shape[0],)
    else:
        found, front = found.squeeze(-1), ()
    if dim is None:
        found = found.reshape(*front, *((1,) * x.ndim if keepdim else ()))
    elif keepdim and x.ndim:
        found = found.unsqueeze(axis + len(front))
    made: Tensor = found
    return made


def unique(
    x: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False,
    dim: int | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """Return the distinct elements of all, in rising order, each NaN by itself; computes them.

    return_inverse: also where each element of `x` stands among them, in its shape. return_counts:
    also how often each occurs. dim: the distinct parts along that axis, their first elements first.
    """
    if dim is not None and x.ndim:
        return _unique_parts(x, one_axis(dim, x.ndim), return_inverse, return_counts)
    flat = x.detach().ravel()
    ordered, places = sort(flat, 0)
    begins = flat[:1].ones_like(dtype=dtypes.bool).cat(ordered[1:] != ordered[:-1])
    found = [ordered[begins]]
    numbers = begins.cumsum(0) - 1
    if return_inverse:
        inverse = scatter(numbers.zeros_like(), 0, places, numbers)
        found.append(inverse.reshape(x.shape))
    if return_counts:
        found.append(bincount(numbers, minlength=found[0].shape[0]))
    return found[0] if len(found) == 1 else tuple(found)


def _unique_parts(
    x: Tensor, axis: int, return_inverse: bool, return_counts: bool
) -> Tensor | tuple[Tensor, ...]:
    moved: Any = x.detach().movedim(axis, 0)
    count = moved.shape[0]
    rows = moved.reshape(count, math.prod(moved.shape[1:]))
    places = type(moved).arange(count, device=x.device)
    # Stable sorts by the last elements first leave rows ordered by their first ones.
    for column in reversed(range(rows.shape[1])):
        places = places[argsort(rows[:, column][places], 0)]
    ordered = rows[places]
    begins = rows.new_full((min(count, 1),), True, dtype=dtypes.bool).cat(
        (ordered[1:] != ordered[:-1]).any(1)
    )
    found = [moved[places[begins]].movedim(0, axis)]
    numbers = begins.cast(dtypes.int64).cumsum(0) - 1
    if return_inverse:
        found.append(scatter(numbers.zeros_like(), 0, places, numbers))
    if return_counts:
        found.append(bincount(numbers, minlength=found[0].shape[axis]))
    return found[0] if len(found) == 1 else tuple(found)
