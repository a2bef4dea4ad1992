"""The first schedule of a kernel on a GPU: chosen from its facts at once, without measuring.

Axes of the output fall in two. Those that every reduction's result runs along are *rows*: blocks or
warps of their own, which never meet. Along the others, and along reduced axes, the threads of a
block lie, so that one reads what its neighbours in memory read beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from baregrad.ir.core import index
from baregrad.ir.core.node import Node, extent_of
from baregrad.kernel.facts.analysis import ArrayAccess, Facts, Reduction, by_id, iterations
from baregrad.kernel.language.schedule import Schedule
from baregrad.kernel.planning.common.tiling import Reason
from baregrad.kernel.planning.gpu.elementwise import plan_elementwise
from baregrad.kernel.planning.gpu.gemm_factors import gemm_factors
from baregrad.kernel.planning.gpu.gemm_mma import plan_matrix
from baregrad.kernel.planning.gpu.gemm_threads import plan_threads
from baregrad.kernel.planning.gpu.gpu_plan import WARPS, GpuPlan
from baregrad.kernel.planning.gpu.held_rows_plan import plan_held_rows
from baregrad.target.gpu import GpuTarget

# Threads of a block that run in order.
SMALL_BLOCK = 128
# A row of more elements has a block, of fewer a warp; a shorter one still a thread.
BLOCK_ROW = 2048
WARP_ROW = 24


def choose_gpu_schedule(facts: Facts, target: GpuTarget) -> tuple[Schedule, tuple[Reason, ...]]:
    """A good schedule for a kernel with these facts, and why."""
    plan = GpuPlan(facts, target)
    factors = gemm_factors(plan)
    free = [axis for axis in facts.data if not plan.is_serial(axis)]
    if facts.ordered or facts.scanned:
        plan.because("writes keep their order, scans theirs: threads along the other axes")
        plan.spread(free, SMALL_BLOCK)
    elif plan_held_rows(plan):
        pass
    elif not facts.reductions:
        plan_elementwise(plan, free)
    elif factors and (plan_matrix(plan, factors) or plan_threads(plan, factors)):
        plan.because("a contraction: tiles of the output for blocks, panels in shared memory")
    else:
        _reductions(plan)
    return plan.schedule(), tuple(plan.reasons)


# --- reductions ---------------------------------------------------------------------------------


def _reductions(plan: GpuPlan) -> None:
    facts = plan.facts
    data = frozenset(facts.data)
    rows = data.intersection(*[reduction.free for reduction in facts.reductions])
    columns = data - rows
    main = max(facts.reductions, key=lambda r: iterations(r.free.union(r.own)))
    reads = [a for a in facts.accesses if not a.write and not a.axes.isdisjoint(main.own)]
    points = iterations(rows)
    length = max(iterations(reduction.own) for reduction in facts.reductions)
    if not columns and _in_threads(plan, rows, main, reads, points, length):
        plan.because("{} results, sums of {}: neighbours in threads read best", points, length)
        return
    nested = [r for r in facts.reductions if r.free - data]
    if nested:
        plan.because("sums of sums: the inner along the lanes of a warp, the outer along warps")
        _nested(plan, by_id(rows), by_id(columns), nested)
        return
    longest = max(length, iterations(columns))
    busy = points * plan.warp * 4 >= plan.target.busy_threads
    short = longest <= BLOCK_ROW if busy else longest <= 4 * plan.warp
    units = [("thread", plan.warp)] if short else [("thread_y", WARPS), ("thread", plan.warp)]
    who = "a warp" if short else "a block"
    plan.because("{} rows, sums of {}: {} for each row", points, length, who)
    if short and rows:
        plan.spread_rows(by_id(rows))
    else:
        plan.grid(by_id(rows))
    for reduction in facts.reductions:
        _across(plan, reduction, columns, units)
    _columns(plan, by_id(columns), units)


def _in_threads(
    plan: GpuPlan, rows: frozenset[Node], main: Reduction, reads: Sequence[ArrayAccess],
    points: int, length: int,
) -> bool:
    """Give each result a thread of its own, where that keeps the machine busy and reads well."""
    if not rows:
        return False
    inner = plan.by_stride(by_id(rows), plan.write)[-1]
    own = [axis for axis in main.own if extent_of(axis) != 1]
    along = sum(any(read.stride(axis) == 1 for axis in own) for read in reads)
    across = sum(read.stride(inner) == 1 for read in reads)
    if length <= WARP_ROW or (across >= along and points >= plan.target.busy_threads // 8):
        plan.spread(by_id(rows), SMALL_BLOCK)
        return True
    if across > along or (across == along and across and points >= plan.warp):
        return _split_columns(plan, rows, inner, main)
    return False


def _split_columns(plan: GpuPlan, rows: frozenset[Node], inner: Node, main: Reduction) -> bool:
    """Few results with adjacent reads: a warp lies along the results, warps share the reduction."""
    longest = max(main.own, key=lambda axis: index.upper(extent_of(axis)))
    if len(plan.facts.reductions) > 1 or not isinstance(extent_of(inner), int):
        plan.spread(by_id(rows), SMALL_BLOCK)
        return True
    plan.grid([axis for axis in by_id(rows) if axis is not inner])
    plan.parts([inner], [("thread", plan.warp)], "grid")
    plan.parts([longest], [("thread_y", WARPS)])
    return True


def _nested(
    plan: GpuPlan, rows: Sequence[Node], columns: Sequence[Node], nested: Sequence[Reduction]
) -> None:
    """Reductions of reductions: the inner ones along a warp's lanes, the outer ones along warps."""
    plan.grid(rows)
    data = frozenset(plan.facts.data)
    inner = {axis for reduction in nested for axis in reduction.own}
    taken = {axis for reduction in nested for axis in reduction.free - data}
    done: set[Node] = set()
    for reduction in plan.facts.reductions:
        for axes, unit, size in (
            (inner - taken, "thread", plan.warp), (taken - inner, "thread_y", WARPS)
        ):
            mine = [a for a in reduction.own if a in axes and extent_of(a) != 1]
            if not mine or not done.isdisjoint(reduction.own):
                continue
            best = max(mine, key=lambda axis: index.upper(extent_of(axis)))
            done.update(reduction.own)
            plan.parts([best], [(unit, size)])
    if not any(reduction.free & frozenset(columns) for reduction in plan.facts.reductions):
        _columns(plan, columns, [("thread_y", WARPS), ("thread", plan.warp)])


