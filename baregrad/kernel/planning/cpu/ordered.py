"""Schedules for kernels with an order: scatters, scans, values kept in scratch memory."""

from __future__ import annotations

from baregrad.ir.core.node import toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel.facts.analysis import EXPENSIVE, Facts, itemsize, op_flops
from baregrad.kernel.language.schedule import Schedule, Split
from baregrad.kernel.planning.common.pool import choose_pool
from baregrad.kernel.planning.common.tiling import CpuPlan, PlannedAxis, loop_names
from baregrad.kernel.planning.cpu.elementwise import best_vector_axis

# Bytes of a row that is written somewhere that are written at a time.
PIECE_NBYTES = 1024


def plan_ordered(plan: CpuPlan) -> Schedule:
    """Vectors and threads along axes whose points do not meet; everything else in order."""
    facts = plan.facts
    free = [axis for axis in plan.axes if not axis.reduced and not _serial(plan, axis)]
    plan.because("writes keep their order, scans theirs: only axes whose points do not meet")
    vector = None
    work = _functions(facts) if facts.scanned else 0
    if not facts.stages:
        vector = best_vector_axis(free, facts.accesses, plan.lanes, work)
    if vector is not None and not work and _runs_across(plan, vector):
        plan.because("no lanes along {}: another axis has the neighbours", vector.name)
        vector = None
    if vector is not None:
        plan.because("lanes along {}: its accesses cost least", vector.name)
        plan.vectorise(vector, plan.lanes, 2)
        if not facts.scanned:
            _in_pieces(plan, vector)
    for axis in plan.axes:
        plan.keep(axis)
    if facts.stages:
        return plan.schedule([])
    pool = choose_pool(plan, [axis for axis in free if axis is not vector])
    if vector is not None and pool is None:
        pool = choose_pool(plan, [vector])
    if pool is None:
        return plan.schedule([])
    data = [axis for axis in plan.axes if not axis.reduced]
    rest = [name for name in loop_names(data) if name != pool.axis]
    if vector is not None:
        outermost, *inner = loop_names([vector]) or [""]
        rest.sort(key=lambda name: 0 if name == outermost else 2 if name in inner else 1)
    if facts.scanned:
        # A scan's steps follow each other: no other loop is inside it.
        steps = loop_names([axis for axis in data if _serial(plan, axis)])
        rest.sort(key=lambda name: name in steps)
    return plan.schedule([pool.axis, *rest], pool)


def _functions(facts: Facts) -> int:
    """Operations of the functions that a step of a running fold computes, and what is around it."""
    folds = [node.arg.monoid.combine for node in facts.order if node.op is Ops.SCAN]
    formulas = toposort(*[part for parts in folds for part in parts])
    return sum(op_flops(one) for one in (*facts.order, *formulas) if one.op in EXPENSIVE)


def _runs_across(plan: CpuPlan, vector: PlannedAxis) -> bool:
    """Whether lanes along an axis are neighbours nowhere, but the steps of one in order are.

    What a running fold reads once for all of its steps does not count.
    """
    scanned = plan.facts.scanned
    accesses = [each for each in plan.facts.accesses if not scanned or scanned & each.axes]
    if any(vector.stride(access) == 1 for access in accesses):
        return False
    return any(
        axis.stride(access) == 1 for axis in plan.axes if _serial(plan, axis) for access in accesses
    )


def _in_pieces(plan: CpuPlan, vector: PlannedAxis) -> None:
    """Take whole pieces of each row in turn, where there are rows; threads share the pieces."""
    if len(vector.loops) != 1 or not any(_serial(plan, axis) for axis in plan.axes):
        return
    ((name, trips),) = vector.loops
    nbytes = max([itemsize(each.array.dtype) for each in plan.facts.accesses if each.write])
    step = max(vector.size // trips, 1) * nbytes
    most = min(PIECE_NBYTES // step, trips // (2 * max(plan.target.cores, 2)))
    size = next((size for size in range(most, 1, -1) if trips % size == 0), 1)
    if size > 1 and isinstance(vector.extent, int):
        piece, part = f"{vector.name}p", f"{vector.name}w"
        plan.steps.append(Split(name, ((piece, 0), (part, size))))
        vector.loops = [(piece, trips // size), (part, size)]
        plan.because("pieces of {} bytes of each row: neighbours come together", size * step)


def _serial(plan: CpuPlan, axis: PlannedAxis) -> bool:
    known = plan.fresh[axis.nodes[-1]]
    return bool(known.serial or known.whole)
