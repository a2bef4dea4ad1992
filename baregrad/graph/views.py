"""Views composed and cancelled: a chain of movements becomes as few as possible.

Nothing depends on this for speed of the result, since views become index arithmetic anyway; it
makes equal values equal nodes, keeps graphs small, and lets arithmetic meet constants and each
other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from types import MappingProxyType
from typing import Any

from baregrad.dtypes import DType, dtypes
from baregrad.graph.traced import Traced, rewrite
from baregrad.ir.algebra.rules import simplify
from baregrad.ir.analysis.regroup import same_axes
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Pad, Slice
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import Node, alu, cast, const, make_node
from baregrad.ir.core.op import ALU, MOVEMENT, Op, Ops, mask_of
from baregrad.ir.core.shape import cut_extent, is_one, is_zero, padded_extent
from baregrad.ir.core.substitution import substitute

_MOVES = mask_of(MOVEMENT)
# Views all of whose elements are elements of what they are of.
PURE_VIEWS = MOVEMENT - {Ops.PAD}
# None of these is below a repeated constant, whose extents may be symbolic.
DATA = mask_of((Ops.PARAM, Ops.BUFFER, Ops.REDUCE, Ops.IOTA))
_STORED = frozenset((Ops.PARAM, Ops.BUFFER, Ops.CONTIGUOUS, Ops.SCATTER))
_NO_PAD = Pad()
_VAR = Ops.VAR.bit
_POINTWISE = ALU | frozenset((Ops.CAST,))
_CAST_PASSES = frozenset((Ops.RESHAPE, Ops.PERMUTE, Ops.WINDOW, Ops.PAD, Ops.FLIP))


def reshape(node: Node, shape: tuple[Any, ...]) -> Node:
    """`node` under another shape; nothing where it has it already."""
    while node.op is Ops.RESHAPE:
        node = node.src[0]
    return node if node.shape == shape else make_node(Ops.RESHAPE, node.dtype, (node,), shape)


def expand(node: Node, shape: tuple[Any, ...]) -> Node:
    """`node` with axes of extent 1 repeated."""
    if node.op is Ops.EXPAND:
        node = node.src[0]
    return node if node.shape == shape else make_node(Ops.EXPAND, node.dtype, (node,), shape)


def full(value: Node, shape: tuple[Any, ...]) -> Node:
    """A constant array: the scalar node `value` at every element."""
    return expand(reshape(value, (1,) * len(shape)), shape) if shape else value


def counting(shape: tuple[Any, ...], axis: int, dtype: DType = dtypes.int64) -> Node:
    """An array of `shape` of each element's place along `axis`."""
    extent = shape[axis]
    symbolic = isinstance(extent, Node)
    line = Node(Ops.IOTA, dtype, (extent,) if symbolic else (), None if symbolic else extent)
    beside = tuple(extent if i == axis else 1 for i in range(len(shape)))
    return expand(reshape(line, beside), shape)


def lengthened(value: Node, axis: int, extent: int, neutral: Node) -> Node:
    """A value with elements `neutral`, a constant, at the end of an axis, which has `extent`."""
    size = value.shape[axis]
    longer = pad(value, axis, Pad(0, index.as_dim(index.sub(extent, size))))
    if longer is value or neutral.arg == 0:
        return longer
    limit = full(cast(index.as_node(size), dtypes.int64), longer.shape)
    inside = alu(Ops.CMPLT, counting(longer.shape, axis), limit)
    return alu(Ops.WHERE, inside, longer, full(neutral, longer.shape))


def stored(x: Node) -> Node:
    """`x` in memory, whatever it is."""
    return Node(Ops.CONTIGUOUS, x.dtype, (x,))


def below_views(x: Node, views: Collection[Op] = MOVEMENT) -> Node:
    """What `x` shows through views, if it is one; `views` says which ops are looked through."""
    while x.op in views:
        x = x.src[0]
    return x


def in_memory(x: Node) -> Node:
    """`x`, stored unless it is a view of what is stored already."""
    return x if below_views(x, PURE_VIEWS).op in _STORED else stored(x)


