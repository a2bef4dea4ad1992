"""What is known while a kernel is rewritten for one choice of the parts of its axes; chunks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from baregrad.dtypes import dtypes
from baregrad.ir import index
from baregrad.ir.index import Dim
from baregrad.ir.node import Node, make_node, range_node
from baregrad.kernel.analysis import Offset
from baregrad.kernel.axes import Axis, Limit, Piece

Pieces = dict[Node, Piece]
# Beyond the ids of any kernel's own axes.
CHUNK_ID = 1 << 20


@dataclass(slots=True)
class Scope:
    """One choice of pieces for the original axes, and what was rewritten under it.

    ranges: the final axis of each name (in a copying loop, some stand for others). finals: the
    final axes and scales that stand for an original one. early: what is rewritten is computed ahead
    of the condition that keeps an OUT within partial tiles, so that reads have guards of their own.
    The rest is what was found: of nodes, of the parts of reductions, of axes, of accesses.
    """

    pieces: Pieces
    ranges: Mapping[str, Node]
    early: bool = False
    done: dict[Node, Node] = field(default_factory=dict)
    parts: dict[Node, tuple[Node, ...]] = field(default_factory=dict)
    finals: dict[Node, list[tuple[Node, int]]] = field(default_factory=dict)
    offsets: dict[Offset, Node] = field(default_factory=dict)
    limits: dict[tuple[Limit, ...], Node] = field(default_factory=dict)


def chunks_of(axis: Axis, grain: int, position: int) -> tuple[Node, Node]:
    """The chunks of the parallel axis, and the iterations of one; the last may have fewer."""
    count = index.floordiv(index.add(axis.extent, grain - 1), grain)
    # Tails run with the last chunk, so there is one even where no whole tile is.
    count = index.maximum(count, 1)
    chunk = range_node(count, CHUNK_ID, f"{axis.name}_chunk", "pool")
    length: Dim = grain
    if index.mod(axis.extent, grain) != 0:
        length = index.minimum(grain, index.sub(axis.extent, index.mul(chunk, grain)))
    return chunk, range_node(length, position, axis.name)


def plain(node: Node, done: dict[Node, Node]) -> Node:
    """A node over its sources as they were rewritten."""
    if not node.src:
        return node
    src = tuple([done[child] for child in node.src])
    current = node if src == node.src else make_node(node.op, node.dtype, src, node.arg)
    if node.dtype is not dtypes.index and not node.op.bit & index.CONDITIONS:
        return current
    simpler = index.resimplify(current)
    return current if simpler is None else simpler
