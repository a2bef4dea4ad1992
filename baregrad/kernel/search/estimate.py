"""How long a scheduled kernel takes on a CPU, roughly: for ranking schedules of one kernel.

Three things are counted for every reduction, copy and output: the cycles of its innermost tile
(products, loads, the latency of sums, what does not fit the registers), the bytes that each level
of the caches has to deliver, and how evenly threads share the work. Absolute figures mean little.

The model of the caches: of the loops around a tile, as many of the inner ones as touch no more
than a cache holds run out of that cache. What they touch comes from the next level once for each
round of the loops outside, save those directly outside along which an array does not move.
"""

from __future__ import annotations

from dataclasses import dataclass

from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel.applying.apply import apply_schedule
from baregrad.kernel.facts.analysis import (
    ArrayAccess,
    by_id,
    itemsize,
    iterations,
    offset_of,
    op_flops,
    out_axes,
    reads_in,
)
from baregrad.kernel.language.schedule import Bind, Schedule
from baregrad.target import CpuTarget

LOOP_CYCLES = 1.0
# Spilling a register is a store and a load.
SPILL_LOADS = 2.0
# One lane of a vector loaded by itself, and a condition on its lanes.
GATHER_LOADS = 1.5
MASK_LOADS = 4.0
# The lesser of computing and moving is mostly hidden behind the greater.
EXPOSED = 0.3
_STOP = Ops.REDUCE.bit | Ops.SCAN.bit | Ops.STAGE.bit


@dataclass(frozen=True, slots=True)
class Nest:
    """Loops around one statement: `axes` outermost first, what it reads and writes, its work.

    sums: whether results of one round are added to in the next. flops: of one element.
    """

    axes: tuple[Node, ...]
    reads: tuple[ArrayAccess, ...]
    writes: tuple[ArrayAccess, ...]
    flops: float
    sums: tuple[Node, ...] = ()


def estimated_ns(kernel: Node, schedule: Schedule, target: CpuTarget) -> float:
    """Nanoseconds of one run of `kernel` under `schedule` on all of the target's cores.

    Raises ScheduleError where the schedule is not legal.
    """
    applied = apply_schedule(kernel, schedule, target)
    nests = nests_of(applied)
    total = sum(nest_cycles(nest, target) for nest in nests) / target.cycles_per_ns
    chunks = chunks_of(applied, schedule)
    sharing = target.chunk_handout_ns * chunks + target.wake_ns if chunks > 1 else 0.0
    return total / speedup(chunks, target) + sharing


def nests_of(applied: Node) -> list[Nest]:
    """The loops of a scheduled kernel: one for each output, reduction and copy."""
    found = []
    order = toposort(*applied.src)
    for out in applied.src:
        write = ArrayAccess(out.src[0], offset_of(out), out_axes(out), True)
        found.append(_nest(by_id(out_axes(out)), tuple(out.src[1:]), (write,)))
    # Sums that are kept in scratch memory: their loops stand outside those of the copy.
    kept = {
        stage.src[0]: frozenset(stage.src[1:])
        for stage in order
        if stage.op is Ops.STAGE and stage.src[0].op is Ops.REDUCE
    }
    for node in order:
        own = tuple(child for child in node.src if child.op is Ops.RANGE)
        values = tuple(child for child in node.src if child.op is not Ops.RANGE)
        if node.op in (Ops.REDUCE, Ops.SCAN):
            inside = kept.get(node, frozenset())
            outside = by_id(node.ranges - inside)
            axes = (*outside, *by_id(frozenset(own)), *by_id(inside & node.ranges))
            found.append(_nest(axes, values, (), own))
        elif node.op is Ops.STAGE and node.src[0] not in kept:
            found.append(_nest((*by_id(node.ranges), *own), values, ()))
    return found


def _nest(
    axes: tuple[Node, ...], values: tuple[Node, ...], writes: tuple[ArrayAccess, ...],
    sums: tuple[Node, ...] = (),
) -> Nest:
    flops = 1.0 if sums else 0.0
    below = toposort(*values, enter=lambda node: not node.op.bit & _STOP)
    points = max(iterations(axes), 1)
    for node in below:
        flops += op_flops(node) * iterations(node.ranges) / points if node.ranges else 0.0
    return Nest(axes, tuple(reads_in(below)), writes, flops, sums)


def nest_cycles(nest: Nest, target: CpuTarget) -> float:
    """Cycles of one core for all rounds of a nest."""
    loops = [axis for axis in nest.axes if not axis.arg.is_tile]
    tile = [axis for axis in nest.axes if axis.arg.is_tile]
    rounds = max(iterations(tuple(loops)), 1)
    computing = rounds * tile_cycles(nest, tile, bool(loops), target)
    moving = moved_cycles(nest, loops, tile, target)
    return max(computing, moving) + EXPOSED * min(computing, moving)