def with_sums_stored(x: Node) -> Node:
    """`x`, stored below its views where it has sums that are not.

    So all that read it find the same numbers: kernels may add up in an order of their own.
    """
    below = below_views(x)
    waiting, seen = [below], {below}
    while waiting:
        node = waiting.pop()
        if node.op is Ops.REDUCE:
            return substitute(x, {below: stored(below)})
        if node.op not in _STORED and node.mask & Ops.REDUCE.bit:
            waiting += [one for one in node.src if one not in seen]
            seen.update(node.src)
    return x


def constant_of(node: Node) -> Node | None:
    """The CONST of which `node` is nothing but repetitions, or None."""
    if node.mask & DATA:
        return None
    node = below_views(node, PURE_VIEWS)
    return node if node.op is Ops.CONST else None


# --- one view over another ------------------------------------------------------------------------


def _reshape(node: Node) -> Node | None:
    below = node.src[0]
    if below.op is Ops.RESHAPE or below.shape == node.shape:
        return reshape(below, node.shape)
    return None


def _permute(node: Node) -> Node | None:
    below = node.src[0]
    if node.arg == tuple(range(len(node.arg))):
        return below
    if below.op is Ops.PERMUTE:
        axes = tuple(below.arg[axis] for axis in node.arg)
        return _or_self(make_node(Ops.PERMUTE, node.dtype, below.src, axes), _permute)
    return None


def _expand(node: Node) -> Node | None:
    below = node.src[0]
    if below.op is Ops.EXPAND or below.shape == node.shape:
        return expand(below, node.shape)
    return None


def _pad(node: Node) -> Node:
    return _padded(node.src[0], [None if _is_nothing(one) else one for one in node.arg])


def _padded(below: Node, pads: list[Pad | None]) -> Node:
    """`below` with zeros around it; axes that views do not touch are padded under them.

    So less is padded and stored. No node is made for the steps on the way down. pads: None for an
    axis without.
    """
    wanted = [one for one in pads if one is not None]
    if not wanted:
        return below
    if below.op is Ops.PAD and not any(one.interior for one in wanted):
        merged = tuple(
            old
            if new is None
            else Pad(index.add(new.lo, old.lo), index.add(new.hi, old.hi), old.interior)
            for new, old in zip(pads, below.arg, strict=True)
        )
        return make_node(Ops.PAD, below.dtype, below.src, merged)
    found = _below(below, pads)
    if found is None:
        made = tuple([_NO_PAD if one is None else one for one in pads])
        return make_node(Ops.PAD, below.dtype, (below,), made)
    shape = [
        extent if one is None else padded_extent(extent, one)
        for one, extent in zip(pads, below.shape, strict=True)
    ]
    return _over(below, _padded(below.src[0], found), tuple(shape))


def _below(view: Node, amounts: list[Any]) -> list[Any] | None:
    """What a PAD or SHRINK over `view` is before it; None where it touches what the view changes.

    amounts: one per axis of the view, None for an axis that is not touched; so is the result.
    """
    touched = [axis for axis, amount in enumerate(amounts) if amount is not None]
    if view.op is Ops.PERMUTE:
        return [amounts[view.arg.index(axis)] for axis in range(len(amounts))]
    if view.op is Ops.EXPAND:
        changed = any(view.src[0].shape[axis] != view.shape[axis] for axis in touched)
        return None if changed else amounts
    if view.op is Ops.FLIP:
        return None if any(axis in view.arg for axis in touched) else amounts
    if view.op is Ops.WINDOW:
        own = (view.arg.axis, len(amounts) - 1)
        return None if any(axis in own for axis in touched) else amounts[:-1]
    if view.op is not Ops.RESHAPE:
        return None
    kept = same_axes(view.src[0].shape, view.shape)
    if any(axis not in kept for axis in touched):
        return None
    found: list[Any] = [None] * len(view.src[0].shape)
    for axis in touched:
        found[kept[axis]] = amounts[axis]
    return found


def _over(view: Node, inner: Node, shape: tuple[Any, ...]) -> Node:
    """`view` over another source of the same axes, giving `shape`."""
    if view.op is Ops.EXPAND:
        return expand(inner, shape)
    if view.op is Ops.RESHAPE:
        return reshape(inner, shape)
    known = None if inner.mask & _VAR else shape
    return make_node(view.op, inner.dtype, (inner,), _arg_over(view, inner), known)


def _arg_over(view: Node, inner: Node) -> Any:
    if view.op is not Ops.WINDOW:
        return view.arg
    return view.arg._replace(extent=inner.shape[view.arg.axis])


