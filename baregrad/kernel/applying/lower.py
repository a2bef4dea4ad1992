"""From a kernel-level KERNEL to its loop level."""

from __future__ import annotations

from baregrad.ir.core.node import Node
from baregrad.kernel.applying.apply import scheduled
from baregrad.kernel.applying.reduction_registers import Results, are_plain
from baregrad.kernel.applying.to_loop import to_loop
from baregrad.kernel.facts.analysis import facts_of
from baregrad.kernel.gpu.shared_copies import check_shared
from baregrad.kernel.language.schedule import Pipeline, Schedule
from baregrad.kernel.loops.delayed_stores import delay_stores
from baregrad.kernel.loops.loop_pieces import note_plain
from baregrad.kernel.loops.select_of_loads import join_reads
from baregrad.kernel.loops.sharing import prepare
from baregrad.kernel.planning.first_schedule import choose_schedule
from baregrad.target import AnyTarget, CpuTarget, GpuTarget


def lower(kernel: Node, target: AnyTarget, schedule: Schedule | None = None) -> Node:
    """The loop level of a canonical kernel-level KERNEL, under `schedule` or the heuristic's.

    Raises ScheduleError where a step of the schedule is not legal.
    """
    kernel = prepare(kernel, target)
    if schedule is None:
        schedule = choose_schedule(kernel, target)
    facts = facts_of(kernel)
    results = Results() if isinstance(target, CpuTarget) and are_plain(facts) else None
    found = scheduled(kernel, schedule, chunked=True, target=target, results=results)
    ordered = frozenset([out.src[0].arg.slot for out in facts.ordered])
    masks = not isinstance(target, GpuTarget) and target.masks
    loop = join_reads(to_loop(found, target.fma, ordered, masks, results))
    if isinstance(target, CpuTarget):
        for step in schedule.steps:
            if isinstance(step, Pipeline):
                loop = delay_stores(loop, step)
    if isinstance(target, GpuTarget):
        check_shared(loop, target)
    note_plain(loop, facts)
    return loop
