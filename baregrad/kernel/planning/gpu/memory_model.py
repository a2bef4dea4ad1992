"""What a kernel that is bound by memory takes under some steps of a schedule, in closed form.

The steps lay every axis out in pieces: on blocks, on threads, in loops, in registers. From those
follow, for each access, how many sectors the lanes of a warp ask for at once, how many a block
asks for in all, and how much each thread has under way. No schedule is applied. The longest of
five times decides: memory, the second cache, the first caches, what is issued, and the waits of the
blocks that a multiprocessor holds at once. Absolute figures mean little.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import gcd, prod
from typing import NamedTuple

from baregrad.ir.core import index
from baregrad.ir.core.axes import THREAD_BINDS
from baregrad.ir.core.node import Node, extent_of, toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel.facts.analysis import ArrayAccess, Facts, Reduction, itemsize, iterations
from baregrad.kernel.facts.axis_table import AxisTable
from baregrad.kernel.language.schedule import Bind, Collapse, Split, StageInput, Step
from baregrad.target.gpu import GpuTarget

SECTOR, LINE = 32, 128
# Elements between neighbours along an axis where nobody knows how many there are.
FAR = 1 << 20
# Instructions that a multiprocessor issues in a cycle, and those of an access.
ISSUED, ACCESS_INSTRUCTIONS = 4, 2.0
# Lines that a first cache looks up in a cycle.
LINES = 2
# Rounds of a loop whose reads an assembler begins together.
AHEAD = 4
# Accesses of a thread for an element of a tile: of the array, into the tile, and out of it.
COPY_REQUESTS = 3
# Words of copies that are under way together.
COPIES_AHEAD = 16
# Bytes of the widest access, and the places of a thread that are looked at one by one.
WIDEST, MOST_PLACES = 16, 512
# Registers of a thread beside what it has under way.
REGISTERS = 32
# Bytes of a first cache that keep a sector until a thread has read all of it.
NEAR_BYTES = 128 << 10
# Nanoseconds until the threads of a sum, or of a tile, have met; and until a block has begun.
MEETING_NS = 60.0
BEGIN_NS = 300.0
# The lesser times are mostly hidden behind the longest.
EXPOSED = 0.1

# What takes time, in words.
PARTS = ("memory", "the second cache", "the first caches", "instructions", "latency")

# Extents and bytes between neighbours.
_Strides = list[tuple[float, int]]


class AxisPart(NamedTuple):
    """A part of some axes, outermost first, that are one: its unit, extent, and elements apart."""

    axes: tuple[Node, ...]
    unit: str
    extent: int
    scale: int


class Estimate(NamedTuple):
    """What a kernel takes: the whole, and what would take so long alone, in nanoseconds."""

    ns: float
    memory: float
    cache: float
    near: float
    issued: float
    waited: float

    @property
    def bound(self) -> str:
        """What it waits for most."""
        return max(zip(self[1:], PARTS, strict=True))[1]


class Prediction(NamedTuple):
    """What a kernel takes under some steps: it is worked out where somebody reads it."""

    facts: Facts
    table: AxisTable
    steps: tuple[Step, ...]
    target: GpuTarget

    def __str__(self) -> str:
        layout = AxisLayout(self.facts, self.table, self.steps)
        whole, *parts = [time / 1e3 for time in estimate(self.facts, layout, self.target)]
        told = ", ".join([f"{name} {time:.1f}" for name, time in zip(PARTS, parts, strict=True)])
        return f"about {whole:.1f} us: {told}"


class AxisLayout:
    """Where the steps of a schedule lay the axes of a kernel.

    pieces: of all axes. tiles: the pieces of arrays that blocks copy, by slot. of_axis: the pieces
    of each axis.
    """

    def __init__(self, facts: Facts, table: AxisTable, steps: Sequence[Step]) -> None:
        known = {
            table.names[axis]: AxisPart((axis,), "loop", index.upper(extent_of(axis)), 1)
            for axis in facts.axes if axis in table.names
        }
        staged: list[StageInput] = []
        for step in steps:
            if isinstance(step, Collapse):
                parts = [known.pop(name) for name in step.axes]
                axes = tuple([axis for part in parts for axis in part.axes])
                known[step.name] = AxisPart(axes, "loop", prod([p.extent for p in parts]), 1)
            elif isinstance(step, Split):
                axes, _, extent, scale = known.pop(step.axis)
                inner = 1
                for name, size in reversed(step.parts):
                    size = size or -(-extent // inner)
                    known[name] = AxisPart(axes, "loop", size, scale * inner)
                    inner *= size
            elif isinstance(step, Bind) and step.axis in known:
                unit = "grid" if step.unit == "cluster" else step.unit
                known[step.axis] = known[step.axis]._replace(unit=unit)
            elif isinstance(step, StageInput):
                staged.append(step)
        self.pieces = [piece for piece in known.values() if piece.extent != 1]
        self.tiles = {
            step.param: [known[name] for name in step.axes if name in known] for step in staged
        }
        self.threads = prod([
            max([p.extent for p in self.pieces if p.unit == unit], default=1)
            for unit in THREAD_BINDS
        ])
        self.blocks = prod([piece.extent for piece in self.pieces if piece.unit == "grid"])

    def along(self, axes: Iterable[Node], units: Sequence[str]) -> int:
        """Points of some axes that lie on some units."""
        wanted = frozenset(axes)
        return prod([
            piece.extent for piece in self.pieces
            if piece.unit in units and not wanted.isdisjoint(piece.axes)
        ])


OWN = ("loop", "unroll", "vector")


def strides_of(piece: AxisPart, access: ArrayAccess, size: int) -> _Strides:
    """How an access moves along a piece, innermost part first."""
    axes, _, extent, scale = piece
    if len(axes) == 1:
        stride = access.stride(axes[0])
        return [(extent, (FAR if stride is None else abs(stride)) * scale * size)]
    found: _Strides = []
    inner, left = 1, float(extent)
    # How far apart neighbours along the next axis are if it goes on where the one within ends.
    on: int | None = None
    for axis in reversed(axes):
        size_here = index.upper(extent_of(axis))
        outer = inner * size_here
        stride = access.stride(axis)
        if scale < outer and left > 1:
            count = min(left, outer / scale)
            if found and stride == on is not None:
                found[-1] = (found[-1][0] * count, found[-1][1])
            else:
                apart = (FAR if stride is None else abs(stride)) * scale // inner * size
                found.append((count, apart))
            left /= count
            scale = outer
        on = None if stride is None else stride * size_here
        inner = outer
    return found


def sectors(strides: Iterable[tuple[float, int]], run: float, unit: int = SECTOR) -> float:
    """Sectors, or lines, of what lies so far apart, in stretches of `run` bytes."""
    count, is_aligned = 1.0, True
    for extent, stride in sorted(strides, key=_by_stride):
        if extent <= 1 or not stride:
            continue
        if stride <= run or stride < unit:
            run = stride * (extent - 1) + max(run, 1)
        else:
            count *= extent
            is_aligned = is_aligned and not stride % unit
    if is_aligned and not run % unit:
        return count * run / unit
    # Where a stretch begins is anybody's guess.
    return count * (run + unit - 1) / unit if count > 1 else max(-(-run // unit), 1.0)


def _by_stride(pair: tuple[float, int]) -> int:
    return pair[1]


class _Traffic(NamedTuple):
    """What all threads ask for by one access: cycles of first caches, and sectors beyond them."""

    requests: float
    lines: float
    sectors: float


def roofline_ns(facts: Facts, target: GpuTarget) -> float:
    """What a kernel takes at least: its arrays through memory once, its operations on all lanes."""
    operations = sum([count * facts.points(axes) for axes, count in facts.work.items()])
    lanes = target.units * ISSUED * target.warp_lanes * target.cycles_per_ns
    return target.launch_ns + max(_memory_ns(facts.accesses, target), operations / lanes)


def _memory_ns(accesses: Iterable[ArrayAccess], target: GpuTarget) -> float:
    """How long memory moves all arrays, each once."""
    found: dict[Node, int] = {}
    for access in accesses:
        array = access.array
        if array.op is Ops.PARAM:
            # Windows overlap: what several of them read is moved once.
            count = min(iterations(access.axes), prod(map(index.upper, array.shape)))
            nbytes = count * itemsize(array.dtype)
            found[array] = max(found.get(array, 0), nbytes)
    return sum(found.values()) / target.memory_bytes_per_ns


def estimate(facts: Facts, layout: AxisLayout, target: GpuTarget) -> Estimate:
    """What a kernel takes where its axes are laid out so."""
    warps = -(-layout.threads // target.warp_lanes)
    groups: dict[object, list[ArrayAccess]] = {}
    for access in facts.accesses:
        if access.array.op is Ops.PARAM:
            key = (access.array, access.write, access.axes, tuple(access.offset.strides.items()))
            groups.setdefault(key, []).append(access)
    held, shared = 0.0, 0.0
    for access, *others in groups.values():
        size = itemsize(access.array.dtype)
        if not access.write:
            tile = _tile_of(layout, access)
            if tile is not None:
                shared += prod([piece.extent for piece in tile]) * size
            else:
                held += (1 + len(others)) * layout.along(access.axes, OWN[1:]) * size / 4
    registers = int(min(REGISTERS + held, target.registers_per_thread))
    resident = max(target.resident_blocks(warps, registers, int(shared)), 1)
    here = min(resident, -(-layout.blocks // target.units))
    near = beyond = requests = 0.0
    for group in groups.values():
        traffic = _traffic(layout, group, here, target.warp_lanes)
        near += traffic.lines
        beyond += traffic.sectors * SECTOR
        requests += traffic.requests
    # The multiprocessor with the most blocks is the last one to end.
    busy = min(layout.blocks, target.units)
    cycles = busy * target.cycles_per_ns
    work = float(sum([ops * layout.along(axes, OWN) for axes, ops in facts.work.items()]))
    work += sum([_folded(each, layout, target.warp_lanes) for each in facts.reductions])
    issued = layout.blocks * warps * (work + ACCESS_INSTRUCTIONS * requests)
    times = (
        _memory_ns(facts.accesses, target),
        layout.blocks * beyond / (cycles * target.cache_bytes_per_cycle),
        layout.blocks * near / (cycles * LINES),
        issued / (cycles * ISSUED),
        max(layout.blocks / (here * target.units), 1.0) * _waits(facts, layout, target),
    )
    return Estimate(target.launch_ns + max(times) + EXPOSED * sum(times), *times)


def _folded(reduction: Reduction, layout: AxisLayout, warp: int) -> float:
    """What each thread does to put together what threads have of a sum, as every one of them does.

    Lanes of a warp do so by halves, then what warps have comes one after the other.
    """
    lanes, others, left = 1, 1, warp
    own = frozenset(reduction.own)
    for unit in THREAD_BINDS:
        size = max([piece.extent for piece in layout.pieces if piece.unit == unit], default=1)
        taken = min(size, left)
        left //= taken
        if any(p.unit == unit and not own.isdisjoint(p.axes) for p in layout.pieces):
            lanes *= taken
            others *= -(-size // taken)
    monoid = reduction.node.arg.monoid
    each = len(toposort(*monoid.combine)) - 2 * monoid.arity + monoid.arity * ACCESS_INSTRUCTIONS
    steps = (lanes - 1).bit_length() + others - 1
    return float(steps * each * layout.along(reduction.free, OWN[1:]))


def _tile_of(layout: AxisLayout, access: ArrayAccess) -> list[AxisPart] | None:
    """The tile through which an access goes, if it goes through one."""
    if access.array.op is not Ops.PARAM or access.write:
        return None
    return layout.tiles.get(access.array.arg.slot)


def _traffic(
    layout: AxisLayout, group: Sequence[ArrayAccess], resident: int, warp: int
) -> _Traffic:
    """What a block asks for by accesses of one array that lie near each other.

    `requests` are of a thread.
    """
    access = group[0]
    size = itemsize(access.array.dtype)
    moving = [piece for piece in layout.pieces if not access.axes.isdisjoint(piece.axes)]
    tile = _tile_of(layout, access)
    spread = {piece: strides_of(piece, access, size) for piece in moving}
    inside = [pair for piece in moving if piece.unit != "grid" for pair in spread[piece]]
    apart = _stretches(group, inside, size)
    whole = apart * sectors(inside, size)
    if tile is not None:
        copies = prod([p.extent for p in moving if p.unit == "loop" and p not in tile])
        elements = prod([piece.extent for piece in tile])
        lines = sectors(inside, size, LINE) + 2 * elements * size / LINE
        asked = COPY_REQUESTS * copies * elements / layout.threads
        return _Traffic(asked, copies * max(lines, elements / warp), whole)
    requests = prod([float(piece.extent) for piece in moving if piece.unit == "loop"])
    mine = [pair for p in moving if p.unit in OWN[1:] for pair in spread[p]]
    others = [pair for p in moving if p.unit not in OWN[1:] for pair in spread[p]]
    # An access begins at a multiple of what it moves.
    widest = gcd(WIDEST, *[stride for _, stride in others if stride > size])
    width, count = _accesses(group, mine, size, widest)
    requests *= count
    rounds = [pair for p in moving if p.unit not in ("grid", "loop") for pair in spread[p]]
    lanes = _lanes(moving, spread, layout, warp)
    warps = -(-layout.threads // warp)
    asked = requests * warps
    lines = asked * max(sectors(lanes, width, LINE), width * min(layout.threads, warp) / LINE / 2)
    each = asked * sectors(lanes, width)
    if access.write:
        return _Traffic(requests, lines, each)
    once = apart * sectors(rounds, size) * SECTOR * resident
    kept = min(1.0, NEAR_BYTES / once)
    return _Traffic(requests, lines, kept * min(whole, each) + (1 - kept) * each)


def _accesses(
    group: Sequence[ArrayAccess], mine: _Strides, size: int, widest: int
) -> tuple[int, int]:
    """Bytes of an access, and how many a thread makes in one round for what accesses read.

    What several of them read is read once, and what lies in a row at once.
    """
    places = {access.offset.constant * size for access in group}
    for extent, stride in mine:
        if len(places) * extent > MOST_PLACES:
            return size, int(len(group) * prod([n for n, _ in mine]))
        if extent > 1 and stride:
            places = {place + step * stride for place in places for step in range(int(extent))}
    if group[0].guarded or len(places) == 1:
        return size, len(places)
    ordered = sorted(places)
    count, longest, begin, last = 0, size, ordered[0], ordered[0]
    for place in (*ordered[1:], ordered[-1] + WIDEST):
        if place != last + size:
            run = last + size - begin
            count += -(-run // widest)
            longest = max(longest, run)
            begin = place
        last = place
    return min(longest, widest), count


def _stretches(group: Sequence[ArrayAccess], inside: _Strides, size: int) -> int:
    """Stretches of an array that accesses read which differ by where they begin.

    Those are one that begin where neighbours along a piece are.
    """
    places = sorted({access.offset.constant * size for access in group})
    found, last = 1, places[0]
    for place in places[1:]:
        gap = place - last
        reached = gap < SECTOR or any(
            stride and gap % stride < SECTOR and gap <= stride * extent
            for extent, stride in inside if stride >= SECTOR
        )
        if not reached:
            found += 1
            last = place
    return found


def _lanes(
    moving: Sequence[AxisPart], spread: dict[AxisPart, _Strides], layout: AxisLayout, warp: int
) -> _Strides:
    """How far apart the lanes of a warp read."""
    found: _Strides = []
    for unit in ("thread", "thread_y", "thread_z"):
        size = max([piece.extent for piece in layout.pieces if piece.unit == unit], default=1)
        for piece in moving:
            if piece.unit == unit:
                left = float(warp)
                for extent, stride in spread[piece]:
                    taken = min(extent, left)
                    found.append((taken, stride))
                    left /= max(taken, 1.0)
        warp //= max(size, 1)
        if warp <= 1:
            break
    return found


def _waits(facts: Facts, layout: AxisLayout, target: GpuTarget) -> float:
    """How long a block waits for what its threads read, and for each other."""
    waits = BEGIN_NS
    for reduction in facts.reductions:
        rounds = layout.along(reduction.free.union(reduction.own), ("loop",))
        waits += max(rounds / AHEAD, 1.0) * target.memory_latency_ns
        if layout.along(reduction.own, THREAD_BINDS) > 1:
            waits += MEETING_NS
    rounds = layout.along(facts.data, ("loop",))
    waits += max(rounds / AHEAD, 1.0) * target.memory_latency_ns
    for tile in layout.tiles.values():
        copies = prod([piece.extent for piece in tile]) / layout.threads
        waits += MEETING_NS + max(copies / COPIES_AHEAD - 1, 0.0) * target.memory_latency_ns
    return waits