def _is_nothing(pad: Pad) -> bool:
    return is_zero(pad.lo) and is_zero(pad.hi) and not pad.interior


def _shrink(node: Node) -> Node:
    return _shrunk(node.src[0], _needed(node.arg, node.src[0].shape))


def _needed(cuts: Iterable[Slice], shape: tuple[Any, ...]) -> list[Slice | None]:
    """Cuts of an array of this shape, None where they take all of an axis."""
    return [
        None if one.step == 1 and is_zero(one.start) and one.stop == extent else one
        for one, extent in zip(cuts, shape, strict=True)
    ]


def _shrunk(below: Node, cuts: list[Slice | None]) -> Node:
    """`below` cut, None for all of an axis; views that a cut can pass are over it afterwards.

    No node is made for the steps on the way down.
    """
    if cuts.count(None) == len(cuts):
        return below
    if below.op is Ops.SHRINK or below.op is Ops.PAD:
        whole = _whole(cuts, below.shape)
        if below.op is Ops.SHRINK:
            twice = map(_cut_twice, below.arg, whole)
            return _shrunk(below.src[0], _needed(twice, below.src[0].shape))
        found = _shrunk_pad(below, whole)
        return make_node(Ops.SHRINK, below.dtype, (below,), whole) if found is None else found
    if below.op is Ops.WHERE and below.src[0].op is Ops.PAD:
        chosen = _chosen(below, cuts)
        if chosen is not None:
            return chosen
    if below.op is Ops.EXPAND:
        # A cut of repeated elements is fewer repetitions.
        fewer = list(cuts)
        for axis, extent in enumerate(below.src[0].shape):
            if is_one(extent):
                fewer[axis] = None
        inner: list[Slice | None] | None = fewer
    else:
        inner = _below(below, cuts)
    if inner is None:
        return make_node(Ops.SHRINK, below.dtype, (below,), _whole(cuts, below.shape))
    shape = [
        extent if one is None else cut_extent(one)
        for one, extent in zip(cuts, below.shape, strict=True)
    ]
    return _over(below, _shrunk(below.src[0], inner), tuple(shape))


def _chosen(node: Node, cuts: list[Slice | None]) -> Node | None:
    """A cut of a choice between an array and what surrounds it, if it is a cut of the array."""
    condition, value = node.src[:2]
    if constant_of(condition.src[0]) is None or not value.shape:
        return None
    found = constant_of(_shrunk(condition, cuts))
    return _shrunk(value, cuts) if found is not None and found.arg else None


def _whole(cuts: list[Slice | None], shape: tuple[Any, ...]) -> tuple[Slice, ...]:
    """Cuts as a SHRINK carries them."""
    return tuple(
        [
            Slice(0, extent) if one is None else one
            for one, extent in zip(cuts, shape, strict=True)
        ]
    )


def _cut_twice(old: Slice, new: Slice) -> Slice:
    if new.start == new.stop:
        # Nothing is taken, so nothing says that an element is there to start from.
        return Slice(old.start, old.start, old.step * new.step)
    start = index.add(old.start, index.mul(new.start, old.step))
    if old.step == 1:
        stop = index.add(old.start, new.stop)
    else:
        # One past the last element taken, which never lies beyond the old stop.
        count = index.sub(new.stop, new.start)
        last = index.add(start, index.mul(index.sub(count, 1), old.step))
        stop = index.add(last, 1)
    return Slice(start, stop, old.step * new.step)


def _shrunk_pad(below: Node, wanted: tuple[Any, ...]) -> Node | None:
    """A cut that takes zeros away again: less of the PAD, or none."""
    pads: list[Pad | None] = []
    cuts: list[Slice] = []
    source = below.src[0]
    for cut, pad, extent in zip(wanted, below.arg, source.shape, strict=True):
        numbers = (cut.start, cut.stop, pad.lo, pad.hi, extent)
        if cut.step != 1 or pad.interior or any(one.__class__ is not int for one in numbers):
            return None
        start = min(max(cut.start - pad.lo, 0), extent)
        stop = min(max(cut.stop - pad.lo, start), extent)
        lo = min(max(pad.lo - cut.start, 0), cut.stop - cut.start)
        cuts.append(Slice(start, stop))
        hi = cut.stop - cut.start - lo - (stop - start)
        pads.append(Pad(lo, hi) if lo or hi else None)
    return _padded(_shrunk(source, _needed(cuts, source.shape)), pads)


