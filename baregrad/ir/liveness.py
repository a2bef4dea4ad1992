"""Live ranges over a line of steps, and packing of what is live into as little memory as possible.

Device memory between kernels and scratch memory within one are the same problem: values live from
a first to a last step, and two that are live at once must not share a byte.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from baregrad.base.bits import round_up
from baregrad.base.errors import CompilerBug

ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Step:
    """What one step reads and writes, by any hashable name."""

    reads: tuple[Hashable, ...] = ()
    writes: tuple[Hashable, ...] = ()


@dataclass(frozen=True, slots=True)
class Interval:
    """`nbytes` that are needed from step `first` to step `last`, both included."""

    first: int
    last: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Packing:
    """Where each interval lies, in the order given, and the bytes that all of them take."""

    offsets: tuple[int, ...]
    nbytes: int


def live_ranges(
    steps: Sequence[Step], kept: Iterable[Hashable] = ()
) -> Mapping[Hashable, tuple[int, int]]:
    """First and last step of each name, both included.

    kept: names that are wanted after the last step. A name that is read before it is written came
    from outside and lives from step 0. A step's inputs and outputs are live at once.
    """
    first: dict[Hashable, int] = {}
    last: dict[Hashable, int] = {}
    for position, step in enumerate(steps):
        for name in step.reads:
            first.setdefault(name, 0)
            last[name] = position
        for name in step.writes:
            first.setdefault(name, position)
            last[name] = position
    for name in kept:
        if name in first:
            last[name] = len(steps)
    return {name: (first[name], last[name]) for name in first}


def peak_nbytes(intervals: Sequence[Interval], alignment: int = ALIGNMENT) -> int:
    """The most bytes that are live at one step: no packing can take fewer."""
    changes: list[tuple[int, int]] = []
    for interval in intervals:
        nbytes = round_up(interval.nbytes, alignment)
        changes.append((interval.first, nbytes))
        changes.append((interval.last + 1, -nbytes))
    peak = live = 0
    for _, change in sorted(changes):
        live += change
        peak = max(peak, live)
    return peak


def pack(intervals: Sequence[Interval], alignment: int = ALIGNMENT) -> Packing:
    """Offsets such that intervals that share a step share no byte.

    alignment: every offset is a multiple of it. The largest interval is placed first, each into the
    smallest gap that holds it among those already placed that are live with it; what is longest in
    use goes first among equals. Raises CompilerBug for an interval that ends before it begins.
    """
    for interval in intervals:
        if interval.last < interval.first or interval.nbytes < 0:
            raise CompilerBug("an interval that is not one", found=interval)
    count = len(intervals)
    sizes = [round_up(interval.nbytes, alignment) for interval in intervals]
    order = sorted(
        (number for number in range(count) if sizes[number]),
        key=lambda n: (-sizes[n], intervals[n].first - intervals[n].last, intervals[n].first, n),
    )
    # What lives with an interval is live when it begins, or begins while it lives.
    begins = sorted({interval.first for interval in intervals})
    place = {step: number for number, step in enumerate(begins)}
    live: list[list[tuple[int, int]]] = [[] for _ in begins]
    starting: list[list[tuple[int, int]]] = [[] for _ in begins]
    offsets = [0] * count
    total = 0
    for number in order:
        interval, size = intervals[number], sizes[number]
        first = place[interval.first]
        end = bisect_right(begins, interval.last, first)
        together = live[first].copy()
        for step in range(first + 1, end):
            together += starting[step]
        offset = _smallest_gap(together, size)
        offsets[number] = offset
        taken = (offset, offset + size)
        starting[first].append(taken)
        for step in range(first, end):
            live[step].append(taken)
        total = max(total, offset + size)
    return Packing(tuple(offsets), total)


def _smallest_gap(taken: list[tuple[int, int]], size: int) -> int:
    """The offset of the smallest gap that holds `size` bytes, or where everything ends."""
    taken.sort()
    found = -1
    smallest = 0
    reached = 0
    for begin, end in taken:
        gap = begin - reached
        if gap >= size and (found < 0 or gap < smallest):
            found, smallest = reached, gap
        if end > reached:
            reached = end
    return found if found >= 0 else reached
