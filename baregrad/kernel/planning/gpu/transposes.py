"""Inputs that lie across the output on a GPU: tiles of them go through shared memory.

Threads that are neighbours along the output would read elements that are far apart. A block
therefore copies a tile, neighbours along the input, and reads it across from there. Rows of the
tile are one bank apart from each other, so that neither way meets in a bank.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from baregrad.base.bits import next_power_of_two, round_up
from baregrad.ir.core.node import Node, extent_of
from baregrad.kernel.facts.analysis import (
    ArrayAccess,
    collapsible,
    itemsize,
    iterations,
    reads_in,
)
from baregrad.kernel.language.schedule import Bind, Split, StageInput
from baregrad.kernel.planning.common.decisions import powers_from
from baregrad.kernel.planning.gpu.gpu_plan import GpuPlan, Way

# A tile is so many elements of 4 bytes a side; a side that is much shorter is no tile.
SIDE = 32
LEAST_SIDE = 8
BANK = 4
# Of arrays that have many whole tiles of so many elements of 4 bytes a side a thread moves four
# elements at once: an H200 turns 8,192 by 8,192 in 132 us so, by tiles of 32 in 136.
WIDE_SIDE, WIDE_LANES = 64, 4
# Elements of the tile for each thread, at most, and those along one way that a search tries.
MOST_ELEMENTS, MOST_STEPS = 16, 16
# Bytes that memory moves at once, at least, and elements of them that are worth a tile.
SECTOR = 32
LEAST_EACH = 4
BLOCK = 256
# How many times what there is all tiles may be.
FULL = 1.05


def turned_tiles(plan: GpuPlan, axes: Sequence[Node]) -> Way | None:
    """Tiles of inputs that lie across the output in shared memory, if there are any."""
    inner = plan.by_stride(axes, plan.write)[-1]
    others = [axis for axis in axes if axis is not inner]
    crossed = [a for a in reads_in(plan.facts.order) if _across(a, inner, others)]
    along = {next(axis for axis in others if a.stride(axis) == 1) for a in crossed}
    if len(along) != 1 or not plan.uncertain.isdisjoint(axes):
        return None
    down, right = _as_one(plan, along.pop(), axes), _as_one(plan, inner, axes)
    if min(iterations(down), iterations(right)) < LEAST_SIDE:
        return None
    if any(write.stride(inner) != 1 for write in plan.facts.accesses if write.write):
        return None
    if _has_wide_tiles(plan, axes, down, right, len(crossed)):
        tile = TurnedTile(WIDE_SIDE, WIDE_SIDE // WIDE_LANES, WIDE_LANES)
    else:
        lanes = max(BANK // min([itemsize(access.array.dtype) for access in crossed]), 1)
        down = _filled(plan, down, right, SIDE * min(lanes, 2))
        rows = min(SIDE * min(lanes, 2), next_power_of_two(iterations(down)))
        tile = TurnedTile(rows, SIDE, lanes)
    rest = [axis for axis in axes if axis not in down and axis not in right]
    return partial(_lay_tiles, rest=rest, down=down, right=right, tile=tile, crossed=crossed)


class TurnedTile(NamedTuple):
    """Rows of a tile; threads along the output, and elements of each."""

    rows: int
    threads: int
    lanes: int


def _has_wide_tiles(
    plan: GpuPlan, axes: Sequence[Node], down: Sequence[Node], right: Sequence[Node], inputs: int
) -> bool:
    """Whether all elements have 4 bytes, in whole wide tiles, of which there are many.

    Shared memory holds those of all inputs.
    """
    if not all(isinstance(extent_of(axis), int) for axis in (*down, *right)):
        return False
    plain = all(itemsize(access.array.dtype) == BANK for access in plan.facts.accesses)
    whole = iterations(down) % WIDE_SIDE == 0 == iterations(right) % WIDE_SIDE
    threads = iterations(axes) // WIDE_SIDE**2 * BLOCK
    nbytes = inputs * BANK * WIDE_SIDE * (WIDE_SIDE + WIDE_LANES)
    fits = nbytes <= plan.target.shared_bytes_per_block
    many = threads >= MOST_ELEMENTS // WIDE_LANES * plan.target.busy_threads
    return plain and whole and fits and many


def _lay_tiles(
    plan: GpuPlan, rest: Sequence[Node], down: Sequence[Node], right: Sequence[Node],
    tile: TurnedTile, crossed: Sequence[ArrayAccess],
) -> None:
    """A tile for each block: threads and lanes along `right`, threads and steps along `down`."""
    rows, threads, lanes = tile
    plan.because(
        "an input lies across the output: tiles of {} by {} in shared memory", rows, threads * lanes
    )
    plan.grid(rest)
    a, b = plan.joined(down), plan.joined(right)
    least = max(threads * rows // plan.target.threads_per_block, 1)
    first = max(min(threads * rows // BLOCK, MOST_ELEMENTS // lanes), least)
    steps = plan.pick("steps", powers_from(first, least, min(MOST_STEPS, rows)))
    parts_a = ((f"{a}_u", steps), (f"{a}_y", rows // steps))
    parts_b = ((f"{b}_x", threads), *([(f"{b}_v", lanes)] if lanes > 1 else []))
    plan.steps.append(Split(a, ((f"{a}_o", 0), *parts_a), masked=True))
    plan.steps.append(Split(b, ((f"{b}_o", 0), *parts_b), masked=True))
    for name, unit in (
        (f"{a}_o", "grid"), (f"{b}_o", "grid"), (f"{a}_u", "unroll"), (f"{a}_y", "thread_y"),
        (f"{b}_x", "thread"), *([(f"{b}_v", "vector")] if lanes > 1 else []),
    ):
        plan.steps.append(Bind(name, unit))
    names = [name for name, _ in (*parts_b, *parts_a)]
    room = plan.target.shared_bytes_per_block
    for slot in dict.fromkeys(access.array.arg.slot for access in crossed):
        own = [itemsize(access.array.dtype) for access in crossed if access.array.arg.slot == slot]
        room -= sum(own) * threads * lanes * (rows + lanes)
        if room < 0:
            plan.because("shared memory has no room for tiles of all inputs that lie across")
            break
        plan.steps.append(StageInput(slot, tuple(names), pad=lanes))


def _filled(
    plan: GpuPlan, down: list[Node], right: Sequence[Node], rows: int
) -> list[Node]:
    """Axes along an input, with outer ones if few tiles of `rows` are full without these.

    All that is written lies along them as along one: where the input has a gap, as between rows of
    an image that is padded on the way, neighbours in threads are no neighbours now and then.
    """
    is_known = isinstance(extent_of(down[0]), int)
    while is_known and round_up(iterations(down), rows) > iterations(down) * FULL:
        extent = iterations(down[:1])
        outer = [
            axis for axis in plan.facts.data if axis not in down and axis not in right
            and isinstance(extent_of(axis), int) and all(
                write.stride(axis) == (write.stride(down[0]) or 0) * extent
                for write in plan.facts.accesses if write.write
            )
        ]  # fmt: skip
        if not outer:
            break
        down = [outer[0], *down]
    return down


def _as_one(plan: GpuPlan, inner: Node, axes: Sequence[Node]) -> list[Node]:
    """An axis with those outside it that every access sees as one with it, outermost first."""
    row = [inner]
    while isinstance(extent_of(row[0]), int) and (outer := [
        axis for axis in axes if axis not in row and isinstance(extent_of(axis), int)
        and collapsible(plan.facts, axis, row[0])
    ]):  # fmt: skip
        row.insert(0, outer[0])
    return row


def two_ways(plan: GpuPlan, axes: Sequence[Node]) -> Way | None:
    """Threads along one way, with whole sectors of the other way for each, if there are two.

    That serves where inputs cannot be copied, as their condition is another's, or where outputs lie
    both ways. What lies along the threads is moved by all of them for each element of a sector.
    """
    nbytes: dict[Node, int] = {}
    sizes: dict[Node, int] = {}
    for access in plan.facts.accesses:
        near = [axis for axis in axes if access.stride(axis) == 1]
        points = iterations(access.axes)
        if len(near) == 1 and 2 * points >= iterations(axes):
            (axis,) = near
            size = itemsize(access.array.dtype)
            nbytes[axis] = nbytes.get(axis, 0) + size * points
            sizes[axis] = min(sizes.get(axis, size), size)
    if len(nbytes) != 2 or not all(isinstance(extent_of(axis), int) for axis in nbytes):
        return None
    if not plan.uncertain.isdisjoint(axes):
        return None
    most, least = sorted(nbytes, key=lambda axis: (-nbytes[axis], axis.arg.id))
    for along, across in ((most, least), (least, most)):
        each = SECTOR // sizes[across]
        while int(across.src[0].arg) % each:
            each //= 2
        if each >= 2:
            return partial(
                _lay_two_ways, axes=axes, along=along, across=across, each=each,
                size=sizes[across],
            )
    return None


def _lay_two_ways(
    plan: GpuPlan, axes: Sequence[Node], along: Node, across: Node, each: int, size: int
) -> None:
    """Threads along one axis, `each` elements of `size` bytes of another one for each of them."""
    lanes = min(each, plan.target.load_bytes // size)
    plan.because("arrays lie two ways: threads along one, {} elements the other way each", each)
    row = _as_one(plan, along, [axis for axis in axes if axis is not across])
    others = [axis for axis in axes if axis not in row and axis is not across]
    threads = min(BLOCK, next_power_of_two(iterations(row)))
    down: Node | None = None
    pieces = 1
    if 2 * threads <= BLOCK:
        # Threads to spare are along whichever axis they fill; along the other way if that does.
        pieces = _filling(BLOCK // threads, iterations([across]) // each)
        inner = [axis for axis in others if isinstance(extent_of(axis), int)][-1:]
        more = _filling(BLOCK // threads, iterations(inner[:1])) if inner else 1
        if more > pieces:
            pieces, down = more, inner[0]
    plan.grid([axis for axis in others if axis is not down])
    if down is not None:
        plan.parts([down], [("thread_y", pieces)], "grid")
    plan.parts(row, [("thread", threads)], "grid")
    units = [("thread_y", pieces)] if down is None and pieces > 1 else []
    units += [("unroll", each // lanes)] if each > lanes else []
    plan.parts([across], [*units, ("vector", lanes)], "grid")


def _filling(threads: int, points: int) -> int:
    """The most threads, a power of two, of which no more than a quarter has no point."""
    while threads > 1 and -(-points // threads) * threads * 3 > points * 4:
        threads //= 2
    return threads


def _across(access: ArrayAccess, inner: Node, others: Sequence[Node]) -> bool:
    """Whether neighbours along the output are far apart in an input, and others are not."""
    stride = access.stride(inner)
    if not stride or abs(stride) == 1 or not access.copyable or access.offset.rest:
        return False
    return any(access.stride(axis) == 1 for axis in others)
