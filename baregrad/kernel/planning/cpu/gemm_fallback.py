"""Schedules for contractions whose lanes lie along an output axis: matmul, convolution, matvec.

The tile is a few vectors of the lane axis times a few steps of a second axis, the one that an
operand with lanes does not depend on. Operands with lanes are copied, a panel at a time, to
scratch memory in the order in which the innermost loop reads them, where a panel is read often
enough; so caches and their associativity see one contiguous stream, whatever strides,
transpositions, windows and guards the operand had.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from baregrad.ir.core.op import Ops
from baregrad.kernel.facts.analysis import Access, Reduction, itemsize, iterations
from baregrad.kernel.language.schedule import Split, StageInput, StageReduce
from baregrad.kernel.planning.cpu.lanes import READS_PER_COPY
from baregrad.kernel.planning.tiling import Plan, PlannedAxis
from baregrad.target.cpu import CpuTarget

LOADS_PER_CYCLE = 2.0
# What a step costs beside its products and loads: the loop, and what does not overlap.
STEP_CYCLES = 0.5
# Strides in bytes between steps from which an operand's lines are used badly.
FAR_NBYTES = 256
LINE_NBYTES = 64
MANY_STEPS = 64
MOST_STEPS = 14
TAIL_PENALTY = 0.02
# For broadcasts under way: with one alone, LLVM spills accumulators.
SPARE_REGISTERS = 2
MOST_PANELS = 16
COLUMN_VECTORS = 4
ROWS_AT_ONCE = 8


@dataclass(eq=False, slots=True)
class Machine:
    """What the choice of a register tile needs to know."""

    lanes: int
    registers: int
    fma_per_cycle: int
    latency: int

    def cycles(self, products: int, loads: int, held: int) -> float:
        """Cycles of one step of a tile; infinite if it does not fit the registers."""
        if products + held + SPARE_REGISTERS > self.registers:
            return float("inf")
        bound = products / self.fma_per_cycle
        from_memory = loads / LOADS_PER_CYCLE
        if from_memory > bound:
            bound = from_memory
        return (bound if bound > self.latency else self.latency) + STEP_CYCLES


def plan_contraction(
    plan: Plan,
    main: Reduction,
    reads: list[Access],
    lane: PlannedAxis,
    machine: Machine,
    target: CpuTarget,
) -> list[PlannedAxis]:
    """Bind the register tile and copies of operands; data axes in the order of their loops."""
    second, vectors, steps = choose_tile(plan, main, reads, lane, machine, target)
    if second is None and plan_columns(plan, main, reads, lane, machine, target):
        plan.because("stretches of rows: accumulators stay in the first cache, rows stream past")
        return [axis for axis in plan.axes if not axis.reduced and axis is not lane] + [lane]
    plan.vectorise(lane, machine.lanes, vectors, carried=True, wide=True)
    if second is not None:
        plan.because(
            "a tile of {} vectors by {} steps of {} in {} registers: the fewest cycles a product",
            vectors, steps, second.name, machine.registers,
        )
        plan.unroll(second, steps)
        # Vectors innermost: a broadcast is used up before the next one is loaded.
        plan.tile_order = [name for axis in (second, lane) for tile in axis.tiles for name in tile]
    others = [
        axis for axis in plan.axes if not axis.reduced and axis is not lane and axis is not second
    ]
    for axis in others:
        plan.keep(axis)
    inner = [] if second is None else [second]
    if second is None:
        return [*others, lane]
    own = [axis for axis in plan.axes if axis.inside(main.own) and axis.size > 1]
    carriers = [access for access in reads if lane.stride(access) != 0]
    wanted = [a for a in carriers if _worth_copy(a, own, others, lane, second, steps)]
    size = max((itemsize(access.array.dtype) for access in wanted), default=4)
    room = target.l2_bytes * 3 // 4 // (min(lane.size, vectors * machine.lanes) * size)
    pieces = rows_that_fit(own, room)
    if not wanted or pieces is None:
        return [*others, lane, *inner]
    # What a panel does not depend on runs inside the loop over panels.
    outside = [axis for axis in others if any(axis.stride(a) != 0 for a in wanted)]
    inside = [axis for axis in others if axis not in outside]
    if pieces.several:
        width = min(lane.size, vectors * machine.lanes)
        if not carry_panels(plan, main, pieces, lane, width, second, inside, target):
            return [*others, lane, *inner]
        plan.because("the sum in several panels: one would not fit the second cache")
        for access in wanted:
            stage_panels(plan, access, pieces.inner, lane, None)
        return [*outside, lane, *inside, second]
    block = _stage_steps(plan, reads, own, lane, second, machine, wanted, target)
    for access in wanted:
        plan.because("array {} is copied in panels: it is read often, and lies far apart",
                     access.array.arg.slot)
        stage_panels(plan, access, own, lane, block)
    if block is None:
        return [*outside, lane, *inside, second]
    return [*outside, lane, *inside, second, block]


@dataclass(frozen=True, slots=True)
class Pieces:
    """Reduced axes in two groups: those whose loops stand outside a panel, and those it spans.

    `factor`: the innermost outer axis is split, this many of its steps staying inside; 1 if not.
    """

    outer: list[PlannedAxis]
    inner: list[PlannedAxis]
    factor: int = 1

    @property
    def several(self) -> bool:
        """Whether a sum is made of several panels."""
        return bool(self.outer)


def rows_that_fit(own: list[PlannedAxis], room: int) -> Pieces | None:
    """As many of the innermost reduced axes as make a panel of at most `room` rows."""
    rows = 1
    for place in range(len(own) - 1, -1, -1):
        axis = own[place]
        if not isinstance(axis.extent, int):
            return None
        if rows * axis.extent <= room:
            rows *= axis.extent
            continue
        if rows >= MANY_STEPS:
            return Pieces(own[: place + 1], own[place + 1 :])
        most = room // rows
        factor = next((f for f in range(most, 1, -1) if axis.extent % f == 0), 0)
        if factor * rows < MANY_STEPS:
            return None
        return Pieces(own[: place + 1], own[place + 1 :], factor)
    return Pieces([], own)


def carry_panels(
    plan: Plan,
    main: Reduction,
    pieces: Pieces,
    lane: PlannedAxis,
    width: int,
    second: PlannedAxis,
    inside: list[PlannedAxis],
    target: CpuTarget,
    third: PlannedAxis | None = None,
) -> bool:
    """Keep sums of several panels in scratch memory; False where they would not fit a cache.

    width: lanes of a tile. third: an axis of which a tile has all.
    """
    elements = second.size * width
    for axis in inside:
        elements *= axis.size
    whole = () if third is None else (third.name,)
    elements *= 1 if third is None else third.size
    static = all(isinstance(axis.extent, int) for axis in (lane, second, *inside))
    if main.node.arg.monoid.primitive is None or not static:
        return False
    if elements * 4 > target.l2_bytes // 2:
        return False
    last = pieces.outer[-1]
    at = last.name
    if pieces.factor > 1:
        at, kept = f"{last.name}o", f"{last.name}i"
        plan.steps.append(Split(last.name, ((at, 0), (kept, pieces.factor))))
        last.planned = True
        last.loops = [(at, last.size // pieces.factor), (kept, pieces.factor)]
        part = PlannedAxis(kept, pieces.factor, last.nodes, True, pieces.factor)
        pieces.inner.insert(0, part)
    names = [name for axis in inside for name, _ in axis.loops]
    loops = [name for name, _ in second.loops]
    for lanes_of_tile in lane.tiles:
        for place, tile in enumerate(second.tiles or [()]):
            places = (*names, *(loops if place == 0 else []), *whole, *tile, *lanes_of_tile)
            plan.stages.append(StageReduce(at, places))
    return True


def _stage_steps(
    plan: Plan,
    reads: list[Access],
    own: list[PlannedAxis],
    lane: PlannedAxis,
    second: PlannedAxis,
    machine: Machine,
    staged: list[Access],
    target: CpuTarget,
) -> PlannedAxis | None:
    """Copy panels of an operand without lanes too, where its steps lie far apart.

    A panel of it is then read by a block of panels of the others, a loop of its own inside.
    """
    if not lane.loops or not second.tiles or not own:
        return None
    long = max(own, key=lambda axis: axis.size)
    far = []
    for access in reads:
        stride = long.stride(access)
        if lane.stride(access) != 0 or second.stride(access) == 0 or stride is None:
            continue
        if not access.copyable:
            continue
        if abs(stride) * itemsize(access.array.dtype) >= LINE_NBYTES and in_constant(access, own):
            far.append(access)
    trips = lane.loops[0][1]
    elements = 1
    for axis in own:
        elements *= axis.size
    panel = elements * machine.lanes * len(lane.tiles[0]) * itemsize(staged[0].array.dtype)
    # The block may come from the third cache: a panel is read once for each of the other's.
    blocks = max(2 * min(target.cores, 4), 2)
    most = min(MOST_PANELS, max(trips // blocks, 8), trips, 2 * target.l2_bytes // panel)
    count = next((c for c in range(most, 1, -1) if trips % c == 0), 0)
    if not far or count < READS_PER_COPY or elements < MANY_STEPS:
        return None
    name = lane.loops[0][0]
    plan.steps.append(Split(name, ((f"{name}p", 0), (f"{name}q", count))))
    lane.loops = [(f"{name}p", trips // count)]
    for access in far:
        reduced = [axis.name for axis in own if axis.stride(access) != 0]
        for tile in second.tiles:
            plan.stages.append(StageInput(access.array.arg.slot, (*reduced, *tile)))
    return PlannedAxis(
        f"{name}q", count, lane.nodes, False, count, [(f"{name}q", count)], planned=True
    )


def in_constant(access: Access, axes: list[PlannedAxis]) -> bool:
    """Whether an access depends on these axes affinely and they have constant extents."""
    return all(
        axis.stride(access) is not None and isinstance(axis.extent, int) for axis in axes
    )


def plan_columns(
    plan: Plan,
    main: Reduction,
    reads: list[Access],
    lane: PlannedAxis,
    machine: Machine,
    target: CpuTarget,
) -> bool:
    """Sum rows of a matrix from memory: whole stretches of rows, accumulators in the first cache.

    Registers would hold a few columns only, and reading a few columns of each row wastes what the
    machine fetches ahead. False where the matrix is small or narrow, and where what is summed waits
    for another reduction, which each stretch would make anew.
    """
    own = [axis for axis in plan.axes if axis.inside(main.own) and axis.size > 1]
    if not own or not isinstance(lane.extent, int) or main.node.arg.monoid.arity > 1:
        return False
    unit = COLUMN_VECTORS * machine.lanes
    rows = own[0]
    beside = [each for each in plan.facts.reductions if rows.inside(each.own)]
    if any(value.mask & Ops.REDUCE.bit for each in beside for value in each.node.src):
        return False
    units = lane.extent // unit
    size = itemsize(reads[0].array.dtype) if reads else 4
    if units < 8 or not isinstance(rows.extent, int) or rows.extent < 2 * ROWS_AT_ONCE:
        return False
    if lane.extent * rows.extent * size <= target.l2_bytes:
        return False
    most = max(target.l1_bytes // 8 // (unit * size), 2)
    wanted = max(min(most, units // (2 * max(target.cores, 2))), 2)
    # As few columns as possible are left over, then as long a stretch as possible.
    count = max(range(wanted // 2 + 1, wanted + 1), key=lambda c: (-(units % c), c))
    names = [f"{lane.name}{part}" for part in "pquv"]
    tail = f"{lane.name}t" if lane.extent % (unit * count) else ""
    parts = tuple(zip(names, (0, count, COLUMN_VECTORS, machine.lanes), strict=True))
    plan.steps.append(Split(lane.name, parts, tail))
    plan.bind(names[2], "unroll")
    plan.bind(names[3], "vector")
    lane.planned = True
    lane.loops = [(names[0], units // count)]
    if tail:
        left = lane.extent % (unit * count)
        rest = PlannedAxis(tail, left, lane.nodes, False, left)
        plan.vectorise(rest, machine.lanes, 1, carried=True)
        lane.loops += rest.loops
    plan.unroll(rows, ROWS_AT_ONCE)
    plan.stages.append(StageReduce(rows.loops[0][0], tuple(names[1:])))
    for tile in rows.tiles[1:]:
        plan.stages.append(StageReduce(tile[0], tuple(names[1:])))
    return True


def choose_tile(
    plan: Plan,
    main: Reduction,
    reads: list[Access],
    lane: PlannedAxis,
    machine: Machine,
    target: CpuTarget,
) -> tuple[PlannedAxis | None, int, int]:
    """The second axis of the register tile, the vectors of the lane axis and the steps of it."""
    reused = [
        axis
        for axis in plan.axes
        if axis is not lane
        and axis.inside(main.free)
        and axis.size > 1
        and any(axis.stride(access) == 0 for access in reads if lane.stride(access) != 0)
    ]
    whole = max(lane.size // machine.lanes, 1)
    size = itemsize(reads[0].array.dtype) if reads else 4
    panel = machine.lanes * max(iterations(main.own), 1) * size
    most = max(min(target.l2_bytes * 3 // 4 // panel, 4), 2)
    best: tuple[float, PlannedAxis | None, int, int] = (float("inf"), None, 1, 1)
    candidates: list[PlannedAxis | None] = [*reused] or [None]
    for axis in candidates:
        loads = _loads(reads, lane, axis)
        size = 1 if axis is None else axis.size
        known: dict[tuple[int, int], float] = {}
        step_parts: dict[int, list[tuple[int, int]]] = {}
        for vectors in range(1, min(whole, 8 if axis is None else most) + 1):
            lane_parts = _parts(whole, vectors)
            for steps in range(min(size, MOST_STEPS, (machine.registers - 1) // vectors), 0, -1):
                parts = step_parts.get(steps)
                if parts is None:
                    parts = step_parts[steps] = _parts(size, steps)
                cost = 0.0
                for v, times in lane_parts:
                    for s, repeats in parts:
                        tile = (v, s)
                        cycles = known.get(tile)
                        if cycles is None:
                            cycles = known[tile] = loads.cycles(v, s, machine)
                        cost += times * repeats * cycles
                # Each tail is more code to compile and to fetch.
                pieces = len(lane_parts) * len(parts)
                cost *= 1.0 + TAIL_PENALTY * (pieces - 1)
                if cost < best[0] * 0.999:
                    best = (cost, axis, vectors, steps)
    return best[1:]


class _Loads(NamedTuple):
    """How many operands a tile loads: by vector and by step, once by vector, once by step, once."""

    each: int
    vectors: int
    steps: int
    once: int

    def cycles(self, vectors: int, steps: int, machine: Machine) -> float:
        """Cycles of one step of a tile of so many vectors and steps."""
        # Vectors that every step reads stay in registers; others only pass through.
        held = self.vectors * vectors
        products = vectors * steps
        loads = self.each * products + held + self.steps * steps + self.once
        return machine.cycles(products, loads, held)


def _loads(reads: list[Access], lane: PlannedAxis, second: PlannedAxis | None) -> _Loads:
    each = vectors = steps = once = 0
    for access in reads:
        stepped = second is not None and second.stride(access) != 0
        if lane.stride(access) != 0:
            if stepped:
                each += 1
            else:
                vectors += 1
        elif stepped:
            steps += 1
        else:
            once += 1
    return _Loads(each, vectors, steps, once)


def _parts(size: int, tile: int) -> list[tuple[int, int]]:
    """(tile, how many) of an axis: whole tiles, and the rest."""
    whole, rest = divmod(size, tile)
    if not rest:
        return [(tile, whole)] if whole else []
    return [(tile, whole), (rest, 1)] if whole else [(rest, 1)]


def _worth_copy(
    access: Access,
    own: list[PlannedAxis],
    others: list[PlannedAxis],
    lane: PlannedAxis,
    second: PlannedAxis,
    steps: int,
) -> bool:
    """Whether an operand's panels are read often and badly laid out."""
    if second.stride(access) != 0 or not access.copyable:
        return False
    reads = -(-second.size // steps)
    for axis in others:
        if axis.stride(access) == 0:
            reads *= axis.size
    if reads < READS_PER_COPY:
        return False
    elements = 1
    far = lane.stride(access) != 1 or access.guarded
    for axis in own:
        stride = axis.stride(access)
        if stride == 0:
            continue
        if not isinstance(axis.extent, int):
            return False
        elements *= axis.size
        far = far or stride is None or abs(stride) * itemsize(access.array.dtype) >= FAR_NBYTES
    return far and isinstance(lane.extent, int) and elements >= 8


def stage_panels(
    plan: Plan,
    access: Access,
    own: list[PlannedAxis],
    lane: PlannedAxis,
    block: PlannedAxis | None,
) -> None:
    """Copy the operand, a tile of the lane axis and all of the reduced axes at a time."""
    reduced = [axis.name for axis in own if axis.stride(access) != 0]
    for position, tile in enumerate(lane.tiles):
        first = [block.name] if block is not None and position == 0 else []
        plan.stages.append(StageInput(access.array.arg.slot, (*first, *reduced, *tile)))
