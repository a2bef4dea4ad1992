"""FOLD of a contraction, the gradient of a convolution's input, as a contraction of windows.

y[i] = sum over k of x[i - k*dilation, k], where x[p, k] = sum over o of a[p, o] * b[k, o], is the
sum over k and o of z[i, k, o] * b[k, o], where z is a padded and read through flipped windows: its
inner loops have no conditions. Windows that do not overlap are a rearrangement, of whatever is
folded. With stride s, y is computed for each residue of i modulo s separately,
each with its own taps: no multiplication by zeros, and again no conditions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from baregrad.graph.repeats import axis_before_reshape, is_repeated
from baregrad.graph.traced import Traced, again
from baregrad.graph.views import (
    below_views,
    constant_of,
    cut,
    cut_and_pad,
    expand,
    full,
    in_memory,
    pad,
    permute,
    reshape,
    stored,
)
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Pad, Reduce, Slice, Window
from baregrad.ir.core.index import Dim
from baregrad.ir.core.monoid import primitive
from baregrad.ir.core.node import Node, cast, make_node
from baregrad.ir.core.op import Ops


@dataclass(frozen=True, slots=True)
class Crop:
    """The part of a FOLD's result that is wanted along its axis: start, start + 1, ...

    whole: what would be cut of a stride's residues is stored with all of them, and cut then. No
    axis of a GPU's kernel could be divided into parts of whole residues otherwise.
    """

    start: int
    length: Dim
    whole: bool = False


def _fold(node: Node, crop: Crop) -> Node | None:
    """`node`, a FOLD, cut to `crop` along its axis; None where it stays a FOLD."""
    taps = node.src[0]
    value = constant_of(taps)
    if value is not None:
        if value.arg != 0:
            return None
        return cut(full(value, node.shape), node.arg.axis, crop.start, _stop(crop))
    if node.arg.taps == 1:
        return cut(_one_tap(node), node.arg.axis, crop.start, _stop(crop))
    if node.arg.dilation == 1 and node.arg.stride >= node.arg.taps:
        return cut(_side_by_side(node), node.arg.axis, crop.start, _stop(crop))
    if crop.whole and _below_casts(taps).op is Ops.SHRINK:
        return _fold_whole(node, _below_casts(taps), crop)
    if node.arg.stride == 1:
        return _unit_stride(taps, node.arg, crop)
    return _strided(node, crop) if node.arg.dilation == 1 else None


def _fold_whole(node: Node, taps: Node, crop: Crop) -> Node | None:
    """A FOLD of `taps`, which are cut along other axes: these are cut behind it."""
    pieces = list(taps.arg)
    axis = node.arg.axis
    if taps.dtype is not node.dtype or any(
        taps.src[0].shape[one] != taps.shape[one] for one in (axis, len(pieces) - 1)
    ):
        return None
    inner = taps.src[0]
    inner = inner.src[0] if inner.op is Ops.CONTIGUOUS else inner
    found = _fold(make_node(Ops.FOLD, node.dtype, (inner,), node.arg), crop)
    if found is None:
        return None
    pieces[axis] = Slice(0, found.shape[axis], 1)
    found = found if found.op is Ops.SHRINK else in_memory(found)
    return make_node(Ops.SHRINK, found.dtype, (found,), tuple(pieces[:-1]))


def _stop(crop: Crop) -> Dim:
    return index.as_dim(index.add(crop.length, crop.start))


def _one_tap(node: Node) -> Node:
    """y[i*stride] = x[i, 0]: zeros between neighbours."""
    window = node.arg
    taps = node.src[0]
    line = reshape(taps, taps.shape[:-1])
    positions = taps.shape[window.axis]
    if window.stride == 1:
        reached = positions
    else:
        reached = index.add(index.mul(index.sub(positions, 1), window.stride), 1)
    after = index.sub(window.extent, reached)
    return pad(line, window.axis, Pad(0, index.as_dim(after), window.stride - 1))


def _side_by_side(node: Node) -> Node:
    """y[i*stride + k] = x[i, k], for windows that do not overlap: a rearrangement."""
    window = node.arg
    taps = node.src[0]
    last = len(taps.shape) - 1
    wide = pad(taps, last, Pad(0, window.stride - window.taps))
    axes = list(range(last))
    axes.insert(window.axis + 1, last)
    turned = permute(wide, tuple(axes))
    shape = list(taps.shape[:-1])
    shape[window.axis] = index.as_dim(index.mul(shape[window.axis], window.stride))
    line = reshape(turned, tuple(shape))
    left = index.as_dim(index.sub(window.extent, shape[window.axis]))
    if isinstance(left, int) and left < 0:
        return cut(line, window.axis, 0, window.extent)
    return pad(line, window.axis, Pad(0, left))


def _unit_stride(taps: Node, window: Window, crop: Crop) -> Node | None:
    """The FOLD as a sum over its taps of a product of windows, or None."""
    found = contraction_of(taps, window.axis)
    if found is None:
        return None
    _, inner, position, tap = found
    product = product_of(inner)
    sliding = [factor for factor in product.src if factor.shape and is_repeated(factor, tap)]
    if len(sliding) != 1:
        return None
    factors = []
    for factor in product.src:
        if factor is sliding[0]:
            factors.append(slide(factor, position, tap, window, crop))
        elif not factor.shape:
            factors.append(factor)
        elif is_repeated(factor, position):
            factors.append(stretched(factor, position, crop.length))
        else:
            return None
    made = make_node(Ops.MUL, product.dtype, tuple(factors))
    closed = tuple(sorted((*closed_axes_of(inner), tap)))
    summed = make_node(
        Ops.REDUCE, inner.dtype, (made,), Reduce(primitive(Ops.ADD, inner.dtype), closed)
    )
    return _replay(found, summed, taps, crop.length)


_Found = tuple[list[Node], Node, int, int]


def contraction_of(taps: Node, axis: int) -> _Found | None:
    """(views above, sum, position axis, tap axis); the axes are those of what is summed.

    The sum is a REDUCE of a product, or a product alone (one channel for each of the output's).
    """
    chain: list[Node] = []
    position: int | None = axis
    tap: int | None = len(taps.shape) - 1
    dtype = taps.dtype
    while taps.op in (Ops.RESHAPE, Ops.PERMUTE, Ops.CAST):
        if taps.op is Ops.CAST:
            # Rounded on its way from one wide sum into the other: the rounding is left out.
            taps = taps.src[0]
            continue
        assert position is not None
        assert tap is not None
        if taps.op is Ops.PERMUTE:
            position = int(taps.arg[position])
            tap = int(taps.arg[tap])
        else:
            old = taps.src[0].shape
            position = axis_before_reshape(old, taps.shape, position)
            tap = axis_before_reshape(old, taps.shape, tap)
            if position is None or tap is None:
                return None
        chain.append(taps)
        taps = taps.src[0]
    if taps.op is Ops.REDUCE and taps.arg.monoid is not primitive(Ops.ADD, taps.dtype):
        return None
    if product_of(taps).op is not Ops.MUL or taps.dtype is not dtype:
        return None
    if position is None or tap is None:
        return None
    open_axes = open_axes_of(taps)
    return chain, taps, open_axes[position], open_axes[tap]


def product_of(sum_: Node) -> Node:
    """What a sum adds up."""
    return sum_.src[0] if sum_.op is Ops.REDUCE else sum_


def closed_axes_of(sum_: Node) -> tuple[int, ...]:
    """The axes of its product along which a sum adds."""
    axes: tuple[int, ...] = sum_.arg.axes if sum_.op is Ops.REDUCE else ()
    return axes


def open_axes_of(sum_: Node) -> list[int]:
    """The axes of its product that a sum has."""
    closed = closed_axes_of(sum_)
    return [axis for axis in range(len(product_of(sum_).shape)) if axis not in closed]


def _replay(contraction: _Found, summed: Node, taps: Node, length: Dim) -> Node:
    """The views above a sum, whose tap axis is gone and whose positions are elements.

    They may have moved the tap axis about, so it is kept with extent 1 until the end.
    """
    chain, inner, position, tap = contraction
    below = chain[-1].src[0] if chain else taps
    open_axes = open_axes_of(inner)
    shape = list(below.shape)
    shape[open_axes.index(position)] = length
    shape[open_axes.index(tap)] = 1
    node = summed
    places = [open_axes.index(position), open_axes.index(tap)]
    for view in reversed(chain):
        # Of reshapes one after the other, the last alone is made.
        if view.op is Ops.PERMUTE:
            places = [view.arg.index(place) for place in places]
            node = permute(reshape(node, tuple(shape)), view.arg)
            shape = list(node.shape)
            continue
        places = [_axis_after_reshape(view, place) for place in places]
        shape = list(view.shape)
        shape[places[0]] = length
        shape[places[1]] = 1
    return reshape(node, tuple(shape[:-1]))


def _axis_after_reshape(view: Node, place: int) -> int:
    found = axis_before_reshape(view.shape, view.src[0].shape, place)
    assert found is not None
    return found


def stretched(factor: Node, axis: int, extent: Dim) -> Node:
    """A factor that repeats along `axis`, repeated `extent` times."""
    shape = list(factor.shape)
    shape[axis] = extent
    return expand(cut(factor, axis, 0, 1), tuple(shape))


def slide(factor: Node, position: int, tap: int, window: Window, crop: Crop) -> Node:
    """z[i, k] = x[start + i - k*dilation], 0 outside, of a factor x[p] that repeats along taps."""
    reach = window.dilation * (window.taps - 1)
    line = cut(factor, tap, 0, 1)
    line = reshape(line, tuple(e for i, e in enumerate(line.shape) if i != tap))
    place = position - (position > tap)
    positions = factor.shape[position]
    stop = _stop(crop)
    if isinstance(positions, int) and isinstance(stop, int):
        first, end = max(crop.start - reach, 0), min(stop, positions)
        around = Pad(max(reach - crop.start, 0), max(stop - positions, 0))
        padded = cut_and_pad(line, place, first, end, around)
    else:
        padded = pad(line, place, Pad(reach, index.as_dim(index.sub(stop, positions))))
    view = Window(place, window.taps, 1, window.dilation, padded.shape[place])
    slid = make_node(Ops.WINDOW, factor.dtype, (padded,), view)
    last = len(slid.shape) - 1
    slid = make_node(Ops.FLIP, factor.dtype, (slid,), (last,))
    axes = list(range(last))
    axes.insert(tap, last)
    return permute(slid, tuple(axes))


# --- strides --------------------------------------------------------------------------------------


def _strided(node: Node, crop: Crop) -> Node | None:
    """y[q*s + r] = sum over m of x[q - m, m*s + r]: a FOLD of unit stride for each residue r.

    A crop that does not start at a multiple of s is met by zeros before the first tap. What is no
    contraction stays a FOLD, whose positions no division distinguishes.
    """
    window = node.arg
    taps = node.src[0]
    if not isinstance(crop.length, int):
        return None
    found = contraction_of(taps, window.axis)
    stride = window.stride
    before = -crop.start % stride
    groups = -(-(window.taps + before) // stride)
    split = None if found is None else _split_taps(found, before, groups, stride)
    whole_taps = split is None
    if split is None:
        if _is_sum(taps):
            return None
        split = _split_any(taps, before, groups, stride)
    # split: [..., position, ..., residue, group]; the residue goes beside the position.
    last = len(split.shape) - 1
    axes = list(range(last - 1))
    axes.insert(window.axis + 1, last - 1)
    turned = permute(split, (*axes, last))
    quotients = -(-crop.length // stride)
    start = crop.start // stride + (before > 0)
    extent = max(quotients + start, turned.shape[window.axis] + groups - 1)
    whole = Window(window.axis, groups, 1, 1, extent)
    made = make_node(Ops.FOLD, node.dtype, (turned,), whole)
    inner = _fold(made, Crop(start, quotients, crop.whole))
    if inner is None:
        if not whole_taps:
            return None
        # Its windows reach so far; what is wanted behind them is zero.
        reach = turned.shape[window.axis] + groups - 1
        made = make_node(Ops.FOLD, node.dtype, (turned,), Window(window.axis, groups, 1, 1, reach))
        made = pad(made, window.axis, Pad(0, extent - reach))
        inner = cut(made, window.axis, start, start + quotients)
    shape = list(taps.shape[:-1])
    shape[window.axis] = quotients * stride
    made = reshape(inner, tuple(shape))
    if crop.whole and quotients * stride != crop.length:
        made = stored(made)
    return cut(made, window.axis, 0, crop.length)


def _is_sum(node: Node) -> bool:
    """Whether what is folded is a reduction already: a FOLD of it is read where it is used."""
    return below_views(node).op is Ops.REDUCE


def _split_any(taps: Node, before: int, groups: int, stride: int) -> Node:
    """Whatever is folded, with its taps, padded with zeros, as two last axes (residue, group)."""
    last = len(taps.shape) - 1
    wide = pad(taps, last, Pad(before, groups * stride - before - taps.shape[last]))
    split = reshape(wide, (*taps.shape[:-1], groups, stride))
    return permute(split, (*range(last), last + 1, last))


def _split_taps(found: _Found, before: int, groups: int, stride: int) -> Node | None:
    """The contraction with its taps, padded with zeros, as two last axes (residue, group).

    None where it cannot be, as where no factor varies along the taps, to hold the zeros.
    """
    chain, inner, position, tap = found
    product = product_of(inner)
    shape = product.shape
    varies = any(factor.shape and not is_repeated(factor, tap) for factor in product.src)
    if groups * stride != shape[tap] and not varies:
        return None
    wide = (*shape[:tap], groups, stride, *shape[tap + 1 :])
    factors = []
    for factor in product.src:
        if not factor.shape:
            factors.append(factor)
        elif is_repeated(factor, tap):
            once = cut(factor, tap, 0, 1)
            factors.append(expand(reshape(once, (*shape[:tap], 1, 1, *shape[tap + 1 :])), wide))
        elif is_repeated(factor, position):
            once = cut(factor, position, 0, 1)
            padded = pad(once, tap, Pad(before, groups * stride - before - shape[tap]))
            thin = tuple(1 if i == position + (position > tap) else e for i, e in enumerate(wide))
            factors.append(expand(reshape(padded, thin), wide))
        else:
            return None
    made = make_node(Ops.MUL, product.dtype, tuple(factors))
    closed = tuple(axis + (axis > tap) for axis in closed_axes_of(inner))
    summed = made
    if closed:
        summed = make_node(Ops.REDUCE, inner.dtype, (made,), Reduce(inner.arg.monoid, closed))
    # The axes of the sum: those of the old one, with (group, residue) for its tap.
    open_axes = open_axes_of(inner)
    place = open_axes.index(tap)
    ends = [i for i in range(len(summed.shape)) if i not in (place, place + 1)]
    turned = permute(summed, (*ends, place + 1, place))
    return _replay_split(chain, turned, place, (stride, groups))


def _replay_split(
    chain: list[Node], node: Node, tap: int, sizes: tuple[int, int]
) -> Node | None:
    """The views of `chain` over a sum whose tap axis stands, split, at the end."""
    for view in reversed(chain):
        if view.op is Ops.PERMUTE:
            axes = [axis - (axis > tap) for axis in view.arg if axis != tap]
            tap = view.arg.index(tap)
            node = permute(node, (*axes, len(axes), len(axes) + 1))
            continue
        after = _axis_after_reshape(view, tap)
        shape = tuple(extent for axis, extent in enumerate(view.shape) if axis != after)
        node = reshape(node, (*shape, *sizes))
        tap = after
    # FOLD's taps come last, so that nothing stands behind them.
    return node if tap == len(node.shape) - 2 else None


# --- the walk -------------------------------------------------------------------------------------


def unfold(order: list[Node], changed: dict[Node, Node], whole: bool = False) -> Node:
    """The sink with folds of contractions as contractions of windows.

    A FOLD of which only a part is read, as where the input was padded, is made for that part alone.
    whole: with all residues of a stride, which are stored where not all are read.
    """
    sink = order[-1]
    if not sink.mask & Ops.FOLD.bit:
        return sink
    order = [node for node in order if node.mask & Ops.FOLD.bit]
    waiting = _waiting(order)
    unchanged = changed.keys().isdisjoint
    for node in order:
        made = node if unchanged(node.src) else again(node, changed)
        found: Node | None = None
        if made.op is Ops.FOLD and node not in waiting:
            found = _fold(made, Crop(0, made.arg.extent, whole))
        elif made.op is Ops.SHRINK and _below_casts(made.src[0]).op is Ops.FOLD:
            found = _cut_casts(made, whole)
        made = made if found is None else found
        if made is not node:
            changed[node] = made
    return changed.get(sink, sink)


def _waiting(order: list[Node]) -> set[Node]:
    """The FOLDs, and casts of them, of which all readers want a part alone."""
    waiting: set[Node] = set()
    read: set[Node] = set()
    whole: set[Node] = set()
    for node in reversed(order):
        if node in read and node not in whole and _below_casts(node).op is Ops.FOLD:
            waiting.add(node)
        in_part = node in waiting or (node.op is Ops.SHRINK and _crop_of(node) is not None)
        read.update(node.src)
        if not in_part:
            whole.update(node.src)
    return waiting


def _below_casts(node: Node) -> Node:
    while node.op is Ops.CAST:
        node = node.src[0]
    return node


def _crop_of(node: Node) -> Crop | None:
    """What a SHRINK takes along the axis of the FOLD that it is of, cast or not.

    None where it is of none, or what it takes is symbolic or has a step.
    """
    fold = _below_casts(node.src[0])
    if fold.op is not Ops.FOLD:
        return None
    piece = node.arg[fold.arg.axis]
    if piece.step != 1 or not isinstance(piece.start, int) or not isinstance(piece.stop, int):
        return None
    return Crop(piece.start, piece.stop - piece.start)


def _cut_casts(node: Node, whole: bool) -> Node | None:
    """SHRINK(CAST(FOLD(x))): what is cast is cut before."""
    fold = _below_casts(node.src[0])
    found = _cut_fold(make_node(Ops.SHRINK, fold.dtype, (fold,), node.arg), whole)
    return None if found is None else _cast_as(node.src[0], found)


def _cast_as(value: Node, found: Node) -> Node:
    """What became of the FOLD below a value's casts, with these casts."""
    dtypes = []
    while value.op is Ops.CAST:
        dtypes.append(value.dtype)
        value = value.src[0]
    for dtype in reversed(dtypes):
        found = cast(found, dtype)
    return found


def _cut_fold(node: Node, whole: bool) -> Node | None:
    """SHRINK(FOLD(x)): the other axes are cut before the FOLD, its own axis with it."""
    fold = node.src[0]
    crop = _crop_of(node)
    if crop is None:
        return None
    axis = fold.arg.axis
    taps = fold.src[0]
    for other, piece in enumerate(node.arg):
        if other != axis:
            if piece.step != 1:
                return None
            taps = cut(taps, other, piece.start, piece.stop)
    found: Node | None = None
    if taps.op is Ops.SHRINK and _below_casts(taps.src[0]).op is Ops.FOLD:
        found = _cut_casts(taps, whole)
    elif (inner := _below_casts(taps)).op is Ops.FOLD:
        found = _fold(inner, Crop(0, inner.arg.extent, whole))
        found = None if found is None else _cast_as(taps, found)
    taps = taps if found is None else found
    crop = replace(crop, whole=whole)
    return _fold(make_node(Ops.FOLD, fold.dtype, (taps,), fold.arg), crop)


_WHY = (
    "a fold of a contraction is a contraction of padded windows: no conditions in its inner loops"
)
FOLDS = Traced("folds", _WHY, unfold, ("reductions",))
FOLDS_ON_GPU = Traced("folds", _WHY, partial(unfold, whole=True), ("reductions",))
