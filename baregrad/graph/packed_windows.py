"""Convolutions of 16-bit floats on GPUs: their factors are stored with a long axis innermost.

A matrix unit takes eight neighbours at once, and a window's neighbours are no such: each begins one
element after the other. With the channels innermost, and the zeros around an image stored, all of
a convolution's steps are whole chunks, for its gradients as well. The copy takes a few bytes for
each of the many products of an element; what computes the image writes it in that order at once.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from baregrad.dtypes import dtypes
from baregrad.graph.repeats import sides_of
from baregrad.graph.traced import Part, Rule
from baregrad.graph.views import permute
from baregrad.ir.core.node import Node, cast
from baregrad.ir.core.op import Ops, mask_of

_VIEWS = mask_of((Ops.RESHAPE, Ops.EXPAND, Ops.PERMUTE, Ops.FLIP, Ops.SHRINK, Ops.WINDOW))
_WINDOW = Ops.WINDOW.bit
# Elements that are copied together, and rows, columns and steps that are worth a matrix unit.
CHUNK = 8
LEAST = 16


class _Factor(NamedTuple):
    """A factor of a product: views, outermost first, of what may be stored, and their windows."""

    views: tuple[Node, ...]
    base: Node
    windows: int


def _visit(node: Node) -> Node | None:
    value = node.src[0]
    if node.arg.monoid.primitive is not Ops.ADD or value.op is not Ops.MUL:
        return None
    if value.dtype is not dtypes.float32 or not value.mask & _WINDOW:
        return None
    factors = [_factor(side) for side in value.src]
    if not any(each.windows for each in factors) or not _is_product(node):
        return None
    packed = [_packed(each) for each in factors]
    if packed == list(value.src):
        return None
    product = value.replace(src=tuple(packed))
    return node.replace(src=(product,))


def _is_product(node: Node) -> bool:
    """Whether each factor of a sum is used for many results, and there are many to sum."""
    value, axes = node.src[0], node.arg.axes
    sides = sides_of(value, axes)
    if sides is None:
        return False
    rows, columns, _ = sides
    return all(size >= LEAST for size in (rows, columns, prod([value.shape[a] for a in axes])))


def _factor(side: Node) -> _Factor:
    views, windows = list[Node](), 0
    while side.op.bit & _VIEWS:
        views.append(side)
        windows += side.op is Ops.WINDOW and (side.arg.taps, side.arg.stride) != (1, 1)
        side = side.src[0]
    return _Factor(tuple(views), side, windows)


def _packed(factor: _Factor) -> Node:
    """A factor whose elements lie in another order; itself where that is of no use."""
    base = factor.base
    narrow, pads = base, list[Node]()
    while narrow.op is Ops.PAD:
        pads.append(narrow)
        narrow = narrow.src[0]
    whole = factor.views[0] if factor.views else base
    if narrow.op is not Ops.CAST or narrow.src[0].dtype.bits != 16:
        return whole
    if narrow.src[0].dtype.kind != "float":
        return whole
    stored = narrow.src[0]
    for pad in reversed(pads):
        stored = pad.replace(dtype=stored.dtype, src=(stored,))
    order = _order(stored.shape, factor.windows)
    if order is None:
        if not pads:
            return whole
        order = tuple(range(len(stored.shape)))
    place = tuple([order.index(axis) for axis in range(len(order))])
    kept = Node(Ops.CONTIGUOUS, stored.dtype, (permute(stored, order),))
    made = {base: permute(kept, place)}
    for view in reversed(factor.views):
        made[view] = view.replace(dtype=kept.dtype, src=(made[view.src[0]],))
    return cast(made[whole], base.dtype)


def _order(shape: tuple[object, ...], windows: int) -> tuple[int, ...] | None:
    """The order of axes in memory; None where it is as good as it is.

    Windows slide along the last axes, and the first one is that of images.
    """
    extents = [extent if isinstance(extent, int) else 0 for extent in shape]
    if not windows and extents[-1] % CHUNK == 0:
        return None
    for axis in reversed(range(1 if windows else 0, len(shape) - windows)):
        if extents[axis] % CHUNK == 0 and extents[axis]:
            rest = [other for other in range(len(shape)) if other != axis]
            return (*rest, axis)
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
