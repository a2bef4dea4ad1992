"""Tiles in LLVM IR: the text of one row, written out for each of them.

A row's text has marks for its number and for its places in memory. A tile's instructions that
follow each other make one text, so a row is computed from end to end before the next one; where
that is long, some rows take turns (`ir.rows.TOGETHER`).
"""

from __future__ import annotations

from itertools import chain

from baregrad.ir.analysis.rows import SHORTEST, TOGETHER
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.render.llvm.text import ROW, FunctionText, Rule, row_numbers

# What rows are written out before; anything else reads no tile and may come before its rows.
AFTER_ROWS = frozenset(
    (Ops.BEGIN, Ops.TEST, Ops.END, Ops.SET, Ops.VSTORE, Ops.TURN, Ops.TURNED, Ops.ROW, Ops.READ)
)


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
    lines, unused, before = f.lines, f.unused, len(f.block)
    f.lines, f.unused = f.block, f.unused_rows
    rule(f, node)
    f.lines, f.unused = lines, unused
    f.steps += len(f.block) > before
    if stores:
        flush_rows(f, True)


def flush_rows(f: FunctionText, turns: bool) -> None:
    """Write out the rows of the text so far; turns: some at a time, where they are long."""
    texts: list[str] = []
    if f.block:
        parts = "\n".join(f.block).split(ROW)
        texts = [number.join(parts) for number in row_numbers(f.rows)]
    if f.places:
        # Of each row, where it lies for the first access, for the second and so on.
        each = zip(*f.places, strict=True)
        texts = [text.format(*places) for text, places in zip(texts, each, strict=True)]
    if not turns or f.steps < SHORTEST:
        f.lines += texts
    else:
        for first in range(0, f.rows, TOGETHER):
            rows = [text.split("\n") for text in texts[first : first + TOGETHER]]
            f.lines += chain.from_iterable(zip(*rows, strict=True))
    f.block.clear()
    f.places.clear()
    f.steps = 0
