"""The first schedule of a kernel: chosen from its facts at once, without measuring."""

from __future__ import annotations

from typing import NamedTuple

from baregrad.ir.core.node import Node, extent_of
from baregrad.kernel.facts.analysis import Facts, facts_of
from baregrad.kernel.language.schedule import Schedule
from baregrad.kernel.loops.sharing import prepare
from baregrad.kernel.planning.common.tiling import CpuPlan, Reason
from baregrad.kernel.planning.cpu.elementwise import plan_elementwise
from baregrad.kernel.planning.cpu.ordered import plan_ordered
from baregrad.kernel.planning.cpu.reductions import plan_reductions
from baregrad.kernel.planning.cpu.sum_plan import SumPlan
from baregrad.kernel.planning.gpu.gpu_schedule import choose_gpu_schedule
from baregrad.target import AnyTarget


class Choice(NamedTuple):
    """A schedule, and why it is as it is."""

    schedule: Schedule
    reasons: tuple[Reason, ...] = ()

    def why(self) -> tuple[str, ...]:
        """The reasons in words, in the order in which things were decided."""
        return tuple(str(text).format(*facts) for text, *facts in self.reasons)


def choose_schedule(kernel: Node, target: AnyTarget) -> Schedule:
    """A good schedule for `kernel` on `target`."""
    return choose(kernel, target).schedule


def choose(kernel: Node, target: AnyTarget) -> Choice:
    """A good schedule for `kernel` on `target`, with the reasons for it."""
    facts = facts_of(prepare(kernel, target))
    if target.kind == "gpu":
        return Choice(*choose_gpu_schedule(facts, target))
    if is_tiny(facts):
        return Choice(Schedule(), (("no axis has two elements: one scalar after the other",),))
    plan: CpuPlan
    if facts.ordered or facts.scanned:
        plan = CpuPlan(facts, target)
        schedule = plan_ordered(plan)
    elif facts.reductions:
        plan = SumPlan(facts, target)
        schedule = plan_reductions(plan)
    else:
        plan = CpuPlan(facts, target)
        schedule = plan_elementwise(plan)
    return Choice(schedule, tuple(plan.reasons))


def is_tiny(facts: Facts) -> bool:
    """Whether no axis is worth a vector."""
    for axis in (*facts.data, *facts.reduced):
        extent = extent_of(axis)
        if not isinstance(extent, int) or extent > 1:
            return False
    return True
