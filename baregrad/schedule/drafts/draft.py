"""Kernels in the making: the requests that consumers make of tensor values, and who makes them.

A *request* is one value at one index, wanted inside one kernel. Where an index depends on it, it
has a placeholder, the node INDEX(token, *idx), where the token is a PARAM that stands for the whole
value: of such nodes the index is made until the kernel is put together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from baregrad.ir.core import index
from baregrad.ir.core.attrs import Out
from baregrad.ir.core.node import Node, range_node
from baregrad.ir.core.op import Ops
from baregrad.schedule.drafts.access import ZERO, Idx


@dataclass(slots=True, eq=False)
class Request:
    """One value wanted at one index inside one kernel.

    scope: the ranges around it, outermost first. share: the part of the scope's points at which it
    is evaluated, since guards exclude the others. evals: how often it is evaluated when loops are
    hoisted as far out as its ranges allow. merges: it is an addend of a sum over more ranges, into
    which its own sum can be merged. fresh: wanted at one place only. read: it is read from memory.
    parts: what its sources became. extra: what its op needs to be put together (ranges, condition).
    placeholder: the node that stands for it in indices; None where no index depends on it. expr:
    its expression, once the kernel is put together. above: bits of the kernel's reductions that
    need it.
    """

    node: Node
    draft: Draft
    idx: Idx
    scope: Idx
    share: float
    evals: float
    above: int = 0
    merges: bool = False
    fresh: bool = True
    read: bool = False
    parts: tuple[Part, ...] = ()
    extra: Any = None
    placeholder: Node | None = None
    expr: Any = None


# The ranges of one plan by extent and number: kernels number theirs alike.
Ranges = dict[tuple[Any, int], Node]
# What a source became: a request, or an expression of ranges and constants alone.
Part = Request | Node


@dataclass(slots=True, eq=False)
class Written:
    """One OUT in the making: the stored value, what is put there, where it goes."""

    target: Node
    value: Part
    idx: Idx
    how: Out = field(default_factory=Out)


@dataclass(slots=True, eq=False)
class Folds:
    """Reductions of one kernel in one loop: its ranges, their bits, those of all that need them."""

    ranges: Idx
    members: int
    above: int


@dataclass(slots=True, eq=False)
class Draft:
    """A kernel in the making.

    outer: an index for each axis of its outputs. ranges: what ranges there are in any draft. loops:
    those of `outer`. requests: by value and index. placeholders: those that indices depend on.
    dependents: bit set of the drafts that need this one's outputs, directly or not. after: drafts
    that must run before although nothing is read from them. sealed: nothing may be added. folds: by
    free ranges and extents, the loops of its reductions; folded: how many these are. scanned: the
    one axis along which its running folds run. words: it multiplies words of bytes. built: it was
    put together before.
    """

    number: int
    outer: Idx
    extents: tuple[Any, ...]
    ranges: Ranges
    loops: Idx = ()
    outs: list[Written] = field(default_factory=list)
    requests: dict[tuple[Node, Idx], Request] = field(default_factory=dict)
    placeholders: dict[Node, Request] = field(default_factory=dict)
    folds: dict[Any, list[Folds]] = field(default_factory=dict)
    dependents: int = 0
    after: list[Draft] = field(default_factory=list)
    sealed: bool = False
    next_range: int = 0
    count: int = 0
    loads: int = 0
    pending: int = 0
    contraction: Node | None = None
    reductions: int = 0
    folded: int = 0
    scanned: Node | None = None
    words: bool = False
    built: bool = False

    def axis(self, extent: Any) -> Node:
        """A fresh range; a constant 0 for an axis of extent 1."""
        if extent.__class__ is int and extent == 1:
            return ZERO
        key = (extent, self.next_range)
        self.next_range += 1
        made = self.ranges.get(key)
        if made is None:
            made = self.ranges[key] = range_node(*key)
        return made

    def fold(self, request: Request, extents: tuple[Any, ...]) -> tuple[Idx, int]:
        """The ranges of a reduction, and the bits of all reductions around its body.

        Two folds over one range are one fold over pairs, whatever they fold; so reductions over
        equal axes of equal places share their ranges, unless one of them needs the other's result.
        """
        bit = 1 << self.folded
        self.folded += 1
        alike = self.folds.setdefault((ranges_of(request.idx), extents), [])
        above = self._needing(request.above) if request.above and alike else request.above
        for one in alike:
            if not one.members & above:
                one.members |= bit
                one.above |= above
                return one.ranges, above | bit
        ranges = tuple([self.axis(extent) for extent in extents])
        alike.append(Folds(ranges, bit, above))
        return ranges, above | bit

    def _needing(self, found: int) -> int:
        """Some reductions, those that share a loop with one of them, and all that need any."""
        loops = [one for alike in self.folds.values() for one in alike]
        before = 0
        while found != before:
            before = found
            for one in loops:
                if one.members & found:
                    found |= one.members | one.above
        return found

    def place_of(self, shape: tuple[Any, ...]) -> Idx:
        """The index of a value of `shape` whose axes, but for extents of 1, are the draft's."""
        if len(shape) == len(self.loops):
            return self.loops
        loops = iter(self.loops)
        return tuple(
            [ZERO if extent.__class__ is int and extent == 1 else next(loops) for extent in shape]
        )


