"""Beam search: what is measured is kept in order, each program once, until nothing is gained."""

from __future__ import annotations

import math
from collections.abc import Sequence

from baregrad.kernel import Schedule, choose_schedule
from baregrad.kernel.language.schedule import vectorise
from baregrad.kernel.search import beam_search, normal
from baregrad.kernel.search.beam import DRAWN, IDLE_ROUNDS, MEASURED, Trial, distinct
from tests.kernel import kernels as k
from tests.kernel.search.accepted import AVX


def test_a_search_finds_what_is_measured_to_be_best() -> None:
    kernel = k.matmul(64, 64, 64)
    seen: list[Schedule] = []

    def measure(schedules: list[Schedule]) -> list[float]:
        """Long schedules are fast ones, in this world, and those with copies do not work."""
        seen.extend(schedules)
        return [
            math.inf if "stage_input" in str(s) and number else 1000.0 / len(str(s))
            for number, s in enumerate(schedules)
        ]

    trials = beam_search(kernel, AVX, 2, measure, lambda: len(seen) < 60)  # type: ignore[arg-type]
    assert len(seen) == len({normal(s) for s in seen})
    assert trials[0].ns == min(trial.ns for trial in trials)
    assert len(str(trials[0].schedule)) > len(str(choose_schedule(kernel, AVX)))
    assert all(math.isfinite(trial.ns) for trial in trials)


def test_a_search_without_a_first_schedule_ends_at_once() -> None:
    trials = beam_search(k.matmul(8, 8, 8), AVX, 4, lambda all: [math.inf] * len(all), lambda: True)
    assert len(trials) == 1


def test_a_search_that_gains_nothing_ends_after_some_rounds() -> None:
    rounds: list[int] = []

    def measure(schedules: Sequence[Schedule]) -> list[float]:
        rounds.append(len(schedules))
        return [1000.0 + len(rounds) + place for place in range(len(schedules))]

    trials = beam_search(k.matmul(32, 32, 32), AVX, 2, measure, lambda: True)
    # The first schedule by itself, then those that gain nothing.
    assert rounds[0] == 1
    assert len(rounds) == 1 + IDLE_ROUNDS
    assert max(rounds[2:]) <= 2 * (MEASURED + DRAWN)
    assert trials[0] == Trial(trials[0].schedule, 1001.0, "the first schedule")
    assert [trial.ns for trial in trials] == sorted(trial.ns for trial in trials)


def test_a_search_is_ended_from_outside_and_begins_with_what_is_known() -> None:
    kernel = k.matmul(32, 32, 32)
    earlier = Schedule((vectorise("i1"),))
    illegal = Schedule((vectorise("i9"),))
    asked: list[Schedule] = []

    def measure(schedules: Sequence[Schedule]) -> list[float]:
        asked.extend(schedules)
        return [1.0 if one == earlier else 50.0 + len(str(one)) for one in schedules]

    ended = beam_search(kernel, AVX, 2, measure, lambda: False, [earlier])
    assert (len(ended), len(asked)) == (1, 1)
    asked.clear()
    trials = beam_search(kernel, AVX, 2, measure, lambda: len(asked) < 8, [earlier, illegal])
    assert (trials[0].schedule, trials[0].what) == (earlier, "found earlier")
    assert illegal not in asked


def test_programs_that_are_one_are_listed_once() -> None:
    """Of one time to the last digit is one program under several schedules."""
    one, other, third = (Schedule((vectorise(name),)) for name in "abc")
    trials = [Trial(one, 2.0, "a"), Trial(other, 3.0, "b"), Trial(third, 2.0, "c")]
    assert distinct(trials) == trials[:2]


def test_a_search_is_the_same_every_time() -> None:
    def run() -> list[Trial]:
        done: list[Schedule] = []

        def measure(schedules: Sequence[Schedule]) -> list[float]:
            done.extend(schedules)
            return [100.0 + len(str(one)) % 37 for one in schedules]

        return beam_search(k.row_reduce(64, 200), AVX, 2, measure, lambda: len(done) < 30)

    assert run() == run()