def tile_cycles(nest: Nest, tile: list[Node], looped: bool, target: CpuTarget) -> float:
    """Cycles of one round: all of the tile."""
    widest = max([itemsize(a.array.dtype) for a in (*nest.reads, *nest.writes)], default=4)
    lanes = max(target.lanes(max(widest, 1)), 1)
    along = {axis for axis in tile if axis.arg.bind == "vector"}
    spread = [axis for axis in tile if axis not in along]
    width = iterations(tuple(along)) if along else 1
    vectors = -(-width // lanes)
    copies = iterations(tuple(spread))
    work = nest.flops * copies * vectors / target.fma_per_cycle
    loads, held = 0.0, 0.0
    for access in (*nest.reads, *nest.writes):
        count = float(iterations(tuple([a for a in spread if a in access.axes])))
        moving = along & access.axes
        if not moving:
            each = 1.0
        else:
            strides = [access.stride(axis) for axis in moving]
            each = float(vectors) if strides == [1] else GATHER_LOADS * width
            if access.guarded:
                each += MASK_LOADS * vectors
            held += count * vectors if access.stride(next(iter(moving))) == 1 else 0
        loads += count * each * (2.0 if access.write else 1.0)
    if nest.sums:
        # As many sums are under way as the tile has results and partial results.
        apart = copies * vectors
        work = max(work, float(target.fma_latency)) if apart else work
        spilled = apart + min(held, 4) - target.vector_registers
        loads += SPILL_LOADS * spilled if spilled > 0 else 0.0
        if width > 1 and along.intersection(nest.sums):
            work += 0.1 * apart
    elif copies * vectors > 4 * target.vector_registers:
        loads += copies * vectors
    return max(work, loads / target.loads_per_cycle) + (LOOP_CYCLES if looped else 0.0)


def moved_cycles(nest: Nest, loops: list[Node], tile: list[Node], target: CpuTarget) -> float:
    """Cycles in which the second and third cache and memory deliver what a nest touches."""
    arrays = [a for a in (*nest.reads, *nest.writes) if a.axes]
    sizes = (target.l1_bytes, target.l2_bytes, target.l3_bytes)
    total = 0.0
    for capacity, rate in zip(sizes, target.bytes_per_cycle, strict=True):
        depth = len(loops)
        touched = [footprint(access, tile, target.line_bytes) for access in arrays]
        # The longest stretch of inner loops that this cache holds all of.
        while depth:
            wider = [footprint(a, [*loops[depth - 1 :], *tile], target.line_bytes) for a in arrays]
            if sum(wider) > capacity:
                break
            touched, depth = wider, depth - 1
        if depth == 0 and capacity is not sizes[-1]:
            # All of it fits: it comes in once, as it has to at every level.
            total += sum(touched) / rate
            continue
        for access, nbytes in zip(arrays, touched, strict=True):
            total += nbytes * rounds_outside(access, loops[:depth]) / rate
    return total


def rounds_outside(access: ArrayAccess, outside: list[Node]) -> float:
    """How often what an array's inner loops touch is brought in again."""
    rounds, moved = 1.0, False
    for axis in reversed(outside):
        moved = moved or axis in access.axes
        if moved:
            rounds *= max(iterations((axis,)), 1)
    return rounds


def footprint(access: ArrayAccess, axes: list[Node], line: int) -> float:
    """Bytes of the lines that an array has touched after these loops."""
    size = itemsize(access.array.dtype)
    used = [axis for axis in axes if axis in access.axes]
    count = float(max(iterations(tuple(used)), 1))
    nearest = min([abs(access.stride(axis) or line) for axis in used], default=1)
    apart = min(max(nearest * size, size), line)
    whole = line * -(-count * apart // line) if nearest * size < line else count * line
    limit = access.array.shape[0] if access.array.op is Ops.PARAM else None
    return min(whole, float(limit * size + line)) if isinstance(limit, int) else whole


def speedup(chunks: int, target: CpuTarget) -> float:
    """How many cores some chunks keep busy."""
    cores = max(target.cores, 1)
    return chunks / -(-chunks // cores) if chunks < 16 * cores else float(cores)


def chunks_of(applied: Node, schedule: Schedule) -> int:
    """How many chunks threads share."""
    grain = next((s.grain for s in schedule.steps if isinstance(s, Bind) and s.unit == "pool"), 0)
    for axis in (axis for out in applied.src for axis in out_axes(out)):
        if grain and axis.arg.bind == "pool":
            return -(-iterations((axis,)) // grain)
    return 1
