"""A GPU's schedule in the making: its steps so far, and what axes the threads lie along."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import NamedTuple

from baregrad.ir.core import index
from baregrad.ir.core.axes import THREAD_BINDS
from baregrad.ir.core.node import Node, extent_of
from baregrad.kernel.facts.analysis import (
    ArrayAccess,
    Facts,
    axes_together,
    collapsible,
    itemsize,
    iterations,
    out_axes,
)
from baregrad.kernel.facts.axis_table import table_for
from baregrad.kernel.language.schedule import Bind, Collapse, Schedule, Split, Step
from baregrad.kernel.planning.common.decisions import Decisions
from baregrad.kernel.planning.common.tiling import Reason
from baregrad.kernel.planning.gpu.memory_model import AxisLayout, Estimate, estimate
from baregrad.target.gpu import GpuTarget

# Warps that share a row, or rows that share a block.
WARPS = 8
# Elements that a thread moves at once, but for bytes.
MOST_LANES = 8


# The model of memory does not tell apart what takes so many times as long.
ALIKE = 1.1
# What lays the axes of a kernel out.
Way = Callable[["GpuPlan"], None]


class _Told(NamedTuple):
    """A way that was taken, and what each takes, in words."""

    taken: str
    found: Mapping[str, Estimate]

    def __str__(self) -> str:
        others = [
            f"{name} {one.ns / 1e3:.1f} us" for name, one in self.found.items()
            if name != self.taken
        ]
        mine = self.found[self.taken]
        return f"{self.taken}, {mine.ns / 1e3:.1f} us, by {mine.bound}; {', '.join(others)}"


class GpuPlan:
    """A schedule in the making, and what it knows of the kernel.

    decisions: what a planner decides goes by way of them, so that a search can decide otherwise.
    """

    def __init__(
        self, facts: Facts, target: GpuTarget, decisions: Decisions | None = None
    ) -> None:
        self.decisions = decisions or Decisions()
        self.pick = self.decisions.pick
        self.facts = facts
        self.target = target
        self.warp = target.warp_lanes
        self.table = table_for(facts, target)
        self.steps: list[Step] = []
        self.write = next(access for access in facts.accesses if access.write)
        self.count = 0
        # The dimensions of the block that axes lie across.
        self.lying: dict[Node, frozenset[str]] = {}
        # Reduced axes that lie along threads already.
        self.taken: set[Node] = set()
        # The sums that threads share; each thread makes the others by itself.
        self.sums = facts.reductions
        self.reasons: list[Reason] = []
        # Axes that may have no point, where something is written that is not along them: a grid or
        # a block without threads would not write that either.
        self.uncertain = frozenset(
            axis
            for axis in facts.data
            if index.lower(extent_of(axis)) < 1
            and not all(axis in out_axes(out) for out in facts.outs)
        )

    def fork(self) -> GpuPlan:
        """A plan with the same steps so far, for a trial: what it decides is not noted."""
        other = copy(self)
        other.decisions = Decisions()
        other.pick = other.decisions.pick
        other.steps, other.reasons = list(self.steps), []
        other.lying, other.taken = dict(self.lying), set(self.taken)
        return other

    def best(self, name: str, ways: Mapping[str, Way]) -> Way:
        """The way that takes least by the model of memory, or the first of those that are alike.

        name: what is decided.
        """
        if len(ways) == 1:
            return next(iter(ways.values()))
        found: dict[str, Estimate] = {}
        for each, way in ways.items():
            trial = self.fork()
            way(trial)
            layout = AxisLayout(self.facts, self.table, trial.steps)
            found[each] = estimate(self.facts, layout, self.target)
        least = ALIKE * min([one.ns for one in found.values()])
        taken = self.pick(name, sorted(found, key=lambda each: max(found[each].ns, least)))
        self.because("{}: {}", name, _Told(taken, found))
        return ways[taken]

    def because(self, text: str, *facts: object) -> None:
        """Note why something was chosen; it is put into words only where somebody reads it."""
        self.reasons.append((text, *facts))

    def schedule(self) -> Schedule:
        """The schedule of the steps so far."""
        return Schedule(tuple(self.steps))

    def name(self, axis: Node) -> str:
        """What the schedule calls an axis of the kernel."""
        return self.table.names[axis]

    def is_serial(self, axis: Node) -> bool:
        """Whether an axis must run in order."""
        known = self.table.axes[self.name(axis)]
        return bool(known.serial or known.whole)

    def by_stride(self, axes: Sequence[Node], access: ArrayAccess) -> list[Node]:
        """Axes with those that an access strides furthest along first, or nobody knows how far."""

        def key(axis: Node) -> tuple[int, int, int]:
            stride = access.stride(axis)
            return (stride is not None, -abs(stride or 0), axis.arg.id)

        moving = [axis for axis in axes if access.stride(axis) != 0]
        still = [axis for axis in axes if access.stride(axis) == 0]
        return still + sorted(moving, key=key)

    def joined(self, axes: Sequence[Node]) -> str:
        """The name of axes, outermost first, as one."""
        names = [self.name(axis) for axis in axes]
        if len(names) == 1:
            return names[0]
        name = f"f{self.count}"
        self.count += 1
        self.steps.append(Collapse(tuple(names), name))
        return name

    def grid(self, axes: Sequence[Node]) -> None:
        """A block for each point of some axes."""
        axes = [axis for axis in axes if axis not in self.uncertain and extent_of(axis) != 1]
        self.steps.extend(Bind(self.name(axis), "grid") for axis in axes)

    def parts(
        self, axes: Sequence[Node], units: Sequence[tuple[str, int]], outer: str = "loop"
    ) -> None:
        """Axes as one, in parts: the rest on `outer`, then each (unit, size), outermost first.

        Left as they are where other axes lie across the same threads already, in one expression.
        """
        dims = frozenset([unit for unit, size in units if unit in THREAD_BINDS and size > 1])
        if self.meets(axes, dims) or not self.uncertain.isdisjoint(axes):
            return
        name = self.joined(axes)
        self.lying.update(dict.fromkeys(axes, dims))
        spelled = [(f"{name}_{unit[0]}{place}", size) for place, (unit, size) in enumerate(units)]
        self.steps.append(Split(name, ((f"{name}_o", 0), *spelled), masked=True))
        if outer != "loop":
            self.steps.append(Bind(f"{name}_o", outer))
        for (part, size), (unit, _) in zip(spelled, units, strict=True):
            if size > 1 and unit != "loop":
                self.steps.append(Bind(part, unit))

    def meets(self, axes: Sequence[Node], dims: frozenset[str]) -> bool:
        """Whether some expression runs along these axes and another one across the same threads."""
        taken = {axis for axis, lies in self.lying.items() if not dims.isdisjoint(lies)}
        taken.difference_update(axes)
        return bool(taken) and any(
            not together.isdisjoint(taken) and not together.isdisjoint(axes)
            for together in axes_together(self.facts)
        )

    def spread(self, axes: Sequence[Node], block: int, lanes: int = 1, vectors: int = 1) -> None:
        """Every point of some axes has a thread, or so many `vectors` of `lanes` in a row."""
        axes = [axis for axis in axes if extent_of(axis) != 1]
        if not axes:
            return
        ordered = self.by_stride(axes, self.write)
        fixed: list[Node] = []
        while ordered and isinstance(extent_of(ordered[-1]), int):
            fixed.insert(0, ordered.pop())
        if not fixed:
            fixed = [ordered.pop()]
        self.grid(ordered)
        size = iterations(fixed)
        if not size:
            return
        threads = min(block, -(-size // (lanes * vectors)))
        if threads > self.warp:
            threads = -(-threads // self.warp) * self.warp
        units = [("unroll", vectors)] if vectors > 1 else []
        units.append(("thread", threads))
        if lanes > 1:
            units.append(("vector", lanes))
        self.parts(fixed, units, "grid")

    def spread_rows(
        self, rows: Sequence[Node], together: int = WARPS, each: int = 1, turns: int = 1,
        near: bool = False,
    ) -> None:
        """A part of a block for `each` rows at once, `together` of them in a block, and `turns`.

        Blocks read neighbours in each turn, where it is known how many rows there are: what memory
        has open serves many of them. near: several rows are a warp's, which moves them together
        where they lie so.
        """
        axes = [axis for axis in rows if extent_of(axis) != 1]
        if not axes:
            return
        longest = max(axes, key=lambda axis: index.upper(extent_of(axis)))
        inner = self.by_stride(axes, self.write)[-1]
        extent = extent_of(inner)
        if near and isinstance(extent, int) and extent >= together * each * turns:
            longest = inner
        self.grid([axis for axis in axes if axis is not longest])
        units = [("thread_y", together), ("unroll", each)]
        units = units[: 2 if each > 1 else 1]
        size = extent_of(longest)
        if turns > 1 and isinstance(size, int):
            blocks = -(-size // (turns * together * each))
            self.parts([longest], [("grid", blocks), *units])
        else:
            self.parts([longest], [("loop", turns), *units] if turns > 1 else units, "grid")

    def together(self, ordered: Sequence[Node]) -> list[Node]:
        """The innermost of some axes that all accesses see as one, outermost first."""
        row = [ordered[-1]]
        for outer in reversed(ordered[:-1]):
            fixed = isinstance(extent_of(outer), int) and isinstance(extent_of(row[0]), int)
            if not fixed or not collapsible(self.facts, outer, row[0]):
                break
            row.insert(0, outer)
        return row

    def lanes(self, ordered: Sequence[Node], whole: bool = False) -> int:
        """Elements of the widest access of the narrowest array along some axes, as one.

        1 where neighbours along the innermost are none in some array. whole: the axes are all that
        there is, so that what fills no access may be done apart.
        """
        row = self.together(ordered)
        inner, axes = row[-1], frozenset(row)
        moved = [access for access in self.facts.accesses if inner in access.axes]
        if not moved or not all(isinstance(extent_of(axis), int) for axis in row):
            return 1
        if not {access.stride(inner) for access in moved} <= {0, 1}:
            return 1
        moved = [access for access in moved if access.stride(inner) == 1]
        lanes = self.most_lanes(inner)
        others = [
            other
            for access in moved
            for other in (
                access.offset.constant,
                *[each for axis, each in access.offset.strides.items() if axis not in axes],
                *[scale for _, scale in access.offset.rest],
            )
        ]
        extent = iterations(row)
        apart = whole and len(row) == len(ordered)
        while lanes > 1:
            filled = extent % lanes == 0 or (apart and extent > lanes)
            if filled and not any(other % lanes for other in others):
                break
            lanes //= 2
        return lanes

    def most_lanes(self, inner: Node) -> int:
        """Elements of the widest access of the narrowest array that lies along an axis."""
        moved = [access for access in self.facts.accesses if access.stride(inner) == 1]
        sizes = [itemsize(access.array.dtype) for access in moved]
        if not sizes:
            return 1
        lanes = self.target.load_bytes // min(sizes)
        return min(lanes, MOST_LANES) if max(sizes) > 1 else lanes

    def whole_lanes(self, lanes: int, inner: Node) -> int:
        """As many of `lanes` neighbours along an axis as one access of the widest array has.

        With two such accesses a thread leaves the half of each sector for the second one. Of what
        is moved often: a sum's results are few.
        """
        moved = [access for access in self.facts.accesses if access.stride(inner) == 1]
        points = {access: iterations(access.axes) for access in moved}
        often = [access for access in moved if 2 * points[access] >= max(points.values())]
        widest = max([itemsize(access.array.dtype) for access in often], default=1)
        return min(lanes, max(self.target.load_bytes // widest, 1))
