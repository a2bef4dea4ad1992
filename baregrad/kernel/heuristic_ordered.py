"""Schedules for kernels with an order: scatters, scans, values kept in scratch memory."""

from __future__ import annotations

from baregrad.kernel.heuristic_elementwise import best_vector_axis, lanes_of
from baregrad.kernel.heuristic_pool import choose_pool
from baregrad.kernel.schedule_value import Schedule
from baregrad.kernel.tiling import Plan, PlannedAxis
from baregrad.target.cpu import CpuTarget


def plan_ordered(plan: Plan, target: CpuTarget) -> Schedule:
    """Vectors and threads along axes whose points do not meet; everything else in order."""
    facts = plan.facts
    free = [axis for axis in plan.axes if not axis.reduced and not _serial(plan, axis)]
    vector = None
    if not facts.stages:
        vector = best_vector_axis(free, facts.accesses, lanes_of(plan, target))
    plan.because("writes keep their order, scans theirs: only axes whose points do not meet")
    if vector is not None:
        plan.because("lanes along {}: its accesses cost least", vector.name)
        plan.vectorise(vector, lanes_of(plan, target), 2)
    for axis in plan.axes:
        plan.keep(axis)
    if facts.stages:
        return plan.schedule([])
    _, pool = choose_pool(plan, [axis for axis in free if axis is not vector], target)
    if vector is not None and pool is None:
        _, pool = choose_pool(plan, [vector], target)
    if pool is None:
        return plan.schedule([])
    first = [pool.axis]
    rest = [name for axis in plan.axes for name, _ in axis.loops if name not in first]
    if vector is not None:
        names = {name for name, _ in vector.loops}
        rest = [n for n in rest if n in names] + [n for n in rest if n not in names]
    data = {name for axis in plan.axes if not axis.reduced for name, _ in axis.loops}
    return plan.schedule(first + [n for n in rest if n in data], pool)


def _serial(plan: Plan, axis: PlannedAxis) -> bool:
    known = plan.fresh[axis.nodes[-1]]
    return bool(known.serial or known.whole)
