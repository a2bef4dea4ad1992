"""How long a scheduled kernel takes on a GPU, roughly: for ranking schedules of one kernel.

Counted are the bytes that memory and the second cache deliver, by the sectors that the lanes of a
warp touch; the instructions that multiprocessors issue; and the waits of a thread for what it reads
one round after the other, with as many threads beside it as a multiprocessor holds. The longest of
them decides. Absolute figures mean little.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from baregrad.base.bits import round_up
from baregrad.ir.core.axes import THREAD_BINDS
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.kernel.applying.apply import apply_schedule
from baregrad.kernel.facts.analysis import ArrayAccess, Facts, itemsize, iterations
from baregrad.kernel.language.schedule import Schedule
from baregrad.kernel.search.estimate import Nest, nests_of
from baregrad.target import GpuTarget

SECTOR = 32
# Instructions that a multiprocessor issues in a cycle, and those of an access and of a loop.
ISSUED = 4
ACCESS_INSTRUCTIONS, LOOP_INSTRUCTIONS = 2.0, 4.0
# Words of copies that are under way together.
COPIES_AHEAD = 16
# Registers of a thread beside what it has under way.
REGISTERS = 32
# Nanoseconds until the threads of a sum have met.
MEETING_NS = 60.0
# The lesser times are mostly hidden behind the longest.
EXPOSED = 0.1


class _Grid(NamedTuple):
    """How a kernel is launched: blocks, threads of each, and turns until all blocks have run."""

    blocks: int
    threads: int
    turns: float


def roofline_ns(facts: Facts, target: GpuTarget) -> float:
    """What a kernel takes at least: its arrays through memory once, its operations on all lanes."""
    operations = sum([count * facts.points(axes) for axes, count in facts.work.items()])
    lanes = target.units * ISSUED * target.warp_lanes * target.cycles_per_ns
    moved = _unique_nbytes(facts.accesses) / target.memory_bytes_per_ns
    return target.launch_ns + max(moved, operations / lanes)


def estimated_gpu_ns(kernel: Node, schedule: Schedule, target: GpuTarget) -> float:
    """Nanoseconds of one run of `kernel` under `schedule`.

    Raises ScheduleError where the schedule is not legal.
    """
    nests = nests_of(apply_schedule(kernel, schedule, target))
    grid = _grid(nests, target)
    arrays = [access for nest in nests for access in (*nest.reads, *nest.writes)]
    moved = _unique_nbytes(arrays) / target.memory_bytes_per_ns
    cached = sum(_cached_nbytes(nest, grid, target.warp_lanes) for nest in nests)
    cached /= target.units * target.cache_bytes_per_cycle * target.cycles_per_ns
    warps = grid.blocks * -(-grid.threads // target.warp_lanes)
    issued = sum(_instructions(nest, grid, target) for nest in nests) * warps
    issued /= target.units * ISSUED * target.cycles_per_ns
    waited = grid.turns * sum(_waits_ns(nest, grid, target) for nest in nests)
    times = (moved, cached, issued, waited)
    return target.launch_ns + max(times) + EXPOSED * sum(times)


def _grid(nests: list[Nest], target: GpuTarget) -> _Grid:
    axes = {axis for nest in nests for axis in nest.axes}
    blocks = iterations([axis for axis in axes if axis.arg.bind == "grid"])
    sizes = {axis.arg.bind: 1 for axis in axes if axis.arg.bind in THREAD_BINDS}
    for axis in axes:
        if axis.arg.bind in sizes:
            sizes[axis.arg.bind] = max(sizes[axis.arg.bind], iterations((axis,)))
    threads = prod(sizes.values())
    held = max([_size(nest, ("unroll", "vector")) for nest in nests], default=1)
    registers = min(REGISTERS + held, target.registers_per_thread)
    warps = -(-threads // target.warp_lanes)
    resident = max(target.resident_blocks(warps, registers, 0), 1)
    room = resident * target.units
    # The last turn is not always a whole one, but no turn takes less than its waits.
    return _Grid(blocks, threads, max(blocks / room, 1.0))


def _size(nest: Nest, units: tuple[str, ...]) -> int:
    return iterations([axis for axis in nest.axes if axis.arg.bind in units])


def _unique_nbytes(accesses: list[ArrayAccess] | tuple[ArrayAccess, ...]) -> float:
    """Bytes of the arrays that are touched, each once."""
    found: dict[Node, int] = {}
    for access in accesses:
        if access.array.op is Ops.PARAM:
            points = iterations(access.axes)
            found[access.array] = max(found.get(access.array, 0), points * _itemsize(access))
    return float(sum(found.values()))


def _itemsize(access: ArrayAccess) -> int:
    return itemsize(access.array.dtype)


def _cached_nbytes(nest: Nest, grid: _Grid, warp: int) -> float:
    """Bytes of the sectors that all threads ask for together."""
    total = 0.0
    own = _size(nest, ("grid",))
    for access in (*nest.reads, *nest.writes):
        if access.array.op is not Ops.PARAM:
            continue
        if _is_shared(nest, grid):
            total += iterations(nest.axes) * _itemsize(access) * (grid.blocks / own)
            continue
        lanes = _lanes(nest, access)
        requests = _requests(nest, access) * _size(nest, ("loop",))
        each = _bytes_of_lane(nest, access, lanes * _itemsize(access), warp)
        total += each * requests * grid.blocks * grid.threads
    return total


def _is_shared(nest: Nest, grid: _Grid) -> bool:
    """Whether all threads of a block share a nest out among them: a copy of words in a row."""
    return grid.threads > 1 and not any(axis.arg.bind in THREAD_BINDS for axis in nest.axes)


def _words(nest: Nest, grid: _Grid, target: GpuTarget) -> float:
    """Words of such a nest that each thread moves."""
    inner = iterations([axis for axis in nest.axes if axis.arg.bind != "grid"])
    widest = max([_itemsize(access) for access in nest.reads], default=1)
    return inner * widest / (grid.threads * target.load_bytes)


def _lanes(nest: Nest, access: ArrayAccess) -> int:
    """Elements of one access of a thread."""
    wide = [axis for axis in nest.axes if axis.arg.bind == "vector" and access.stride(axis) == 1]
    return iterations(wide)


def _requests(nest: Nest, access: ArrayAccess) -> int:
    """Accesses of a thread in one round of its loops."""
    return iterations([
        axis for axis in nest.axes
        if axis in access.axes and (
            axis.arg.bind == "unroll" or (axis.arg.bind == "vector" and access.stride(axis) != 1)
        )
    ])


def _bytes_of_lane(nest: Nest, access: ArrayAccess, nbytes: int, warp: int) -> float:
    """Bytes of sectors for each lane of a warp whose lanes ask for `nbytes` each."""
    along = [axis for axis in nest.axes if axis.arg.bind == "thread"]
    lanes = min(iterations(along), warp)
    moving = [axis for axis in along if axis in access.axes]
    whole = float(round_up(nbytes, SECTOR))
    if not moving:
        return whole / max(lanes, 1)
    stride = access.stride(moving[-1])
    if stride is None:
        return whole
    step = abs(stride) * _itemsize(access)
    if step >= SECTOR + nbytes:
        return whole
    return max(min(float(max(step, nbytes)), whole), SECTOR / lanes)


def _instructions(nest: Nest, grid: _Grid, target: GpuTarget) -> float:
    """What a thread issues for a nest."""
    if _is_shared(nest, grid):
        return (ACCESS_INSTRUCTIONS + LOOP_INSTRUCTIONS) * _words(nest, grid, target)
    rounds = _size(nest, ("loop",))
    inner = _size(nest, ("unroll", "vector"))
    accesses = sum(_requests(nest, access) for access in (*nest.reads, *nest.writes))
    return rounds * (nest.flops * inner + ACCESS_INSTRUCTIONS * accesses + LOOP_INSTRUCTIONS)


def _waits_ns(nest: Nest, grid: _Grid, target: GpuTarget) -> float:
    """How long a thread waits for what a nest reads, and for others where they share a sum."""
    reads = any(access.array.op is Ops.PARAM for access in nest.reads)
    rounds = float(_size(nest, ("loop",)))
    if _is_shared(nest, grid):
        rounds = _words(nest, grid, target) / COPIES_AHEAD
    waits = rounds * target.memory_latency_ns if reads else 0.0
    meets = any(axis.arg.bind in THREAD_BINDS for axis in nest.sums)
    return waits + MEETING_NS * meets
