"""One-hot sums folded away: a sum that keeps one element is an indexed read.

`sum over j of where(j == i, x[j], 0)` and `sum over j of (j == i) * x[j]` are x[i], or 0 where i
lies outside. So an embedding written as a matmul with a one-hot matrix is a GATHER.
"""

from __future__ import annotations

from baregrad.dtypes import dtypes
from baregrad.graph.affine_index import AffineIndex, affine_index_of
from baregrad.graph.repeats import is_repeated
from baregrad.graph.traced import Part, Rule
from baregrad.graph.views import PURE_VIEWS, below_views, constant_of, cut, expand, reshape
from baregrad.ir.core.attrs import Reduce
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import Node, alu, cast, const
from baregrad.ir.core.op import MOVEMENT, Ops

_NEEDED = Ops.REDUCE.bit | Ops.CMPEQ.bit | Ops.IOTA.bit


def _visit(node: Node) -> Node | None:
    if node.arg.monoid.primitive is not Ops.ADD or node.dtype.kind == "bool":
        return None
    for condition, kept in _one_hot_parts(node.src[0]):
        found = _select(node, condition, kept)
        if found is not None:
            return found
    return None


def _one_hot_parts(body: Node) -> list[tuple[Node, Node]]:
    """(condition, value) pairs such that `body` is the value where the condition holds, else 0."""
    if body.op is Ops.WHERE:
        condition, yes, no = body.src
        zero = constant_of(no)
        return [(condition, yes)] if zero is not None and zero.arg == 0 else []
    if body.op is Ops.CAST and body.src[0].dtype.kind == "bool":
        return [(body.src[0], const(1, body.dtype))]
    if body.op is not Ops.MUL:
        return []
    found = []
    for hot, other in (body.src, body.src[::-1]):
        for condition, value in _one_hot_parts(below_views(hot, PURE_VIEWS)):
            if value.op is Ops.CONST and value.arg == 1:
                found.append((_with_views(condition, hot), other))
    return found


def _with_views(inner: Node, outer: Node) -> Node:
    """`inner`, which stands below the views of `outer`, under the same views."""
    views = []
    while outer.op in MOVEMENT:
        views.append(outer)
        outer = outer.src[0]
    if inner.shape != outer.shape:
        return inner  # a scalar operand goes with anything
    for view in reversed(views):
        inner = Node(view.op, inner.dtype, (inner,), view.arg)
    return inner


def _select(node: Node, condition: Node, kept: Node) -> Node | None:
    """The reduction without the axis along which `condition` holds once, or None."""
    shape = node.src[0].shape
    views = condition
    condition = below_views(views, PURE_VIEWS)
    if condition.op is not Ops.CMPEQ or condition.src[0].dtype.kind not in ("int", "uint"):
        return None
    for left, right in (condition.src, condition.src[::-1]):
        line = _with_views(left, views)
        place = _with_views(right, views)
        if line.shape != shape:
            continue
        found = affine_index_of(line)
        if found is None or found.axis not in node.arg.axes or found.step not in (1, -1):
            continue
        if place.shape and not is_repeated(place, found.axis):
            continue
        return _gather(node, found, place, kept)
    return None


def _gather(node: Node, line: AffineIndex, place: Node, kept: Node) -> Node:
    shape = node.src[0].shape
    axis = line.axis
    rest = tuple(extent for i, extent in enumerate(shape) if i != axis)
    if place.shape:
        place = reshape(cut(place, axis, 0, 1), rest)
    wide = cast(place, dtypes.int64)
    if line.start:
        wide = alu(Ops.SUB, wide, const(line.start, dtypes.int64))
    if line.step < 0:
        wide = alu(Ops.SUB, const(0, dtypes.int64), wide)
    extent = shape[axis]
    limit = cast(extent, dtypes.int64) if isinstance(extent, Node) else const(extent, dtypes.int64)
    zero = const(0, dtypes.int64)
    inside = alu(Ops.AND, alu(Ops.CMPLE, zero, wide), alu(Ops.CMPLT, wide, limit))
    value = _read(kept, shape, axis, alu(Ops.WHERE, inside, wide, zero), rest)
    nothing = const(0, node.dtype)
    chosen = alu(Ops.WHERE, inside, value, nothing)
    if not chosen.shape:
        chosen = expand(reshape(chosen, (1,) * len(rest)), rest) if rest else chosen
    axes = tuple(i - (i > axis) for i in node.arg.axes if i != axis)
    if not axes:
        return chosen
    return Node(Ops.REDUCE, node.dtype, (chosen,), Reduce(node.arg.monoid, axes))


def _read(
    kept: Node, shape: tuple[Dim, ...], axis: int, place: Node, rest: tuple[Dim, ...]
) -> Node:
    """kept[..., place, ...] as an array over the other axes."""
    if not kept.shape:
        return kept
    if not rest:
        return Node(Ops.GATHER, kept.dtype, (kept, place))
    places = []
    for i, extent in enumerate(shape):
        if i == axis:
            if not place.shape:
                place = expand(reshape(place, (1,) * len(rest)), rest)
            places.append(place)
            continue
        own = i - (i > axis)
        if isinstance(extent, Node):
            line = Node(Ops.IOTA, dtypes.int64, (extent,))
        else:
            line = Node(Ops.IOTA, dtypes.int64, (), extent)
        beside = tuple(extent if j == own else 1 for j in range(len(rest)))
        places.append(expand(reshape(line, beside), rest))
    return Node(Ops.GATHER, kept.dtype, (kept, *places))


def _rule(order: list[Node], changed: dict[Node, Node]) -> Rule | None:
    if order[-1].mask & _NEEDED != _NEEDED:
        return None

    def visit(_: Node, made: Node) -> Node | None:
        return _visit(made) if made.mask & _NEEDED == _NEEDED else None

    return visit


ONE_HOT = Part(
    "one_hot",
    "a sum over a one-hot mask reads the one element",
    Ops.REDUCE.bit,
    _rule,
    ("constants",),
)
