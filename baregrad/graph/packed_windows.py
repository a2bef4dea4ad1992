"""Convolutions of 16-bit floats on GPUs: their factors are stored with a long axis innermost.

A matrix unit takes eight neighbours at once, and a window's neighbours are no such: each begins one
element after the other. With the channels innermost all of a convolution's steps are whole chunks,
for its gradients as well, and each of them is of the image or of the zeros around it, which are
stored only where there is much to multiply. The copy takes a few bytes for each of the many
products of an element; what computes the image writes it in that order at once. An array that lies
so in memory, as one that PyTorch calls channels-last, is read where it is. Many channels are summed
in parts, outside the taps: what a tap reads of a part its neighbours read right after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from baregrad.dtypes import dtypes
from baregrad.graph.group_factors import has_group_factors
from baregrad.graph.repeats import (
    axis_before_reshape,
    is_repeated,
    neighbours,
    result_order,
    sides_of,
)
from baregrad.graph.traced import Part, Rule
from baregrad.graph.views import below_views, permute, reshape
from baregrad.ir.analysis.stream import is_chained
from baregrad.ir.core import index
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import Node, cast, make_node
from baregrad.ir.core.op import MOVEMENT, Ops, mask_of
from baregrad.target import AnyTarget

_VIEWS = mask_of((Ops.RESHAPE, Ops.EXPAND, Ops.PERMUTE, Ops.FLIP, Ops.SHRINK, Ops.WINDOW))
_PAD = Ops.PAD.bit
_VIEWS_AND_CASTS = MOVEMENT | {Ops.CAST}
_IN_MEMORY = (Ops.PARAM, Ops.BUFFER)
# Elements that are copied together, at least where they lie so, and steps of a sum that are worth a
# matrix unit.
CHUNK = 8
LEAST_CHUNK = 4
LEAST = 16
# Results of an element that pay for its copy where it has no windows, and of one factor at least.
MANY_USES = 64
# Products of an element that pay for storing the zeros beside it: where there are more, it takes
# longer to ask of each chunk whether it is there. Where sums run along the image, as a filter's
# gradient's do, each chunk has other conditions, and fewer pay.
MANY_PRODUCTS, MANY_ALONG = 1 << 13, 1 << 11
# Channels of a place that an engine takes in one go, where it walks along an image: what is beside
# that costs it nothing. Of so many, zeros are not stored where threads copy in its stead either: a
# convolution 3x3 of 64x256x56x56 took 397 us on an H200 so, and the image is stored once for both.
WALK_CHANNELS = 64
# Neighbours of which an engine copies boxes. What has none of them is stored so that it has, if it
# is computed anyway, and with it has so many products, or would be copied by less than a chunk: the
# convolutions 1x1 of 14x14 and of 28x28 in a step of ResNet-50.
BOX, BOX_USES = 64, 256
# Products of an element that pay for a copy of an array in memory there.
COPY_USES = 512
# Taps of a filter, at most: what has more of them for each channel is an image.
MOST_TAPS = 32


class _Factor(NamedTuple):
    """A factor of a product: views, outermost first, of what may be stored, and their windows.

    places: the axes of that which either only this factor runs along, or both are summed along;
    summed: the latter. along: whether windows slide along what is summed.
    """

    views: tuple[Node, ...]
    base: Node
    windows: int
    places: frozenset[int]
    summed: frozenset[int]
    along: bool


def has_walks(target: AnyTarget) -> bool:
    """Whether an engine of a machine walks along places of an image, zeros beside it and all."""
    return has_group_factors(target) and target.kind == "gpu" and target.bulk_copies


def _visit(node: Node, known: dict[Node, int], walks: bool) -> Node | None:
    sides = _sides(node)
    # Weights that a stream computes are no factor that is read.
    if sides is None or is_chained(node, known):
        return None
    rows, columns = sides
    value, axes = node.src[0], node.arg.axes
    left, right = value.src
    sides_own = [
        [a for a in range(len(value.shape)) if a not in axes and is_repeated(beside, a)]
        for beside in (right, left)
    ]
    factors = [
        _factor(side, own, axes, walks) for side, own in zip(value.src, sides_own, strict=True)
    ]
    packed = []
    for place, (side, uses) in enumerate(((left, columns), (right, rows))):
        factor, other = factors[place], factors[1 - place]
        along = sides_own[place] if other.windows else [*sides_own[place], *axes]
        is_whole = any(neighbours(side, axis) % CHUNK == 0 for axis in along)
        is_worth = factor.windows or (uses >= MANY_USES and not is_whole)
        packed.append(_packed(factor, other, uses, walks) if is_worth else side)
    found = node if packed == [left, right] else _summed(node, value, packed)
    found = _taps_inside(found) if walks and any(one.windows for one in factors) else found
    return None if found is node else found


def _sides(node: Node) -> tuple[int, int] | None:
    """The results of each factor of a REDUCE of products alone; None where those are too few."""
    value, axes = node.src[0], node.arg.axes
    if node.arg.monoid.primitive is not Ops.ADD or value.op is not Ops.MUL:
        return None
    if value.dtype is not dtypes.float32:
        return None
    rows, columns, _ = sides_of(value, axes)
    steps = prod([index.upper(value.shape[axis]) for axis in axes])
    if min(rows, columns) < 2 or max(rows, columns) < MANY_USES or steps < LEAST:
        return None
    return rows, columns


def _summed(node: Node, value: Node, factors: list[Node]) -> Node:
    return node.replace(src=(value.replace(src=tuple(factors)),))


def _taps_inside(node: Node) -> Node:
    """A sum over channels and taps as one over parts of the channels, taps, and a part's channels.

    What a tap reads of an image its neighbours read again, sooner so. On an H200 convolutions 3x3
    of 64x128x28x28, and of 64x128x56x56 with stride 2, took 24.4 and 27.3 us so, 24.8 and 28.1
    with all channels inside each tap; of others it made less than that.
    """
    value, axes = node.src[0], node.arg.axes
    shape = value.shape
    long = [axis for axis in axes if any(_is_of_parts(side, axis) for side in value.src)]
    if len(long) != 1 or all(shape[axis] == 1 for axis in axes if axis not in long):
        return node
    (channels,) = long
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    order = (*kept, *[axis for axis in axes if axis != channels], channels)
    taps = len(order) - 1
    sides = []
    for side in value.src:
        turned = permute(side, order)
        parts = turned.shape[taps] // WALK_CHANNELS, WALK_CHANNELS
        split = reshape(turned, (*turned.shape[:taps], *parts))
        sides.append(permute(split, (*range(len(kept)), taps, *range(len(kept), taps), taps + 1)))
    product = make_node(Ops.MUL, value.dtype, tuple(sides))
    arg = node.arg._replace(axes=tuple(range(len(kept), taps + 2)))
    return Node(Ops.REDUCE, node.dtype, (product,), arg)


def _is_of_parts(side: Node, axis: int) -> bool:
    """Whether a factor has several whole parts of neighbouring channels along an axis."""
    extent = side.shape[axis]
    if not isinstance(extent, int) or extent <= WALK_CHANNELS:
        return False
    return neighbours(side, axis, True) % WALK_CHANNELS == 0


def _factor(side: Node, own: Sequence[int], axes: Sequence[int], walks: bool) -> _Factor:
    """A factor that alone runs along the axes `own`, and is summed along others.

    walks: as of `has_walks`.
    """
    views, windows, along = list[Node](), 0, False
    places: dict[int, bool] = {**dict.fromkeys(own, False), **dict.fromkeys(axes, True)}
    while side.op.bit & _VIEWS:
        is_apart = side.op is Ops.WINDOW and side.arg.stride > side.arg.taps == 1
        if is_apart and not (walks and _is_walked(side)):
            break  # what lies between its places is not wanted
        views.append(side)
        if side.op is Ops.WINDOW and not _is_whole(side):
            windows += 1
            along |= places.get(side.arg.axis, False)
        below = {_below(side, place): is_summed for place, is_summed in places.items()}
        places = {place: is_summed for place, is_summed in below.items() if place is not None}
        side = side.src[0]
    summed = frozenset([place for place, is_summed in places.items() if is_summed])
    return _Factor(tuple(views), side, windows, frozenset(places), summed, along)


def _is_walked(window: Node) -> bool:
    """Whether an engine had better walk over what lies between places of what is computed.

    That is where the whole image is stored for an engine too.
    """
    image = below_views(window, _VIEWS_AND_CASTS)
    channels, *places = image.shape[1:] or (1,)
    if image.op in _IN_MEMORY or not all(isinstance(size, int) for size in image.shape):
        return False
    return bool(channels % WALK_CHANNELS == 0 and prod(places) % BOX)


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


def _packed(factor: _Factor, other: _Factor, uses: int, walks: bool) -> Node:
    """A factor whose elements lie in another order; itself where that is of no use.

    It is widened behind all views, so that nothing that is stored is wider than it need be. uses:
    results that each of a window's elements is multiplied for. walks: as of `has_walks`.
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
    order = _order(stored.shape, factor, other, _together(factor, narrow.src[0], uses, walks))
    if order is None and not inside:
        return whole
    is_stored = order is not None or factor.windows > 0
    order = order or tuple(range(len(stored.shape)))
    products = uses * prod([view.arg.taps / view.arg.stride for view in factor.views
                            if view.op is Ops.WINDOW])  # fmt: skip
    turns = _turns(inside)
    pads = inside[: len(inside) - len(turns)]
    is_walk = walks and stored.shape[order[-1]] % WALK_CHANNELS == 0
    is_few = products < (MANY_ALONG if factor.along else MANY_PRODUCTS)
    if is_stored and (is_walk or is_few) and all(_is_beside(pad, order[-1]) for pad in pads):
        # Zeros are part of no chunk: what is copied is there or not.
        image = _over(turns, narrow.src[0])
        stored = permute(_in_order(image, order), _places(order))
        return cast(_over([*factor.views, *pads], stored), base.dtype)
    if is_stored or factor.base.op is Ops.WINDOW:
        stored = permute(_in_order(stored, order), _places(order))
    return cast(_over(factor.views, stored), base.dtype)


