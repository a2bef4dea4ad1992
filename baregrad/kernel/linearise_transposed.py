"""Tiles whose lanes lie far apart in memory and whose unrolled steps are neighbours.

A tile of n steps with L lanes is n vectors. Stored or loaded as it is, each lane is an access of
its own. Instead the tile is transposed in registers, by halves as Eklundh does (A fast computer
method for matrix transposing, 1972): log2(n) rounds that exchange blocks between pairs of vectors.
Each lane then has its n neighbours side by side, and they are one access.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from baregrad.base.bits import is_power_of_two
from baregrad.dtypes import DType, dtypes
from baregrad.ir.node import Node, const, instruction
from baregrad.ir.op import Ops
from baregrad.kernel.linearise_access import (
    Address,
    access_of,
    is_streamed,
    lanes_of,
    streamed_nbytes,
)
from baregrad.kernel.linearise_scopes import MOMENT

if TYPE_CHECKING:
    from baregrad.kernel.linearise_values import Values

# From how many neighbours on one access for them is worth the exchanges.
LEAST_STEPS = 4


def neighbours(address: Address, axes: tuple[Node, ...], lanes: int) -> tuple[Node, ...]:
    """The unrolled axes, outermost first, whose steps are neighbours while lanes are far apart."""
    if lanes < LEAST_STEPS or not is_power_of_two(lanes) or not address.is_regular(lanes):
        return ()
    if address.points or abs(address.stride) < LEAST_STEPS:
        return ()
    found: tuple[Node, ...] = ()
    run = 1
    for axis, scale in sorted(address.unrolled, key=_scale):
        extent = lanes_of(axis)
        if scale != run or axis not in axes or run * extent > lanes:
            break
        run *= extent
        found = (axis, *found)
    return found if LEAST_STEPS <= run <= abs(address.stride) else ()


def _scale(term: tuple[Node, int]) -> int:
    return term[1]


def store_transposed(
    values: Values,
    store: Node,
    axes: tuple[Node, ...],
    near: tuple[Node, ...],
    compute: Callable[[Node], Node],
) -> None:
    """Write a tile over the unrolled `axes`: for each lane the neighbours along `near` at once."""
    buffer, value = store.src[:2]
    address = values.memory.addresses[store]
    lanes, dtype = address.width, buffer.dtype
    others = tuple(axis for axis in axes if axis not in near)
    for point in values.points(others):
        rows = []
        for values.point in _within(point, near):
            rows.append(values.vector(compute(value), lanes))
        mark = values.scopes.mark()
        values.point = _first(point, near)
        offset, at = values.offset(address)
        align = dtype.itemsize
        if is_streamed(buffer) and _in_line(address, near, at, len(rows)):
            align = streamed_nbytes(len(rows), dtype)
        for lane, column in enumerate(_columns(values, rows, lanes, dtype)):
            access = access_of(len(rows), 1, at + lane * address.stride, align)
            made = instruction(Ops.VSTORE, dtypes.token, (buffer, offset, column), access)
            values.scopes.append(made)
        values.scopes.forget_since(mark)
    values.point = {}


def _in_line(address: Address, near: tuple[Node, ...], at: int, count: int) -> bool:
    """Whether every group of `count` neighbours begins at a multiple of it."""
    outer = [scale for axis, scale in (*address.fixed, *address.unrolled) if axis not in near]
    return all(scale % count == 0 for scale in (*outer, at, address.stride))


def copy_transposed(
    values: Values, store: Node, axes: tuple[Node, ...], near: tuple[Node, ...]
) -> None:
    """Copy a tile over the unrolled `axes`: for each lane the neighbours along `near` at once."""
    buffer, load = store.src[:2]
    target, source = values.memory.addresses[store], values.memory.addresses[load]
    lanes, dtype = source.width, load.dtype
    others = tuple(axis for axis in axes if axis not in near)
    for point in values.points(others):
        steps = _within(point, near)
        size = 1 << (len(steps) - 1).bit_length()
        mark = values.scopes.mark()
        values.point = steps[0]
        offset, at = values.offset(source)
        mask = _below(values, len(steps), size)
        for first in range(0, lanes, size):
            rows = [
                _row(values, load, offset, at + lane * source.stride, size, mask)
                for lane in range(first, first + size)
            ]
            columns = _woven(values, rows, dtype)
            for values.point, column in zip(steps, columns, strict=False):
                place, start = values.offset(target)
                access = access_of(size, 1, start + first, dtype.itemsize)
                made = instruction(Ops.VSTORE, dtypes.token, (buffer, place, column), access)
                values.scopes.append(made)
        values.scopes.forget_since(mark)
    values.point = {}


def _row(
    values: Values, load: Node, offset: Node, at: int, size: int, mask: tuple[Node, ...]
) -> Node:
    access = access_of(size, 1, at, load.dtype.itemsize, False)
    src = (load.src[0], offset, *mask)
    return values.scopes.emit(Ops.VLOAD, load.dtype, src, access, MOMENT)


def _below(values: Values, count: int, size: int) -> tuple[Node, ...]:
    """The mask of the first `count` lanes, nothing where that is all of them."""
    if count == size:
        return ()
    lanes = values.scopes.emit(Ops.LANES, dtypes.int32, (), size)
    return (values.apply(Ops.CMPLT, dtypes.bool, lanes, const(count, dtypes.int32)),)


def _within(point: dict[Node, int], near: tuple[Node, ...]) -> list[dict[Node, int]]:
    """The points along `near` from one of the other axes, neighbours one after the other."""
    points = [point]
    for axis in near:
        points = [{**p, axis: step} for p in points for step in range(lanes_of(axis))]
    return points


def _first(point: dict[Node, int], near: tuple[Node, ...]) -> dict[Node, int]:
    return {**point, **dict.fromkeys(near, 0)}


def _woven(values: Values, tile: list[Node], dtype: DType) -> list[Node]:
    """A tile of n vectors, n a power of two, with each block of n by n lanes transposed."""
    emit = values.scopes.emit
    tile = list(tile)
    step = 1
    while step < len(tile):
        for place in range(len(tile)):
            if not place & step:
                pair = (tile[place], tile[place + step])
                tile[place] = emit(Ops.WEAVE, dtype, pair, (step, 0))
                tile[place + step] = emit(Ops.WEAVE, dtype, pair, (step, 1))
        step *= 2
    return tile


def _columns(values: Values, rows: list[Node], lanes: int, dtype: DType) -> list[Node]:
    """The columns of a tile of at most `lanes` vectors: column i has lane i of each."""
    count = len(rows)
    size = 1 << (count - 1).bit_length()
    nothing = values.vector(const(0, dtype), lanes)
    tile = _woven(values, rows + [nothing] * (size - count), dtype)
    if count == lanes:
        return tile
    return [
        values.scopes.emit(
            Ops.PART, dtype, (tile[lane % size],), (lane // size * size, count)
        )
        for lane in range(lanes)
    ]
