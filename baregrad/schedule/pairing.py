"""Independent reductions over equal axes share these axes, so that one loop makes them all.

Two folds over one range are one fold over pairs, whatever they fold; so they may share a loop
unless one needs the other's result.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from baregrad.ir.node import Node
from baregrad.ir.op import Ops

Ranges = tuple[Node, ...]


@dataclass(slots=True, eq=False)
class _Loop:
    """Reductions that share their ranges: bits of these, and of all reductions below them."""

    ranges: Ranges
    free: frozenset[Node]
    members: int = 0
    below: int = 0

    @property
    def key(self) -> Any:
        """What loops must have in common to be one."""
        return (tuple(axis.src[0] for axis in self.ranges), self.free)


def shared_axes(nodes: list[Node], reductions: list[Node]) -> dict[Node, Node]:
    """For ranges that may be another's: that other.

    nodes: a kernel's with all that have reductions below them, sources first. reductions: those
    among them.
    """
    loops = _loops(nodes, reductions)
    if len(loops) < 2:
        return {}
    owners = Counter(axis for ranges, _ in loops for axis in ranges)
    found: dict[Node, Node] = {}
    kept: dict[Any, list[_Loop]] = {}
    for loop in loops.values():
        if any(owners[axis] > 1 for axis in loop.ranges):
            continue
        rivals = kept.setdefault(loop.key, [])
        for other in rivals:
            if not (loop.below & other.members or other.below & loop.members):
                found.update(zip(loop.ranges, other.ranges, strict=True))
                other.members |= loop.members
                other.below |= loop.below
                break
        else:
            rivals.append(loop)
    return found


def _loops(
    nodes: list[Node], reductions: list[Node]
) -> dict[tuple[Ranges, frozenset[Node]], _Loop]:
    """The loops of a kernel's reductions, by their ranges and free axes."""
    loops: dict[tuple[Ranges, frozenset[Node]], _Loop] = {}
    if len(reductions) < 2:
        return loops
    below: dict[Node, int] = {}
    count = 0
    for node in nodes:
        bits = 0
        if node.mask & Ops.REDUCE.bit:
            for child in node.src:
                if child.mask & Ops.REDUCE.bit:
                    bits |= below[child]
        if node.op is Ops.REDUCE:
            ranges = node.src[node.arg.monoid.arity :]
            loop = loops.setdefault((ranges, node.ranges), _Loop(ranges, node.ranges))
            loop.below |= bits
            loop.members |= 1 << count
            bits |= 1 << count
            count += 1
        below[node] = bits
    return loops
