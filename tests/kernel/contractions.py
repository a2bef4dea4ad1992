"""Contractions and convolutions of 16-bit floats for the tests of their planners."""

from __future__ import annotations

from baregrad.dtypes import DType, dtypes
from baregrad.ir.core import index
from baregrad.ir.core.node import Node, alu, cast, range_node
from baregrad.ir.core.op import Ops
from tests.kernel import kernels as k

HALF, F32 = dtypes.float16, dtypes.float32
Sizes = tuple[index.Dim, ...]


def contraction(
    rows: Sizes, columns: Sizes, depth: Sizes, left: str, right: str, out: str, batch: Sizes = (),
    written: DType = F32,
) -> Node:  # fmt: skip
    """A sum of products over axes that letters name: rows a b.., columns n o.., depth x y, batch s.

    Each of `left`, `right` and `out` spells the axes of an array, outermost first. written: what
    the sums are rounded to.
    """
    letters = dict(zip("abc", rows, strict=False)) | dict(zip("nop", columns, strict=False))
    letters |= dict(zip("xyz", depth, strict=False)) | dict(zip("st", batch, strict=False))
    order = [*out, *[letter for letter in letters if letter not in out]]
    axes = {letter: range_node(letters[letter], place) for place, letter in enumerate(order)}
    reads = []
    for slot, spelled in ((1, left), (2, right)):
        array = k.param(slot, *[letters[letter] for letter in spelled], dtype=HALF)
        reads.append(cast(k.at(array, *[axes[letter] for letter in spelled]), F32))
    summed = [axis for letter, axis in axes.items() if letter in "xyz"]
    total = k.reduce(Ops.ADD, alu(Ops.MUL, *reads), *summed)
    result = k.param(0, *[letters[letter] for letter in out], dtype=written)
    total = cast(total, written)
    return k.kernel(k.out(result, total, *[axes[letter] for letter in out]), name="contraction")


def convolution(n: int, c: int, side: int, o: int, taps: int, padded: bool) -> Node:
    """A convolution in which the image has a margin, or is guarded around its edges."""
    axes = [range_node(size, place) for place, size in enumerate((n, o, side, side, c, taps, taps))]
    image, filters, row, column, channel, r, q = axes
    y, x = index.add(row, r), index.add(column, q)
    w = k.at(k.param(2, o, c, taps, taps, dtype=HALF), filters, channel, r, q)
    if padded:
        edge = side + taps - 1
        read = k.at(k.param(1, n, c, edge, edge, dtype=HALF), image, channel, y, x)
    else:
        y, x = index.sub(y, 1), index.sub(x, 1)
        read = k.at(k.param(1, n, c, side, side, dtype=HALF), image, channel, y, x)
        read = k.guard(index.both(index.inside(y, side), index.inside(x, side)), read)
    total = k.reduce(Ops.ADD, alu(Ops.MUL, cast(read, F32), cast(w, F32)), channel, r, q)
    result = k.param(0, n, o, side, side)
    return k.kernel(k.out(result, total, image, filters, row, column), name="convolution")


def packed_convolution(n: int, c: int, side: int, o: int, taps: int) -> Node:
    """A convolution whose channels lie innermost, guarded around its image's edges."""
    axes = [range_node(size, place) for place, size in enumerate((n, o, side, side, c, taps, taps))]
    image, filters, row, column, channel, r, q = axes
    w = k.at(k.param(2, o, taps, taps, c, dtype=HALF), filters, r, q, channel)
    y, x = (index.sub(index.add(at, tap), taps // 2) for at, tap in ((row, r), (column, q)))
    read = k.at(k.param(1, n, side, side, c, dtype=HALF), image, y, x, channel)
    read = k.guard(index.both(index.inside(y, side), index.inside(x, side)), read)
    total = k.reduce(Ops.ADD, alu(Ops.MUL, cast(read, F32), cast(w, F32)), channel, r, q)
    result = k.param(0, n, o, side, side)
    return k.kernel(k.out(result, total, image, filters, row, column), name="convolution")
