"""The first schedule of a kernel on a GPU: chosen from its facts at once, without measuring."""

from __future__ import annotations

from collections.abc import Sequence

from baregrad.ir.core.node import Node, extent_of
from baregrad.ir.core.op import Ops
from baregrad.kernel.facts.analysis import Facts
from baregrad.kernel.gpu.loop_bounds import ends_by_data
from baregrad.kernel.language.schedule import Schedule
from baregrad.kernel.planning.common.decisions import Decisions, powers_from
from baregrad.kernel.planning.common.tiling import Reason
from baregrad.kernel.planning.gpu.elementwise import plan_elementwise
from baregrad.kernel.planning.gpu.gemm_factors import GemmFactors, gemm_factors
from baregrad.kernel.planning.gpu.gemm_mma import plan_matrix
from baregrad.kernel.planning.gpu.gemm_threads import plan_threads
from baregrad.kernel.planning.gpu.gpu_plan import GpuPlan
from baregrad.kernel.planning.gpu.held_rows_plan import plan_held_rows
from baregrad.kernel.planning.gpu.memory_model import Prediction
from baregrad.kernel.planning.gpu.packed_sums import plan_packed
from baregrad.kernel.planning.gpu.reductions import plan_reductions
from baregrad.kernel.planning.gpu.running_folds import plan_running
from baregrad.kernel.planning.gpu.windows import plan_stretches
from baregrad.target.gpu import GpuTarget

# Threads of a block that run in order.
SMALL_BLOCK = 128


def choose_gpu_schedule(
    facts: Facts, target: GpuTarget, decisions: Decisions | None = None
) -> tuple[Schedule, tuple[Reason, ...]]:
    """A good schedule for a kernel with these facts, and why; or one with other `decisions`."""
    plan = GpuPlan(facts, target, decisions)
    factors = gemm_factors(plan)
    free = [axis for axis in facts.data if not plan.is_serial(axis)]
    if plan_running(plan):
        pass
    elif facts.ordered or facts.scanned:
        plan.because("writes keep their order, scans theirs: threads along the other axes")
        plan.spread(free, _small_block(plan))
    elif any(ends_by_data(each.node) and each.free >= set(free) for each in facts.reductions):
        plan.because("sums end where their data says: a thread for neighbouring ones")
        plan.spread(free, _small_block(plan), _lanes_alike(plan, free))
    elif plan_held_rows(plan):
        pass
    elif not facts.reductions:
        if any(out.arg.atomic for out in facts.outs):
            plan.because("additions in one step each, in any order: threads share them")
        plan_elementwise(plan, free)
    elif factors and _plan_contraction(plan, factors):
        plan.because("a contraction: tiles of the output for blocks, panels in shared memory")
        return plan.schedule(), tuple(plan.reasons)
    elif not plan_packed(plan) and not plan_stretches(plan):
        plan_reductions(plan)
    plan.because("{}", Prediction(facts, plan.table, tuple(plan.steps), target))
    return plan.schedule(), tuple(plan.reasons)


def _small_block(plan: GpuPlan) -> int:
    return plan.pick("block", powers_from(SMALL_BLOCK, plan.warp, plan.target.threads_per_block))


def _plan_contraction(plan: GpuPlan, factors: GemmFactors) -> bool:
    """Tiles for matrix units, or else for threads; False where it is no contraction for either."""
    unit = plan.pick("contraction", ("matrix units", "tiles of threads", "sums"))
    if unit == "matrix units" and plan_matrix(plan, factors):
        return True
    return unit != "sums" and plan_threads(plan, factors)


def _lanes_alike(plan: GpuPlan, free: Sequence[Node]) -> int:
    """Neighbours that a thread sums at once, whose conditions are all the same."""
    moving = [axis for axis in free if extent_of(axis) != 1]
    if not moving:
        return 1
    ordered = plan.by_stride(moving, plan.write)
    for reduction in plan.facts.reductions:
        value = reduction.node.src[0]
        while value.op is Ops.GUARD:
            if ordered[-1] in value.src[0].ranges:
                return 1
            value = value.src[1]
    return plan.lanes(ordered)
