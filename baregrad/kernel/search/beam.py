"""Beam search: the best few schedules are changed, the most promising changes are measured."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from baregrad.ir.core.digest import digest
from baregrad.ir.core.node import Node
from baregrad.kernel.language.schedule import Schedule
from baregrad.kernel.search.candidates import candidates
from baregrad.kernel.search.mutate import Move, normal
from baregrad.kernel.search.space import CpuSpace, GpuSpace, Space
from baregrad.target import AnyTarget

# Schedules to measure in a round, for each that is kept: by rank, and drawn at random.
MEASURED = 3
DRAWN = 1
# After IDLE_ROUNDS rounds that gain less than this there is no other.
LEAST_GAIN = 0.01
IDLE_ROUNDS = 3
MOST_ROUNDS = 24
# The changes of a schedule that are estimated, drawn at random where there are more of them.
MOST_ESTIMATED = 40


@dataclass(frozen=True, slots=True)
class Trial:
    """A schedule, what it took (infinite where it failed), and how it was come by."""

    schedule: Schedule
    ns: float
    what: str


Measure = Callable[[Sequence[Schedule]], Sequence[float]]


def beam_search(
    kernel: Node, target: AnyTarget, width: int, measure: Measure, proceed: Callable[[], bool],
    known: Sequence[Schedule] = (),
) -> list[Trial]:
    """Schedules that were measured, best first.

    `measure` says what schedules take, in nanoseconds, infinite for one that fails and the same for
    those that make one program; it is given the first schedule by itself, then a round at a time.
    The search ends when three rounds gain little, or when `proceed` says so. known: schedules to
    begin with, from an earlier search.
    """
    rng = random.Random(digest(kernel))
    first, *starts = candidates(kernel, target)
    (first_ns,) = measure([first.schedule])
    trials = [Trial(first.schedule, first_ns, first.what)]
    if not math.isfinite(first_ns):
        return trials
    space = GpuSpace(kernel, target, first) if target.kind == "gpu" else CpuSpace(kernel, target)
    seen = {normal(first.schedule)}
    earlier = [Move(s, "found earlier") for s in known if space.holds(s)]
    # A GPU's are ranked with what is drawn beside them, as changes of the first one.
    others = [Move(each.schedule, each.what) for each in starts if target.kind == "cpu"]
    fresh = _unseen([*earlier, *others], seen) or _next_round(space, trials, seen, rng, width)
    idle = 0
    for _ in range(MOST_ROUNDS):
        if not fresh or not proceed():
            break
        times = measure([move.schedule for move in fresh])
        trials += [
            Trial(move.schedule, ns, move.what)
            for move, ns in zip(fresh, times, strict=True)
            if math.isfinite(ns)
        ]
        best = trials[0].ns
        trials.sort(key=lambda trial: trial.ns)
        idle = 0 if trials[0].ns < best * (1 - LEAST_GAIN) else idle + 1
        if idle >= IDLE_ROUNDS:
            break
        fresh = _next_round(space, distinct(trials)[:width], seen, rng, width)
    trials.sort(key=lambda trial: trial.ns)
    return distinct(trials)


def distinct(trials: Sequence[Trial]) -> list[Trial]:
    """Trials without those of a program that is there already: it was given the same time."""
    found: dict[float, Trial] = {}
    for trial in trials:
        found.setdefault(trial.ns, trial)
    return list(found.values())


def _unseen(moves: Sequence[Move], seen: set[Schedule]) -> list[Move]:
    found = []
    for move in moves:
        if normal(move.schedule) not in seen:
            seen.add(normal(move.schedule))
            found.append(move)
    return found


def _next_round(
    space: Space, beam: Sequence[Trial], seen: set[Schedule], rng: random.Random, width: int
) -> list[Move]:
    """The most promising changes of the best schedules, and some at random."""
    ranked: list[tuple[float, int, Move]] = []
    for trial in beam:
        moves = [m for m in space.changes(trial.schedule) if normal(m.schedule) not in seen]
        if len(moves) > MOST_ESTIMATED and not space.predicts_all:
            moves = rng.sample(moves, MOST_ESTIMATED)
        base = space.predicted_ns(trial.schedule)
        for move in moves:
            likely = space.predicted_ns(move.schedule)
            if math.isfinite(likely):
                ranked.append((trial.ns * likely / base, len(ranked), move))
    ranked.sort(key=lambda row: row[:2])
    chosen = _unseen([move for _, _, move in ranked[: 2 * MEASURED * width]], seen)
    chosen, spare = chosen[: MEASURED * width], chosen[MEASURED * width :]
    seen.difference_update(normal(move.schedule) for move in spare)
    rest = [move for _, _, move in ranked if normal(move.schedule) not in seen]
    drawn = rng.sample(rest, min(DRAWN * width, len(rest)))
    return chosen + _unseen(drawn, seen)
