"""Strided loads of neighbouring elements: rows are loaded whole and transposed in registers.

A load whose lanes lie `stride` elements apart reads as many lines as it has lanes. Where the loads
of the elements beside it follow, as in a tile of a transposition, all of them together are a square
block of as many rows.
"""

from __future__ import annotations

from baregrad.ir.node import Node
from baregrad.ir.op import Ops
from baregrad.render.llvm_text import FunctionText
from baregrad.render.llvm_types import type_text

# Lanes of the blocks that are transposed: wider ones do not fit the registers.
_WIDTHS = (4, 8, 16)
_EDGES = frozenset((Ops.BEGIN, Ops.TEST, Ops.END))


def column_blocks(program: Node) -> dict[Node, tuple[Node, ...]]:
    """The block that each strided load is a column of, for those that are of one.

    The columns of a block stand in one scope, and read what nobody writes: they may be loaded
    together, where the first of them stands.
    """
    found: dict[tuple[object, ...], dict[int, Node]] = {}
    seen: set[Node] = set()
    twice: set[Node] = set()
    scope = 0
    for node in program.src:
        if node.op in _EDGES:
            scope += 1
        elif node.op is Ops.VLOAD:
            access = node.arg
            if access.width not in _WIDTHS or access.stride <= 1 or not access.constant:
                continue
            if len(node.src) > 2 or node.src[1].shape:
                continue
            (twice if node in seen else seen).add(node)
            key = (scope, *node.src, access.width, access.stride)
            found.setdefault(key, {})[access.at] = node
    blocks: dict[Node, tuple[Node, ...]] = {}
    for loads in found.values():
        for at in sorted(loads):
            width = loads[at].arg.width
            block = tuple([loads[at + n] for n in range(width) if at + n in loads])
            if len(block) == width and twice.isdisjoint(block) and blocks.keys().isdisjoint(block):
                blocks.update(dict.fromkeys(block, block))
    return blocks


def load_block(f: FunctionText, block: tuple[Node, ...]) -> None:
    """Define the columns of a block: loads of its rows, and shuffles.

    A round interleaves row i with row i + n/2, which turns the bits of (row, lane) by one place;
    as many rounds as a row's number has bits exchange row and lane.
    """
    first = block[0]
    base, offset = first.src
    access = first.arg
    width = len(block)
    kinds = type_text(first.dtype, width)
    add = f.lines.append
    rows = []
    for row in range(width):
        at = access.at + row * access.stride
        where = f.pointer(base, f.use(offset), at, first.dtype)
        rows.append(f.fresh())
        add(f"  {rows[-1]} = load {kinds}, ptr {where}, align {access.align}, !invariant.load !0")
    half = width // 2
    orders = []
    for begin in (0, half):
        lanes = [f"i32 {begin + lane // 2 + lane % 2 * width}" for lane in range(width)]
        orders.append(f"<{width} x i32> <{', '.join(lanes)}>")
    for _ in range(width.bit_length() - 1):
        after = []
        for one, other in zip(rows[:half], rows[half:], strict=True):
            for order in orders:
                after.append(f.fresh())
                add(f"  {after[-1]} = shufflevector {kinds} {one}, {kinds} {other}, {order}")
        rows = after
    f.names.update(zip(block, rows, strict=True))
