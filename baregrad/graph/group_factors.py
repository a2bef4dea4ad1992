"""Factors as matrix units multiply them: of bytes and tfloat32, along what is summed.

Those units read 8-bit floats and integers as they are, and float32 as tfloat32, but only rows of
what is summed. So a factor that lies across is stored turned first, which many results share; but
lanes read one of two of tfloat32 for groups of warps, however it lies. These are rounded once, as
they are stored or copied to shared memory. What was stored as 16-bit floats, for machines that
multiply no narrower ones, is read as the bytes it was made of. Sums of 8-bit floats' blocks that
are as long as a panel, and scaled before they are added up, are one sum: threads add its panels up
anyway.

Single warps multiply 8-bit integers and tfloat32 in the same way, where a machine has no groups of
them, and two 8-bit floats of one kind, where there are units for these. What they read is copied by
threads, which need not wait for what is rounded already.
"""

from __future__ import annotations

import math
from functools import partial

from baregrad.dtypes import DType, dtypes
from baregrad.graph.traced import Traced, rewrite
from baregrad.graph.views import below_views, expand, in_memory, permute, reshape
from baregrad.ir.algebra.casts import lossless
from baregrad.ir.core.node import Node, cast, make_node
from baregrad.ir.core.op import Ops
from baregrad.target import AnyTarget

# Results that share a factor, along either side, and bytes along a sum that are worth it.
_LEAST_SIDE, _LEAST_NBYTES = 64, 128
_FLOATS = (dtypes.float8_e4m3fn, dtypes.float8_e5m2)
_INTS = (dtypes.int8, dtypes.uint8)
_TF32 = dtypes.tfloat32
# What a unit multiplies that reads rows of what is summed alone, of groups of warps and of single
# ones, and bytes of an instruction's row.
_UNITS = (*_FLOATS, *_INTS, _TF32)
_UNITS_OF_WARPS = (*_INTS, _TF32)
Units = tuple[DType, ...]
_STEPS_NBYTES = 32
# Results that share a factor that is worth storing rounded, where threads would round it: single
# warps of an H200 took 104 us for 256 rows by 4,096 x 4,096 by copies through registers, 80 with
# all that is stored; for 128 rows 58 and 60. Sums of float32 took 190 and 104 us, and 106 for 90
# rows, where such copies took 38.
_MANY_SHARE = 128
# Numbers of 32 bits that an engine copies at least.
_WORDS = 4
_VIEWS = (Ops.EXPAND, Ops.RESHAPE, Ops.PERMUTE)