def _across(
    plan: GpuPlan, reduction: Reduction, columns: frozenset[Node], units: list[tuple[str, int]]
) -> None:
    """Threads along a reduction's contiguous axis, if its results do not run along threads."""
    own = [axis for axis in reduction.own if extent_of(axis) != 1]
    if not own or reduction.free & columns or not plan.taken.isdisjoint(own):
        return
    plan.taken.update(own)
    reads = [a for a in plan.facts.accesses if not a.write and not a.axes.isdisjoint(own)]
    ordered = plan.by_stride(own, reads[0]) if reads else own
    best = ordered[-1]
    threads = prod([size for _, size in units])
    size = index.upper(extent_of(best))
    if len(own) > 1 and size < 2 * threads and _together(plan, own):
        plan.parts(ordered, units)
        return
    if len(own) > 1 and size < threads:
        best = max(own, key=lambda axis: index.upper(extent_of(axis)))
    plan.parts([best], plan.along(best, units))


def _together(plan: GpuPlan, own: Sequence[Node]) -> bool:
    """Whether axes can be one: every reduction takes all of them or none, and none is long."""
    if not all(isinstance(extent_of(axis), int) for axis in own):
        return False
    return all(
        len(frozenset(own).intersection(other.own)) in (0, len(own))
        for other in plan.facts.reductions
    )


def _columns(plan: GpuPlan, columns: Sequence[Node], units: list[tuple[str, int]]) -> None:
    """Threads along the axes of the output that no reduction's result runs along."""
    axes = [axis for axis in columns if extent_of(axis) != 1]
    if not axes:
        return
    ordered = plan.by_stride(axes, plan.write)
    best = ordered[-1]
    several = len(ordered) > 1 and all(isinstance(extent_of(axis), int) for axis in ordered)
    if several and len(plan.facts.outs) == 1:
        plan.parts(ordered, units)
        return
    plan.parts([best], plan.along(best, units))
