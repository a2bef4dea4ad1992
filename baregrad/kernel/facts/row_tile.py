"""How a GPU's threads share a sum along a row: by the row's length and what is read along it.

Every plan for such a sum follows this, whether it is alone in its kernel or beside others, and
however many rows there are: the order of the additions, and so the last bit, is always the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from baregrad.base.bits import next_power_of_two, round_up
from baregrad.ir.core import index
from baregrad.ir.core.node import Node, extent_of
from baregrad.kernel.facts.analysis import ArrayAccess, Facts, Reduction, itemsize, iterations
from baregrad.target.gpu import GpuTarget

# Elements of a row that a thread has: a multiprocessor then has room for the most threads. More
# where a row is one warp's, whose folds need no barriers, or is long.
ELEMENTS, MOST_ELEMENTS = 16, 32
# The least of a row that is less than a warp's, as far as there are so many threads: where rows are
# many, a warp that loads 25 numbers of one at once begins, waits and ends for little.
LEAST_ELEMENTS = 4
# Warps of the longest row; shorter ones are a warp's, or a part of one.
MOST_WARPS = 32
LEAST_THREADS = 8
# Accesses of a thread, at most, where it has more of them than of most threads: rows of 35 numbers
# are for eight threads with five each, not for 32 of which 29 have one and nothing.
MOST_STEPS = 8
# One part of a row's elements may lie past its end, of so many.
MOST_WASTE = 8
# Steps of a sum that one thread makes alone; where few neighbours of what it reads are summed, too.
THREAD_ROW, FAR_ROW = 24, 64
LEAST_NEIGHBOURS = 8


class RowTile(NamedTuple):
    """Where the elements of a row lie: `steps` times `warps` of `threads`, `lanes` in a row each.

    Rows that take one warp or less have `warps` of 1.
    """

    steps: int
    warps: int
    threads: int
    lanes: int

    @property
    def size(self) -> int:
        """Elements of the row, some perhaps past its end."""
        return self.steps * self.warps * self.threads * self.lanes


def is_short(facts: Facts, reduction: Reduction) -> bool:
    """Whether a thread makes all steps of a reduction, one after the other."""
    own = frozenset(reduction.own)
    along = any(
        access.stride(axis) == 1 and index.upper(extent_of(axis)) >= LEAST_NEIGHBOURS
        for access in _reads(facts, own) for axis in access.axes & own
    )
    return iterations(own) <= (THREAD_ROW if along else FAR_ROW)


def row_tile(facts: Facts, reduction: Reduction, target: GpuTarget) -> RowTile | None:
    """How threads share a reduction along one axis; None where it is short, or too long."""
    if len(reduction.own) != 1:
        return None
    (axis,) = reduction.own
    extent = extent_of(axis)
    if not isinstance(extent, int) or is_short(facts, reduction):
        return None
    lanes = _lanes(extent, _reads(facts, reduction.own), axis, target)
    while lanes > 1 and lanes * LEAST_THREADS > extent:
        lanes //= 2
    warp = target.warp_lanes
    count = -(-extent // lanes)
    if count <= MOST_ELEMENTS // lanes * warp:
        most = max(next_power_of_two(-(-count * lanes // LEAST_ELEMENTS)), LEAST_THREADS)
        threads = _threads(count, min(warp, next_power_of_two(count), most))
        return RowTile(-(-count // threads), 1, threads, lanes)
    least = -(-count // (warp * MOST_WARPS))
    for elements in (ELEMENTS, MOST_ELEMENTS):
        every = range(least, elements // lanes + 1)
        # The most steps that leave few past the end.
        waste = {each: round_up(-(-count // each), warp) * each - count for each in every}
        if waste:
            each = min(waste, key=lambda one: (waste[one] * MOST_WASTE > count, -one))
            warps = -(-count // (each * warp))
            return RowTile(-(-count // (warps * warp)), warps, warp, lanes)
    return None


def _threads(count: int, most: int) -> int:
    """Threads of a row of so many accesses: all there may be, or fewer of which few lie past it."""
    found, least = most, round_up(count, most) - count
    while least * MOST_WASTE > count and most > LEAST_THREADS and count <= MOST_STEPS * most // 2:
        most //= 2
        past = round_up(count, most) - count
        if past < least:
            found, least = most, past
    return found


def _reads(facts: Facts, own: Iterable[Node]) -> list[ArrayAccess]:
    """What is read along a reduction's own axes, which nothing else runs along."""
    return [access for access in facts.accesses if not access.axes.isdisjoint(own)]


def _lanes(
    extent: int, accesses: Sequence[ArrayAccess], axis: Node, target: GpuTarget
) -> int:
    """Elements that a thread reads at once: the widest access of the narrowest array's."""
    sizes = [itemsize(access.array.dtype) for access in accesses if access.stride(axis) == 1]
    lanes = min(target.load_bytes // min(sizes, default=target.load_bytes), 8)
    while lanes > 1 and not _is_aligned(extent, accesses, axis, lanes):
        lanes //= 2
    return lanes


def _is_aligned(
    extent: int, accesses: Sequence[ArrayAccess], axis: Node, lanes: int
) -> bool:
    """Whether vectors of so many lanes along a row begin at multiples of them in each array."""
    if extent % lanes:
        return False
    for access in accesses:
        offset = access.offset
        if offset.rest and any(axis in atom.ranges for atom, _ in offset.rest):
            return False
        stride = offset.strides.get(axis, 0)
        if stride not in (0, 1):
            return False
        others = [each for other, each in offset.strides.items() if other is not axis]
        others += [scale for _, scale in offset.rest]
        if stride == 1 and any(each % lanes for each in (offset.constant, *others)):
            return False
    return True
