"""Products of windows and of few columns as products with a column for each tap, added up in place.

A convolution to one channel is, at each place, a sum over channels and taps: no tile of a product
has so few columns, and each place reads all of its window. What each element is multiplied by for
all taps at once is a plain product with as many columns as there are taps, and reads it once. Its
results are stored in full; each place is the sum of as many of them as there are taps, which lie in
its window: a FOLD. Likewise the gradient by an image of few channels, which is such a FOLD already:
its sums are stored before they are folded.

In a gradient by a filter windows slide along what is summed. Either factor may slide past the
other: that does whose windows make the smaller matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from baregrad.graph.folds import (
    Crop,
    closed_axes_of,
    contraction_of,
    open_axes_of,
    product_of,
    slide,
    stretched,
)
from baregrad.graph.partials_gpu import is_of_matrix_units
from baregrad.graph.repeats import axis_before_reshape, is_repeated
from baregrad.graph.traced import Part, Rule
from baregrad.graph.views import expand, permute, reshape, stored
from baregrad.ir.core.attrs import Pad, Reduce, Slice, Window
from baregrad.ir.core.node import Node, cast, make_node
from baregrad.ir.core.op import Ops, mask_of

# Columns that fill tiles of products, and steps of a sum that are worth it to store a result for
# each tap: on that many GPUs move eight bytes in the time of some eight products by threads.
FEW_COLUMNS, LEAST_DEPTH = 8, 8
# A matrix unit's tiles of more columns are fast, but read as many elements of 16 bits for each tap
# as there are steps of a sum; where there are so many times fewer columns, their results are less.
MUCH_READ, MOST_COLUMNS = 8, 31
# Rows and columns of a tile that reads one side of a product, about; and what a product reads of
# what it would if the other factor slid, at most.
SIDE, WORTH = 128, 0.6
_BETWEEN = mask_of((Ops.FOLD, Ops.CAST, Ops.RESHAPE, Ops.PERMUTE))
_VIEWS = mask_of((Ops.RESHAPE, Ops.PERMUTE, Ops.EXPAND, Ops.CAST, Ops.WINDOW))


def _are_few(product: Node, columns: int, taps: int, depth: int) -> bool:
    """Whether a product is one of few columns, but with its taps of many, and of long sums."""
    if is_of_matrix_units(product):
        most = max(FEW_COLUMNS - 1, min(depth // MUCH_READ, MOST_COLUMNS))
    else:
        most = FEW_COLUMNS - 1
    return columns <= most and taps * columns >= FEW_COLUMNS and taps > 1 and depth >= LEAST_DEPTH


# --- folds ----------------------------------------------------------------------------------------


def _narrow(order: list[Node]) -> frozenset[Node]:
    """The FOLDs of sums that have few columns, and those of such FOLDs."""
    found = set[Node]()
    for node in order:
        if node.op is not Ops.FOLD:
            continue
        folds, taps = [node], node.src[0]
        while taps.op.bit & _BETWEEN:
            folds += [taps] if taps.op is Ops.FOLD else []
            taps = taps.src[0]
        if _is_of_few(folds):
            found.update(folds)
    return frozenset(found)


def _is_of_few(folds: Sequence[Node]) -> bool:
    """Whether the sums that are folded, along an axis after the other, have few columns."""
    inner = folds[-1]
    sums = contraction_of(inner.src[0], inner.arg.axis)
    if sums is None or any(fold.arg.dilation != 1 for fold in folds):
        return False
    _, total, position, tap = sums
    product = product_of(total)
    shape = product.shape
    sliding = [factor for factor in product.src if factor.shape and is_repeated(factor, tap)]
    if len(sliding) != 1 or not all(isinstance(extent, int) for extent in shape):
        return False
    own = [axis for axis in open_axes_of(total) if is_repeated(sliding[0], axis)]
    taps = prod([fold.arg.taps for fold in folds])
    columns, rest = divmod(prod([shape[axis] for axis in own]), taps)
    depth = prod([shape[axis] for axis in closed_axes_of(total)])
    return position not in own and not rest and _are_few(product, columns, taps, depth)


def _of_stored(fold: Node) -> Node:
    """A FOLD of sums that are stored in full, or of a FOLD of such, which is not rounded."""
    taps = fold.src[0]
    found = contraction_of(taps, fold.arg.axis)
    if found is not None:
        views, total, _, tap = found
        taps = _stored(total, tap)
        for view in reversed(views):
            taps = make_node(view.op, taps.dtype, (taps,), view.arg)
    elif taps.op is Ops.CAST and (rounded := taps.src[0]).op is Ops.CAST:
        if rounded.src[0].dtype is taps.dtype:
            taps = rounded.src[0]
    return make_node(Ops.FOLD, fold.dtype, (taps,), fold.arg)


def _stored(total: Node, tap: int) -> Node:
    """Sums of products that are in memory, those of a tap beside each other as its image lies.

    tap: an axis of the products that one factor does not run along.
    """
    product = product_of(total)
    is_own = [all(is_repeated(factor, axis) for factor in product.src if factor.shape
                  and is_repeated(factor, tap)) for axis in open_axes_of(total)]
    order = sorted(range(len(is_own)), key=lambda axis: not is_own[axis])
    back = tuple([order.index(axis) for axis in range(len(order))])
    return permute(stored(permute(total, tuple(order))), back)


# --- windows --------------------------------------------------------------------------------------


class _Slid(NamedTuple):
    """Windows of an image in a product: the axes of places and of taps, and what they reach.

    before: zeros in front of the image. extent: that of the image without them.
    """

    position: int
    tap: int
    window: Window
    before: int
    extent: int


def _of_columns(node: Node) -> Node | None:
    """A sum over windows and more as one of sums for each tap; None where it is to stay."""
    value = node.src[0]
    if node.arg.monoid.primitive is not Ops.ADD or value.op is not Ops.MUL:
        return None
    if node.dtype.kind != "float" or not all(isinstance(extent, int) for extent in value.shape):
        return None
    for image, other in (value.src, value.src[::-1]):
        found = _unslid(image) if image.mask & Ops.WINDOW.bit else None
        if found is None:
            continue
        if _is_worth_it(node, image, other, found[1]):
            return _folded(node, found[0], other, found[1])
        if _slides_better(node, image, other, found[1]):
            return _other_slid(node, found[0], other, found[1])
    return None


def _unslid(image: Node) -> tuple[Node, list[_Slid]] | None:
    """A factor without its windows, repeated for each tap, and these; None where they are others.

    Zeros around the image, which no tap need be multiplied by, are left out.
    """
    views, inner = list[Node](), 0
    while image.op.bit & _VIEWS:
        views.append(image)
        if image.op is Ops.WINDOW:
            if image.arg.dilation != 1:
                return None
            inner = len(views)
        image = image.src[0]
    if not inner:
        return None
    first = next(at for at, view in enumerate(views) if view.op is Ops.WINDOW)
    sliding = views[first:inner]
    base = views[inner - 1].src[0]
    pads: tuple[Pad, ...] = ()
    if all(view.op is Ops.WINDOW for view in sliding):
        # Their axes are the image's own.
        base, pads = _without_zeros(base, {view.arg.axis for view in sliding})
    found = list[_Slid]()
    for view in reversed(views[:inner]):
        if view.op is Ops.WINDOW:
            axis = view.arg.axis
            before = pads[axis].lo if pads else 0
            found.append(_Slid(axis, len(base.shape), view.arg, before, base.shape[axis]))
            base = reshape(base, (*base.shape, 1))
        elif view.op is Ops.CAST:
            base = cast(base, view.dtype)
        elif view.op is Ops.PERMUTE:
            base = permute(base, view.arg)
            places = view.arg.index
            found = [one._replace(position=places(one.position), tap=places(one.tap))
                     for one in found]  # fmt: skip
        else:
            moved = [_moved(one, view) for one in found]
            if None in moved:
                return None
            found = [one for one in moved if one is not None]
            shape = list(view.shape)
            for one in found:
                shape[one.position], shape[one.tap] = one.extent, 1
            again = expand if view.op is Ops.EXPAND else reshape
            base = again(base, tuple(shape))
    shape = list(base.shape)
    for one in found:
        shape[one.tap] = one.window.taps
    return expand(base, tuple(shape)), found


def _without_zeros(image: Node, along: set[int]) -> tuple[Node, tuple[Pad, ...]]:
    """An image without the zeros that are around it along some axes, and these."""
    above, inner = list[Node](), image
    while inner.op in (Ops.CAST, Ops.PERMUTE):
        above.append(inner)
        inner = inner.src[0]
    if inner.op is not Ops.PAD:
        return image, ()
    base, pads = inner.src[0], tuple(inner.arg)
    for view in reversed(above):
        turns = view.op is Ops.PERMUTE
        base = permute(base, view.arg) if turns else cast(base, view.dtype)
        pads = tuple([pads[axis] for axis in view.arg]) if turns else pads
    is_around = all(
        (axis in along or not (pad.lo or pad.hi)) and not pad.interior
        for axis, pad in enumerate(pads)
    )
    return (base, pads) if is_around else (image, ())


def _moved(one: _Slid, view: Node) -> _Slid | None:
    """Windows by their axes in a RESHAPE or an EXPAND; None where these are no axes of it."""
    if view.op is Ops.EXPAND:
        return one
    old, new = view.src[0].shape, view.shape
    places = [axis_before_reshape(new, old, axis) for axis in (one.position, one.tap)]
    position, tap = places
    return None if position is None or tap is None else one._replace(position=position, tap=tap)


def _is_worth_it(node: Node, image: Node, other: Node, slid: Sequence[_Slid]) -> bool:
    """Whether windows slide along results, taps are summed, and columns are few."""
    shape, axes = image.shape, node.arg.axes
    if not all(
        one.position not in axes and one.tap in axes and is_repeated(other, one.position)
        and _is_inside(one, shape[one.position]) for one in slid
    ):
        return False
    taps = [one.tap for one in slid]
    own = [axis for axis in range(len(shape)) if axis not in axes and is_repeated(image, axis)]
    depth = prod([shape[axis] for axis in axes if axis not in taps])
    # With a stride there are sums for each element, of which fewer are wanted.
    apart = prod([one.window.stride for one in slid])
    columns = prod([shape[axis] for axis in own])
    product = node.src[0]
    return _are_few(product, columns, prod([shape[tap] for tap in taps]), depth // apart)


def _is_inside(one: _Slid, count: int) -> bool:
    """Whether each of the windows, so many, has an element of the image, not zeros alone."""
    return one.before < one.window.taps and _after(one, count) < one.window.taps


def _after(one: _Slid, count: int) -> int:
    """How far the last one of so many windows reaches past the end of their image."""
    return (count - 1) * one.window.stride + one.window.taps - one.extent - one.before


def _folded(node: Node, image: Node, other: Node, slid: Sequence[_Slid]) -> Node:
    """The sum as a FOLD, along each axis of windows, of stored sums for each tap."""
    axes = node.arg.axes
    for one in slid:
        other = stretched(other, one.position, one.extent)
    taps = [one.tap for one in slid]
    summed = tuple([axis for axis in axes if axis not in taps])
    product = make_node(Ops.MUL, image.dtype, (image, other))
    total = make_node(Ops.REDUCE, node.dtype, (product,), Reduce(node.arg.monoid, summed))
    total = _stored(total, taps[0])
    left = [axis for axis in range(len(product.shape)) if axis not in summed]
    kept = [axis for axis in left if axis not in taps]
    value = permute(total, tuple([left.index(axis) for axis in (*kept, *taps)]))
    for one in reversed(slid):
        last, axis, window = len(value.shape) - 1, kept.index(one.position), one.window
        value = make_node(Ops.FLIP, value.dtype, (value,), (last,))
        whole = Window(axis, window.taps, 1, 1, one.extent + window.taps - 1)
        value = make_node(Ops.FOLD, value.dtype, (value,), whole)
        pieces = [Slice(0, extent, 1) for extent in value.shape]
        start, count = window.taps - 1 - one.before, node.shape[axis]
        stop = start + (count - 1) * window.stride + 1
        pieces[axis] = Slice(start, stop, window.stride)
        value = make_node(Ops.SHRINK, value.dtype, (value,), tuple(pieces))
    return value


# --- filters' gradients ---------------------------------------------------------------------------


def _slides_better(node: Node, image: Node, other: Node, slid: Sequence[_Slid]) -> bool:
    """Whether what windows are multiplied by had better slide past the image itself."""
    shape, axes = image.shape, node.arg.axes
    for one in slid:
        window, count = one.window, shape[one.position]
        is_whole = one.before >= 0 and _after(one, count) >= 0
        is_summed = one.position in axes and one.tap not in axes
        if not (is_whole and is_summed and _is_inside(one, count)):
            return False
        if window.stride != 1 or not is_repeated(other, one.tap):
            return False
    free = [axis for axis in range(len(shape)) if axis not in axes and shape[axis] != 1]
    taps = prod([one.window.taps for one in slid])
    rows = prod([shape[axis] for axis in free if is_repeated(other, axis)]) // taps
    columns = prod([shape[axis] for axis in free if is_repeated(image, axis)])
    return rows >= FEW_COLUMNS and (
        _read(rows, taps * columns) <= WORTH * _read(taps * rows, columns)
    )


def _read(rows: int, columns: int) -> int:
    """How many elements tiles of a product read for each step of its sums."""
    return rows * -(-columns // SIDE) + columns * -(-rows // SIDE)


def _other_slid(node: Node, image: Node, other: Node, slid: Sequence[_Slid]) -> Node:
    """The sum over an image, past which the other factor slides, zeros beside it."""
    for one in slid:
        window = Window(one.position, one.window.taps)
        other = slide(other, one.position, one.tap, window, Crop(one.before, one.extent))
    product = make_node(Ops.MUL, image.dtype, (image, other))
    return make_node(Ops.REDUCE, node.dtype, (product,), node.arg)


def _rule(order: list[Node], changed: dict[Node, Node]) -> Rule | None:
    sink = order[-1]
    if not sink.mask & (Ops.FOLD.bit | Ops.WINDOW.bit):
        return None
    narrow = _narrow(order) if sink.mask & Ops.FOLD.bit else frozenset[Node]()

    def visit(node: Node, made: Node) -> Node | None:
        if made.op is Ops.REDUCE:
            return _of_columns(made) if made.mask & Ops.WINDOW.bit else None
        return _of_stored(made) if node in narrow else None

    return visit


TAP_COLUMNS = Part(
    "tap-columns",
    "windows times few columns are products with a column for each tap, added up in place",
    Ops.FOLD.bit | Ops.REDUCE.bit,
    _rule,
    ("reductions",),
).alone()
