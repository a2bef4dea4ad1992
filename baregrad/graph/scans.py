"""Long running folds in pieces: pieces are folded side by side, then given their start.

`cumsum(x)` over a million elements is a million steps of one thread. Cut into pieces it is a fold
of each piece, a running fold of what the pieces come to, and a running fold within each piece,
which begins where those before it ended. Along the innermost axis a piece is what the threads of a
block fold together: so neighbours in threads are neighbours in memory. What is folded may have
several states, as sums of powers have, each relative to the largest.

A CPU runs through a fold as it is. But of very many floats the sum grows until what is added to it
is rounded away: such sums are kept in float64 there, and sums of several states made of pieces.
"""

from __future__ import annotations

from functools import partial
from math import prod

from baregrad.base.bits import greatest_divisor, round_up
from baregrad.dtypes import dtypes
from baregrad.graph.traced import Traced, rewrite
from baregrad.graph.views import (
    constant_of,
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
from baregrad.ir.core.monoid import Monoid, filled, primitive
from baregrad.ir.core.node import Node, alu, cast, const, toposort
from baregrad.ir.core.op import ELEMENTWISE, MOVEMENT, Op, Ops, mask_of

# A running fold of fewer steps is left to one thread, but along the innermost axis.
LEAST = 256
PIECE = 64
# Elements of a row that a block's threads fold together.
BLOCK_PIECE = 4096
# The same of pieces that a row is so many of, and elements of accesses that they are made of.
LEAST_BLOCK_PIECE = 512
ACCESSES = (8, 4, 2, 1)
# Independent folds that keep a GPU busy by themselves.
MANY = 1 << 16
# On CPUs, sums of more floats than this are wide, or of pieces of so many, whose begins do not lie
# in the same set of a cache.
MOST_ADDED = 1 << 16
CPU_PIECE = 4080
# Operations on what is in memory that are done twice sooner than what they come to is stored.
STEPS = 8

_ELEMENTWISE = mask_of(ELEMENTWISE)
Parts = tuple[Node, ...]


def _pieces(node: Node, is_for_gpu: bool) -> Parts | None:
    """The states of a running fold made of pieces, None where it is to stay whole."""
    shape = node.shape
    axis, monoid = node.arg.axis, node.arg.monoid
    beside = (*shape[:axis], *shape[axis + 1 :])
    # Of a symbolic length the pieces are those of the longest.
    length = index.upper(shape[axis])
    if not all(isinstance(extent, int) for extent in beside) or not prod(beside) * length:
        return None
    is_inner = axis == len(shape) - 1
    if any(dtype.kind == "bool" for dtype in monoid.states):
        return None
    if not is_for_gpu:
        if length <= MOST_ADDED or node.dtype.kind != "float":
            return None
        if monoid.primitive is not None:
            return _wide(node) if monoid is primitive(Ops.ADD, dtypes.float32) else None
    elif length <= BLOCK_PIECE if is_inner else length < LEAST:
        return None
    is_extreme = monoid.primitive in (Ops.MAX, Ops.MIN)
    if not is_extreme and any(d.kind == "float" and d.bits < 32 for d in monoid.states):
        return None  # what pieces come to would be rounded
    if is_for_gpu and not is_inner and prod(beside) >= MANY:
        return None
    piece = CPU_PIECE if not is_for_gpu else _block_piece(shape[axis]) if is_inner else PIECE
    values = [_at_hand(value) for value in node.src]
    if all(constant_of(value) is not None for value in values):
        # Kernels are laid out by what they read.
        values[0] = stored(values[0])
    return _running(tuple(values), monoid, axis, piece)


def _block_piece(length: index.Dim) -> int:
    """Elements of a piece of a row: so many that no piece is partly past its end, if possible.

    The threads that fold a piece then write what becomes of it, as they have it, to its place.
    """
    if not isinstance(length, int):
        return BLOCK_PIECE
    for unit in ACCESSES:
        if length % unit == 0:
            found = unit * greatest_divisor(length // unit, BLOCK_PIECE // unit)
            if found >= LEAST_BLOCK_PIECE:
                return found
    return BLOCK_PIECE


def _wide(node: Node) -> Parts:
    """A running sum that is kept in float64."""
    wide = dtypes.float64
    how = Scan(primitive(Ops.ADD, wide), node.arg.axis)
    return (cast(Node(Ops.SCAN, wide, (cast(node.src[0], wide),), how), node.dtype),)


def _at_hand(value: Node) -> Node:
    """A value that is read twice: stored, unless it is a few steps from what is in memory."""
    if constant_of(value) is not None:
        return value
    steps = [one for one in toposort(value, enter=_is_cheap) if one.op in ELEMENTWISE]
    if len(steps) > STEPS:
        return in_memory(value)
    below = {child for one in (*steps, value) for child in one.src if child not in steps}
    is_near = all(in_memory(one) is one or constant_of(one) is not None for one in below)
    return value if is_near and steps else in_memory(value)


def _is_cheap(node: Node) -> bool:
    return node.op in ELEMENTWISE or (node.op in MOVEMENT and node.op is not Ops.PAD)


def _running(values: Parts, monoid: Monoid, axis: int, piece: int) -> Parts:
    """The running fold of `values` along an axis, by pieces of so many where it is long."""
    length = values[0].shape[axis]
    most = index.upper(length)
    if most <= piece:
        return _folded(Ops.SCAN, values, Scan(monoid, axis))
    size = round_up(most, piece)
    neutral = monoid.identity
    pairs = zip(values, neutral, strict=True)
    longer = [lengthened(value, axis, size, nothing) for value, nothing in pairs]
    count = longer[0].shape[axis] // piece
    front, behind = longer[0].shape[:axis], longer[0].shape[axis + 1 :]
    parts = tuple([reshape(value, (*front, count, piece, *behind)) for value in longer])
    totals = _folded(Ops.REDUCE, parts, Reduce(monoid, (axis + 1,)))
    # What comes before each piece: nothing before the first.
    earlier = []
    for total, nothing in zip(totals, neutral, strict=True):
        moved = pad(cut(stored(total), axis, 0, count - 1), axis, Pad(1, 0))
        first = alu(Ops.CMPEQ, counting(moved.shape, axis), _zeros(moved.shape))
        earlier.append(alu(Ops.WHERE, first, full(nothing, moved.shape), moved))
    again = piece if piece in (PIECE, CPU_PIECE) else BLOCK_PIECE
    before = [stored(part) for part in _running(tuple(earlier), monoid, axis, again)]
    shape = parts[0].shape
    start = [expand(reshape(part, (*front, count, 1, *behind)), shape) for part in before]
    within = _folded(Ops.SCAN, parts, Scan(monoid, axis + 1))
    whole = filled(monoid.combine, (*start, *within))
    shape = longer[0].shape
    return tuple([cut(reshape(part, shape), axis, 0, length) for part in whole])


def _folded(op: Op, values: Parts, arg: Reduce | Scan) -> Parts:
    """The states of a fold."""
    states = arg.monoid.states
    folded = Node(op, states[0], values, arg)
    if len(states) == 1:
        return (folded,)
    return tuple([Node(Ops.PROJ, dtype, (folded,), part) for part, dtype in enumerate(states)])


def _zeros(shape: tuple[int, ...]) -> Node:
    return full(const(0, dtypes.int64), shape)


def scan_in_pieces(
    order: list[Node], changed: dict[Node, Node], is_for_gpu: bool = False
) -> Node:
    """The sink with long running folds in pieces."""
    found: dict[Node, Parts | None] = {}
    # Running folds as their rows, and what is made of them element by element.
    rows: set[Node] = set()

    def visit(node: Node) -> Node | None:
        if node.op.bit & _ELEMENTWISE:
            made = _of_rows(node, rows)
            if made is not None:
                rows.add(made)
            return made
        whole = node.src[0] if node.op is Ops.PROJ else node
        is_one = node is whole and len(node.src) == 1
        if whole.op is not Ops.SCAN or (node is whole and not is_one):
            return None
        if whole not in found:
            found[whole] = _pieces(whole, is_for_gpu)
        states = found[whole]
        if states is None:
            return None
        state = states[0 if is_one else node.arg]
        if is_for_gpu and state.op is Ops.RESHAPE:
            rows.add(state)
        return state

    asked = Ops.SCAN.bit | Ops.PROJ.bit | (_ELEMENTWISE if is_for_gpu else 0)
    return rewrite(order, visit, asked, changed, Ops.SCAN.bit)


def _of_rows(node: Node, rows: set[Node]) -> Node | None:
    """What is made of running folds element by element, as their rows and pieces lie.

    So the threads that fold a piece compute and write it. None where other arrays are in it.
    """
    folds = [part for part in node.src if part in rows]
    others = [part for part in node.src if part not in rows and constant_of(part) is None]
    if not folds or others or len({part.src[0].shape for part in folds}) > 1:
        return None
    shape = folds[0].src[0].shape
    src = []
    for part in node.src:
        constant = constant_of(part)
        src.append(part.src[0] if constant is None else full(constant, shape))
    return reshape(Node(node.op, node.dtype, tuple(src), node.arg), node.shape)


SCANS = Traced(
    "scans",
    "a running sum of very many floats is wide, or made of pieces, so that each addend counts",
    scan_in_pieces,
    ("partials",),
)
SCANS_ON_GPU = Traced(
    "scans",
    "a long running fold is made of pieces, for a GPU's threads to share",
    partial(scan_in_pieces, is_for_gpu=True),
    ("partials",),
)
