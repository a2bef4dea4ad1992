"""Sorting by digits on GPUs: a few passes, each of which puts words in the order of one digit.

A pass is stable, so that passes from the lowest digit to the highest sort. Each tile of a row
counts its digits, running sums of these counts say where the words of each digit and tile begin,
and a word goes as far behind as there are words of its digit before it in its tile. These ranks are
running sums as well: a word of 64 bits holds the counts of several digits. Source: Satish, Harris
and Garland, "Designing efficient sorting algorithms for manycore GPUs", IPDPS 2009.
"""

from __future__ import annotations

from math import prod

from baregrad.base.bits import round_up
from baregrad.dtypes import DType, dtypes
from baregrad.graph.views import counting, cut, expand, full, lengthened, reshape, stored
from baregrad.ir.core.attrs import Reduce, Scan, Scatter
from baregrad.ir.core.monoid import primitive
from baregrad.ir.core.node import Node, alu, cast, const
from baregrad.ir.core.op import Op, Ops

# Bits of a digit, and the values that the highest one may have instead of another pass.
BITS = 4
MOST_DIGITS = 20
# Words of a tile: a warp folds their ranks, which fit fields of RANK_BITS.
TILE = 128
RANK_BITS = 7
COUNT_BITS = 8
# Counts that a block folds.
PIECE = 4096
_WORD = dtypes.uint64
# Without a sign there is no need to ask whether a place is before the first.
_PLACE = dtypes.uint32


def digits_of(limit: int) -> list[tuple[int, int]]:
    """(shift, values) of the digits of numbers below `limit`, the lowest first."""
    found = []
    shift = 0
    while (most := (limit - 1) >> shift) + 1 > MOST_DIGITS:
        found.append((shift, 1 << BITS))
        shift += BITS
    return [*found, (shift, most + 1)] if most else found


