"""Values that wait in the output they end up in: a softmax keeps its exponentials there.

Memory then brings the lines that are written while the values are computed, not afterwards, and
the first cache has one row less to hold.
"""

from __future__ import annotations

from typing import NamedTuple

from baregrad.ir.core import index
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import NO_RANGES, Node, extent_of, toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel.loops.loop_pieces import is_carried, scoped_below


class Kept(NamedTuple):
    """A STAGE whose elements lie one after the other in `array`, the first at `begin`."""

    stage: Node
    array: Node
    begin: Dim

    def place(self, indices: tuple[Node, ...]) -> Node:
        """Where an element of the stage lies in the array."""
        sizes = [extent_of(axis) for axis in self.stage.src[1:]]
        return index.as_node(index.add(self.begin, index.flatten(indices, sizes)))


def kept_in_output(out: Node, kernel: Node) -> Kept | None:
    """The STAGE of a kernel's one OUT whose values may wait in its array; None if there is none.

    Each must be read for the one element that takes its place, and else by reductions that are
    done before. Where an argument has an element at each place of the output, that may be written
    over it: then there is no room before the end.
    """
    array, value, place = out.src
    if len(kernel.src) > 1 or out.arg.monoid is not None or not value.has(Ops.STAGE):
        return None
    scoped = scoped_below((value,))
    stages = [node for node in scoped if node.op is Ops.STAGE]
    if len(stages) != 1:
        return None
    (stage,) = stages
    inner = place.ranges - stage.ranges
    if not _fits(stage, array, place, inner):
        return None
    for node in scoped:
        if node is not stage and node.has(Ops.STAGE):
            if node.op is not Ops.REDUCE or not inner.isdisjoint(node.ranges):
                return None
    sizes = [extent_of(axis) for axis in stage.src[1:]]
    begin: Dim | None = None
    for node in toposort(value):
        if node.op is Ops.LOAD and inner <= node.ranges and is_alike(node.src[0], array):
            return None
        if node.op is Ops.INDEX and node.src[0] is stage and not inner.isdisjoint(node.ranges):
            found = index.sub(place, index.flatten(node.src[1:], sizes))
            if not _ranges(found) <= stage.ranges or begin not in (None, found):
                return None
            begin = found
    return None if begin is None else Kept(stage, array, begin)


def _fits(stage: Node, array: Node, place: Node, inner: frozenset[Node]) -> bool:
    """Whether a STAGE has as many elements, of the same kind, as are written at its `place`."""
    if stage.arg.space != "scratch" or stage.dtype is not array.dtype or is_carried(stage):
        return False
    if array.arg.streamed or place.op is Ops.WHERE:
        return False
    if any(axis.arg.bind == "vector" for axis in stage.ranges):
        return False
    kept = index.product(extent_of(axis) for axis in stage.src[1:])
    return kept == index.product(extent_of(axis) for axis in inner)


def is_alike(one: Node, array: Node) -> bool:
    """Whether an argument might be what an output is written over."""
    sizes = index.product(one.arg.shape), index.product(array.arg.shape)
    return one.dtype is array.dtype and sizes[0] == sizes[1]


def _ranges(value: Dim) -> frozenset[Node]:
    return value.ranges if isinstance(value, Node) else NO_RANGES


def behind(
    below: tuple[Node, ...], values: tuple[Node, ...], own: tuple[Node, ...]
) -> tuple[Node, ...]:
    """Those of the reductions below some values that must be done before a loop over `own` begins.

    A STAGE along just those axes of which each step reads what it has written may be in step.
    """
    if not any(value.mask & Ops.STAGE.bit for value in values):
        return below
    axes = set(own)
    alike = {node for node in below if node.op is Ops.STAGE and axes == set(node.src[1:])}
    for node in toposort(*values) if alike else ():
        if node.op is Ops.INDEX and node.src[1:] != node.src[0].src[1:]:
            alike.discard(node.src[0])
    return tuple([node for node in below if node not in alike])
