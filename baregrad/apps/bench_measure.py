"""Timing the same work in several frameworks by turns, in one process, and comparing results.

A round gives each framework one block of calls, after a pause: threads of a pool spin for a while
when their work is done, and would take the cores of whoever comes next. A round's ratio is of its
two medians, so what slows the machine for seconds slows both.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Run = Callable[[], Any]
# Begins to look at other processes, and returns what reads the share of the cores they took.
Watch = Callable[[], Callable[[], float | None]]

# The threads of GNU's OpenMP, which PyTorch uses, spin for 300,000 pauses of the processor, 17 ms
# at 140 cycles each (Intel 64 and IA-32 Architectures Optimization Reference Manual, 2.6.4).
PAUSE_S = 0.025
WARM_CALLS = 3
# Calls that only bring caches and clocks back after a pause; a long call needs none.
WARM_S = 0.001
LONG_S = 0.02
# Others' share of the cores from which a round is made again, and a line says so.
DISTURBED = 0.1
# Rounds that are tried for each that is wanted.
MOST_TRIES = 3


@dataclass(frozen=True, slots=True)
class Subject:
    """Work that one framework is ready to do: `run` does it once, `outputs` gives its results."""

    run: Run
    outputs: Callable[[], Array]


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure: seconds a row, seconds a block of calls, and rounds at least and most.

    `is_quick`: small sizes, to see whether everything works rather than how fast it is.
    """

    row_s: float = 2.4
    block_s: float = 0.04
    least_rounds: int = 5
    most_rounds: int = 15
    is_quick: bool = False


QUICK = Effort(row_s=0.0, block_s=0.0, least_rounds=2, most_rounds=2, is_quick=True)


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds a call: the median of each round's block, in order."""

    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Return the median over the rounds."""
        return statistics.median(self.rounds)

    def record(self) -> dict[str, float]:
        """Return the times as they are kept, in seconds."""
        low, high = quartiles(self.rounds)
        return {
            "median_s": self.median, "quartile_low_s": low, "quartile_high_s": high,
            "min_s": min(self.rounds), "max_s": max(self.rounds),
        }


@dataclass(frozen=True, slots=True)
class Spread:
    """A ratio over the rounds: its median, its quartiles and its extremes."""

    median: float
    low: float
    high: float
    least: float
    most: float

    def record(self) -> dict[str, float]:
        """Return the spread as it is kept."""
        return {
            "quartile_low": self.low, "quartile_high": self.high,
            "min": self.least, "max": self.most,
        }


def spread_of(values: list[float]) -> Spread:
    """Return how values, at least one, are spread."""
    low, high = quartiles(values)
    return Spread(statistics.median(values), low, high, min(values), max(values))


def ratios(peer: Times, ours: Times, scale: float = 1.0) -> Spread:
    """Return the peer's time by ours, round by round, times `scale`: above 1 we are faster."""
    pairs = zip(peer.rounds, ours.rounds, strict=True)
    return spread_of([scale * theirs / own for theirs, own in pairs])


def quartiles(values: tuple[float, ...] | list[float]) -> tuple[float, float]:
    """Return the lower and the upper quartile of one value or more."""
    if len(values) == 1:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def measure(
    runs: Mapping[str, Run],
    once: Mapping[str, float],
    effort: Effort,
    watch: Watch | None = None,
) -> dict[str, Times]:
    """Run each by turns and return its times; the runs are warm, a call takes about `once`.

    `watch` begins to look at other processes and returns what reads their share of the cores. A
    round that they disturbed is made again, up to twice as many rounds more, and left out where
    enough others are left.
    """
    counts = {
        name: max(1, min(2000, round(effort.block_s / took))) for name, took in once.items()
    }
    round_s = sum(PAUSE_S + once[name] * counts[name] for name in runs)
    wanted = int(effort.row_s / round_s)
    rounds = max(effort.least_rounds, min(effort.most_rounds, wanted))
    every: list[dict[str, float]] = []
    quiet: list[dict[str, float]] = []
    while len(quiet) < rounds and len(every) < MOST_TRIES * rounds:
        share = watch() if watch is not None and not effort.is_quick else None
        pause_s = 0.0 if effort.is_quick else PAUSE_S
        found = {
            name: _block(run, counts[name], once[name], pause_s) for name, run in runs.items()
        }
        every.append(found)
        if share is None or (share() or 0.0) <= DISTURBED:
            quiet.append(found)
    kept = quiet if len(quiet) >= effort.least_rounds else every
    return {name: Times(tuple(one[name] for one in kept)) for name in runs}


def warm_up(runs: Mapping[str, Run], calls: int = WARM_CALLS) -> dict[str, float]:
    """Call each a few times and return what the last call took, in seconds.

    What is compiled, captured or allocated at first is no part of what is measured.
    """
    found = {}
    for name, run in runs.items():
        took = 0.0
        for _ in range(calls):
            begin = time.perf_counter()
            run()
            took = time.perf_counter() - begin
        found[name] = max(took, 1e-7)
    return found


def _block(run: Run, count: int, once: float, pause_s: float) -> float:
    """Return the median time of `count` calls after a pause; what a call returns is dropped."""
    clock = time.perf_counter
    time.sleep(pause_s)
    if once < LONG_S:
        begin = clock()
        run()
        while pause_s and clock() - begin < WARM_S:
            run()
    times = []
    for _ in range(count):
        begin = clock()
        run()
        times.append(clock() - begin)
    return statistics.median(times)


def error_of(found: Array, reference: Array) -> float:
    """Return the largest difference by the largest magnitude of the reference; inf for NaNs."""
    if found.shape != reference.shape:
        return float("inf")
    exact = np.asarray(reference, np.float64)
    difference = float(np.abs(np.asarray(found, np.float64) - exact).max(initial=0.0))
    largest = float(np.abs(exact).max(initial=0.0))
    error = difference / largest if largest else difference
    return error if np.isfinite(error) else float("inf")
