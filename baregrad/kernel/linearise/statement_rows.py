"""Statements whose unrolled points differ in their places alone: all points at once.

Such points are the rows of a tile, and what is computed for them is one instruction of the shape
(rows, lanes), as what is computed for the lanes of a vector is one. A renderer writes the rows out.
"""

from __future__ import annotations

from math import prod

from baregrad.dtypes import dtypes
from baregrad.ir.core.node import Node, instruction
from baregrad.ir.core.op import ELEMENTWISE, Ops
from baregrad.kernel.linearise.access import Address, MemoryUse, access_of, lanes_of
from baregrad.kernel.linearise.emitter import Layout, StatementTile
from baregrad.kernel.linearise.lazy import is_lazy
from baregrad.kernel.linearise.transposed import copied_transposed, neighbours, turn
from baregrad.kernel.linearise.values import Values
from baregrad.kernel.loops.loop_pieces import nodes_having

_STORES = Ops.STORE.bit


def find_tiles(values: Values, kernel: Node) -> dict[Node, StatementTile]:
    """The STOREs of a CPU's kernel that are done for all points at once.

    A register that one of them writes is a tile: nothing else may write it, nor a part of it.
    `values.layouts` gets the layouts of these registers.
    """
    memory = values.memory
    registers = memory.registers
    found: dict[Node, StatementTile] = {}
    reads: dict[Node, list[Node]] = {}
    refused: set[Node] = set()
    layouts: dict[Node, Layout] = {}
    masked = _masked(kernel) if kernel.mask & Ops.IF.bit else ()
    for store, address in memory.addresses.items():
        if store.op is not Ops.STORE:
            continue
        buffer = store.src[0]
        tile = None
        if address.unrolled and store not in masked:
            reads[store] = []
            tile = _tile_of(values, store, address, reads[store])
        if tile is not None:
            found[store] = tile
            if buffer in registers:
                layout = address.layout(tile.axes)
                if layouts.setdefault(buffer, layout) != layout:
                    refused.add(buffer)
        elif buffer in registers:
            refused.add(buffer)
    mixed = bool(found)
    while mixed:
        # What one statement may not do to a register the others may not, either.
        mixed = False
        for store, tile in tuple(found.items()):
            held = reads[store]
            if store.src[0] in refused or (held and _differs(memory, held, tile, layouts, refused)):
                mixed = True
                del found[store]
                refused.add(store.src[0])
    if found:
        for alloc, layout in layouts.items():
            if alloc not in refused:
                values.layouts[alloc] = layout
    return found


def _masked(kernel: Node) -> set[Node]:
    """The STOREs under conditions on tile ranges."""
    found: set[Node] = set()
    for node in nodes_having(Ops.IF.bit, kernel.src):
        if node.op is Ops.IF and any(axis.arg.is_tile for axis in node.src[0].ranges):
            found.update(nodes_having(_STORES, node.src[1:2]))
    return found


def _tile_of(
    values: Values, store: Node, address: Address, held: list[Node]
) -> StatementTile | None:
    """The points of a STORE that could be done at once; None where it is to be done by points.

    held: gets the LOADs of registers that differ from point to point.
    """
    value = store.src[1]
    ranges = value.ranges
    for place in store.src[2:]:
        if not place.ranges <= ranges:
            ranges = ranges | place.ranges
    axes = values.tiles.axes_of(ranges)
    if store.arg is not None or address.points or address.lanes:
        return None
    lanes = values.tiles.lanes_of(ranges)
    if address.width != lanes or len(address.unrolled) != len(axes):
        return None
    rows = prod([lanes_of(axis) for axis in axes])
    if rows < 2 or _has_lazy(value) or not _is_plain(values.memory, value, axes, held):
        return None
    # A register that is read is a tile of the points that write it.
    memory = values.memory
    if store.src[0] not in memory.registers and memory.reads_elsewhere(store, axes):
        return None
    return StatementTile(axes, rows, lanes)


def _has_lazy(value: Node) -> bool:
    """Whether a part of a value is computed only where it is wanted."""
    if not value.mask & Ops.GUARD.bit:
        return False
    return any(n.op is Ops.GUARD and is_lazy(n) for n in nodes_having(Ops.GUARD.bit, (value,)))


