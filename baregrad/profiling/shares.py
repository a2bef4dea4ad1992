"""Runs of a list that were timed as a whole: which those are, and each command's share of them.

Kernels that compute take longer where a GPU's clock falls, those that wait for memory hardly do. So
shares are not what they were when the commands were timed last: they lie between those of the run
before that was timed command by command and of the one after, as far as this run is longer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from baregrad.runtime.commands import Timeline

# So many runs of a list are timed command by command at first: the first may find the device idle,
# so that its first command waits for the others to be written.
_AT_FIRST = 2
# What the launch of a list takes where the GPU is idle, and by how much a kernel may be slower in
# one run than in another: on an H200 the steps of a GPT took 5 % longer after a while than at
# first, and some in a row 10 to 24 %, while the vendor's profiler saw 0.1 % of the time between
# kernels.
_LAUNCH_NS = 10_000
_SLOWER = 0.25
# How much longer a command takes behind an event than behind another command, and how much of a
# short one that may be. On an H200 the vendor's profiler saw most kernels of a GPT's step take 0.3
# to 0.6 us longer in runs with events than in those without, some not at all; with 0.5 taken off,
# 97.5 to 98.2 % of the time of 20 to 50 runs lay in kernels within 3 %, without it 94.4 to 95.1 %.
_BEHIND_EVENT_NS, _OF_SHORT = 500, 0.2
# Runs that differ by less are alike: which one another is like cannot be told by its length.
_ALIKE = 0.005


def is_timed_closely(number: int, every: int) -> bool:
    """Whether a run of a list, counted from 0, is timed command by command.

    The first two are, one of so many from there on, and one a quarter of the way to that: a GPU
    that had been idle reaches its limit of power within half a second.
    """
    return number < _AT_FIRST or number % every == 0 or number == every // 4


@dataclass(slots=True)
class CloseTimes:
    """The times of those runs of a list that were timed command by command, in order."""

    numbers: list[int] = field(default_factory=list)
    times: list[Timeline] = field(default_factory=list)

    def add(self, number: int, times: Timeline) -> None:
        """Take the times of one more run."""
        if self.numbers == [0] and number < _AT_FIRST:
            self.numbers.clear()
            self.times.clear()
        self.numbers.append(number)
        self.times.append(times)

    def beside(self, number: int) -> tuple[Timeline, Timeline, float] | None:
        """Return two runs to place another one by, and how near it lies to the second, by count.

        None where no run is known. Behind the last run these are the last two.
        """
        at = bisect_left(self.numbers, number)
        if not self.numbers:
            return None
        if at == len(self.numbers):
            return self.times[max(at - 2, 0)], self.times[-1], 1.0
        if at == 0:
            return self.times[0], self.times[0], 0.0
        before, after = self.numbers[at - 1], self.numbers[at]
        return self.times[at - 1], self.times[at], (number - before) / (after - before)


def lengths_between(
    one: Timeline, two: Timeline, nearness: float, ran_ns: int
) -> tuple[tuple[str, ...], list[float]]:
    """Return labels and lengths of the commands in a run that took `ran_ns`, by two others.

    Where these are alike, `nearness` says how much of the second there is, from 0 to 1.
    """
    first, second = _without_events(one), _without_events(two)
    if one is two:
        return one.labels, first
    longer = sum(second) - sum(first)
    if abs(longer) > _ALIKE * sum(first):
        nearness = min(max((ran_ns - _LAUNCH_NS - sum(first)) / longer, 0.0), 1.0)
    return one.labels, [a + nearness * (b - a) for a, b in zip(first, second, strict=True)]


def _without_events(times: Timeline) -> list[float]:
    """Return how long commands take where no event stands before them."""
    return [one - min(_BEHIND_EVENT_NS, one * _OF_SHORT) for one in times.durations_ns()]


def placed(
    labels: tuple[str, ...], lengths: Sequence[float], begin_ns: int, end_ns: int
) -> Timeline:
    """Return the commands of a list in a run of all of them, each in proportion to its length.

    What the run is longer is the launch of the list first, then a lower clock, as far as clocks
    differ; what is left lies evenly between the commands.
    """
    working, ran = sum(lengths), end_ns - begin_ns
    longer = max(ran - working, 0)
    launch = min(longer, _LAUNCH_NS)
    slower = min(longer - launch, working * _SLOWER)
    gap = (longer - launch - slower) / max(sum(one > 0 for one in lengths), 1)
    scale = min(ran, working + slower) / working if working else 1.0
    now, begins, ends = float(begin_ns + launch), [], []
    for one in lengths:
        now += gap if one > 0 else 0
        begins.append(round(now))
        now += one * scale
        ends.append(round(now))
    return Timeline(labels, tuple(begins), tuple(ends))
