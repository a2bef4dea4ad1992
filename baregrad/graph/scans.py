"""Long running folds in pieces, on GPUs: pieces are folded side by side, then given their start.

`cumsum(x)` over a million elements is a million steps of one thread. Cut into pieces it is a fold
of each piece, a running fold of what the pieces come to, and the one combined with the other.
"""

from __future__ import annotations

from baregrad.base.bits import greatest_divisor
from baregrad.dtypes import dtypes
from baregrad.graph.traced import Traced, rewrite
from baregrad.graph.views import cut, expand, full, pad, reshape
from baregrad.ir.core.attrs import Pad, Scan
from baregrad.ir.core.node import Node, alu, const
from baregrad.ir.core.op import Ops

# A running fold of fewer steps is left to one thread.
LEAST = 256
PIECE = 64
LEAST_PIECE = 8
# Independent folds that keep a GPU busy by themselves.
MANY = 1 << 16


def _visit(node: Node) -> Node | None:
    if node.op is not Ops.SCAN or len(node.src) != 1:
        return None
    shape = node.shape
    if not all(isinstance(extent, int) for extent in shape):
        return None
    length = shape[node.arg.axis]
    monoid = node.arg.monoid
    dtype = node.dtype
    if monoid.primitive is None or length < LEAST or dtype.kind == "bool":
        return None
    if dtype.kind == "float" and dtype.bits < 32:
        return None  # what pieces come to would be rounded
    total = 1
    for extent in shape:
        total *= extent
    return None if total // length >= MANY else _in_pieces(node)


def _in_pieces(node: Node) -> Node | None:
    axis = node.arg.axis
    value = node.src[0]
    length = value.shape[axis]
    piece = greatest_divisor(length, PIECE)
    if piece < LEAST_PIECE:
        if node.arg.monoid.primitive is not Ops.ADD:
            return None
        # Zeros at the end change nothing before it.
        piece = PIECE
        value = pad(value, axis, Pad(0, -length % piece))
    count = value.shape[axis] // piece
    shape = (*value.shape[:axis], count, piece, *value.shape[axis + 1 :])
    inner = _fold(node, reshape(value, shape), axis + 1)
    inner = Node(Ops.CONTIGUOUS, node.dtype, (inner,))
    last = cut(inner, axis + 1, piece - 1, piece)
    totals = reshape(last, (*shape[: axis + 1], *shape[axis + 2 :]))
    running = _fold(node, totals, axis)
    if count >= LEAST:
        pieces = _in_pieces(running)
        running = running if pieces is None else pieces
    before = pad(cut(running, axis, 0, count - 1), axis, Pad(1, 0))
    thin = (*shape[: axis + 1], 1, *shape[axis + 2 :])
    start = expand(reshape(before, thin), shape)
    place = tuple(count if position == axis else 1 for position in range(len(shape)))
    number = expand(reshape(Node(Ops.IOTA, dtypes.int64, (), count), place), shape)
    first = alu(Ops.CMPEQ, number, full(const(0, dtypes.int64), shape))
    op = node.arg.monoid.primitive
    assert op is not None
    whole = alu(Ops.WHERE, first, inner, alu(op, start, inner))
    flat = reshape(whole, value.shape)
    return flat if value.shape == node.shape else cut(flat, axis, 0, length)


def _fold(node: Node, value: Node, axis: int) -> Node:
    return Node(Ops.SCAN, node.dtype, (value,), Scan(node.arg.monoid, axis))


def scan_in_pieces(order: list[Node], changed: dict[Node, Node]) -> Node:
    """The sink with long running folds in pieces."""
    return rewrite(order, _visit, Ops.SCAN.bit, changed)


SCANS = Traced(
    "scans",
    "a long running fold is made of pieces, for a GPU's threads to share",
    scan_in_pieces,
    ("partials",),
)
