"""Schedules for contractions whose lanes lie along an output axis: matmul, convolution, matvec.

The tile is a few vectors of the lane axis times a few steps of a second axis, the one that an
operand with lanes does not depend on. Operands with lanes are copied, a panel at a time, to
scratch memory in the order in which the innermost loop reads them, where a panel is read often
enough; so caches and their associativity see one contiguous stream, whatever strides,
transpositions, windows and guards the operand had.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from baregrad.ir.core.op import Ops
from baregrad.kernel.facts.analysis import ArrayAccess, itemsize, iterations
from baregrad.kernel.language.schedule import Split, StageInput, StageReduce
from baregrad.kernel.planning.common.tiling import PlannedAxis, loop_names, parts_of, points
from baregrad.kernel.planning.cpu.lanes import READS_PER_COPY
from baregrad.kernel.planning.cpu.sum_plan import SumPlan, cycles_of_tiles

# Strides in bytes between steps from which an operand's lines are used badly.
FAR_NBYTES = 256
MANY_STEPS = 64
MOST_STEPS = 14
TAIL_PENALTY = 0.02
MOST_PANELS = 16
COLUMN_VECTORS = 4
# Vectors of results whose few elements each are all in registers.
STEPS_VECTORS = 4
ROWS_AT_ONCE = 8


def plan_contraction(plan: SumPlan, lane: PlannedAxis) -> list[PlannedAxis]:
    """Bind the register tile and copies of operands; data axes in the order of their loops."""
    second, vectors, steps = choose_tile(plan, lane)
    if second is None and any(axis.planned for axis in plan.own()):
        # All steps of the sum are in registers: more vectors of as many steps do not fit.
        vectors = min(vectors, STEPS_VECTORS)
    if second is None and plan_columns(plan, lane):
        plan.because("stretches of rows: accumulators stay in the first cache, rows stream past")
        return [axis for axis in plan.axes if not axis.reduced and axis is not lane] + [lane]
    plan.vectorise(lane, plan.lanes, vectors, carried=True, wide=True)
    if second is not None:
        plan.because(
            "a tile of {} vectors by {} steps of {} in {} registers: the fewest cycles a product",
            vectors, steps, second.name, plan.registers,
        )
        plan.unroll(second, steps)
        # Vectors innermost: a broadcast is used up before the next one is loaded.
        plan.tile_order = [name for axis in (second, lane) for tile in axis.tiles for name in tile]
    others = [
        axis for axis in plan.axes if not axis.reduced and axis is not lane and axis is not second
    ]
    for axis in others:
        plan.keep(axis)
    if second is None:
        return [*others, lane]
    own = plan.own()
    if any(axis.planned for axis in own):
        # All steps of the sum are in registers: no panel is read by a loop over them.
        return [*others, lane, second]
    carriers = [access for access in plan.reads if lane.stride(access) != 0]
    wanted = [a for a in carriers if _worth_copy(a, own, others, lane, second, steps)]
    # A copy is named by its array: which of several reads of one it serves could not be said.
    arrays = [access.array for access in wanted]
    wanted = [access for access in wanted if arrays.count(access.array) == 1]
    size = max((itemsize(access.array.dtype) for access in wanted), default=4)
    room = plan.target.l2_bytes * 3 // 4 // (min(lane.size, vectors * plan.lanes) * size)
    pieces = rows_that_fit(own, room)
    if not wanted or pieces is None:
        return [*others, lane, second]
    # What a panel does not depend on runs inside the loop over panels.
    outside = [axis for axis in others if any(axis.stride(a) != 0 for a in wanted)]
    inside = [axis for axis in others if axis not in outside]
    if pieces.outer:
        width = min(lane.size, vectors * plan.lanes)
        if not carry_panels(plan, pieces, lane, width, second, inside):
            return [*others, lane, second]
        plan.because("the sum in several panels: one would not fit the second cache")
        for access in wanted:
            stage_panels(plan, access, pieces.inner, lane)
        return [*outside, lane, *inside, second]
    block = _stage_steps(plan, own, lane, second, itemsize(wanted[0].array.dtype))
    for access in wanted:
        plan.because("array {} is copied in panels: it is read often, and lies far apart",
                     access.array.arg.slot)
        stage_panels(plan, access, own, lane, block)
    return [*outside, lane, *inside, second, *([] if block is None else [block])]


@dataclass(frozen=True, slots=True)
class PanelAxes:
    """Reduced axes in two groups: those whose loops stand outside a panel, and those it spans.

    `factor`: the innermost outer axis is split, this many of its steps staying inside; 1 if not.
    """

    outer: list[PlannedAxis]
    inner: list[PlannedAxis]
    factor: int = 1


def rows_that_fit(own: list[PlannedAxis], room: int) -> PanelAxes | None:
    """As many of the innermost reduced axes as make a panel of at most `room` rows."""
    rows = 1
    for place in range(len(own), 0, -1):
        extent = own[place - 1].extent
        if not isinstance(extent, int):
            return None
        if rows * extent <= room:
            rows *= extent
            continue
        factor = 1
        if rows < MANY_STEPS:
            factor = next((f for f in range(room // rows, 1, -1) if extent % f == 0), 0)
        enough = factor * rows >= MANY_STEPS
        return PanelAxes(own[:place], own[place:], factor) if enough else None
    return PanelAxes([], own)


def carry_panels(
    plan: SumPlan, pieces: PanelAxes, lane: PlannedAxis, width: int, second: PlannedAxis,
    inside: list[PlannedAxis], third: PlannedAxis | None = None
) -> bool:
    """Keep sums of several panels in scratch memory; False where they would not fit a cache.

    width: lanes of a tile. third: an axis of which a tile has all.
    """
    elements = second.size * width * points(inside)
    whole = () if third is None else (third.name,)
    elements *= 1 if third is None else third.size
    static = all(isinstance(axis.extent, int) for axis in (lane, second, *inside))
    too_many = elements * 4 > plan.target.l2_bytes // 2
    if plan.main.node.arg.monoid.primitive is None or not static or too_many:
        return False
    last = pieces.outer[-1]
    at = last.name
    if pieces.factor > 1:
        at, kept = f"{last.name}o", f"{last.name}i"
        plan.cut(last, {at: 0, kept: pieces.factor}, {})
        part = PlannedAxis(kept, pieces.factor, last.nodes, True, pieces.factor)
        pieces.inner.insert(0, part)
    for lanes in lane.tiles:
        loops = loop_names([*inside, second])
        for tile in second.tiles or [()]:
            plan.stages.append(StageReduce(at, (*loops, *whole, *tile, *lanes)))
            loops = loop_names(inside)
    return True


def _stage_steps(
    plan: SumPlan, own: list[PlannedAxis], lane: PlannedAxis, second: PlannedAxis, nbytes: int
) -> PlannedAxis | None:
    """Copy panels of an operand without lanes too, where its steps have a large stride.

    A panel of it is then read by a block of panels of the others, a loop of its own inside.
    """
    if not lane.loops or not second.tiles or not own:
        return None
    long = max(own, key=lambda axis: axis.size)
    far = [
        access for access in plan.reads
        if lane.stride(access) == 0 and second.stride(access) != 0 and access.copyable
        and all(isinstance(axis.extent, int) and axis.stride(access) is not None for axis in own)
        and gap_nbytes(access, long) >= plan.target.line_bytes
    ]
    trips = lane.loops[0][1]
    elements = points(own)
    panel = elements * plan.lanes * len(lane.tiles[0]) * nbytes
    # The block may come from the third cache: a panel is read once for each of the other's.
    blocks = max(2 * min(plan.target.cores, 4), 2)
    most = min(MOST_PANELS, max(trips // blocks, 8), trips, 2 * plan.target.l2_bytes // panel)
    count = next((c for c in range(most, 1, -1) if trips % c == 0), 0)
    if not far or count < READS_PER_COPY or elements < MANY_STEPS:
        return None
    name = lane.loops[0][0]
    plan.steps.append(Split(name, ((f"{name}p", 0), (f"{name}q", count))))
    lane.loops = [(f"{name}p", trips // count)]
    for access in far:
        stage_panels(plan, access, own, second)
    return PlannedAxis(
        f"{name}q", count, lane.nodes, False, count, [(f"{name}q", count)], planned=True
    )


def gap_nbytes(access: ArrayAccess, axis: PlannedAxis) -> int:
    """Bytes between neighbours of an access along an axis; 0 where it is not affine."""
    return abs(axis.stride(access) or 0) * itemsize(access.array.dtype)


def plan_columns(plan: SumPlan, lane: PlannedAxis) -> bool:
    """Sum rows of a matrix from memory: whole stretches of rows, accumulators in the first cache.

    Registers would hold a few columns only, and reading a few columns of each row wastes what the
    machine fetches ahead. False where the matrix is small or narrow, and where what is summed waits
    for another reduction, which each stretch would make anew.
    """
    own = plan.own()
    if not own or not isinstance(lane.extent, int) or plan.main.node.arg.monoid.arity > 1:
        return False
    unit = COLUMN_VECTORS * plan.lanes
    rows = own[0]
    beside = [each for each in plan.facts.reductions if rows.inside(each.own)]
    if any(value.mask & Ops.REDUCE.bit for each in beside for value in each.node.src):
        return False
    units = lane.extent // unit
    size = itemsize(plan.reads[0].array.dtype) if plan.reads else 4
    if units < 8 or not isinstance(rows.extent, int) or rows.extent < 2 * ROWS_AT_ONCE:
        return False
    if lane.extent * rows.extent * size <= plan.target.l2_bytes:
        return False
    most = max(plan.target.l1_bytes // 8 // (unit * size), 2)
    wanted = max(min(most, units // (2 * max(plan.target.cores, 2))), 2)
    # As few columns as possible are left over, then as long a stretch as possible.
    count = max(range(wanted // 2 + 1, wanted + 1), key=lambda c: (-(units % c), c))
    names = [f"{lane.name}{part}" for part in "pquv"]
    tail = f"{lane.name}t" if lane.extent % (unit * count) else ""
    parts = dict(zip(names, (0, count, COLUMN_VECTORS, plan.lanes), strict=True))
    plan.cut(lane, parts, {names[2]: "unroll", names[3]: "vector"}, tail)
    del lane.loops[1:]
    if tail:
        left = lane.extent % (unit * count)
        rest = PlannedAxis(tail, left, lane.nodes, False, left)
        plan.vectorise(rest, plan.lanes, 1, carried=True)
        lane.loops += rest.loops
    plan.unroll(rows, ROWS_AT_ONCE)
    for name in (rows.loops[0][0], *[tile[0] for tile in rows.tiles[1:]]):
        plan.stages.append(StageReduce(name, tuple(names[1:])))
    return True


def choose_tile(plan: SumPlan, lane: PlannedAxis) -> tuple[PlannedAxis | None, int, int]:
    """The second axis of the register tile, the vectors of the lane axis and the steps of it."""
    reads = plan.reads
    reused = plan.reused([access for access in reads if lane.stride(access) != 0], lane)
    whole = max(lane.size // plan.lanes, 1)
    size = itemsize(reads[0].array.dtype) if reads else 4
    panel = plan.lanes * max(iterations(plan.main.own), 1) * size
    most = max(min(plan.target.l2_bytes * 3 // 4 // panel, 4), 2)
    best: tuple[float, PlannedAxis | None, int, int] = (float("inf"), None, 1, 1)
    candidates: list[PlannedAxis | None] = [*reused] or [None]
    for axis in candidates:
        cycles = _step_cycles(plan, lane, axis)
        size = 1 if axis is None else axis.size
        for vectors in range(1, min(whole, 8 if axis is None else most) + 1):
            lane_parts = parts_of(whole, vectors)
            for steps in range(min(size, MOST_STEPS, (plan.registers - 1) // vectors), 0, -1):
                parts = parts_of(size, steps)
                cost = cycles_of_tiles(lane_parts, parts, cycles)
                # Each tail is more code to compile and to fetch.
                cost *= 1.0 + TAIL_PENALTY * (len(lane_parts) * len(parts) - 1)
                if cost < best[0] * 0.999:
                    best = (cost, axis, vectors, steps)
    return best[1:]


def _step_cycles(
    plan: SumPlan, lane: PlannedAxis, second: PlannedAxis | None
) -> Callable[[int, int], float]:
    """Cycles of one step of a tile of some vectors of `lane` and some steps of `second`."""
    moves = [
        (lane.stride(access) != 0, second is not None and second.stride(access) != 0)
        for access in plan.reads
    ]
    each, along, across, once = map(
        moves.count, ((True, True), (True, False), (False, True), (False, False))
    )

    @cache
    def cycles(vectors: int, steps: int) -> float:
        # Vectors that every step reads stay in registers; others only pass through.
        held = along * vectors
        products = vectors * steps
        return plan.cycles(products, each * products + held + across * steps + once, held)

    return cycles


def _worth_copy(
    access: ArrayAccess, own: list[PlannedAxis], others: list[PlannedAxis], lane: PlannedAxis,
    second: PlannedAxis, steps: int,
) -> bool:
    """Whether an operand's panels are read often and badly laid out."""
    if second.stride(access) != 0 or not access.copyable:
        return False
    reads = -(-second.size // steps) * points([a for a in others if a.stride(access) == 0])
    if reads < READS_PER_COPY:
        return False
    moving = [axis for axis in own if axis.stride(access) != 0]
    far = lane.stride(access) != 1 or access.guarded or any(
        axis.stride(access) is None or gap_nbytes(access, axis) >= FAR_NBYTES for axis in moving
    )
    static = all(isinstance(axis.extent, int) for axis in (lane, *moving))
    return far and static and points(moving) >= 8


def stage_panels(
    plan: SumPlan, access: ArrayAccess, own: list[PlannedAxis], lane: PlannedAxis,
    block: PlannedAxis | None = None,
) -> None:
    """Copy the operand, a tile of the lane axis and all of the reduced axes at a time."""
    reduced = [axis.name for axis in own if axis.stride(access) != 0]
    for position, tile in enumerate(lane.tiles):
        first = [block.name] if block is not None and position == 0 else []
        plan.stages.append(StageInput(access.array.arg.slot, (*first, *reduced, *tile)))
