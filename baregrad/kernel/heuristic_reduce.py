"""Schedules for kernels with reductions: rows, columns, softmax and norms, contractions.

The largest reduction decides. Its lanes lie along an axis of the output if the loads are
contiguous there (no lane ever meets another), else along a reduced axis (lanes are folded at the
end). Axes that some operand does not depend on are spread over registers, so that each load feeds
several products.
"""

from __future__ import annotations

from baregrad.kernel.analysis import Access, Reduction, iterations
from baregrad.kernel.heuristic_blocks import plan_blocks
from baregrad.kernel.heuristic_contract import Machine, plan_contraction
from baregrad.kernel.heuristic_conv import plan_windows, windows_of
from baregrad.kernel.heuristic_elementwise import lanes_of, stream_outputs
from baregrad.kernel.heuristic_lanes import FOLD_OPS, accesses_below, lane_axis
from baregrad.kernel.heuristic_pool import choose_pool
from baregrad.kernel.schedule_value import Schedule
from baregrad.kernel.tiling import Plan, PlannedAxis
from baregrad.target.cpu import CpuTarget

SEVERAL = 4
MOST_ROWS = 8
STREAMED_ROWS = 2


def plan_reductions(plan: Plan, target: CpuTarget) -> Schedule:
    """Plan the largest reduction, then the others, then the outputs."""
    facts = plan.facts
    lanes = lanes_of(plan, target)
    main = max(facts.reductions, key=lambda r: iterations(r.free.union(r.own)))
    reads = accesses_below(main.node)
    windows = windows_of(plan, main, reads)
    if windows is not None:
        found = plan_windows(plan, main, windows, _machine(main, lanes, target), target)
        if found is not None:
            loops, pool = found
            _plan_rest(plan, main, windows.lane, lanes)
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
    _plan_rest(plan, main, lane, lanes)
    # What is left a loop is known only now: the threads may share it.
    order, pool = choose_pool(plan, order, target)
    names = _names(plan, main, order)
    if lane is None or lane.reduced:
        stream_outputs(plan, target)
    return plan.schedule(names, pool)


def _plan_rest(plan: Plan, main: Reduction, lane: PlannedAxis | None, lanes: int) -> None:
    """Plan what is beside the main reduction."""
    taken = lane if lane is not None and not lane.reduced else None
    for reduction in plan.facts.reductions:
        if reduction is not main:
            _plan_other(plan, reduction, taken, lanes)
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
    inner = _tile_inner(plan, main, reads, lane, machine)
    return [axis for axis in plan.axes if not axis.reduced and axis not in inner] + inner


def _machine(main: Reduction, lanes: int, target: CpuTarget) -> Machine:
    budget = target.vector_registers // main.node.arg.monoid.arity
    return Machine(lanes, budget, target.fma_per_cycle, target.fma_latency)


def _tile_inner(
    plan: Plan, main: Reduction, reads: list[Access], lane: PlannedAxis, machine: Machine
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
        count = _accumulators(lane, machine)
        plan.because("{} sums apart: one alone would wait for its last addition", count)
        plan.vectorise(lane, machine.lanes, count)
        return []
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
    count = 1 if products >= 6 else _accumulators(lane, machine, products)
    plan.vectorise(lane, machine.lanes, count)
    for axis, times in zip(reused, best[1:], strict=False):
        plan.because("{} steps of {} in registers: loads are shared", times, axis.name)
        plan.unroll(axis, times)
    return list(reversed(reused))


def _accumulators(lane: PlannedAxis, machine: Machine, others: int = 1) -> int:
    """How many vectors of a reduced axis are summed apart, to hide the latency of one sum."""
    vectors = lane.size // machine.lanes
    most = max(min(SEVERAL * 2 // others, vectors), 1)
    for count in (most, most - 1, most - 2):
        if count >= 3 and vectors % count == 0:
            return count
    return max(min(SEVERAL // others if others > 1 else SEVERAL, vectors), 1)


def _plan_other(
    plan: Plan, reduction: Reduction, taken: PlannedAxis | None, lanes: int
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
            machine = Machine(lanes, 16, 2, 4)
            plan.vectorise(axis, lanes, _accumulators(axis, machine))
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
                plan.vectorise(axis, lanes, 2 if axis.size >= 2 * lanes else 1)


def _plan_stages(plan: Plan, taken: PlannedAxis | None, lanes: int) -> None:
    """Vectorise the copying of staged values along their innermost axis, where lanes divide it."""
    for stage in plan.facts.stages:
        axis = next(axis for axis in plan.axes if axis.nodes[-1] is stage.src[-1])
        if axis.planned or (taken is not None and taken.inside(stage.ranges)):
            continue
        if plan.meets_vector(axis):
            continue
        width = lanes
        while width > 1 and axis.size % width:
            width //= 2
        if width > 1 and isinstance(axis.extent, int):
            # Without a tail: a stage's axis cannot have one.
            count = next(n for n in (SEVERAL, 2, 1) if axis.size % (n * width) == 0)
            plan.vectorise(axis, width, count)


def _reduced_order(plan: Plan, main: Reduction) -> list[str]:
    """Loops of the main reduction, the longest inside; tails follow what they end."""
    own = [axis for axis in plan.axes if axis.inside(main.own) and axis.loops]
    if len(own) < 2 or plan.stages:
        # Copies lie in the order of the axes, as the operands that are not copied mostly do.
        return [name for axis in own for name, _ in axis.loops] if len(own) > 1 else []
    own.sort(key=lambda axis: min(axis.loops[0][1], 16))
    return [name for axis in own for name, _ in axis.loops]
