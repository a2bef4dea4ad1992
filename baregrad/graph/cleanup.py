"""Markers that have done their work: DETACH, CONTIGUOUS of what lies in memory anyway."""

from __future__ import annotations

from baregrad.graph.traced import Traced, rewrite
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops

_MARKS = Ops.DETACH.bit | Ops.CONTIGUOUS.bit
_STORED = frozenset((Ops.PARAM, Ops.BUFFER, Ops.CONTIGUOUS, Ops.SCATTER))


def _visit(node: Node) -> Node | None:
    if node.op is Ops.DETACH:
        return node.src[0]
    if node.op is Ops.CONTIGUOUS:
        below = node.src[0]
        stored = below
        while stored.op is Ops.RESHAPE:
            stored = stored.src[0]
        return below if stored.op in _STORED else None
    return None


def clean_up(order: list[Node], changed: dict[Node, Node]) -> Node:
    """The sink without DETACH and needless CONTIGUOUS."""
    return rewrite(order, _visit, _MARKS, changed)


CLEANUP = Traced(
    "cleanup",
    "markers for gradients and for memory go once they have done their work",
    clean_up,
)
