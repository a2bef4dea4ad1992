"""From a kernel-level KERNEL to its loop level."""

from __future__ import annotations

from baregrad.ir.node import Node
from baregrad.kernel.analysis import facts_of
from baregrad.kernel.apply import scheduled
from baregrad.kernel.delayed_stores import delay_stores
from baregrad.kernel.heuristic import choose_schedule
from baregrad.kernel.joined_reads import join_reads
from baregrad.kernel.loop_pieces import note_plain
from baregrad.kernel.results import Results, are_plain
from baregrad.kernel.schedule_value import Pipeline, Schedule
from baregrad.kernel.shared_copies import check_shared
from baregrad.kernel.sharing import prepare
from baregrad.kernel.to_loop import to_loop
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
