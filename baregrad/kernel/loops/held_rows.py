"""Rows that a GPU's threads hold in registers while several loops of one kernel read them.

A softmax reads its row for the maximum, for the sum and for the results, and takes each exponential
twice. Where loops over a row compute the same value of each of its elements, the value is staged in
registers: each thread keeps the elements that are its own in all of these loops, so that memory is
read once. Which elements those are is a `RowTile`, which the schedule follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.attrs import StageInfo
from baregrad.ir.core.node import Node, extent_of, make_node, range_node, rebuild, scalar
from baregrad.ir.core.op import ELEMENTWISE, Ops
from baregrad.kernel.facts.analysis import Facts, facts_of, in_bounds, is_read, op_flops
from baregrad.kernel.facts.row_tile import RowTile, row_tile
from baregrad.target.gpu import GpuTarget

# Elements that threads hold of all values together, by the warps of the row.
MOST_HELD = 128
MOST_HELD_LONG = 48
# Operations to a value of what is held already, for which it is held as well.
DEAR = 8
MOST_BITS = 32
# The axes of what is held, outermost first: those of a `RowTile`.
STEPS, WARPS, THREADS, LANES = "row_steps", "row_warps", "row_threads", "row_lanes"


_CLOSING = (Ops.OUT, Ops.REDUCE)
# The nodes that a value is, by the axis of the row along which.
Members = dict[Node, Node]


def hold_rows(kernel: Node, target: GpuTarget) -> Node:
    """`kernel` with the values of a row that several of its loops compute staged in registers."""
    if not kernel.has(Ops.REDUCE) or kernel.has(Ops.STAGE) or kernel.has(Ops.SCAN):
        return kernel
    facts = facts_of(kernel)
    row = row_axes(facts)
    if len(row) < 2 or lies_across(facts, frozenset(facts.data) - frozenset(row)):
        return kernel
    place = range_node(extent_of(row[0]), 1 + max(axis.arg.id for axis in facts.axes))
    held = _held_values(facts, row, place)
    if not held:
        return kernel
    tile = common_tile(facts, target)
    if tile is None:
        return kernel
    elements = tile.steps * tile.lanes * sum(each.is_read for each in held)
    if elements > (MOST_HELD if tile.warps == 1 else MOST_HELD_LONG):
        return kernel
    return _staged(kernel, held, row, place, tile)


def row_axes(facts: Facts) -> tuple[Node, ...]:
    """The axes that run along the one row of a kernel: reduced ones and one of the output.

    Empty where reductions are of several lengths, over several axes, or inside each other.
    """
    if facts.ordered or facts.scanned or not facts.reductions:
        return ()
    found: dict[Node, None] = {}
    for reduction in facts.reductions:
        if len(reduction.own) != 1 or not reduction.free.issubset(facts.data):
            return ()
        found[reduction.own[0]] = None
    rows = frozenset(facts.data).intersection(*[each.free for each in facts.reductions])
    if any(each.free != rows for each in facts.reductions):
        return ()
    columns = [axis for axis in facts.data if axis not in rows and extent_of(axis) != 1]
    extents = {extent_of(axis) for axis in (*found, *columns)}
    if len(columns) > 1 or len(extents) > 1:
        return ()
    (extent,) = extents
    return (*found, *columns) if isinstance(extent, int) else ()


def lies_across(facts: Facts, rows: frozenset[Node]) -> bool:
    """Whether most of what sums read lies along their results, the axes `rows`, not along them."""
    own = {axis for each in facts.reductions for axis in each.own if extent_of(axis) != 1}
    across = along = 0
    for access in facts.accesses:
        if not access.write and not access.axes.isdisjoint(own):
            points = facts.points(access.axes)
            across += points * any(access.stride(axis) == 1 for axis in rows)
            along += points * any(access.stride(axis) == 1 for axis in own)
    return across > along


# --- which values ------------------------------------------------------------------------------


class _Held(NamedTuple):
    """A value that is held: over the staged axis, along each axis of the row, and how it is made.

    is_read: whether it reads memory along the row beside what is held already.
    """

    value: Node
    members: Members
    is_read: bool


def _values_of(facts: Facts, row: Sequence[Node], place: Node) -> dict[Node, Node]:
    """What the nodes that run along the row are if that runs along `place`."""
    alike: dict[Node, Node] = dict.fromkeys(row, place)
    axes = frozenset(row)
    for node in facts.order:
        if len(node.ranges & axes) == 1 and node.op not in _CLOSING and node not in alike:
            src = tuple([alike.get(child, child) for child in node.src])
            alike[node] = make_node(node.op, node.dtype, src, node.arg)
    return alike


def _held_values(facts: Facts, row: Sequence[Node], place: Node) -> list[_Held]:
    """What is read along the row by several loops, and what is dear to compute from that."""
    alike = _values_of(facts, row, place)
    axes = frozenset(row)
    members: dict[Node, Members] = {}
    for node, value in alike.items():
        if node.op is not Ops.RANGE and node.dtype is not dtypes.index:
            (axis,) = node.ranges & axes
            members.setdefault(value, {})[axis] = node
    shared = {value for value, found in members.items() if len(found) > 1}
    # Of what all loops compute something else from, that is held instead.
    outermost: set[Node] = set()
    for user in facts.order:
        if alike.get(user) not in shared:
            found = [alike[child] for child in user.src if child in alike]
            outermost.update(shared.intersection(found))
    covered = _covered(facts)
    rows = frozenset(facts.data).intersection(*[each.free for each in facts.reductions])
    held: list[_Held] = []
    chosen: set[Node] = set()
    for value in [value for value in members if value in outermost]:
        value = _of_the_row(value, rows, place)
        if value in chosen or value.dtype.kind == "bool" or value.dtype.bits > MOST_BITS:
            continue
        if rows and rows.isdisjoint(value.ranges):
            continue
        nodes = members[value].values()
        if not covered.isdisjoint(nodes) and not all(map(_stays_inside, nodes)):
            continue
        is_read, work = _made_of(value, place, chosen)
        if is_read or work >= DEAR:
            chosen.add(value)
            held.append(_Held(value, members[value], is_read))
    return held


def _of_the_row(value: Node, rows: frozenset[Node], place: Node) -> Node:
    """A value without the arithmetic that puts in what all rows read alike, as a norm's weights.

    Caches hold that, and what is left may be held for more loops.
    """
    while value.op in ELEMENTWISE and op_flops(value) <= 1:
        own = [child for child in value.src if not rows.isdisjoint(child.ranges)]
        if len(own) != 1 or place not in own[0].ranges or own[0].dtype is not value.dtype:
            break
        if not any(place in child.ranges for child in value.src if child is not own[0]):
            break
        value = own[0]
    return value


def _made_of(value: Node, place: Node, chosen: set[Node]) -> tuple[bool, int]:
    """Whether a value reads along the row beside what is held, and its operations from that on."""
    reads, work = False, 0
    stack, seen = [value], {value}
    while stack:
        node = stack.pop()
        reads |= is_read(node)
        work += op_flops(node)
        for child in node.src:
            if place in child.ranges and child not in seen and child not in chosen:
                seen.add(child)
                stack.append(child)
    return reads, work


def _covered(facts: Facts) -> set[Node]:
    """The nodes of a kernel that are read below guards alone."""
    free = set(facts.outs)
    for node in reversed(facts.order):
        if node in free:
            free.update(node.src[:1] if node.op is Ops.GUARD else node.src)
    return set(facts.order) - free


def _stays_inside(value: Node) -> bool:
    """Whether a value reads inside its arrays even where no guard around it holds."""
    stack, seen = [value], {value}
    while stack:
        node = stack.pop()
        if is_read(node) and not in_bounds(node):
            return False
        new = [child for child in node.src if child not in seen]
        seen.update(new)
        stack.extend(new)
    return True


# --- where its elements lie --------------------------------------------------------------------


def common_tile(facts: Facts, target: GpuTarget) -> RowTile | None:
    """How threads share all sums of a kernel along its row; None where they differ in that."""
    tiles = {row_tile(facts, reduction, target) for reduction in facts.reductions}
    return tiles.pop() if len(tiles) == 1 else None


# --- the kernel that holds them ----------------------------------------------------------------


def _staged(
    kernel: Node, held: list[_Held], row: Sequence[Node], place: Node, tile: RowTile
) -> Node:
    """`kernel` reading what is held from stages."""
    extent = extent_of(row[0])
    names = (STEPS, WARPS, THREADS, LANES)
    first = place.arg.id
    parts = [range_node(size, first + at, names[at]) for at, size in enumerate(tile)]
    whole = index.as_node(index.flatten(tuple(parts), tile))
    axes = tuple([part for part in parts if extent_of(part) != 1])
    # What is held comes before what is computed from it, also by way of sums along the row.
    replaced: dict[Node, Node] = {place: whole}
    for each in held:
        value = rebuild(each.value, index.resimplify, memo=replaced)
        if tile.size != extent:
            value = scalar(Ops.GUARD, value.dtype, (index.less(whole, extent), value))
        stage = make_node(Ops.STAGE, value.dtype, (value, *axes), StageInfo("register"))
        replaced[each.value] = make_node(Ops.INDEX, stage.dtype, (stage, *axes))
        for axis, node in each.members.items():
            digits = [index.as_node(each) for each in index.unflatten(axis, tile)]
            places = [digit for digit, size in zip(digits, tile, strict=True) if size != 1]
            replaced[node] = make_node(Ops.INDEX, stage.dtype, (stage, *places))
    return rebuild(kernel, lambda node: None, memo=replaced)