def _flip(node: Node) -> Node | None:
    below = node.src[0]
    axes = tuple(axis for axis in node.arg if node.shape[axis] != 1)
    if below.op is Ops.FLIP:
        axes = tuple(sorted(set(axes) ^ set(below.arg)))
        below = below.src[0]
    if not axes:
        return below
    return None if axes == node.arg else make_node(Ops.FLIP, node.dtype, (below,), axes)


def _or_self(node: Node, rule: Callable[[Node], Node | None]) -> Node:
    found = rule(node)
    return node if found is None else found


_RULES: MappingProxyType[Op, Callable[[Node], Node | None]] = MappingProxyType(
    {
        Ops.RESHAPE: _reshape,
        Ops.PERMUTE: _permute,
        Ops.EXPAND: _expand,
        Ops.PAD: _pad,
        Ops.SHRINK: _shrink,
        Ops.FLIP: _flip,
    }
)


# --- views against arithmetic ---------------------------------------------------------------------


_ASKED = mask_of(_POINTWISE | _RULES.keys() | {Ops.WINDOW})
_ARITHMETIC = mask_of(_POINTWISE)
_SPREAD = Ops.EXPAND.bit | Ops.WINDOW.bit
# Asked faster than a read-only view of it.
_rule_of = dict(_RULES).get


def _visit(node: Node) -> Node | None:
    op = node.op
    if op.bit & _ARITHMETIC:
        if not node.shape:
            return None
        if op is Ops.CAST and node.src[0].op in _CAST_PASSES:
            return _cast_below(node)
        below = 0
        for child in node.src:
            below |= child.op.bit
        if not below & _SPREAD:
            return None
        found = _under_expand(node)
        return _under_window(node) if found is None else found
    rule = _rule_of(op)
    if rule is not None:
        found = _constant_view(node)
        return rule(node) if found is None else found
    return _constant_view(node) if op is Ops.WINDOW else None


def _cast_below(node: Node) -> Node:
    """A conversion is done before a view: once, where elements are seen several times."""
    views = []
    below = node.src[0]
    while below.op in _CAST_PASSES:
        views.append(below)
        below = below.src[0]
    value = _or_self(make_node(Ops.CAST, node.dtype, (below,)), _visit)
    for view in reversed(views):
        value = make_node(view.op, node.dtype, (value,), view.arg)
        value = _or_self(value, _RULES.get(view.op, _nothing))
    return value


def _nothing(node: Node) -> Node | None:
    return None


def _under_window(node: Node) -> Node | None:
    """Arithmetic on overlapping windows is done before they overlap."""
    first: Node | None = None
    for child in node.src:
        if not child.shape:
            continue
        if child.op is not Ops.WINDOW or (first is not None and first.arg != child.arg):
            return None
        first = child
    if first is None:
        return None
    operands = tuple(child.src[0] if child.shape else child for child in node.src)
    inner = make_node(node.op, node.dtype, operands, node.arg)
    return make_node(Ops.WINDOW, node.dtype, (_or_self(inner, _visit),), first.arg)


def _constant_view(node: Node) -> Node | None:
    """A view of a constant array is a constant array; zeros around zeros (no -0.0) are zeros."""
    below = node.src[0]
    while below.op in (Ops.EXPAND, Ops.RESHAPE):
        below = below.src[0]
    if below.op is not Ops.CONST or node.op is Ops.EXPAND:
        return None
    if node.op is Ops.PAD and below is not const(0, below.dtype):
        return None
    if node.op is Ops.RESHAPE and all(extent == 1 for extent in node.shape):
        return None if node.src[0].op is Ops.CONST else reshape(below, node.shape)
    return full(below, node.shape)


def _under_expand(node: Node) -> Node | None:
    """Arithmetic on repeated elements is done once: f(EXPAND(x), EXPAND(y)) -> EXPAND(f(x, y))."""
    inner: tuple[Any, ...] | None = None
    operands = []
    for child in node.src:
        if not child.shape:
            operands.append(child)
            continue
        if child.op is not Ops.EXPAND:
            return None
        source = child.src[0]
        if constant_of(source) is not None:
            operands.append(_scalar(source))
            continue
        if inner is not None and source.shape != inner:
            return None
        inner = source.shape
        operands.append(source)
    if inner is None:
        return full(simplify(make_node(node.op, node.dtype, tuple(operands), node.arg)), node.shape)
    return expand(make_node(node.op, node.dtype, tuple(operands), node.arg), node.shape)


