"""Schedules that the planners can make of a kernel, with what a model says that each one takes.

The planners of GPUs name what they decide (`decisions.py`): a candidate differs from another one by
one option of one decision. Those of CPUs are functions of the machine's row. A row with narrower
vectors, fewer registers, other caches or more cores makes them decide otherwise, in ways that fit
together as single changes of a schedule seldom do.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from baregrad.base.errors import BaregradError
from baregrad.ir.core.node import Node
from baregrad.kernel.applying.apply import apply_schedule
from baregrad.kernel.applying.stream_tiles import stream_to_loop, streams
from baregrad.kernel.facts.analysis import facts_of
from baregrad.kernel.facts.axis_table import table_for
from baregrad.kernel.language.schedule import Schedule
from baregrad.kernel.loops.sharing import prepare
from baregrad.kernel.planning.common.decisions import NOTHING, Decided, Decisions, Wanted
from baregrad.kernel.planning.first_schedule import choose
from baregrad.kernel.planning.gpu.memory_model import AxisLayout, estimate, roofline_ns
from baregrad.kernel.search.estimate import estimated_ns
from baregrad.kernel.search.mutate import is_legal
from baregrad.target import AnyTarget, CpuTarget, GpuTarget

FIRST = "the first schedule"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schedule, the nanoseconds that are predicted for it, and how it was come by.

    predicted_ns is infinite for what cannot be applied. why: the planner's reasons, in words. made:
    what its planner decided, by name. asked: what of that it did not decide by itself.
    """

    schedule: Schedule
    predicted_ns: float
    what: str
    why: tuple[str, ...] = ()
    made: Mapping[str, Decided] = field(default_factory=dict)
    asked: Wanted = field(default_factory=dict)


def candidates(kernel: Node, target: AnyTarget) -> list[Candidate]:
    """What the planners make of a kernel: the first schedule, then others by prediction.

    Each schedule is there once, and those that cannot be applied are not there.
    """
    first, *others = _of_gpu(kernel, target) if target.kind == "gpu" else _of_cpu(kernel, target)
    ranked = sorted(others, key=lambda each: each.predicted_ns)
    return [first, *[each for each in ranked if math.isfinite(each.predicted_ns)]]


# --- GPUs ---------------------------------------------------------------------------------------


def _of_gpu(kernel: Node, target: GpuTarget) -> Iterator[Candidate]:
    first = planned(kernel, target, NOTHING, NOTHING)
    yield first
    yield from variants(kernel, target, first)


def planned(kernel: Node, target: GpuTarget, wanted: Wanted, asked: Wanted) -> Candidate:
    """What a GPU's planners make of a kernel where they are to decide some things as is wanted.

    asked: those of them that they would have decided otherwise.
    """
    decisions = Decisions(wanted, noted=True)
    choice = choose(kernel, target, decisions)
    cycles = [each.predicted for each in decisions.made.values() if each.predicted is not None]
    if cycles:
        ns = target.launch_ns + sum(cycles) / target.cycles_per_ns
    else:
        ns = predicted_ns(kernel, choice.schedule, target)
    what = ", ".join([f"{name}: {option}" for name, option in asked.items()]) or FIRST
    return Candidate(choice.schedule, ns, what, choice.why(), decisions.made, asked)


def first_ns(kernel: Node, target: GpuTarget) -> float:
    """What the first schedule of a kernel is likely to take on a GPU."""
    try:
        found = planned(kernel, target, NOTHING, NOTHING).predicted_ns
    except BaregradError:
        found = math.inf
    return found if math.isfinite(found) else roofline_ns(facts_of(kernel), target)


def variants(kernel: Node, target: GpuTarget, base: Candidate) -> Iterator[Candidate]:
    """Candidates that differ from a GPU's candidate by one decision and what follows from it."""
    seen = {base.schedule}
    taken = {name: decision.taken for name, decision in base.made.items()}
    for name, decision in base.made.items():
        for option in decision.options:
            if option == decision.taken:
                continue
            try:
                wanted, asked = {**taken, name: option}, {**base.asked, name: option}
                found = planned(kernel, target, wanted, asked)
            except BaregradError:
                continue
            if found.schedule not in seen:
                seen.add(found.schedule)
                yield found


# --- CPUs ---------------------------------------------------------------------------------------


def _of_cpu(kernel: Node, target: CpuTarget) -> Iterator[Candidate]:
    facts = facts_of(prepare(kernel, target))
    seen: set[Schedule] = set()
    for row, what in ((target, FIRST), *_rows(target)):
        try:
            choice = choose(kernel, row)
        except BaregradError:
            continue
        schedule = choice.schedule
        if schedule not in seen and is_legal(facts, schedule, target):
            seen.add(schedule)
            ns = predicted_ns(kernel, schedule, target)
            yield Candidate(schedule, ns, what, choice.why())


def _rows(target: CpuTarget) -> Iterator[tuple[CpuTarget, str]]:
    for share in (2, 4):
        if target.vector_bytes // share >= 16:
            yield replace(target, vector_bytes=target.vector_bytes // share), f"vectors 1/{share}"
    few = max(target.vector_registers // 2, 8)
    yield replace(target, vector_registers=few), "half the registers"
    yield replace(target, vector_registers=target.vector_registers * 3 // 4), "fewer registers"
    yield replace(target, vector_registers=target.vector_registers + 4), "more registers"
    for factor in (0.25, 0.5, 2.0, 4.0):
        yield replace(target, l2_bytes=int(target.l2_bytes * factor)), f"{factor} of the L2 cache"
    for factor in (0.5, 2.0):
        yield replace(target, l1_bytes=int(target.l1_bytes * factor)), f"{factor} of the L1 cache"
    for cores in (1, 4 * target.cores, 16 * target.cores):
        if cores != target.cores:
            yield replace(target, cores=cores), f"{cores} cores"
    yield replace(target, fma_latency=target.fma_latency * 2), "a slow sum"
    narrow = replace(target, vector_bytes=max(target.vector_bytes // 2, 16), vector_registers=16)
    yield replace(narrow, masks=False), "another machine"


# --- legality and models ------------------------------------------------------------------------


def check_schedule(kernel: Node, schedule: Schedule, target: AnyTarget) -> None:
    """Raise ScheduleError for a schedule that a kernel cannot have."""
    if streams(schedule):
        stream_to_loop(prepare(kernel, target), schedule, target)
    else:
        apply_schedule(kernel, schedule, target)


def predicted_ns(kernel: Node, schedule: Schedule, target: AnyTarget) -> float:
    """What a schedule is likely to take; infinite for what cannot be applied.

    A bug that a schedule uncovers is reported as a warning, and costs that schedule alone.
    """
    try:
        if target.kind == "gpu":
            check_schedule(kernel, schedule, target)
            facts = facts_of(prepare(kernel, target))
            if streams(schedule):
                # What its tiles take is not modelled.
                return roofline_ns(facts, target)
            layout = AxisLayout(facts, table_for(facts, target), schedule.steps)
            return estimate(facts, layout, target).ns
        return max(estimated_ns(kernel, schedule, target), 1.0)
    except BaregradError:
        return math.inf
    except Exception as error:  # noqa: BLE001 - other schedules are as good as before
        warnings.warn(
            f"a schedule for {kernel.arg.name} was dropped that should have been refused, which is "
            f"a bug in baregrad: {type(error).__name__}: {error}, under {schedule}",
            RuntimeWarning, stacklevel=2,
        )
        return math.inf
