"""Float sums that end in a comparison: computed once, so that both sides see the same bits.

Two kernels may add in different orders. That is well within what a float sum promises, but
`x == x.amax()` must not turn on it, and neither must the gradient of a maximum.
"""

from __future__ import annotations

from baregrad.ir.core.node import Node
from baregrad.ir.core.op import COMPARE, Ops, mask_of
from baregrad.schedule.facts.survey import Survey

_COMPARE = mask_of(COMPARE)
_ADDS = Ops.ADD.bit | Ops.MUL.bit
_SUMS = Ops.REDUCE.bit | Ops.FOLD.bit


def compared_sums(sink: Node, order: list[Node], survey: Survey) -> frozenset[Node]:
    """The sums that a comparison reads while something else reads them too, by whatever way."""
    if not (sink.mask & _COMPARE and sink.mask & _SUMS):
        return frozenset()
    found: set[Node] = set()
    # Whether there are several ways from a value to what reads it in the end.
    watched: dict[Node, bool] = {}
    for node in reversed(order):
        bit = node.op.bit
        shared = watched.get(node)
        if shared is None:
            if not bit & _COMPARE:
                continue
            shared = False
        else:
            shared = shared or survey.readers[node] > 1
        if _rounds(node):
            if shared:
                found.add(node)
            continue
        for child in node.src:
            if child.mask & _SUMS and child.dtype.kind == "float":
                watched[child] = watched.get(child, False) or shared
    return frozenset(found)


def _rounds(node: Node) -> bool:
    """Whether the order of a reduction shows in its result; of several parts, in each of them."""
    if node.op is Ops.PROJ:
        return any(part.mask & _ADDS for part in node.src[0].arg.monoid.combine)
    if node.op is Ops.REDUCE:
        return node.arg.monoid.primitive not in (Ops.MAX, Ops.MIN)
    return node.op is Ops.FOLD
