"""Packing of what is live at the same steps into as little memory as possible.

Device memory between kernels and scratch memory within one are the same problem: values live from
a first to a last step, and two that are live at once must not share a byte.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from baregrad.base.bits import round_up
from baregrad.base.errors import CompilerBug

ALIGNMENT = 64
BLOCK = 32  # steps whose intervals are looked at together

# Where an interval begins and ends in memory, and its first and last step.
_Placed = tuple[int, int, int, int]


class Interval(NamedTuple):
    """`nbytes` that are needed from step `first` to step `last`, both included."""

    first: int
    last: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Packing:
    """Where each interval lies, in the order given, and the bytes that all of them take."""

    offsets: tuple[int, ...]
    nbytes: int


def pack(
    intervals: Sequence[Interval], alignment: int = ALIGNMENT, spare: float = 0.0
) -> Packing:
    """Offsets such that intervals that share a step share no byte.

    alignment: every offset is a multiple of it. spare: the part of the largest interval's bytes
    that may be wasted to save time: as many of the smallest get memory of their own. The largest
    interval is placed first, each into the smallest gap that holds it among those already placed
    that are live with it; what is longest in use goes first among equals. Raises CompilerBug for an
    interval that ends before it begins.
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
    steps = max([interval.last for interval in intervals], default=0) + 1
    # By block of steps, what has its place in memory there, by offset; and what begins there.
    living: list[list[_Placed]] = [[] for _ in range(-(-steps // BLOCK))]
    starting: list[list[_Placed]] = [[] for _ in living]
    offsets = [0] * count
    total = 0
    alone = _smallest(sizes, order, spare)
    for number in order[: len(order) - alone]:
        interval, size = intervals[number], sizes[number]
        begins, ends = interval.first // BLOCK, interval.last // BLOCK
        near = living[begins]
        if ends > begins:
            near = sorted(chain(near, *starting[begins + 1 : ends + 1]))
        offset = _smallest_gap(near, size, interval.first, interval.last)
        offsets[number] = offset
        end = offset + size
        placed = (offset, end, interval.first, interval.last)
        starting[begins].append(placed)
        for block in range(begins, ends + 1):
            insort(living[block], placed)
        if end > total:
            total = end
    for number in order[len(order) - alone :]:
        offsets[number] = total
        total += sizes[number]
    return Packing(tuple(offsets), total)


def _smallest(sizes: list[int], order: list[int], spare: float) -> int:
    """How many of the last of `order`, the smallest, take no more than this part of the first."""
    left = spare * sizes[order[0]] if order else 0.0
    for count, number in enumerate(reversed(order)):
        left -= sizes[number]
        if left < 0:
            return count
    return len(order)


def _smallest_gap(placed: list[_Placed], size: int, first: int, last: int) -> int:
    """The offset of the smallest gap that holds `size` bytes, or where everything ends.

    What is not live at any step from `first` to `last` is not in the way.
    """
    found = -1
    smallest = 0
    reached = 0
    for begin, end, born, dead in placed:
        if born <= last and dead >= first:
            gap = begin - reached
            if gap >= size and (found < 0 or gap < smallest):
                found, smallest = reached, gap
            if end > reached:
                reached = end
    return found if found >= 0 else reached
