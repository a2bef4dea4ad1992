"""The first schedule of a kernel: chosen from its facts at once, without measuring."""

from __future__ import annotations

from baregrad.ir.node import Node
from baregrad.kernel.analysis import Facts, facts_of
from baregrad.kernel.heuristic_elementwise import plan_elementwise
from baregrad.kernel.heuristic_gpu import choose_gpu_schedule
from baregrad.kernel.heuristic_ordered import plan_ordered
from baregrad.kernel.heuristic_reduce import plan_reductions
from baregrad.kernel.schedule_value import Schedule
from baregrad.kernel.sharing import prepare
from baregrad.kernel.tiling import fresh_plan
from baregrad.target import AnyTarget, GpuTarget


def choose_schedule(kernel: Node, target: AnyTarget) -> Schedule:
    """A good schedule for `kernel` on `target`."""
    facts = facts_of(prepare(kernel, target))
    if isinstance(target, GpuTarget):
        return choose_gpu_schedule(facts, target)
    if is_tiny(facts):
        return Schedule()
    plan = fresh_plan(facts)
    if facts.ordered or facts.scanned:
        return plan_ordered(plan, target)
    if facts.reductions:
        return plan_reductions(plan, target)
    return plan_elementwise(plan, target)


def is_tiny(facts: Facts) -> bool:
    """Whether no axis is worth a vector."""
    sizes = [axis.src[0] for axis in (*facts.data, *facts.reduced)]
    return all(size.arg is not None and size.src == () and _small(size) for size in sizes)


def _small(size: Node) -> bool:
    return isinstance(size.arg, int) and size.arg <= 1