def steps_of_pass(rows: int, extent: int, launch: int) -> int:
    """What a pass over rows costs, in words that it moves; launch: what a kernel costs."""
    tiles = -(-extent // TILE)
    return (3 if tiles << BITS <= PIECE else 6) * launch + rows * tiles * TILE


def sorted_by_digits(words: Node, low: int, limit: int) -> Node:
    """Words of 64 bits along the last axis, in the order of their bits from `low` on.

    limit: what those bits, as a number, are below of. Equal ones keep their order.
    """
    *front, extent = words.shape
    rows = prod(front)
    total = round_up(extent, TILE)
    # What fills the last tile of a row stays behind all others.
    filled = lengthened(words, len(front), total, const((limit - 1) << low, _WORD))
    flat = reshape(filled, (rows, total))
    for shift, values in digits_of(limit):
        flat = _pass(flat, low + shift, values)
    whole = reshape(flat, (*front, total))
    return cut(whole, len(front), 0, extent)


def _pass(words: Node, shift: int, values: int) -> Node:
    """Words (rows, extent) in the order of one digit of so many values."""
    rows, extent = words.shape
    shape = (rows, extent // TILE, TILE)
    parts = reshape(words, shape)
    digit = alu(Ops.SHR, parts, _number(shift, parts))
    # The highest digit has all bits that are left. That it has two dtypes keeps what each kernel
    # needs of it out of memory.
    mask = (1 << (values - 1).bit_length()) - 1
    counted, ranked = (
        alu(Ops.AND, cast(digit, dtype), full(const(mask, dtype), shape))
        for dtype in (dtypes.uint32, dtypes.int32)
    )
    row, tile = (counting(shape, axis, dtypes.int32) for axis in (0, 1))
    begin = Node(Ops.GATHER, _PLACE, (_begins(counted, values), row, ranked, tile))
    place = alu(Ops.ADD, begin, cast(_ranks(ranked, values), _PLACE))
    base = full(const(0, _WORD), words.shape)
    return Node(Ops.SCATTER, _WORD, (base, parts, row, place), Scatter(None, True, True))


def _begins(digit: Node, values: int) -> Node:
    """Where the words of each digit and tile begin in a row: (rows, values, tiles)."""
    rows, tiles, _ = digit.shape
    # Each digit's tiles, one digit after the other.
    flat = reshape(_counts(digit, values), (rows, values * tiles))
    return reshape(sums_before(flat), (rows, values, tiles))


def sums_before(counts: Node) -> Node:
    """What the integers before each of a row, (rows, length), come to; in memory."""
    rows, length = counts.shape
    # Pieces that a block's threads fold, each from what those before it come to.
    piece = min(length, PIECE)
    count = round_up(length, piece) // piece
    parts = lengthened(counts, 1, count * piece, const(0, counts.dtype))
    parts = reshape(parts, (rows, count, piece))
    begins = alu(Ops.SUB, _folded(Ops.SCAN, parts, 2), parts)
    if count > 1:
        totals = stored(_folded(Ops.REDUCE, parts, 2))
        starts = stored(alu(Ops.SUB, _folded(Ops.SCAN, totals, 1), totals))
        begins = alu(Ops.ADD, expand(reshape(starts, (rows, count, 1)), parts.shape), begins)
    return cut(reshape(stored(begins), (rows, count * piece)), 1, 0, length)


def _counts(digit: Node, values: int) -> Node:
    """How many words of each tile are of each digit, as integers: (rows, values, tiles)."""
    rows, tiles, _ = digit.shape
    shape = (rows, values, tiles)
    fields = 64 // COUNT_BITS
    own = counting(shape, 1, dtypes.uint32)
    packed = [_folded(Ops.REDUCE, ones, 2) for ones in _ones(digit, values, COUNT_BITS)]
    packed = [expand(reshape(stored(one), (rows, 1, tiles)), shape) for one in packed]
    place = alu(Ops.MUL, _field(own, values, fields), _number(COUNT_BITS, own))
    found = alu(Ops.SHR, _chosen(own, packed, fields), cast(place, _WORD))
    return cast(alu(Ops.AND, found, _number((1 << COUNT_BITS) - 1, found)), _PLACE)


def _ranks(digit: Node, values: int) -> Node:
    """How many words of its tile are of its digit and before each."""
    ones = _ones(digit, values, RANK_BITS)
    fields = 64 // RANK_BITS
    running = _chosen(digit, [_folded(Ops.SCAN, one, 2) for one in ones], fields)
    # All words of a tile are one more than a field holds, but one of them is not before itself.
    place = cast(alu(Ops.MUL, _field(digit, values, fields), _number(RANK_BITS, digit)), _WORD)
    before = alu(Ops.SUB, running, alu(Ops.SHL, _number(1, running), place))
    found = alu(Ops.SHR, before, place)
    return alu(Ops.AND, found, _number((1 << RANK_BITS) - 1, found))


def _ones(digit: Node, values: int, bits: int) -> list[Node]:
    """1 in the field of each digit, 0 elsewhere: one for each word that has fields of some."""
    fields = 64 // bits
    place = alu(Ops.MUL, _field(digit, values, fields), _number(bits, digit))
    one = _number(1, digit, _WORD)
    one = alu(Ops.SHL, one, cast(place, _WORD))
    found = []
    for first in range(0, values, fields):
        here = alu(Ops.CMPLT, digit, _number(first + fields, digit))
        here = alu(Ops.WHERE, here, one, _number(0, one))
        if first:
            earlier = alu(Ops.CMPLT, digit, _number(first, digit))
            here = alu(Ops.WHERE, earlier, _number(0, one), here)
        found.append(here)
    return found


def _field(digit: Node, values: int, fields: int) -> Node:
    """Which field of its word a digit has."""
    found = digit
    for first in range(fields, values, fields):
        later = alu(Ops.CMPLE, _number(first, digit), digit)
        found = alu(Ops.WHERE, later, alu(Ops.SUB, digit, _number(first, digit)), found)
    return found


def _chosen(digit: Node, words: list[Node], fields: int) -> Node:
    """The word that has a field for each digit."""
    found = words[0]
    for place, word in enumerate(words[1:], 1):
        later = alu(Ops.CMPLE, _number(place * fields, digit), digit)
        found = alu(Ops.WHERE, later, word, found)
    return found


def _folded(op: Op, value: Node, axis: int) -> Node:
    """Sums or running sums along an axis."""
    monoid = primitive(Ops.ADD, value.dtype)
    how = Reduce(monoid, (axis,)) if op is Ops.REDUCE else Scan(monoid, axis)
    return Node(op, value.dtype, (value,), how)


def _number(value: int, like: Node, dtype: DType | None = None) -> Node:
    return full(const(value, dtype or like.dtype), like.shape)