def has_group_factors(target: AnyTarget) -> bool:
    """Whether groups of warps of a machine multiply 8-bit floats and integers, and tfloat32."""
    return target.kind == "gpu" and all(
        target.multiplies_in_groups(dtype.name, _STEPS_NBYTES // dtype.itemsize)
        for dtype in _UNITS
    )


def has_warp_factors(target: AnyTarget) -> bool:
    """Whether single warps of a machine multiply 8-bit integers and tfloat32."""
    return _have_warps(target, _UNITS_OF_WARPS)


def has_octet_factors(target: AnyTarget) -> bool:
    """Whether they multiply 8-bit floats as well, two of one kind."""
    return _have_warps(target, _UNITS)


def _have_warps(target: AnyTarget, units: Units) -> bool:
    return target.kind == "gpu" and target.async_copies and all(
        (dtype.name, _STEPS_NBYTES // dtype.itemsize) in target.warp_products for dtype in units
    )


def _fit(node: Node, of_warps: Units | None) -> Node | None:
    """A sum of products along its last axis, of factors that lie along it.

    of_warps: what single warps multiply, two of one kind; None where groups do, of any.
    """
    product = node.src[0]
    if node.arg.monoid.primitive is not Ops.ADD or len(node.src) != 1:
        return None
    if product.op is not Ops.MUL or product.dtype not in (dtypes.float32, dtypes.int32):
        return None
    kinds = [_kind(side) for side in product.src]
    if _TF32 in kinds and kinds != [_TF32, _TF32] and product.dtype is dtypes.float32:
        product = _alike(product, kinds)
        kinds = [_kind(side) for side in product.src]
    floats = all(kind in _FLOATS for kind in kinds) and product.dtype is dtypes.float32
    ints = kinds[0] is kinds[1] and kinds[0] in _INTS and product.dtype is dtypes.int32
    rounded = kinds == [_TF32, _TF32] and product.dtype is dtypes.float32
    if not (floats or ints or rounded):
        return None
    turned = _summed_last(product, node.arg.axes)
    if turned is None or not _is_large(turned, kinds[0].itemsize):
        return None
    if of_warps is not None and not (kinds[0] is kinds[1] and kinds[0] in of_warps):
        return None
    shares = (0, 0) if of_warps is None else _shares(turned)
    held = _held(turned.src) if rounded and of_warps is None else None
    sides = tuple([
        side if side is held else _along(side, count >= _MANY_SHARE)
        for side, count in zip(turned.src, reversed(shares), strict=True)
    ])  # fmt: skip
    if sides == node.src[0].src:
        return None
    arg = node.arg._replace(axes=(len(turned.shape) - 1,))
    return Node(Ops.REDUCE, node.dtype, (turned.replace(src=sides),), arg)


def _alike(product: Node, kinds: list[DType]) -> Node:
    """A product of tfloat32 and a narrower float, of which each is a tfloat32, by two of those."""
    sides = list(product.src)
    place = 1 - kinds.index(_TF32)
    views, node = list[Node](), sides[place]
    while (node.op in _VIEWS or node.op is Ops.CAST) and node.dtype is dtypes.float32:
        if node.op is not Ops.CAST:
            views.append(node)
        (node,) = node.src
    if not node.dtype.is_narrow or not lossless(node.dtype, _TF32):
        return product
    found = cast(cast(node, _TF32), dtypes.float32)
    for view in reversed(views):
        found = view.replace(src=(found,))
    sides[place] = found
    return product.replace(src=tuple(sides))


def _summed_last(product: Node, axes: tuple[int, ...]) -> Node | None:
    """A product with the axes that it is summed over as one, the last; None where some repeat."""
    ndim = len(product.shape)
    if axes == (ndim - 1,):
        return product
    order = (*[axis for axis in range(ndim) if axis not in axes], *axes)
    kept = ndim - len(axes)
    if not all(isinstance(extent, int) for extent in product.shape):
        return None
    joined = math.prod([product.shape[axis] for axis in axes])
    sides = []
    for side in product.src:
        below = side.src[0] if side.op is Ops.EXPAND else side
        if any(below.shape[axis] != product.shape[axis] for axis in axes):
            return None
        found = permute(below, order)
        found = reshape(found, (*found.shape[:kept], joined))
        sides.append(expand(found, (*[product.shape[axis] for axis in order[:kept]], joined)))
    return make_node(Ops.MUL, product.dtype, tuple(sides))


def _kind(side: Node) -> DType:
    """The dtype that a factor shows and widens, however it is turned and kept; bool for others."""
    passed = list[DType]()
    while side.dtype not in _UNITS:
        is_kept = side.op is Ops.CONTIGUOUS and side.dtype is dtypes.float16
        if not (is_kept or side.op in _VIEWS or side.op is Ops.CAST):
            return dtypes.bool
        passed.append(side.dtype)
        side = side.src[0]
    return side.dtype if all(lossless(side.dtype, each) for each in passed) else dtypes.bool


def _rows(side: Node) -> tuple[int, ...]:
    """The axes along which a factor has more than one element of its own."""
    while side.op in (Ops.CAST, Ops.EXPAND):
        side = side.src[0]
    return tuple([axis for axis, extent in enumerate(side.shape[:-1]) if extent != 1])


def _is_large(product: Node, nbytes: int) -> bool:
    """Whether either side has rows of its own, and sums are long enough, of whole instructions.

    nbytes: of an element of a factor.
    """
    shape = product.shape
    if not all(isinstance(extent, int) for extent in shape):
        return False
    # Copies that threads need not wait for end with a step of an instruction.
    depth = shape[-1] * nbytes
    if depth < _LEAST_NBYTES or depth % _STEPS_NBYTES:
        return False
    return min(_shares(product)) >= _LEAST_SIDE


def _shares(product: Node) -> tuple[int, int]:
    """How many rows each side has of its own, which share the other's."""
    left, right = [_rows(side) for side in product.src]
    return (
        math.prod([product.shape[axis] for axis in left if axis not in right]),
        math.prod([product.shape[axis] for axis in right if axis not in left]),
    )


def _held(sides: tuple[Node, ...]) -> Node | None:
    """The factor of tfloat32 that lanes may read where it lies across what is summed.

    The unit takes one factor of lanes, so of two that lie so it is the larger one.
    """
    found = [side for side in sides if _lies_across(_inside(side)[1])]
    return max(found, key=lambda side: math.prod(_inside(side)[1].shape), default=None)


def _lies_across(node: Node) -> bool:
    """Whether some views are of what is stored, in rows along another axis, of whole words."""
    if not all(isinstance(extent, int) for extent in node.shape):
        return False
    last = len(node.shape) - 1
    while node.op is Ops.PERMUTE or _rounds(node):
        if node.op is Ops.PERMUTE:
            last = node.arg[last]
        (node,) = node.src
    is_stored = node.dtype is dtypes.float32 and in_memory(node) is node
    return is_stored and last == len(node.shape) - 2 and node.shape[-1] % _WORDS == 0


def _along(side: Node, rounds: bool) -> Node:
    """A factor whose numbers lie along its last axis: as it shows them, or stored so.

    rounds: whether one of tfloat32 is stored rounded, wherever it lies.
    """
    views, found = _inside(side)
    if not _lies_along(found) or (
        found.dtype is _TF32 and (not _is_stored(found) or (rounds and _shows_rounded(found)))
    ):
        found = Node(Ops.CONTIGUOUS, found.dtype, (found,))
    for view in reversed(views):
        found = view.replace(dtype=found.dtype, src=(found, *view.src[1:]))
    return cast(found, side.dtype)


def _inside(side: Node) -> tuple[list[Node], Node]:
    """Views that keep a factor's last axis, outermost first, and what they are of."""
    views, node = list[Node](), side
    while node.op is Ops.EXPAND or (
        node.dtype not in _UNITS if node.op is Ops.CAST
        else node.op is Ops.RESHAPE and _keeps_last(node)
    ):
        if node.op is not Ops.CAST:
            views.append(node)
        node = node.src[0]
    return views, _as_unit(node)


def _as_unit(node: Node) -> Node:
    """Views of what was widened, of the numbers that it was made of instead; kept, if it was."""
    views, is_kept = list[Node](), False
    while node.op in _VIEWS or node.dtype not in _UNITS:
        if node.op in _VIEWS:
            views.append(node)
        is_kept = is_kept or node.op is Ops.CONTIGUOUS
        node = node.src[0]
    if is_kept:
        node = in_memory(node)
    for view in reversed(views):
        node = view.replace(dtype=node.dtype, src=(node, *view.src[1:]))
    return node


def _is_stored(node: Node) -> bool:
    """Whether some views are of what is in memory anyway, or rounded of that on its way."""
    node = below_views(node, _VIEWS)
    if _rounds(node):
        (node,) = node.src
    return in_memory(node) is node


def _shows_rounded(node: Node) -> bool:
    """Whether some views are of what is rounded on its way."""
    return _rounds(below_views(node, _VIEWS))


def _rounds(node: Node) -> bool:
    return node.op is Ops.CAST and node.dtype is _TF32 and node.src[0].dtype is dtypes.float32


def _scaled(node: Node) -> Node | None:
    """A sum of scaled sums of a panel's products each, as one sum that is scaled inside.

    Those are sums of 8-bit floats, whose panels threads add up: they multiply them by scales then.
    """
    scaled = node.src[0]
    if node.arg.monoid.primitive is not Ops.ADD or len(node.src) != 1 or len(node.arg.axes) != 1:
        return None
    if scaled.op is not Ops.MUL or scaled.dtype is not dtypes.float32:
        return None
    # Of several scales those that are multiplied first are one: in another order they may overflow.
    inner, scale = scaled.src if scaled.src[0].op is Ops.REDUCE else scaled.src[::-1]
    if inner.op is not Ops.REDUCE or scale.op is Ops.REDUCE or node.dtype is not dtypes.float32:
        return None
    (product,) = inner.src if len(inner.src) == 1 else (inner,)
    if inner.arg.monoid.primitive is not Ops.ADD or product.op is not Ops.MUL or (
        inner.arg.axes != (len(inner.shape),)
    ):
        return None
    if any(_kind(side) not in _FLOATS for side in product.src):
        return None
    shape = product.shape
    if shape[-1] != _LEAST_NBYTES or not _is_large(product, 1):
        return None
    # Panels of both factors are added up: what adds up rows of either is no product.
    if not all(axis in _rows(side) for side in product.src for axis in node.arg.axes):
        return None
    spread = expand(reshape(scale, (*inner.shape, 1)), shape)
    value = make_node(Ops.MUL, product.dtype, (product, spread))
    arg = node.arg._replace(axes=(*node.arg.axes, len(inner.shape)))
    return Node(Ops.REDUCE, node.dtype, (value,), arg)


def is_scaled(value: Node) -> bool:
    """Whether a value is a product of 8-bit floats that is scaled panel by panel."""
    product = value.src[0] if value.op is Ops.MUL else value
    return product.op is Ops.MUL and product is not value and (
        product.shape[-1:] == (_LEAST_NBYTES,)
        and all(_kind(side) in _FLOATS for side in product.src)
    )


def _visit(node: Node, of_warps: Units | None) -> Node | None:
    found = _scaled(node)
    return _fit(node, of_warps) if found is None else found


def _keeps_last(node: Node) -> bool:
    """Whether the last axis of a RESHAPE is that of what it is of, or an inner part of it."""
    if not node.shape or not node.src[0].shape:
        return False
    size, whole = node.shape[-1], node.src[0].shape[-1]
    if not isinstance(size, int) or not isinstance(whole, int):
        return bool(size == whole)
    return size > 0 and whole % size == 0


def _lies_along(node: Node) -> bool:
    """Whether the last axis of some views is that of what they are of."""
    last = len(node.shape) - 1
    while node.op in _VIEWS or _rounds(node):
        if node.op is Ops.PERMUTE:
            last = node.arg[last]
        elif node.op is Ops.RESHAPE:
            if last != len(node.shape) - 1 or not _keeps_last(node):
                return False
            last = len(node.src[0].shape) - 1
        node = node.src[0]
    return last == len(node.shape) - 1


def _factors(name: str, who: str, of_warps: Units | None) -> Traced:
    """The pass for the units of groups of warps, or for those of single ones; as of `_fit`."""
    visit = partial(_visit, of_warps=of_warps)
    return Traced(
        name, f"{who} multiply what lies along the sum, tfloat32 and bytes",
        lambda order, changed: rewrite(order, visit, Ops.REDUCE.bit, changed), ("reductions",),
    )  # fmt: skip


GROUP_FACTORS = _factors("group_factors", "groups of warps", None)
WARP_FACTORS = _factors("warp_factors", "warps", _UNITS_OF_WARPS)
OCTET_WARP_FACTORS = _factors("warp_factors", "warps", _UNITS)
