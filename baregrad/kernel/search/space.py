"""What a search can try next: changes of a schedule, and what each is likely to take.

On CPUs a change is any legal one of a schedule's steps. On GPUs it is another option of one of its
planner's decisions, after which the planner decides what follows from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from baregrad.base.errors import BaregradError
from baregrad.ir.core.node import Node
from baregrad.kernel.facts.analysis import facts_of
from baregrad.kernel.language.schedule import Schedule
from baregrad.kernel.loops.sharing import prepare
from baregrad.kernel.search.candidates import (
    Candidate,
    check_schedule,
    predicted_ns,
    variants,
)
from baregrad.kernel.search.mutate import Move, is_legal, neighbours
from baregrad.target import CpuTarget, GpuTarget


class Space(Protocol):
    """The schedules of one kernel. predicts_all: whether changes come with their predictions."""

    predicts_all: bool

    def holds(self, schedule: Schedule) -> bool:
        """Whether a schedule from elsewhere is legal."""
        ...

    def changes(self, schedule: Schedule) -> Iterator[Move]:
        """Schedules that are one change away from one of the space."""
        ...

    def predicted_ns(self, schedule: Schedule) -> float:
        """What a schedule is likely to take; infinite for what cannot be applied."""
        ...


class CpuSpace:
    """All legal schedules of a kernel on a CPU."""

    predicts_all = False

    def __init__(self, kernel: Node, target: CpuTarget) -> None:
        self.kernel = kernel
        self.target = target
        self.facts = facts_of(prepare(kernel, target))

    def holds(self, schedule: Schedule) -> bool:
        """Whether a schedule from elsewhere is legal."""
        return is_legal(self.facts, schedule, self.target)

    def changes(self, schedule: Schedule) -> Iterator[Move]:
        """Schedules that differ by one step, or by one size of a step."""
        return neighbours(self.facts, schedule, self.target)

    def predicted_ns(self, schedule: Schedule) -> float:
        """The estimate of tiles, caches and threads."""
        return predicted_ns(self.kernel, schedule, self.target)


class GpuSpace:
    """What the planners of a GPU make of a kernel, whatever they are asked to decide.

    first: what they decide by themselves.
    """

    predicts_all = True

    def __init__(self, kernel: Node, target: GpuTarget, first: Candidate) -> None:
        self.kernel = kernel
        self.target = target
        self._known = {first.schedule: first}

    def holds(self, schedule: Schedule) -> bool:
        """Whether a schedule from elsewhere is legal."""
        try:
            check_schedule(self.kernel, schedule, self.target)
        except BaregradError:
            return False
        return True

    def changes(self, schedule: Schedule) -> Iterator[Move]:
        """Candidates in which one thing is decided otherwise; none of a schedule from elsewhere."""
        base = self._known.get(schedule)
        for found in variants(self.kernel, self.target, base) if base is not None else ():
            yield Move(self._known.setdefault(found.schedule, found).schedule, found.what)

    def predicted_ns(self, schedule: Schedule) -> float:
        """What the planner's model says, or else the estimate of memory, instructions and waits."""
        known = self._known.get(schedule)
        if known is not None:
            return known.predicted_ns
        return predicted_ns(self.kernel, schedule, self.target)