def _together(factor: _Factor, source: Node, uses: int, walks: bool) -> int:
    """How many neighbours a factor is to have, at least as the divisor of any number of them."""
    if factor.windows or factor.base.op is Ops.WINDOW:
        return CHUNK if factor.windows else LEAST_CHUNK
    if not walks:
        return LEAST_CHUNK
    # What is computed is stored in any order at once, what is given would be read for that.
    if below_views(source).op in _IN_MEMORY:
        return CHUNK if uses >= COPY_USES else LEAST_CHUNK
    return BOX if uses >= BOX_USES else CHUNK


def _is_beside(pad: Node, axis: int) -> bool:
    """Whether a view is zeros around what there is, but none along an axis nor between elements."""
    if pad.op is not Ops.PAD or any(one.interior for one in pad.arg):
        return False
    return not (pad.arg[axis].lo or pad.arg[axis].hi)


def _turns(views: Sequence[Node]) -> list[Node]:
    """The last of some views that only put axes in another order."""
    found = list[Node]()
    for view in reversed(views):
        if view.op is not Ops.PERMUTE:
            break
        found.insert(0, view)
    return found


def _in_order(value: Node, order: tuple[int, ...]) -> Node:
    """A value that is stored with its axes in an order; an array itself that lies so."""
    turned = permute(value, order)
    return turned if turned.op in _IN_MEMORY else Node(Ops.CONTIGUOUS, value.dtype, (turned,))


