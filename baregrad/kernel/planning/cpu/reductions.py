"""Schedules for kernels with reductions: rows, columns, softmax and norms, contractions.

The largest reduction decides. Its lanes lie along an axis of the output if the loads are
contiguous there (no lane ever meets another), else along a reduced axis (lanes are folded at the
end). Axes that some operand does not depend on are spread over registers, so that each load feeds
several products.
"""

from __future__ import annotations

from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.kernel.facts.analysis import Access, Reduction, iterations, out_axes
from baregrad.kernel.language.schedule import Schedule
from baregrad.kernel.loops.loop_pieces import scoped_below
from baregrad.kernel.planning.cpu.convolutions import plan_windows, windows_of
from baregrad.kernel.planning.cpu.delays import late_stores, store_late
from baregrad.kernel.planning.cpu.elementwise import is_dear, lanes_of
from baregrad.kernel.planning.cpu.gemm_blocked import plan_blocks
from baregrad.kernel.planning.cpu.gemm_fallback import Machine, plan_contraction
from baregrad.kernel.planning.cpu.lanes import FOLD_OPS, accesses_below, lane_axis
from baregrad.kernel.planning.cpu.streams import nbytes_of, prefetch_arrays, stream_outputs
from baregrad.kernel.planning.pool import choose_pool
from baregrad.kernel.planning.tiling import MOST_TOGETHER, Plan, PlannedAxis
from baregrad.target.cpu import CpuTarget

SEVERAL = 4
MOST_ROWS = 8
STREAMED_ROWS = 2
# Rows that are summed at once where they are short.
ROWS_AT_ONCE = 4
# How many groups of long rows that are summed at once there must be, for threads to share.
LEAST_ROWS = 8
LONG_ROW = 1 << 10
# Bytes of the vectors of sums that may be made wider than a register.
REGISTER_NBYTES = 16
# What a step costs beside the registers of its vector, in one of them, and how much more masked
# ones cost.
STEP_COST = 0.25
MASKED_COST = 1.1


def plan_reductions(plan: Plan, target: CpuTarget) -> Schedule:
    """Plan the largest reduction, then the others, then the outputs."""
    facts = plan.facts
    lanes = lanes_of(plan, target)
    main = max(facts.reductions, key=lambda r: facts.points(r.free.union(r.own)))
    reads = accesses_below(main.node)
    windows = windows_of(plan, main, reads)
    if windows is not None:
        found = plan_windows(plan, main, windows, _machine(main, lanes, target), target)
        if found is not None:
            loops, pool = found
            _plan_rest(plan, main, windows.lane, lanes, target)
            return plan.schedule(_names(plan, main, loops), pool)
    blocked = plan_blocks(plan, main, reads, _machine(main, lanes, target), target)
    if blocked is not None:
        return blocked
    lane = lane_axis(plan, main, reads, lanes)
    order: list[PlannedAxis] = []
    if lane is None:
        plan.because("no vectors: scalars cost the largest reduction no more")
    else:
        kind = "a reduced axis, folded at the end" if lane.reduced else "an axis of the output"
        plan.because("vectors of up to {} along {}, {}: its loads cost least",
                     lanes, lane.name, kind)
        order = _tile(plan, main, reads, lane, lanes, target)
    order = order or [axis for axis in plan.axes if not axis.reduced]
    _plan_rest(plan, main, lane, lanes, target)
    # What is left a loop is known only now: the threads may share it.
    order, pool = choose_pool(plan, order, target)
    names = _names(plan, main, order)
    if lane is None or lane.reduced:
        stream_outputs(plan, target)
        late = late_stores(plan, order, pool)
        prefetch_arrays(plan, target, None if late is None else late.stores)
        if late is not None:
            store_late(plan, late)
    return plan.schedule(names, pool)


def _plan_rest(
    plan: Plan, main: Reduction, lane: PlannedAxis | None, lanes: int, target: CpuTarget
) -> None:
    """Plan what is beside the main reduction."""
    taken = lane if lane is not None and not lane.reduced else None
    for reduction in plan.facts.reductions:
        if reduction is not main:
            _plan_other(plan, reduction, taken, lanes, target)
    _plan_outputs(plan, taken, lanes)
    _plan_stages(plan, taken, lanes)
    for axis in plan.axes:
        plan.keep(axis)