def loop_extents(shape: tuple[Any, ...]) -> tuple[Any, ...]:
    """The extents of a shape that need a range."""
    return tuple([extent for extent in shape if extent.__class__ is not int or extent != 1])


# By shape: an index for each axis of an array, those that are ranges, and their extents.
Outer = dict[tuple[Any, ...], tuple[Idx, Idx, tuple[Any, ...]]]


def make_draft(number: int, shape: tuple[Any, ...], ranges: Ranges, known: Outer) -> Draft:
    """A draft whose outputs have this shape, with a range for each axis.

    known: of the shapes of one plan, since many outputs have the same.
    """
    found = known.get(shape)
    if found is None:
        draft = Draft(number, (), loop_extents(shape), ranges)
        outer = tuple([draft.axis(extent) for extent in shape])
        loops = tuple([axis for axis in outer if axis.op is Ops.RANGE])
        found = known[shape] = (outer, loops, draft.extents)
    outer, loops, extents = found
    return Draft(number, outer, extents, ranges, loops, next_range=len(loops))


class Token(NamedTuple):
    """Which value a PARAM stands for while kernels are drafted, by number."""

    number: int
    shape: tuple[Any, ...]


def token(node: Node, number: int) -> Node:
    """The PARAM that stands for a whole tensor value while kernels are drafted."""
    return Node(Ops.PARAM, node.dtype, (), Token(number, node.shape))


def ranges_of(idx: Idx) -> frozenset[Node]:
    """The free ranges of several index expressions."""
    if len(idx) == 1:
        return idx[0].ranges
    found: set[Node] = set()
    for place in idx:
        if place.op is Ops.RANGE:
            found.add(place)
        elif place is not ZERO:
            found |= place.ranges
    return frozenset(found)


def hoisted(scope: Idx, idx: Idx) -> int:
    """How many ranges of the scope are around an element at `idx`, hoisted out of the others."""
    if scope and scope[-1] in idx:
        return len(scope)  # the usual case
    inner = [place.ranges for place in idx if place is not ZERO and place.op is not Ops.RANGE]
    for count in range(len(scope), 0, -1):
        axis = scope[count - 1]
        if axis in idx:
            return count
        for ranges in inner:
            if axis in ranges:
                return count
    return 0


def scope_points(scope: Idx, idx: Idx, known: dict[Idx, float]) -> float:
    """How often an element at `idx` is evaluated when it is hoisted as far out as can be.

    known: the answers of one plan, by the ranges around the element.
    """
    count = len(scope)
    around = scope if count and scope[-1] in idx else scope[: hoisted(scope, idx)]
    found = known.get(around)
    if found is None:
        found = known[around] = points_of(around)
    return found


def points_of(axes: Iterable[Node]) -> float:
    """The points of some ranges together; at most, where one is symbolic."""
    points = 1.0
    for axis in axes:
        points *= extent_points(axis)
    return points


def extent_points(axis: Node) -> float:
    """The extent of a range; its upper bound when symbolic."""
    size = axis.src[0]
    return float(size.arg if size.op is Ops.CONST else index.upper(size))


def is_identity(idx: Idx, shape: tuple[Any, ...], outer: Idx) -> bool:
    """Whether `idx` runs over the whole of `shape`, each element once, with ranges of `outer`."""
    seen: set[Node] = set()
    for place, extent in zip(idx, shape, strict=True):
        if place.op is Ops.RANGE:
            size = place.src[0]
            if place in seen or place not in outer:
                return False
            if (size.arg if size.op is Ops.CONST else size) != extent:
                return False
            seen.add(place)
        elif not (place is ZERO and extent.__class__ is int and extent == 1):
            return False
    return True