def _scalar(node: Node) -> Node:
    found = constant_of(node)
    return node if found is None else found


def compose_views(order: list[Node], changed: dict[Node, Node]) -> Node:
    """The sink with views composed, and with arithmetic on repeated values done once."""
    return rewrite(order, _visit, _ASKED, changed, within=_MOVES)


VIEWS = Traced(
    "views",
    "views composed and cancelled, views of constants gone, arithmetic moved before EXPAND",
    compose_views,
)


# --- views made elsewhere, composed at once
# ---------------------------------------------------------


def cut(node: Node, axis: int, start: Dim, stop: Dim) -> Node:
    """`node` cut to start:stop along one axis."""
    if is_zero(start) and stop == node.shape[axis]:
        return node
    one = Slice(start, stop)
    over, below, place = _leaving_alone(node, axis, repeated=True)
    if place >= 0:
        cuts: list[Slice | None] = [None] * len(below.shape)
        cuts[place] = one
        below = _shrunk(below, cuts)
    return _again_over(over, below, cut_extent(one))


def pad(node: Node, axis: int, amount: Pad) -> Node:
    """`node` padded along one axis."""
    if _is_nothing(amount):
        return node
    over, below, place = _leaving_alone(node, axis, repeated=False)
    pads: list[Pad | None] = [None] * len(below.shape)
    pads[place] = amount
    return _again_over(over, _padded(below, pads), padded_extent(node.shape[axis], amount))


def cut_and_pad(node: Node, axis: int, start: Dim, stop: Dim, amount: Pad) -> Node:
    """`node` cut to start:stop along one axis, then padded: views over it are made again once."""
    if _is_nothing(amount) or (is_zero(start) and stop == node.shape[axis]):
        return pad(cut(node, axis, start, stop), axis, amount)
    one = Slice(start, stop)
    over, below, place = _leaving_alone(node, axis, repeated=False)
    cuts: list[Slice | None] = [None] * len(below.shape)
    cuts[place] = one
    pads: list[Pad | None] = [None] * len(below.shape)
    pads[place] = amount
    made = _padded(_shrunk(below, cuts), pads)
    return _again_over(over, made, padded_extent(cut_extent(one), amount))


def _leaving_alone(
    node: Node, axis: int, *, repeated: bool
) -> tuple[list[tuple[Node, int]], Node, int]:
    """The views over a node that leave one axis as it is, each with the place of that axis.

    And what is below them, with the axis's place there. repeated: an EXPAND of that axis is the
    last of the views, the place then -1.
    """
    over: list[tuple[Node, int]] = []
    while True:
        op = node.op
        place: int | None = axis
        if op is Ops.RESHAPE:
            place = same_axes(node.src[0].shape, node.shape).get(axis)
        elif op is Ops.EXPAND:
            extent = node.src[0].shape[axis]
            if repeated and is_one(extent):
                over.append((node, axis))
                return over, node.src[0], -1
            if extent != node.shape[axis]:
                place = None
        elif op is Ops.PERMUTE:
            place = node.arg[axis]
        elif op is Ops.FLIP:
            place = None if axis in node.arg else axis
        elif op is not Ops.WINDOW or axis in (node.arg.axis, len(node.shape) - 1):
            place = None
        if place is None:
            return over, node, axis
        over.append((node, axis))
        node, axis = node.src[0], place


def _again_over(over: list[tuple[Node, int]], node: Node, extent: Dim) -> Node:
    """Views over another source, of which one axis alone differs from what it was."""
    for view, axis in reversed(over):
        shape = view.shape
        node = _over(view, node, (*shape[:axis], extent, *shape[axis + 1 :]))
    return node


def permute(node: Node, axes: tuple[int, ...]) -> Node:
    """`node` with its axes reordered."""
    if axes == tuple(range(len(axes))):
        return node
    return _or_self(make_node(Ops.PERMUTE, node.dtype, (node,), axes), _permute)
