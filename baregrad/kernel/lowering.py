"""The passes from kernel level to loop level, in order: from what is computed to loops."""

from __future__ import annotations

from functools import partial

from baregrad.ir.algebra.passes import Pass
from baregrad.ir.core.node import Node
from baregrad.kernel.applying.apply import apply_chunked
from baregrad.kernel.applying.stream_tiles import stream_to_loop, streams
from baregrad.kernel.applying.to_loop import to_loop
from baregrad.kernel.facts.analysis import facts_of, sums_of, without_sums
from baregrad.kernel.gpu.shared_copies import check_shared
from baregrad.kernel.gpu.side_sums import add_sums
from baregrad.kernel.gpu.staged_outputs import stage_outputs
from baregrad.kernel.language.schedule import Pipeline, Schedule, StageOutput
from baregrad.kernel.loops.delayed_stores import delay_stores
from baregrad.kernel.loops.fewer_rows import part_fewer_rows
from baregrad.kernel.loops.last_steps import part_last_steps
from baregrad.kernel.loops.loop_pieces import note_plain
from baregrad.kernel.loops.select_of_loads import join_reads
from baregrad.kernel.loops.sharing import prepare
from baregrad.kernel.planning.first_schedule import choose_schedule
from baregrad.target import AnyTarget


def prepare_pass(target: AnyTarget) -> Pass:
    """The pass ahead of the choice of a schedule."""
    return Pass(
        "prepare",
        "guards cover what reductions read, and loops share values that take long to compute",
        "kernel",
        "kernel",
        partial(prepare, target=target),
    )


class Lowering:
    """One prepared kernel on its way to loops, under a schedule: its passes, in order.

    They raise ScheduleError where a step of the schedule is not legal.
    """

    def __init__(self, target: AnyTarget, schedule: Schedule) -> None:
        self.target = target
        self.schedule = schedule
        self.passes = (
            Pass(
                "apply-schedule",
                "the schedule splits axes, binds them, and puts them in the order of the loops",
                "kernel", "kernel", self.apply,
            ),
            Pass(
                "to-loops",
                "the machine runs loops with accumulators and stores, in order",
                "kernel", "loop", self.to_loops, ("apply-schedule",),
            ),
            Pass(
                "join-reads",
                "a choice between elements of one array is one load from a chosen place",
                "loop", "loop", join_reads, ("to-loops",),
            ),
            *(
                Pass(
                    "fewer-rows",
                    "blocks whose rows are not all there compute none of the others",
                    "loop", "loop", part_fewer_rows, ("to-loops",),
                )
                for _ in range(target.kind == "gpu")
            ),
            Pass(
                "check-shared",
                "what the threads of a block share has to fit their memory",
                "loop", "loop", self.check_shared, ("to-loops",),
            )
            if target.kind == "gpu"
            else Pass(
                "delay-stores",
                "stores that wait for memory are made while the next row is computed",
                "loop", "loop", self.delay_stores, ("to-loops",),
            ),
            *(
                Pass(
                    "last-steps",
                    "only the last step of a loop asks which of its lanes there are",
                    "loop", "loop", self.part_last_steps, ("delay-stores",),
                )
                for _ in range(target.kind == "cpu")
            ),
        )  # fmt: skip

    def apply(self, kernel: Node) -> Node:
        """The KERNEL over the axes that the schedule leaves."""
        self.sums = sums_of(kernel)
        kernel = without_sums(kernel)
        self.facts = facts_of(kernel)
        if streams(self.schedule):
            # The tiles of a stream are axes of the loop level alone.
            return kernel
        return apply_chunked(kernel, self.schedule, self.target)

    def to_loops(self, kernel: Node) -> Node:
        """The loop level of what `apply` made."""
        if streams(self.schedule):
            return stream_to_loop(kernel, self.schedule, self.target)
        ordered = frozenset([out.src[0].arg.slot for out in self.facts.ordered])
        masks = self.target.kind == "cpu" and self.target.masks
        loop = to_loop(kernel, self.target.fma, ordered, masks)
        if self.sums:
            loop = add_sums(loop, self.sums, self.schedule)
        for step in self.schedule.steps:
            if isinstance(step, StageOutput):
                loop = stage_outputs(loop, step)
        return loop

    def delay_stores(self, loop: Node) -> Node:
        """The KERNEL with the stores delayed that the schedule says wait for memory."""
        for step in self.schedule.steps:
            if isinstance(step, Pipeline):
                loop = delay_stores(loop, step)
        return loop

    def part_last_steps(self, loop: Node) -> Node:
        """The KERNEL with masked last steps of loops by themselves."""
        loop = part_last_steps(loop)
        note_plain(loop, self.facts)
        return loop

    def check_shared(self, loop: Node) -> Node:
        """The KERNEL itself. Raises ScheduleError where a block has no room for what it shares."""
        if self.target.kind == "gpu":
            check_shared(loop, self.target)
        note_plain(loop, self.facts)
        return loop


def lower(kernel: Node, target: AnyTarget, schedule: Schedule | None = None) -> Node:
    """The loop level of a canonical kernel-level KERNEL, under `schedule` or the heuristic's.

    Raises ScheduleError where a step of the schedule is not legal.
    """
    if schedule is None:
        schedule = choose_schedule(kernel, target)
    node = prepare(kernel, target)
    for each in Lowering(target, schedule).passes:
        node = each.run(node)
    return node
