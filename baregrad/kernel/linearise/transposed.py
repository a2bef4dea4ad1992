"""Tiles whose lanes are distant in memory and whose unrolled steps are neighbours.

A tile of n steps with L lanes is n vectors. Stored or loaded as it is, each lane is an access of
its own. Instead the tile is transposed in registers, by halves as Eklundh does (A fast computer
method for matrix transposing, 1972): log2(n) rounds that exchange blocks between pairs of vectors.
Each lane then has its n neighbours side by side, and they are one access.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from math import prod
from operator import itemgetter

from baregrad.base.bits import is_power_of_two
from baregrad.dtypes import dtypes
from baregrad.ir.analysis.rows import LEAST_NEIGHBOURS
from baregrad.ir.core.attrs import Turned
from baregrad.ir.core.node import Node, instruction
from baregrad.ir.core.op import Ops
from baregrad.kernel.linearise.access import (
    Address,
    access_of,
    is_streamed,
    lanes_of,
    vector_nbytes,
)
from baregrad.kernel.linearise.values import Values


def neighbours(address: Address, axes: tuple[Node, ...], lanes: int) -> tuple[Node, ...]:
    """The unrolled axes, outermost first, whose steps are neighbours while lanes are distant."""
    if lanes < LEAST_NEIGHBOURS or not is_power_of_two(lanes) or not address.is_regular(lanes):
        return ()
    if address.points or abs(address.stride) < LEAST_NEIGHBOURS:
        return ()
    found: tuple[Node, ...] = ()
    run = 1
    for axis, scale in sorted(address.unrolled, key=itemgetter(1)):
        extent = lanes_of(axis)
        if scale != run or axis not in axes or run * extent > lanes:
            break
        run *= extent
        found = (axis, *found)
    return found if LEAST_NEIGHBOURS <= run <= abs(address.stride) else ()


def store_transposed(
    values: Values,
    store: Node,
    axes: tuple[Node, ...],
    near: tuple[Node, ...],
    compute: Callable[[Node], Node],
) -> None:
    """Write a tile over the unrolled `axes`: for each lane the neighbours along `near` at once."""
    value = store.src[1]
    address = values.memory.addresses[store]
    others = tuple(axis for axis in axes if axis not in near)
    for point in values.tiles.points(others, values.point):
        points = values.tiles.points(near, point)
        rows = []
        for values.point in points:
            rows.append(values.vector(compute(value), address.width))
        values.point = points[0]
        _turn(values, store, near, rows, *values.offset(address))
    values.point = {}


def turn(
    values: Values,
    store: Node,
    near: tuple[Node, ...],
    rows: tuple[Node, ...],
    place: int,
    mixed: bool,
) -> None:
    """Write rows, neighbours along `near`, by their columns: from `place` on.

    mixed: the rows of a tile are not in the order of their places.
    """
    address = values.memory.addresses[store]
    places = address.places(values.tile.axes) if mixed and values.tile is not None else ()
    _turn(values, store, near, rows, values.base(address), address.constant + place, places)


def _turn(
    values: Values,
    store: Node,
    near: tuple[Node, ...],
    rows: Sequence[Node],
    offset: Node,
    at: int,
    places: tuple[int, ...] = (),
) -> None:
    """Write rows by their columns. Only non-temporal stores have to be aligned to more than one."""
    address, buffer = values.memory.addresses[store], store.src[0]
    count, align = prod(map(lanes_of, near)), buffer.dtype.itemsize
    outer = [scale for axis, scale in (*address.fixed, *address.unrolled) if axis not in near]
    if is_streamed(buffer) and all(s % count == 0 for s in (*outer, at, address.stride)):
        align = vector_nbytes(count, buffer.dtype)
    access = access_of(address.width, address.stride, at, align, rows=places)
    values.scopes.append(instruction(Ops.TURN, dtypes.token, (buffer, offset, *rows), access))


def copied_transposed(
    values: Values, store: Node, axes: tuple[Node, ...], lanes: int
) -> bool:
    """Copy a tile whose lanes are distant where it is read, if its steps are neighbours there."""
    buffer, value = store.src[:2]
    address = values.memory.addresses[store]
    source = values.memory.addresses.get(value) if value.op is Ops.LOAD else None
    if source is None or address.stride != 1 or address.points or not address.is_regular(lanes):
        return False
    if value.src[0] in values.memory.registers or value.dtype is not buffer.dtype:
        return False
    # For each lane the neighbours along `near` at once.
    near = neighbours(source, axes, lanes)
    if not near:
        return False
    distances = {after - before for before, after in itertools.pairwise(address.places(near))}
    if len(distances) > 1:
        near = near[-1:]
        distances = {dict(address.unrolled).get(near[0], 0)}
    (distance,) = distances
    others = tuple(axis for axis in axes if axis not in near)
    count = prod([lanes_of(axis) for axis in near])
    first = dict.fromkeys(near, 0)
    for point in values.tiles.points(others, values.point):
        mark = values.scopes.mark()
        values.point = {**point, **first}
        offset, at = values.offset(source)
        place, start = values.offset(address)
        form = Turned(source.width, count, source.stride, at, distance, start)
        src = (buffer, place, value.src[0], offset)
        values.scopes.append(instruction(Ops.TURNED, dtypes.token, src, form))
        values.scopes.forget_since(mark)
    values.point = {}
    return True
