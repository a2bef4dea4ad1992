"""Long reductions in two steps, partial results first: for threads to share, and for exact sums.

`sum(x)` over millions of elements is 64 to 256 sums, stored, and their sum. The order of the
additions is part of the graph, so that the result does not depend on how many threads there are.

A float32 sum of n like terms that are added one after the other is off by up to n / 2^25 of its
value. Sums that a kernel would add so, longer than `IN_ORDER`, are made of shorter ones.
"""

from __future__ import annotations

from math import prod

from baregrad.base.bits import greatest_divisor, round_up
from baregrad.dtypes import dtypes
from baregrad.graph.repeats import innermost, is_matrix_product
from baregrad.graph.traced import Part, Rule
from baregrad.graph.views import lengthened, reshape
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Reduce
from baregrad.ir.core.monoid import primitive
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops

FEW = 16  # results that keep a small machine busy by themselves
LONG = 1 << 18  # elements that are worth two kernels
PARTS = 64
# Of more elements there are more parts: threads wait for the last one to end.
MOST_PARTS = 256
PART = 1 << 16
# Terms of a sum that are added one after the other. A row's are added to so many sums at once.
IN_ORDER = 1 << 13
AT_ONCE = 64
SHORT = 1 << 12


def _visit(node: Node) -> Node | None:
    if node.op is not Ops.REDUCE or node.arg.monoid.primitive is None:
        return None
    value = node.src[0]
    elements = index.product(value.shape)
    results = index.product(node.shape)
    if not isinstance(elements, int) or not isinstance(results, int):
        return None
    if results >= FEW or elements < LONG:
        return _of_short_sums(node, value)
    most = min(max(elements // PART, PARTS), MOST_PARTS)
    least = max(-(-FEW // (2 * results)), 2)
    # The outermost reduced axis that is long enough is cut: a part's elements lie near each other.
    near = innermost(value)
    axes = sorted(node.arg.axes, key=lambda axis: (axis == near, axis))
    axis = next((axis for axis in axes if value.shape[axis] >= least), None)
    if axis is None:
        return None
    return _in_parts(node, value, axis, most, least)


def _of_short_sums(node: Node, value: Node) -> Node | None:
    """A float32 sum of many terms in order as the sum of shorter ones; None for others."""
    axes = node.arg.axes
    if node.arg.monoid is not primitive(Ops.ADD, dtypes.float32) or is_matrix_product(value, axes):
        return None
    terms = prod(value.shape[axis] for axis in axes)
    in_order = terms // AT_ONCE if innermost(value) in axes else terms
    if in_order <= IN_ORDER:
        return None
    axis = max(axes, key=lambda axis: (value.shape[axis], -axis))
    most = min(in_order // SHORT, value.shape[axis])
    return _in_parts(node, value, axis, most, most // 2)


def _in_parts(node: Node, value: Node, axis: int, most: int, least: int) -> Node:
    """A reduction cut along an axis into parts, `most` of them at most, and `least` at least.

    Where few numbers divide its extent the last part is filled up with what changes no result.
    """
    extent = value.shape[axis]
    parts = extent if extent <= most else greatest_divisor(extent, most)
    if parts < least:
        parts = most
        value = lengthened(value, axis, round_up(extent, parts), node.arg.monoid.identity[0])
    shape = value.shape
    length = shape[axis] // parts
    split = reshape(value, (*shape[:axis], parts, length, *shape[axis + 1 :]))
    monoid = node.arg.monoid
    inner = tuple(i + (i >= axis) for i in node.arg.axes)
    if length == 1:
        inner = tuple(i for i in inner if i != axis + 1)
    if not inner:
        return node
    partial = Node(Ops.REDUCE, node.dtype, (split,), Reduce(monoid, inner))
    if length == 1:
        kept = [e for i, e in enumerate(split.shape) if i not in (*inner, axis + 1)]
        partial = reshape(partial, tuple(kept))
    stored = Node(Ops.CONTIGUOUS, node.dtype, (partial,))
    place = axis - sum(1 for i in node.arg.axes if i < axis)
    return Node(Ops.REDUCE, node.dtype, (stored,), Reduce(monoid, (place,)))


def _rule(order: list[Node], changed: dict[Node, Node]) -> Rule:
    return lambda _, made: _visit(made)


PARTIALS = Part(
    "partials",
    "a long reduction to few values is made of stored partial results, for threads to share",
    Ops.REDUCE.bit,
    _rule,
    ("sums",),
)
