"""Long running folds in pieces, on GPUs: pieces are folded side by side, then given their start.

`cumsum(x)` over a million elements is a million steps of one thread. Cut into pieces it is a fold
of each piece, a running fold of what the pieces come to, and a running fold within each piece,
which begins where those before it ended. Along the innermost axis a piece is what the threads of a
block fold together: so neighbours in threads are neighbours in memory.
"""

from __future__ import annotations

from math import prod

from baregrad.base.bits import round_up
from baregrad.dtypes import dtypes
from baregrad.graph.traced import Traced, rewrite
from baregrad.graph.views import (
    counting,
    cut,
    expand,
    full,
    in_memory,
    lengthened,
    pad,
    reshape,
    stored,
)
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Pad, Reduce, Scan
from baregrad.ir.core.monoid import Monoid
from baregrad.ir.core.node import Node, alu, const
from baregrad.ir.core.op import Ops

# A running fold of fewer steps is left to one thread, but along the innermost axis.
LEAST = 256
PIECE = 64
# Elements of a row that a block's threads fold together.
BLOCK_PIECE = 4096
# Independent folds that keep a GPU busy by themselves.
MANY = 1 << 16


def _visit(node: Node) -> Node | None:
    if node.op is not Ops.SCAN or len(node.src) != 1:
        return None
    shape = node.shape
    axis, monoid, dtype = node.arg.axis, node.arg.monoid, node.dtype
    beside = (*shape[:axis], *shape[axis + 1 :])
    # Of a symbolic length the pieces are those of the longest.
    length = index.upper(shape[axis])
    if not all(isinstance(extent, int) for extent in beside) or not prod(beside) * length:
        return None
    is_inner = axis == len(shape) - 1
    if monoid.primitive is None or dtype.kind == "bool":
        return None
    if length <= BLOCK_PIECE if is_inner else length < LEAST:
        return None
    is_extreme = monoid.primitive in (Ops.MAX, Ops.MIN)
    if dtype.kind == "float" and dtype.bits < 32 and not is_extreme:
        return None  # what pieces come to would be rounded
    if not is_inner and prod(beside) >= MANY:
        return None
    return _running(in_memory(node.src[0]), monoid, axis, is_inner)


def _running(value: Node, monoid: Monoid, axis: int, is_inner: bool) -> Node:
    """The running fold of `value` along an axis, by pieces where it is long."""
    length = value.shape[axis]
    most = index.upper(length)
    piece = BLOCK_PIECE if is_inner else PIECE
    if most <= piece:
        return Node(Ops.SCAN, value.dtype, (value,), Scan(monoid, axis))
    value = lengthened(value, axis, round_up(most, piece), monoid.identity[0])
    count = value.shape[axis] // piece
    front, behind = value.shape[:axis], value.shape[axis + 1 :]
    parts = reshape(value, (*front, count, piece, *behind))
    totals = stored(Node(Ops.REDUCE, value.dtype, (parts,), Reduce(monoid, (axis + 1,))))
    # What comes before each piece: nothing before the first.
    earlier = pad(cut(totals, axis, 0, count - 1), axis, Pad(1, 0))
    first = alu(Ops.CMPEQ, counting(earlier.shape, axis), _zeros(earlier.shape))
    earlier = alu(Ops.WHERE, first, full(monoid.identity[0], earlier.shape), earlier)
    before = stored(_running(earlier, monoid, axis, is_inner))
    start = expand(reshape(before, (*front, count, 1, *behind)), parts.shape)
    assert monoid.primitive is not None
    within = Node(Ops.SCAN, value.dtype, (parts,), Scan(monoid, axis + 1))
    whole = alu(monoid.primitive, start, within)
    return cut(reshape(whole, value.shape), axis, 0, length)


def _zeros(shape: tuple[int, ...]) -> Node:
    return full(const(0, dtypes.int64), shape)


def scan_in_pieces(order: list[Node], changed: dict[Node, Node]) -> Node:
    """The sink with long running folds in pieces."""
    return rewrite(order, _visit, Ops.SCAN.bit, changed)


SCANS = Traced(
    "scans",
    "a long running fold is made of pieces, for a GPU's threads to share",
    scan_in_pieces,
    ("partials",),
)