def _names(plan: Plan, main: Reduction, order: list[PlannedAxis]) -> list[str]:
    """The loops from the outermost on."""
    return [name for axis in order for name, _ in axis.loops] + _reduced_order(plan, main)


def _tile(
    plan: Plan,
    main: Reduction,
    reads: list[Access],
    lane: PlannedAxis,
    lanes: int,
    target: CpuTarget,
) -> list[PlannedAxis]:
    """Bind the register tile of the main reduction; the data axes in the order of their loops."""
    machine = _machine(main, lanes, target)
    if not lane.reduced:
        return plan_contraction(plan, main, reads, lane, machine, target)
    inner = _tile_inner(plan, main, reads, lane, machine, target)
    data = [axis for axis in plan.axes if not axis.reduced and axis not in inner]
    # The reduction is done once for all that runs along other axes than its results.
    first = [axis for axis in data if axis.inside(main.free)]
    return first + inner + [axis for axis in data if axis not in first]


def _machine(main: Reduction, lanes: int, target: CpuTarget) -> Machine:
    budget = target.vector_registers // main.node.arg.monoid.arity
    return Machine(lanes, budget, target.fma_per_cycle, target.fma_latency)


def _tile_inner(
    plan: Plan,
    main: Reduction,
    reads: list[Access],
    lane: PlannedAxis,
    machine: Machine,
    target: CpuTarget,
) -> list[PlannedAxis]:
    """Lanes along a reduced axis: several rows times several columns, or several accumulators."""
    reused = [
        axis
        for axis in plan.axes
        if axis is not lane
        and axis.inside(main.free)
        and axis.size > 1
        and any(axis.stride(access) == 0 for access in reads)
    ]
    if not reused:
        return _tile_rows(plan, main, reads, lane, machine, target)
    reused = reused[:2]
    # An operand that is read once streams from memory: neighbours in memory, not in registers.
    streamed = any(all(axis.stride(access) != 0 for axis in reused) for access in reads)
    most = STREAMED_ROWS if streamed else MOST_ROWS
    sizes = [axis.size for axis in reused] + [1] * (2 - len(reused))
    kinds = [tuple(axis.stride(access) != 0 for axis in reused) for access in reads]
    steps = max(lane.size // machine.lanes, 1)
    best = (float("inf"), 1, 1)
    for first in range(min(sizes[0], most), 0, -1):
        for second in range(min(sizes[1], most), 0, -1):
            if first * second >= machine.registers:
                continue
            loads = []
            for kind in kinds:
                count = 1
                for used, times in zip(kind, (first, second), strict=False):
                    count *= times if used else 1
                loads.append(count)
            cycles = machine.cycles(first * second, sum(loads), min(loads))
            cycles = cycles * steps + FOLD_OPS * first * second
            cost = cycles * -(-sizes[0] // first) * -(-sizes[1] // second)
            if cost < best[0] * 0.999:
                best = (cost, first, second)
    products = best[1] * best[2]
    count = 1 if products >= 6 else _accumulators(lane, machine.lanes, products)
    plan.vectorise(lane, machine.lanes, count)
    for axis, times in zip(reused, best[1:], strict=False):
        plan.because("{} steps of {} in registers: loads are shared", times, axis.name)
        plan.unroll(axis, times)
    return list(reversed(reused))


def _tile_rows(
    plan: Plan,
    main: Reduction,
    reads: list[Access],
    lane: PlannedAxis,
    machine: Machine,
    target: CpuTarget,
) -> list[PlannedAxis]:
    """Lanes along a reduced axis of operands that are read once: several sums, or several rows."""
    if _is_from_memory(plan, main, reads, target):
        count = target.rows_from_memory
        rows = _rows_at_once(plan, main, count)
        if rows is not None:
            plan.because("{} rows at once: memory is read in several places", count)
            plan.vectorise(lane, machine.lanes, max(SEVERAL * 2 // count, 1))
            plan.unroll(rows, count)
            return [rows]
        lanes = _lanes_from_memory(main, reads, machine.lanes, target)
        if lanes < machine.lanes:
            plan.because("{} sums apart, of {} lanes: memory is read faster in narrow vectors",
                         SEVERAL * 2, lanes)
            plan.vectorise(lane, lanes, SEVERAL * 2)
            return []
    together = _side_by_side(plan, main)
    count = _vectorise_sums(plan, main, lane, machine.lanes, together, target)
    rows = _short_rows(plan, main, machine.lanes)
    if rows is None:
        if count * together > 1:
            plan.because("{} sums apart: one alone would wait for its last addition",
                         count * together)
        return []
    plan.because("{} short rows at once: one waits for its steps", ROWS_AT_ONCE)
    plan.unroll(rows, ROWS_AT_ONCE)
    return [rows]


def _vectorise_sums(
    plan: Plan,
    reduction: Reduction,
    lane: PlannedAxis,
    lanes: int,
    together: int,
    target: CpuTarget,
) -> int:
    """Lanes along a reduced axis for sums that are read once; how many vectors each sum has.

    They are one wide vector, masked where it does not divide the axis. What is kept along the axis
    as well is dear to compute: its vectors take turns.
    """
    if any(lane.inside(stage.src[1:]) for stage in plan.facts.stages):
        return _vectorise_staged(plan, lane, lanes)
    count = _accumulators(lane, lanes, together)
    bits = lanes * reduction.node.dtype.itemsize
    # What is dear to compute has values of its own in registers.
    node = reduction.node
    if bits >= REGISTER_NBYTES and node.arg.monoid.primitive and not is_dear(node.src):
        most = min(MOST_TOGETHER, max(SEVERAL * 2 // together, 2))
        fits = together * MOST_TOGETHER <= target.vector_registers * 3 // 4
        if fits and lane.size <= MOST_TOGETHER * lanes:
            # One step may be all: then there is no loop, and what masks it is a constant.
            most = MOST_TOGETHER
        width = _wide(lane, lanes, most, target.masks)
        # A lone sum does too little beside a mask, where several vectors leave nothing over.
        if width and (together > 1 or lane.size % width == 0 or lane.size % (lanes * count)):
            plan.vectorise_masked(lane, width)
            return width // lanes
    # Two vectors or fewer are one: nothing is left over.
    plan.vectorise(lane, lanes, max(count, 2) if together == 1 else count)
    return count


def _wide(lane: PlannedAxis, lanes: int, most: int, masks: bool) -> int:
    """The lanes, in one to `most` registers, in which an axis costs least; 0 to split it.

    Powers of two: compilers take others apart. In part of an axis they cost as much as in all.
    """
    size = lane.extent
    if not isinstance(size, int) or size <= lanes:
        return 0
    best, found = 0.0, 0
    registers = 1
    while registers <= most:
        width = registers * lanes
        even = size % width == 0
        cost = -(-size // width) * (registers + STEP_COST) * (1.0 if even else MASKED_COST)
        if (even or masks) and (not found or cost < best):
            best, found = cost, width
        registers *= 2
    return found


def _side_by_side(plan: Plan, main: Reduction) -> int:
    """How many reductions run in the loops of the main one: none of them reads another."""
    if len(plan.facts.reductions) == 1:
        return 1
    depth: dict[Node, int] = {}
    for reduction in plan.facts.reductions:
        node = reduction.node
        below = [depth[other] for other in scoped_below(node.src) if other in depth]
        depth[node] = max(below, default=-1) + 1
    same = [
        each
        for each in plan.facts.reductions
        if each.own == main.own and each.free == main.free
        and depth[each.node] == depth[main.node]
    ]
    return len(same)


def _is_from_memory(
    plan: Plan, main: Reduction, reads: list[Access], target: CpuTarget
) -> bool:
    """Whether it is a lone sum of long rows, each read from memory once."""
    facts = plan.facts
    if len(facts.reductions) > 1 or len(facts.outs) > 1 or iterations(main.own) < LONG_ROW:
        return False
    if out_axes(facts.outs[0]) != main.free:
        return False
    return max(map(nbytes_of, reads), default=0) >= target.l2_bytes


def _rows_at_once(plan: Plan, main: Reduction, count: int) -> PlannedAxis | None:
    """The axis of the results of which `count` are summed at once.

    A core may have more lines under way where it reads several streams: the machine follows each
    of them for a page at a time.
    """
    if count == 1:
        return None
    for axis in plan.axes:
        if axis.inside(main.free) and isinstance(axis.extent, int):
            if axis.extent % count == 0 and axis.extent >= LEAST_ROWS * count:
                return axis
    return None


def _lanes_from_memory(
    main: Reduction, reads: list[Access], lanes: int, target: CpuTarget
) -> int:
    """The lanes of the vectors in which a sum is read, where that is all that takes time.

    That is where no cache holds the array: near ones answer faster than narrow vectors are added.
    """
    monoid = main.node.arg.monoid
    if monoid.primitive is not Ops.ADD or is_dear(main.node.src):
        return lanes
    if max(map(nbytes_of, reads)) < target.l3_bytes:
        return lanes
    narrow = min(target.vector_bytes, target.vector_bytes_from_memory)
    return max(lanes * narrow // target.vector_bytes, min(lanes, 2))


def _short_rows(plan: Plan, main: Reduction, lanes: int) -> PlannedAxis | None:
    """The axis of rows that are folded in one or two vectors, of which several take turns."""
    if iterations(main.own) > 2 * lanes:
        return None
    for axis in reversed(plan.axes):
        # An axis that another reduction folds is planned with that one.
        if axis.reduced or axis.planned or not axis.inside(main.free):
            continue
        if isinstance(axis.extent, int) and axis.extent > ROWS_AT_ONCE:
            if axis.extent % ROWS_AT_ONCE == 0:
                return axis
    return None


def _accumulators(lane: PlannedAxis, lanes: int, others: int = 1) -> int:
    """How many vectors of a reduced axis are summed apart, to hide the latency of one sum."""
    vectors = lane.size // lanes
    most = max(min(SEVERAL * 2 // others, vectors), 1)
    for count in (most, most - 1, most - 2):
        if count >= 3 and vectors % count == 0:
            return count
    return max(min(SEVERAL // others if others > 1 else SEVERAL, vectors), 1)


def _plan_other(
    plan: Plan,
    reduction: Reduction,
    taken: PlannedAxis | None,
    lanes: int,
    target: CpuTarget,
) -> None:
    """Vectorise a further reduction along its own contiguous axis, unless it has lanes already."""
    if taken is not None and taken.inside(reduction.free):
        return
    own = [axis for axis in plan.axes if axis.inside(reduction.own)]
    if any(axis.planned for axis in own):
        return
    reads = accesses_below(reduction.node)
    for axis in own:
        if axis.size < 2 or plan.meets_vector(axis):
            continue
        if any(axis.stride(access) == 1 for access in reads):
            together = _side_by_side(plan, reduction)
            _vectorise_sums(plan, reduction, axis, lanes, together, target)
            return


def _plan_outputs(plan: Plan, taken: PlannedAxis | None, lanes: int) -> None:
    """Vectorise each output along its contiguous axis where no reduction runs along that axis."""
    facts = plan.facts
    if taken is not None:
        return
    for access in facts.accesses:
        if not access.write:
            continue
        for axis in plan.axes:
            if axis.planned or axis.reduced or axis.size < 2 or axis.stride(access) != 1:
                continue
            if any(axis.inside(reduction.free) for reduction in facts.reductions):
                continue
            if not plan.meets_vector(axis):
                plan.vectorise(axis, lanes, 2)


def _plan_stages(plan: Plan, taken: PlannedAxis | None, lanes: int) -> None:
    """Vectorise the copying of staged values along their innermost axis, where lanes divide it."""
    for stage in plan.facts.stages:
        axis = next(axis for axis in plan.axes if axis.nodes[-1] is stage.src[-1])
        if axis.planned or (taken is not None and taken.inside(stage.ranges)):
            continue
        if plan.meets_vector(axis):
            continue
        _vectorise_staged(plan, axis, lanes)


def _vectorise_staged(plan: Plan, axis: PlannedAxis, lanes: int) -> int:
    """Lanes along an axis of a stage, which cannot have a tail; how many vectors take turns."""
    if axis.extent == axis.size < 2 * lanes:
        plan.vectorise(axis, lanes, 2)
        return 1
    width = lanes
    while width > 1 and axis.size % width:
        width //= 2
    if width == 1 or not isinstance(axis.extent, int):
        return 1
    count = next(n for n in (SEVERAL, 2, 1) if axis.size % (n * width) == 0)
    plan.vectorise(axis, width, count)
    return count


def _reduced_order(plan: Plan, main: Reduction) -> list[str]:
    """Loops of the main reduction, the longest inside; tails follow what they end."""
    own = [axis for axis in plan.axes if axis.inside(main.own) and axis.loops]
    if len(own) < 2 or plan.stages:
        # Copies lie in the order of the axes, as the operands that are not copied mostly do.
        return [name for axis in own for name, _ in axis.loops] if len(own) > 1 else []
    own.sort(key=lambda axis: min(axis.loops[0][1], 16))
    return [name for axis in own for name, _ in axis.loops]
