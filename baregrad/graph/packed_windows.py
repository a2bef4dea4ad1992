"""Convolutions of 16-bit floats on GPUs: their factors are stored with a long axis innermost.

A matrix unit takes eight neighbours at once, and a window's neighbours are no such: each begins one
element after the other. With the channels innermost, and the zeros around an image stored, all of
a convolution's steps are whole chunks, for its gradients as well. The copy takes a few bytes for
each of the many products of an element; what computes the image writes it in that order at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from baregrad.dtypes import dtypes
from baregrad.graph.repeats import axis_before_reshape, is_repeated, neighbours, sides_of
from baregrad.graph.traced import Part, Rule
from baregrad.graph.views import permute
from baregrad.ir.core.node import Node, cast
from baregrad.ir.core.op import Ops, mask_of

_VIEWS = mask_of((Ops.RESHAPE, Ops.EXPAND, Ops.PERMUTE, Ops.FLIP, Ops.SHRINK, Ops.WINDOW))
_PAD = Ops.PAD.bit
# Elements that are copied together, and steps of a sum that are worth a matrix unit.
CHUNK = 8
LEAST = 16
# Results of an element that pay for its copy where it has no windows, and of one factor at least.
MANY_USES = 64


class _Factor(NamedTuple):
    """A factor of a product: views, outermost first, of what may be stored, and their windows.

    places: the axes of that which either only this factor runs along, or both are summed along.
    """

    views: tuple[Node, ...]
    base: Node
    windows: int
    places: frozenset[int]


def _visit(node: Node) -> Node | None:
    value, axes = node.src[0], node.arg.axes
    if node.arg.monoid.primitive is not Ops.ADD or value.op is not Ops.MUL:
        return None
    if value.dtype is not dtypes.float32:
        return None
    sides = sides_of(value, axes)
    if sides is None:
        return None
    rows, columns, _ = sides
    steps = prod([value.shape[axis] for axis in axes])
    if min(rows, columns) < 2 or max(rows, columns) < MANY_USES or steps < LEAST:
        return None
    left, right = value.src
    packed = []
    for side, other, uses in ((left, right, columns), (right, left, rows)):
        free = [axis for axis in range(len(value.shape))
                if axis in axes or is_repeated(other, axis)]  # fmt: skip
        if any(neighbours(side, axis) % CHUNK == 0 for axis in free):
            packed.append(side)
            continue
        factor = _factor(side, free)
        packed.append(_packed(factor) if factor.windows or uses >= MANY_USES else side)
    return None if packed == [left, right] else _summed(node, value, packed)


def _summed(node: Node, value: Node, factors: list[Node]) -> Node:
    return node.replace(src=(value.replace(src=tuple(factors)),))


def _factor(side: Node, free: list[int]) -> _Factor:
    views, windows = list[Node](), 0
    places: list[int | None] = list(free)
    while side.op.bit & _VIEWS:
        views.append(side)
        windows += side.op is Ops.WINDOW and not _is_whole(side)
        places = [_below(side, place) for place in places if place is not None]
        side = side.src[0]
    return _Factor(tuple(views), side, windows, frozenset(p for p in places if p is not None))


def _below(view: Node, place: int) -> int | None:
    """The axis of what a view is of that lies along an axis of the view, whole; else None."""
    below = view.src[0].shape
    if view.op is Ops.RESHAPE:
        return axis_before_reshape(below, view.shape, place)
    if view.op is Ops.PERMUTE:
        found: int = view.arg[place]
        return found
    if view.op is Ops.WINDOW and place == len(view.shape) - 1:
        return None
    if view.op is Ops.WINDOW and place == view.arg.axis and not _is_whole(view):
        return None
    return place if below[place] == view.shape[place] else None


def _is_whole(window: Node) -> bool:
    """Whether a WINDOW is of one element, at each place."""
    return bool(window.arg.taps == window.arg.stride == 1)


def _packed(factor: _Factor) -> Node:
    """A factor whose elements lie in another order; itself where that is of no use.

    It is widened behind all views, so that nothing that is stored is wider than it need be.
    """
    base = factor.base
    inside, narrow = list[Node](), base
    while narrow.op.bit & (_VIEWS | _PAD):
        inside.append(narrow)
        narrow = narrow.src[0]
    whole = factor.views[0] if factor.views else base
    if narrow.op is not Ops.CAST or narrow.src[0].dtype.bits != 16:
        return whole
    if narrow.src[0].dtype.kind != "float":
        return whole
    stored = _over(inside, narrow.src[0])
    order = _order(stored.shape, factor)
    if order is None and not inside:
        return whole
    if order is not None or factor.windows:
        order = order or tuple(range(len(stored.shape)))
        place = tuple([order.index(axis) for axis in range(len(order))])
        stored = permute(Node(Ops.CONTIGUOUS, stored.dtype, (permute(stored, order),)), place)
    return cast(_over(factor.views, stored), base.dtype)


def _over(views: Sequence[Node], value: Node) -> Node:
    """Views, outermost first, of a value of another dtype."""
    for view in reversed(views):
        value = view.replace(dtype=value.dtype, src=(value,))
    return value


def _order(shape: tuple[object, ...], factor: _Factor) -> tuple[int, ...] | None:
    """The order of axes in memory; None where it is as good as it is.

    Images, the first axis of what windows slide over, are too far from each other.
    """
    extents = [extent if isinstance(extent, int) else 0 for extent in shape]
    for axis in sorted(factor.places, reverse=True):
        if not extents[axis] or extents[axis] % CHUNK or (factor.windows and not axis):
            continue
        beside = prod(extents[axis + 1 :])
        together = factor.places.issuperset(range(axis + 1, len(shape)))
        if beside == 1 or (together and beside % CHUNK == 0):
            return None
        return (*[other for other in range(len(shape)) if other != axis], axis)
    return None


def _rule(order: list[Node], changed: dict[Node, Node]) -> Rule:
    return lambda _, made: _visit(made)


PACKED_WINDOWS = Part(
    "packed-windows",
    "a matrix unit takes eight neighbours at once: channels are stored innermost, zeros included",
    Ops.REDUCE.bit,
    _rule,
    ("sums",),
)
