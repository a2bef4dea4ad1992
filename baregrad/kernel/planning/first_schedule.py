"""The first schedule of a kernel: chosen from its facts at once, without measuring."""

from __future__ import annotations

from typing import NamedTuple

from baregrad.ir.core.node import Node, extent_of
from baregrad.kernel.facts.analysis import facts_of, without_sums
from baregrad.kernel.language.schedule import Schedule
from baregrad.kernel.loops.sharing import prepare
from baregrad.kernel.planning.common.decisions import Decisions
from baregrad.kernel.planning.common.tiling import CpuPlan, Reason
from baregrad.kernel.planning.cpu.elementwise import plan_elementwise
from baregrad.kernel.planning.cpu.ordered import plan_ordered
from baregrad.kernel.planning.cpu.reductions import plan_reductions
from baregrad.kernel.planning.cpu.sum_plan import SumPlan
from baregrad.kernel.planning.gpu.gpu_schedule import choose_gpu_schedule
from baregrad.kernel.planning.gpu.stream_plan import plan_stream
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


def choose(kernel: Node, target: AnyTarget, decisions: Decisions | None = None) -> Choice:
    """A good schedule for `kernel` on `target`, with the reasons for it; or by other `decisions`.

    The planners of CPUs decide by the row of the machine alone.
    """
    prepared = prepare(without_sums(kernel), target)
    facts = facts_of(prepared)
    if target.kind == "gpu":
        stream = plan_stream(prepared, target, decisions)
        return Choice(*(stream or choose_gpu_schedule(facts, target, decisions)))
    extents = [extent_of(axis) for axis in (*facts.data, *facts.reduced)]
    if all(isinstance(extent, int) and extent < 2 for extent in extents):
        return Choice(Schedule(), (("no axis has two elements: one scalar after the other",),))
    in_order = bool(facts.ordered or facts.scanned)
    if facts.reductions and not in_order:
        sums = SumPlan(facts, target)
        return Choice(plan_reductions(sums), tuple(sums.reasons))
    plan = CpuPlan(facts, target)
    schedule = plan_ordered(plan) if in_order else plan_elementwise(plan)
    return Choice(schedule, tuple(plan.reasons))
