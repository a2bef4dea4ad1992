"""Sums of comparisons on a GPU: of all pairs of elements, and of what searches find."""

from __future__ import annotations

from baregrad.base.bits import next_power_of_two
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel.facts.analysis import Facts
from baregrad.target.gpu import GpuTarget

# Reads one after the other that are a search, and threads of a multiprocessor that search at once.
# (Lanes read far from each other: on an H200 8,704 results of 15 searches took 4 us by 16 lanes,
# but 65,536 of 7 by 8 lanes 12 us, and 7 by a thread each.)
SEARCH, ALL_THREADS = 4, 2048


def is_of_all_pairs(facts: Facts, rows: frozenset[Node]) -> bool:
    """Whether results that are neighbours read the same along exact sums, each beside its own.

    Threads along these read once for a warp what is summed, and meet nowhere. rows: the axes of the
    results.
    """
    own = {axis for each in facts.reductions for axis in each.own}
    reads = [each for each in facts.accesses if not each.write]
    near = {axis for each in reads for axis in rows if each.stride(axis) == 1}
    along = [each for each in reads if not each.axes.isdisjoint(own)]
    exact = all(each.node.arg.monoid.is_exact for each in facts.reductions)
    return exact and bool(along and near) and all(each.axes.isdisjoint(near) for each in along)


def searchers(facts: Facts, target: GpuTarget, points: int, steps: int) -> int:
    """Threads of a short exact sum whose steps each wait for several reads, one after the other.

    Each step has one, unless there are more than a machine has at once. points: how many results.
    """
    exact = all(each.node.arg.monoid.is_exact for each in facts.reductions)
    threads = next_power_of_two(steps)
    if not exact or threads > target.warp_lanes or points * threads > ALL_THREADS * target.units:
        return 1
    reads = max([_reads_in_turn(each.node) for each in facts.reductions], default=0)
    return threads if reads >= SEARCH else 1


def _reads_in_turn(value: Node) -> int:
    """How many reads of memory wait one for the other, at most, until a value is there."""
    found: dict[Node, int] = {}
    for node in toposort(value):
        found[node] = max([found[child] for child in node.src], default=0) + (node.op is Ops.INDEX)
    return found[value]
