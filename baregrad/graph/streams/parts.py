"""Attention of few rows in parts of its keys, which blocks of a GPU share.

One row's keys would be read by one block alone. Each part gives a maximum, a sum of powers and a
sum of those times values, which are stored, and those of all parts are combined in order. How long
a part is depends on the number of keys alone, on its bound where that is symbolic: a row's result
depends neither on what else is computed nor on how many other rows there are. Parts have tiles of
keys in turn, so that the first ones of many keys, where a mask leaves no more, are for many blocks.
"""

from __future__ import annotations

from typing import NamedTuple

from baregrad.dtypes import dtypes
from baregrad.graph.views import cut, expand, full, permute, reshape, stored
from baregrad.ir.analysis.stream import stream
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Reduce
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import Node, alu, const
from baregrad.ir.core.op import Ops

F32 = dtypes.float32
# Rows that one warp takes at once; of more, blocks of rows keep a machine busy.
FEW_ROWS = 16
# A part has a multiple of so many keys: one warp has them, and takes as long as the instructions of
# its tiles, one after the other (512 of 1,024 keys of 128 numbers took 8.9, 7.7 and 6.8 us on an
# H200 by parts of 128, 64 and 32, what puts them together included). Then keys that one block takes
# in about the time of the launches that put parts together, and how many parts there are at most.
TILE, WHOLE, MOST_PARTS = 32, 512, 32
# Of 8-bit floats, of which a multiprocessor holds more tiles, so many warps of a block share a
# part, a tile each, and store one state: on an H200 64 sequences of 8,192 keys for 32 heads of 8
# took 271 us in place of 287, and one took 11.0 in place of 12.2.
WARPS = 2
# What puts the states of parts together.
_TOGETHER = stream(F32, 2, Ops.EXP2_NEAR)


class KeyParts(NamedTuple):
    """So many parts of so many keys each, which some keys, at the end, may be missing of."""

    number: int
    length: int

    @property
    def keys(self) -> int:
        """Keys of all parts, those that are missing included."""
        return self.number * self.length


def parts_of(rows: Dim, keys: Dim, are_bytes: bool = False) -> KeyParts | None:
    """How the keys of some rows are shared out; None where one block takes them all.

    are_bytes: whether keys and values are 8-bit floats.
    """
    most = index.upper(keys)
    if index.upper(rows) > FEW_ROWS or most <= WHOLE:
        return None
    tiles = -(-most // TILE)
    length = -(-tiles // MOST_PARTS) * TILE
    if are_bytes and tiles > MOST_PARTS:
        length *= WARPS
    return KeyParts(-(-most // length), length)


def split(value: Node, parts: KeyParts) -> Node:
    """(..., columns, keys) as (..., parts, columns, keys of a part): a tile of each in turn."""
    *others, columns, _ = value.shape
    # The tiles that a warp takes at once.
    tile = 2 * TILE if parts.length % (2 * TILE) == 0 else TILE
    apart = reshape(value, (*others, columns, parts.length // tile, parts.number, tile))
    last = len(others)
    beside = permute(apart, (*range(last), last + 2, last, last + 1, last + 3))
    return reshape(beside, (*others, parts.number, columns, parts.length))


def combined(values: tuple[Node, ...], arg: Reduce, parts: KeyParts) -> Node:
    """A stream's sum of some values (..., columns, keys) over its sum of powers, in stored parts.

    Each part's maximum, sum of powers and sum of values are of `arg`'s monoid, and so are those of
    all parts, but for powers as near as the machine's instruction has them: one reduction puts them
    together, in one kernel, whose order hangs on how many parts there are.
    """
    pieces = tuple([split(value, parts) for value in values])
    last = len(pieces[0].shape) - 1
    partial = Node(Ops.REDUCE, F32, pieces, Reduce(arg.monoid, (last,)))
    parted = [Node(Ops.PROJ, F32, (partial,), part) for part in range(3)]
    # Columns share the maximum and the sum of powers.
    top, total = (stored(cut(each, last - 1, 0, 1)) for each in parted[:2])
    states = (*[expand(each, parted[2].shape) for each in (top, total)], stored(parted[2]))
    folded = Node(Ops.REDUCE, F32, states, Reduce(_TOGETHER, (last - 2,)))
    every, summed = (Node(Ops.PROJ, F32, (folded,), part) for part in (1, 2))
    none = alu(Ops.CMPEQ, every, full(const(0.0, F32), every.shape))
    divisor = alu(Ops.WHERE, none, full(const(1.0, F32), every.shape), every)
    return alu(Ops.DIV, summed, divisor)