def _places(order: tuple[int, ...]) -> tuple[int, ...]:
    """Where each axis is in an order."""
    return tuple([order.index(axis) for axis in range(len(order))])


def _over(views: Sequence[Node], value: Node) -> Node:
    """Views, outermost first, of a value of another dtype."""
    for view in reversed(views):
        value = view.replace(dtype=value.dtype, src=(value,))
    return value


def _order(
    shape: tuple[Dim, ...], factor: _Factor, other: _Factor, together: int
) -> tuple[int, ...] | None:
    """The order of axes in memory; None where it is as good as it is.

    together: as of `_together`. What is summed along may be copied whatever the order of the
    results is, and is taken before other axes. Images, the first axis, are too far from each other.
    """
    # Of a symbolic number nobody knows that it is of whole chunks.
    extents = [extent if isinstance(extent, int) else index.upper(extent) | 1 for extent in shape]
    own = factor.places - factor.summed
    # Both factors are summed in one order, which is the windows' one.
    summed = factor.summed if not other.windows or other.summed <= {0} else frozenset[int]()
    run = max(_run(extents, own), _run(extents, summed))
    if run % together == 0:
        return None
    is_image = factor.windows > 0 or prod(extents[2:]) > MOST_TAPS
    near = factor.summed - {0} if is_image else factor.summed
    for axis in sorted(factor.places, key=lambda axis: (axis in near, axis), reverse=True):
        if extents[axis] and extents[axis] % CHUNK == 0 and (axis or not factor.windows):
            order = (*[one for one in range(len(shape)) if one != axis], axis)
            return None if together == BOX and axis == len(shape) - 1 else order
    return None


