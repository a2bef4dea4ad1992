"""Tiles in LLVM IR: the text of one row, written out for each of them.

A row's text has marks for its number and for its places in memory. A tile's instructions that
follow each other make one text, so a row is computed from end to end before the next one; where
that is long, some rows take turns (`ir.rows.TOGETHER`).
"""

from __future__ import annotations

from itertools import chain

from baregrad.ir.node import Node
from baregrad.ir.op import Ops, mask_of
from baregrad.ir.rows import SHORTEST, TOGETHER
from baregrad.render.llvm_text import ROW, FunctionText, Rule, row_numbers

# What rows are written out before; anything else reads no tile and may come before its rows.
AFTER_ROWS = mask_of(
    (
        Ops.BEGIN,
        Ops.TEST,
        Ops.END,
        Ops.SET,
        Ops.VSTORE,
        Ops.TURN,
        Ops.TURNED,
        Ops.ROW,
        Ops.READ,
    )
)
# What stands for the place of a row in memory, one for each access of a text.
_MARKS = tuple([f"${place}$" for place in range(256)])


def write_rows(f: FunctionText, node: Node, rule: Rule) -> None:
    """Add an instruction of a tile to the text of its rows."""
    stores = node.op is Ops.VSTORE
    count = len(node.arg.rows) if stores else node.shape[0]
    if f.block and count != f.rows:
        flush_rows(f, False)
    f.rows = count
    if stores or node.op is Ops.VLOAD:
        # Before the lines of rows.
        base, offset = node.src[:2]
        f.row_base = f.pointer(base, f.use(offset), node.arg.at, base.dtype)
    lines, fresh, before = f.lines, f.fresh, len(f.block)
    f.lines, f.fresh = f.block, f.fresh_row
    rule(f, node)
    f.lines, f.fresh = lines, fresh
    f.steps += len(f.block) > before
    if stores:
        flush_rows(f, True)


def flush_rows(f: FunctionText, turns: bool) -> None:
    """Write out the rows of the text so far; turns: some at a time, where they are long."""
    texts: list[str] = []
    if f.block:
        parts = "\n".join(f.block).split(ROW)
        texts = [number.join(parts) for number in row_numbers(f.rows)]
    for mark, places in zip(_MARKS, f.places, strict=False):
        texts = [
            text.replace(mark, str(place)) for text, place in zip(texts, places, strict=True)
        ]
    if not turns or f.steps < SHORTEST:
        f.lines += texts
    else:
        for first in range(0, f.rows, TOGETHER):
            rows = [text.split("\n") for text in texts[first : first + TOGETHER]]
            f.lines += chain.from_iterable(zip(*rows, strict=True))
    f.block.clear()
    f.places.clear()
    f.steps = 0
