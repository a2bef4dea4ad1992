"""Splitting one axis for a tile: into vectors, registers and loops, with its tails."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any

from baregrad.base.bits import previous_power_of_two
from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import Node, extent_of
from baregrad.ir.core.op import Ops
from baregrad.kernel.facts.analysis import (
    ArrayAccess,
    Facts,
    as_one,
    axes_together,
    collapsible,
    itemsize,
)
from baregrad.kernel.facts.axis_table import Axis, fresh_axes
from baregrad.kernel.language.schedule import (
    Bind,
    Collapse,
    Reorder,
    Schedule,
    Split,
    StageInput,
    StageReduce,
    Step,
)
from baregrad.target.cpu import CpuTarget

# The widest vector that is made of an axis which is not split, in lanes of a register.
MOST_ODD_VECTORS = 2
# A stride that was not asked for yet; distinguished from strides by identity.
_UNKNOWN: Any = object()
# A text with places, as of str.format, and what goes there.
Reason = tuple[Any, ...]


# Vectors side by side that are one value, at most: of one instruction LLVM makes as many.
MOST_TOGETHER = 4


def merged(count: int, lanes: int) -> tuple[int, int]:
    """`count` vectors of `lanes` as fewer that are wider: how many, and their lanes.

    Compilers split values of a power of two of registers, and handle others lane by lane.
    """
    times = min(count & -count, MOST_TOGETHER)
    return count // times, lanes * times


@lru_cache(1 << 10)
def parts_of(size: int, tile: int) -> tuple[tuple[int, int], ...]:
    """(tile, how many) of an axis: whole tiles, and the rest."""
    whole, rest = divmod(size, tile)
    found = ((tile, whole),) if whole else ()
    return (*found, (rest, 1)) if rest else found


def points(axes: Iterable[PlannedAxis]) -> int:
    """The points of some axes, at most."""
    return prod([axis.size for axis in axes])


def loop_names(axes: Iterable[PlannedAxis]) -> list[str]:
    """The loops left of some axes, outermost first."""
    return [name for axis in axes for name, _ in axis.loops]


@dataclass(eq=False, slots=True)
class PlannedAxis:
    """An axis (or several collapsed into one) and what was decided about it.

    `size` is its extent, at most, and 1 where that is none. `loops` are the loops left of it and
    their trip counts, outermost first; `tiles` names the tile axes of the main part and each tail.
    """

    name: str
    extent: Dim
    nodes: tuple[Node, ...]
    reduced: bool
    size: int
    loops: list[tuple[str, int]] = field(default_factory=list)
    tiles: list[tuple[str, ...]] = field(default_factory=list)
    planned: bool = False
    _strides: dict[ArrayAccess, int | None] = field(default_factory=dict)

    def stride(self, access: ArrayAccess) -> int | None:
        """Elements between neighbours in an access; 0 if reused, None if not affine."""
        # Every choice asks again for the strides of the same few accesses.
        found: int | None = self._strides.get(access, _UNKNOWN)
        if found is _UNKNOWN:
            found = self._strides[access] = self._stride(access)
        return found

    def _stride(self, access: ArrayAccess) -> int | None:
        nodes = self.nodes
        if access.array.op is Ops.STAGE and not access.array.ranges.isdisjoint(nodes):
            return None  # what is kept is made anew at each step
        one = len(nodes) == 1 or access.axes.isdisjoint(nodes)
        one = one or as_one(access.offset.strides, nodes[::-1])
        return access.stride(nodes[-1]) if one else None

    def inside(self, axes: frozenset[Node] | tuple[Node, ...]) -> bool:
        """Whether the axis is one of `axes`."""
        return self.nodes[-1] in axes


@dataclass(slots=True)
class CpuPlan:
    """A CPU's schedule in the making; neighbouring axes are one where every access sees them so.

    fresh: the kernel's own axes as its steps find them. lanes: of a register, for the widest
    element that is moved, at most 4 bytes wide when mixed.
    """

    facts: Facts
    target: CpuTarget
    fresh: dict[Node, Axis] = field(init=False)
    lanes: int = field(init=False)
    axes: list[PlannedAxis] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    stages: list[Step] = field(default_factory=list)
    tile_order: list[str] = field(default_factory=list)
    vectors: list[PlannedAxis] = field(default_factory=list)
    reasons: list[Reason] = field(default_factory=list)
    together: frozenset[frozenset[Node]] | None = None

    def __post_init__(self) -> None:
        self.fresh = fresh_axes(self.facts)
        # A scalar is made ready outside the loops.
        moved = {access.array.dtype for access in self.facts.accesses if access.axes}
        widest = max(map(itemsize, moved), default=4)
        narrow = dtypes.float16 in moved or dtypes.bfloat16 in moved
        self.lanes = max(self.target.lanes(max(widest, 4 if narrow else 1)), 2)
        for reduced, nodes in ((False, self.facts.data), (True, self.facts.reduced)):
            group: list[Node] = []
            for node in nodes:
                if group and not _joins(self, group[-1], node):
                    self.axes.append(_planned(self, group, reduced))
                    group = []
                group.append(node)
            if group:
                self.axes.append(_planned(self, group, reduced))

    def because(self, text: str, *facts: object) -> None:
        """Note why something was chosen; it is put into words only where somebody reads it."""
        self.reasons.append((text, *facts))

    def schedule(self, order: list[str], pool: Bind | None = None) -> Schedule:
        """The schedule with loops in this order, outermost first."""
        steps = list(self.steps)
        if len(order) + len(self.tile_order) > 1:
            steps.append(Reorder((*order, *self.tile_order)))
        if pool is not None:
            steps.append(self._in_whole_chunks(pool))
        steps.extend(self.stages)
        return Schedule(tuple(steps))

    def _in_whole_chunks(self, pool: Bind) -> Bind:
        """The bind of the pool's axis, its chunks of one size where a copy lies over it."""
        staged = {
            name
            for step in self.stages
            if isinstance(step, StageInput | StageReduce)
            for name in (step.names if isinstance(step, StageInput) else step.axes)
        }
        if pool.axis not in staged:
            return pool
        trips = next(
            (trips for axis in self.axes for name, trips in axis.loops if name == pool.axis), 1
        )
        grain = next(grain for grain in range(pool.grain, 0, -1) if trips % grain == 0)
        return Bind(pool.axis, pool.unit, grain)

    def meets_vector(self, axis: PlannedAxis) -> bool:
        """Whether some expression depends on this axis and on one that has lanes already.

        An expression has the lanes of one axis at most.
        """
        taken = {node for other in self.vectors if other is not axis for node in other.nodes}
        if not taken:
            return False
        if self.together is None:
            self.together = axes_together(self.facts)
        return any(
            not taken.isdisjoint(axes) and not axes.isdisjoint(axis.nodes)
            for axes in self.together
        )

    def bind(self, name: str, unit: str) -> None:
        """Bind one axis."""
        self.steps.append(Bind(name, unit))

    def keep(self, axis: PlannedAxis) -> None:
        """Leave an axis as one loop."""
        if not axis.planned:
            axis.planned = True
            if axis.extent != 1:
                axis.loops = [(axis.name, axis.size)]

    def cut(
        self, axis: PlannedAxis, parts: Mapping[str, int], units: Mapping[str, str],
        tail: str = "", masked: bool = False,
    ) -> None:
        """Split an axis into parts, outermost first, of which the first takes what is left.

        They are loops, but those that have `units`.
        """
        tile = prod([size or 1 for size in parts.values()])
        trips = -(-axis.size // tile) if masked else max(axis.size // tile, 1)
        self.steps.append(Split(axis.name, tuple(parts.items()), tail, masked))
        for name, unit in units.items():
            self.bind(name, unit)
        axis.planned = True
        axis.loops = [(name, size or trips) for name, size in parts.items() if name not in units]

    def whole(self, axis: PlannedAxis, name: str, size: int, unit: str) -> None:
        """All of an axis, or of its tail called `name`, is a tile."""
        axis.planned = True
        axis.tiles.append((name,))
        if size > 1:
            self.bind(name, unit)

    def unroll(self, axis: PlannedAxis, count: int) -> None:
        """Spread `count` neighbours of an axis over registers, the rest is a loop."""
        if count <= 1:
            self.keep(axis)
            return
        if axis.extent == count:
            self.whole(axis, axis.name, count, "unroll")
            return
        rest = index.mod(axis.extent, count)
        tail = "" if rest == 0 else f"{axis.name}t"
        inner = f"{axis.name}u"
        self.cut(axis, {f"{axis.name}o": 0, inner: count}, {inner: "unroll"}, tail)
        axis.tiles.append((inner,))
        if tail and isinstance(rest, int):
            self.whole(axis, tail, rest, "unroll")
        elif tail:
            axis.loops.append((tail, 1))

    def vectorise(
        self, axis: PlannedAxis, lanes: int, count: int = 1, carried: bool = False,
        wide: bool = False,
    ) -> None:
        """Tiles of `count` vectors of `lanes` elements; what is left over is a smaller tile.

        An axis of fewer than two vectors is one vector of its own length, unless its vectors are
        `carried` around loops: then all lengths are powers of two, since compilers split others.
        wide: vectors side by side are one value.
        """
        axis.planned = True
        self.vectors.append(axis)
        size = axis.extent if isinstance(axis.extent, int) else None
        if size is not None and carried and size < lanes:
            self.powers(axis, axis.name, size)
            return
        if size is not None and (size <= lanes or (size < 2 * lanes and count > 1 and not carried)):
            self.whole(axis, axis.name, size, "vector")
            return
        if size is not None:
            count = max(min(count, size // lanes), 1)
        rest = index.mod(axis.extent, lanes * count)
        tail = "" if rest == 0 else f"{axis.name}t"
        each, width = merged(count, lanes) if wide else (count, lanes)
        tiles = {f"{axis.name}u": each, f"{axis.name}v": width}
        units = {f"{axis.name}u": "unroll", f"{axis.name}v": "vector"}
        if each == 1:
            del tiles[f"{axis.name}u"], units[f"{axis.name}u"]
        self.cut(axis, {f"{axis.name}o": 0, **tiles}, units, tail)
        axis.tiles.append(tuple(tiles))
        if tail and isinstance(rest, int):
            self.vector_tail(axis, tail, rest, lanes, carried, wide)
        elif tail:
            axis.loops.append((tail, 1))

    def vectorise_masked(self, axis: PlannedAxis, lanes: int, each: int = 0) -> None:
        """Vectors of `lanes` elements; the last one is masked if they do not divide the axis.

        each: they are made of vectors of so many elements side by side, if they are to be.
        """
        self.vectors.append(axis)
        count = lanes // each if each else 1
        if axis.extent == lanes and count == 1:
            self.whole(axis, axis.name, lanes, "vector")
            return
        inner, spread = f"{axis.name}v", f"{axis.name}u"
        tiles, units = {inner: lanes // count}, {inner: "vector"}
        if count > 1:
            tiles, units = {spread: count, **tiles}, {spread: "unroll", **units}
        masked = index.mod(axis.extent, lanes) != 0
        self.cut(axis, {f"{axis.name}o": 0, **tiles}, units, masked=masked)
        axis.tiles.append(tuple(tiles))

    def vector_tail(
        self, axis: PlannedAxis, tail: str, rest: int, lanes: int, carried: bool, wide: bool
    ) -> None:
        """The tail of a vectorised axis: whole vectors in registers, then one shorter vector."""
        if carried and rest < lanes:
            self.powers(axis, tail, rest)
            return
        if rest < MOST_ODD_VECTORS * lanes and rest != lanes and not carried:
            self.whole(axis, tail, rest, "vector")
            return
        vectors, left = divmod(rest, lanes)
        last = f"{tail}t" if left else ""
        each, width = merged(vectors, lanes) if wide else (vectors, lanes)
        self.steps.append(Split(tail, ((f"{tail}u", 0), (f"{tail}v", width)), last))
        if each > 1:
            self.bind(f"{tail}u", "unroll")
        self.bind(f"{tail}v", "vector")
        axis.tiles.append((f"{tail}u", f"{tail}v"))
        if left and carried:
            self.powers(axis, last, left)
        elif left:
            self.whole(axis, last, left, "vector")

    def powers(self, axis: PlannedAxis, name: str, size: int) -> None:
        """Fewer elements than a register has lanes, as vectors of falling powers of two."""
        steps, tiles = powers_of(name, size)
        self.steps += steps
        axis.tiles += tiles


def powers_of(name: str, size: int) -> tuple[list[Step], list[tuple[str, ...]]]:
    """The steps that make vectors of falling powers of two of an axis, and those vectors' axes."""
    steps: list[Step] = []
    tiles: list[tuple[str, ...]] = []
    while size:
        lanes = previous_power_of_two(size)
        size -= lanes
        vector = f"{name}v" if size else name
        if size:
            steps.append(Split(name, ((f"{name}o", 0), (vector, lanes)), f"{name}t"))
        if lanes > 1:
            steps.append(Bind(vector, "vector"))
        tiles.append((vector,))
        name = f"{name}t"
    return steps, tiles


def _joins(plan: CpuPlan, outer: Node, inner: Node) -> bool:
    for each in (outer, inner):
        axis = plan.fresh[each]
        if each in plan.facts.exposed or axis.serial or axis.whole or axis.exact:
            return False
    return collapsible(plan.facts, outer, inner)


def _planned(plan: CpuPlan, group: list[Node], reduced: bool) -> PlannedAxis:
    nodes = tuple(group)
    names = tuple([plan.fresh[node].name for node in nodes])
    name = "_".join(names)
    if len(names) > 1:
        plan.steps.append(Collapse(names, name))
    extent = index.product(extent_of(node) for node in nodes)
    # What is never any element has costs all the same.
    return PlannedAxis(name, extent, nodes, reduced, max(index.upper(extent), 1))