def _is_plain(
    memory: MemoryUse, value: Node, axes: tuple[Node, ...], held: list[Node]
) -> bool:
    """Whether points differ in where they read alone, and all of them in all `axes`."""
    addresses, registers = memory.addresses, memory.registers
    seen: set[Node] = set()
    stack = [value]
    while stack:
        node = stack.pop()
        if node in seen or node.ranges.isdisjoint(axes):
            continue
        seen.add(node)
        op = node.op
        if op is Ops.LOAD:
            address = addresses[node]
            if address.points or len(address.unrolled) != len(axes):
                return False
            unit = node.dtype.bits // node.src[0].dtype.bits
            if address.stride % unit or (address.lanes and not address.order(unit)[1]):
                return False
            if node.src[0] in registers:
                held.append(node)
        elif op is Ops.GUARD:
            cond, inner = node.src
            if is_lazy(node) or not cond.ranges.isdisjoint(axes):
                return False
            address = addresses[inner]
            if address.is_scattered or inner.src[0] in registers:
                return False
            if address.width == 1 and any(axis.arg.bind == "vector" for axis in cond.ranges):
                # One element that some lanes want, and others do not.
                return False
            stack.append(inner)
        elif op in ELEMENTWISE and node.dtype is not dtypes.index:
            stack.extend(node.src)
        else:
            return False
    return True


def _differs(
    memory: MemoryUse,
    held: list[Node],
    tile: StatementTile,
    layouts: dict[Node, Layout],
    refused: set[Node],
) -> bool:
    """Whether a statement reads a register that is no tile of just its points."""
    return any(
        load.src[0] in refused or layouts.get(load.src[0]) != address.layout(tile.axes)
        for load, address in ((load, memory.addresses[load]) for load in held)
    )


# --- instructions --------------------------------------------------------------------------------


def store_rows(values: Values, store: Node, tile: StatementTile) -> None:
    """Do a STORE for all points of its tile."""
    scopes, memory = values.scopes, values.memory
    buffer, value = store.src[:2]
    address = memory.addresses[store]
    values.tile = tile
    if buffer in memory.registers:
        result = _computed(values, value)
        if result.op is not Ops.CONST:
            result = values.as_tile(result, memory.registers[buffer])
        register = values.register_rows(buffer)
        scopes.append(instruction(Ops.SET, dtypes.token, (register, result)))
    else:
        near = neighbours(address, tile.axes, tile.lanes)
        if near and value.op is not Ops.CONST:
            _store_transposed(values, store, tile, near)
        elif not copied_transposed(values, store, tile.axes, tile.lanes):
            _store_plain(values, store, tile)
    values.tile = None
    scopes.end_statement()


def _store_plain(values: Values, store: Node, tile: StatementTile) -> None:
    """A VSTORE of a tile."""
    buffer, value = store.src[:2]
    address = values.memory.addresses[store]
    result = values.vector(_computed(values, value), tile.lanes)
    lanes, stride, at = tile.lanes, address.stride, address.constant
    align = values.alignment(buffer, address, lanes, stride, at)
    ahead, rows = values.memory.ahead.get(store, 0), address.places(tile.axes)
    access = access_of(lanes, stride or 1, at, align, False, ahead, rows)
    src = (buffer, values.base(address), result)
    values.scopes.append(instruction(Ops.VSTORE, dtypes.token, src, access))


def _store_transposed(
    values: Values, store: Node, tile: StatementTile, near: tuple[Node, ...]
) -> None:
    """Write a tile by its columns: for each lane the neighbours along `near` at once."""
    result = values.as_tile(_computed(values, store.src[1]), tile.lanes)
    size = prod([lanes_of(axis) for axis in near])
    if size == tile.rows:
        turn(values, store, near, (result,), 0, near != tile.axes)
        return
    emit = values.scopes.emit
    rows = [
        emit(Ops.ROW, result.dtype, (result,), row, lanes=tile.lanes) for row in range(tile.rows)
    ]
    # The rows by where they go: those that are neighbours together.
    places = values.memory.addresses[store].places(tile.axes)
    order = sorted(range(tile.rows), key=places.__getitem__)
    for first in range(0, tile.rows, size):
        held = order[first : first + size]
        turn(values, store, near, tuple([rows[row] for row in held]), places[held[0]], False)


def _computed(values: Values, value: Node) -> Node:
    """An expression's value for all points: a tile, or what is the same for all of them."""
    ask = values.once if values.tiles.axes_of(value.ranges) else values.value
    found: Node = ask(value)
    return found