def _run(extents: Sequence[int], axes: frozenset[int]) -> int:
    """How many elements lie one after the other along some axes."""
    run = 1
    for axis in reversed(range(len(extents))):
        if extents[axis] != 1 and axis not in axes:
            break
        run *= extents[axis]
    return run


def _visit_rounded(node: Node) -> Node | None:
    """A rounded contraction of which a part is wanted, or zeros between, stored before that."""
    if node.dtype.bits != 16 or node.dtype.kind != "float":
        return None
    if node.src[0].op is Ops.SHRINK:
        return _cut_of_whole(node)
    apart = _apart(node) if node.src[0].mask & _PAD else None
    return _turned(node) if apart is None else apart


def _is_contraction(node: Node) -> bool:
    return node.op is Ops.REDUCE and node.src[0].op is Ops.MUL and _sides(node) is not None


def _cut_of_whole(node: Node) -> Node | None:
    """A part of a contraction whose axes were joined.

    Of a strided convolution's places each residue has filters of its own. Where the part is of no
    whole residues an axis of the kernel could not be divided, and each place would be a product.
    """
    whole = node.src[0]
    cuts = list[Node]()
    while whole.op is Ops.SHRINK:
        cuts.append(whole)
        whole = whole.src[0]
    whole = whole.src[0] if whole.op is Ops.CONTIGUOUS else whole
    total = whole
    while total.op.bit & (Ops.RESHAPE.bit | Ops.PERMUTE.bit):
        total = total.src[0]
    if sum(e != 1 for e in total.shape) <= sum(e != 1 for e in whole.shape):
        return None
    if not _is_contraction(total):
        return None
    return _over(cuts, Node(Ops.CONTIGUOUS, node.dtype, (cast(whole, node.dtype),)))


def _apart(node: Node) -> Node | None:
    """A contraction with zeros between its results: it is stored in their order, without these."""
    total, above = node.src[0], list[Node]()
    axes: list[int | None] = list(range(len(node.shape)))
    while total.op.bit & (_VIEWS | _PAD | Ops.CAST.bit):
        above.append(total)
        if total.op.bit & _VIEWS:
            axes = [None if axis is None else _below(total, axis) for axis in axes]
        total = total.src[0]
    pads = [pad for one in above if one.op is Ops.PAD for pad in one.arg]
    if not any(pad.interior for pad in pads) or not _is_contraction(total):
        return None
    first = [axis for axis in axes if axis is not None]
    order = (*first, *[axis for axis in range(len(total.shape)) if axis not in first])
    value = permute(_in_order(cast(total, node.dtype), order), _places(order))
    for one in reversed(above):
        is_cast = one.op is Ops.CAST
        value = cast(value, one.dtype) if is_cast else one.replace(dtype=value.dtype, src=(value,))
    return cast(value, node.dtype)


def _turned(node: Node) -> Node | None:
    """A contraction whose neighbours are stored together, and turned from there."""
    total, above = node.src[0], list[Node]()
    while total.op.bit & (Ops.RESHAPE.bit | Ops.PERMUTE.bit):
        above.append(total)
        total = total.src[0]
    order = result_order(total, CHUNK) if _is_contraction(total) else None
    if order is None:
        return None
    value = permute(_in_order(cast(total, node.dtype), order), _places(order))
    return _over(above, value)


def _part(walks: bool) -> Part:
    def rule(order: list[Node], changed: dict[Node, Node]) -> Rule:
        known: dict[Node, int] = {}
        return lambda _, made: (
            _visit(made, known, walks) if made.op is Ops.REDUCE else _visit_rounded(made)
        )

    return Part(
        "packed-windows",
        "a matrix unit takes eight neighbours at once: channels are stored innermost",
        Ops.REDUCE.bit | Ops.CAST.bit,
        rule,
        ("sums",),
    )


PACKED_WINDOWS, WALKED_WINDOWS = _part(walks=False), _part(walks=True)
