"""Stores of tiles whose lanes lie far apart in memory and whose unrolled steps are neighbours.

A tile of n steps with L lanes is n vectors. Written as it is, each lane is a store of its own.
Instead the tile is transposed in registers, by halves as Eklundh does (A fast computer method for
matrix transposing, 1972): log2(n) rounds that exchange blocks between pairs of vectors. Each lane
then has its n neighbours side by side, and they are one store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from baregrad.base.bits import is_power_of_two
from baregrad.dtypes import DType
from baregrad.ir.node import Node, const
from baregrad.ir.op import Ops
from baregrad.kernel.linearise_access import Address, lanes_of

if TYPE_CHECKING:
    from baregrad.kernel.linearise_values import Values

# From how many neighbours on one store for them is worth the exchanges.
LEAST_STEPS = 4


def neighbours(address: Address, axes: tuple[Node, ...], lanes: int) -> Node | None:
    """The unrolled axis whose steps are neighbours in memory while the lanes are far; or None."""
    if lanes < LEAST_STEPS or not is_power_of_two(lanes) or not address.is_regular(lanes):
        return None
    if address.points or abs(address.stride) < LEAST_STEPS:
        return None
    for axis, scale in address.unrolled:
        if scale == 1 and axis in axes and LEAST_STEPS <= lanes_of(axis) <= lanes:
            return axis if abs(address.stride) >= lanes_of(axis) else None
    return None


def transposed(values: Values, rows: list[Node], lanes: int, dtype: DType) -> list[Node]:
    """The columns of a tile, each a vector with an element of each row: column i is lane i.

    rows: at most `lanes` vectors (or scalars, for all lanes).
    """
    emit = values.scopes.emit
    size = 1 << (len(rows) - 1).bit_length()
    nothing = values.vector(const(0, dtype), lanes)
    tile = [values.vector(row, lanes) for row in rows] + [nothing] * (size - len(rows))
    step = 1
    while step < size:
        for place in range(size):
            if not place & step:
                pair = (tile[place], tile[place + step])
                tile[place] = emit(Ops.WEAVE, dtype, pair, (step, False))
                tile[place + step] = emit(Ops.WEAVE, dtype, pair, (step, True))
        step *= 2
    count = len(rows)
    if count == lanes:
        return tile
    return [
        emit(Ops.PART, dtype, (tile[lane % size],), (lane // size * size, count))
        for lane in range(lanes)
    ]
