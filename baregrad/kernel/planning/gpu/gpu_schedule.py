"""The first schedule of a kernel on a GPU: chosen from its facts at once, without measuring.

Axes of the output fall in two. Those that every reduction's result runs along are *rows*: blocks or
warps of their own, which never meet. Along the others, and along reduced axes, the threads of a
block lie, so that one reads what its neighbours in memory read beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from baregrad.ir.core import index
from baregrad.ir.core.axes import THREAD_BINDS
from baregrad.ir.core.node import Node, extent_of
from baregrad.kernel.applying.axes import fresh_table
from baregrad.kernel.facts.analysis import (
    Access,
    Facts,
    Reduction,
    axes_together,
    by_id,
    itemsize,
    iterations,
    op_flops,
    out_axes,
)
from baregrad.kernel.language.schedule import Bind, Collapse, Schedule, Split, Step
from baregrad.kernel.planning.gpu.gemm_threads import plan_tiles
from baregrad.kernel.planning.tiling import Reason
from baregrad.target.gpu import GpuTarget

# Threads of a block where nothing asks for another number.
BLOCK = 256
SMALL_BLOCK = 128
WARP = 32
# Warps that share a row, or rows that share a block.
WARPS = 8
# A row of more elements has a block, of fewer a warp; a shorter one still a thread.
BLOCK_ROW = 2048
WARP_ROW = 24
# Threads that keep a GPU busy, roughly: some thousand for each of its hundred multiprocessors.
BUSY = 1 << 17
# More operations than this are not written out several times for the lanes of a vector.
MOST_VECTOR_OPS = 48
MOST_LANES = 8


def choose_gpu_schedule(facts: Facts, target: GpuTarget) -> tuple[Schedule, tuple[Reason, ...]]:
    """A good schedule for a kernel with these facts, and why."""
    plan = GpuPlan(facts, target)
    free = [axis for axis in facts.data if not plan.is_serial(axis)]
    if facts.ordered or facts.scanned:
        plan.because("writes keep their order, scans theirs: threads along the other axes")
        plan.spread(free, SMALL_BLOCK)
    elif not facts.reductions:
        lanes = plan.vector(free, facts.accesses)
        plan.because("threads along the output, {} elements for each", lanes)
        plan.spread(free, BLOCK, lanes)
    elif plan_tiles(plan):
        plan.because("a contraction: tiles of the output for blocks, panels in shared memory")
    else:
        _reductions(plan)
    return plan.schedule(), tuple(plan.reasons)


class GpuPlan:
    """A schedule in the making, and what it knows of the kernel."""

    def __init__(self, facts: Facts, target: GpuTarget) -> None:
        self.facts = facts
        self.target = target
        self.table = fresh_table(facts, target)
        self.steps: list[Step] = []
        self.write = next(access for access in facts.accesses if access.write)
        self.count = 0
        # The dimensions of the block that axes lie across.
        self.lying: dict[Node, frozenset[str]] = {}
        # Reduced axes that lie along threads already.
        self.taken: set[Node] = set()
        self.reasons: list[Reason] = []
        # Axes that may have no point, where something is written that is not along them: a grid or
        # a block without threads would not write that either.
        self.uncertain = frozenset(
            axis
            for axis in facts.data
            if index.lower(extent_of(axis)) < 1
            and not all(axis in out_axes(out) for out in facts.outs)
        )

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

    def by_stride(self, axes: Sequence[Node], access: Access) -> list[Node]:
        """Axes with those that an access strides furthest along first."""

        def key(axis: Node) -> tuple[int, int]:
            stride = access.stride(axis)
            return (-abs(stride) if stride else (0 if stride is None else 1), axis.arg.id)

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
            if size > 1:
                self.steps.append(Bind(part, unit))

    def meets(self, axes: Sequence[Node], dims: frozenset[str]) -> bool:
        """Whether some expression runs along these axes and another one across the same threads."""
        taken = {axis for axis, lies in self.lying.items() if not dims.isdisjoint(lies)}
        taken.difference_update(axes)
        return bool(taken) and any(
            not together.isdisjoint(taken) and not together.isdisjoint(axes)
            for together in axes_together(self.facts)
        )

    def spread(self, axes: Sequence[Node], block: int, lanes: int = 1) -> None:
        """Every point of some axes has a thread, or every `lanes` points in a row."""
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
        size = prod_upper(fixed)
        if not size:
            return
        threads = min(block, -(-size // lanes))
        if threads > WARP:
            threads = -(-threads // WARP) * WARP
        units = [("thread", threads)]
        if lanes > 1:
            units.append(("vector", lanes))
        self.parts(fixed, units, "grid")

    def spread_rows(self, rows: Sequence[Node]) -> None:
        """A warp for each row, several in a block."""
        axes = [axis for axis in rows if extent_of(axis) != 1]
        if not axes:
            return
        longest = max(axes, key=lambda axis: index.upper(extent_of(axis)))
        self.grid([axis for axis in axes if axis is not longest])
        self.parts([longest], [("thread_y", WARPS)], "grid")

    def vector(self, axes: Sequence[Node], accesses: Sequence[Access]) -> int:
        """Adjacent elements that one thread moves at once along the innermost of some axes."""
        axes = [axis for axis in axes if extent_of(axis) != 1]
        if not axes:
            return 1
        inner = self.by_stride(axes, self.write)[-1]
        lanes = self.lanes(inner, accesses)
        return lanes if prod_upper(axes) >= lanes * BUSY else 1

    def lanes(self, inner: Node, accesses: Sequence[Access]) -> int:
        """Lanes of an access of the widest kind along an axis; 1 where that does not fit."""
        extent = extent_of(inner)
        strides = {access.stride(inner) for access in accesses}
        if not isinstance(extent, int) or not strides <= {0, 1} or inner in self.facts.exposed:
            return 1
        if sum(op_flops(node) for node in self.facts.order) > MOST_VECTOR_OPS:
            return 1
        widest = max([itemsize(a.array.dtype) for a in accesses if a.stride(inner) == 1], default=0)
        if not widest:
            return 1
        lanes = min(self.target.load_bytes // widest, MOST_LANES)
        while extent % lanes:
            lanes //= 2
        for access in accesses:
            others = (access.offset.constant, *access.offset.strides.values())
            if any(other % lanes for other in others if other != 1):
                return 1
        return lanes

    def along(self, axis: Node, units: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
        """Units along one axis, each thread with adjacent elements where there are enough."""
        lanes = self.lanes(axis, [a for a in self.facts.accesses if axis in a.axes])
        if lanes > 1 and index.upper(extent_of(axis)) >= lanes * prod([n for _, n in units]):
            return [*units, ("vector", lanes)]
        return list(units)

def prod_upper(axes: Sequence[Node]) -> int:
    """The number of points of some axes, at most."""
    return prod([index.upper(extent_of(axis)) for axis in axes])


# --- reductions ---------------------------------------------------------------------------------


def _reductions(plan: GpuPlan) -> None:
    facts = plan.facts
    data = frozenset(facts.data)
    rows = data.intersection(*[reduction.free for reduction in facts.reductions])
    columns = data - rows
    main = max(facts.reductions, key=lambda r: iterations(r.free.union(r.own)))
    reads = [a for a in facts.accesses if not a.write and not a.axes.isdisjoint(main.own)]
    points = prod_upper([*rows])
    length = max(iterations(reduction.own) for reduction in facts.reductions)
    if not columns and _in_threads(plan, rows, main, reads, points, length):
        plan.because("{} results, sums of {}: neighbours in threads read best", points, length)
        return
    nested = [r for r in facts.reductions if r.free - data]
    if nested:
        plan.because("sums of sums: the inner along the lanes of a warp, the outer along warps")
        _nested(plan, by_id(rows), by_id(columns), nested)
        return
    longest = max([length, *([prod_upper([*columns])] if columns else [])])
    short = longest <= BLOCK_ROW and points * WARP * 4 >= BUSY
    if longest <= 4 * WARP:
        short = True
    units = [("thread", WARP)] if short else [("thread_y", WARPS), ("thread", WARP)]
    who = "a warp" if short else "a block"
    plan.because("{} rows, sums of {}: {} for each row", points, length, who)
    if short and rows:
        plan.spread_rows(by_id(rows))
    else:
        plan.grid(by_id(rows))
    for reduction in facts.reductions:
        _across(plan, reduction, columns, units)
    _columns(plan, by_id(columns), units)


def _in_threads(
    plan: GpuPlan,
    rows: frozenset[Node],
    main: Reduction,
    reads: Sequence[Access],
    points: int,
    length: int,
) -> bool:
    """Give each result a thread of its own, where that keeps the machine busy and reads well."""
    if not rows:
        return False
    inner = plan.by_stride(by_id(rows), plan.write)[-1]
    own = [axis for axis in main.own if extent_of(axis) != 1]
    along = sum(any(read.stride(axis) == 1 for axis in own) for read in reads)
    across = sum(read.stride(inner) == 1 for read in reads)
    if length <= WARP_ROW or (across >= along and points >= BUSY // 8):
        plan.spread(by_id(rows), SMALL_BLOCK)
        return True
    if across > along or (across == along and across and points >= WARP):
        return _split_columns(plan, rows, inner, main)
    return False


def _split_columns(
    plan: GpuPlan, rows: frozenset[Node], inner: Node, main: Reduction
) -> bool:
    """Few results with adjacent reads: a warp lies along the results, warps share the reduction."""
    own = [axis for axis in main.own if extent_of(axis) != 1]
    longest = max(own, key=lambda axis: index.upper(extent_of(axis)))
    if len(plan.facts.reductions) > 1 or not isinstance(extent_of(inner), int):
        plan.spread(by_id(rows), SMALL_BLOCK)
        return True
    plan.grid([axis for axis in by_id(rows) if axis is not inner])
    plan.parts([inner], [("thread", WARP)], "grid")
    plan.parts([longest], [("thread_y", WARPS)])
    return True


def _nested(
    plan: GpuPlan, rows: Sequence[Node], columns: Sequence[Node], nested: Sequence[Reduction]
) -> None:
    """Reductions of reductions: the inner ones along a warp's lanes, the outer ones along warps."""
    plan.grid(rows)
    data = frozenset(plan.facts.data)
    inner = {axis for reduction in nested for axis in reduction.own}
    taken = {axis for reduction in nested for axis in reduction.free - data}
    done: set[Node] = set()
    for reduction in plan.facts.reductions:
        for axes, unit, size in (
            (inner - taken, "thread", WARP), (taken - inner, "thread_y", WARPS)
        ):
            mine = [a for a in reduction.own if a in axes and extent_of(a) != 1]
            if not mine or not done.isdisjoint(reduction.own):
                continue
            best = max(mine, key=lambda axis: index.upper(extent_of(axis)))
            done.update(reduction.own)
            plan.parts([best], [(unit, size)])
    if not any(reduction.free & frozenset(columns) for reduction in plan.facts.reductions):
        _columns(plan, columns, [("thread_y", WARPS), ("thread", WARP)])


def _across(
    plan: GpuPlan,
    reduction: Reduction,
    columns: frozenset[Node],
    units: list[tuple[str, int]],
) -> None:
    """Threads along a reduction's contiguous axis, if its results do not run along threads."""
    own = [axis for axis in reduction.own if extent_of(axis) != 1]
    if not own or reduction.free & columns or not plan.taken.isdisjoint(own):
        return
    plan.taken.update(own)
    reads = [a for a in plan.facts.accesses if not a.write and not a.axes.isdisjoint(own)]
    ordered = plan.by_stride(own, reads[0]) if reads else own
    best = ordered[-1]
    threads = prod([size for _, size in units])
    size = index.upper(extent_of(best))
    if len(own) > 1 and size < 2 * threads and _together(plan, own):
        plan.parts(ordered, units)
        return
    if len(own) > 1 and size < threads:
        best = max(own, key=lambda axis: index.upper(extent_of(axis)))
    plan.parts([best], plan.along(best, units))


def _together(plan: GpuPlan, own: Sequence[Node]) -> bool:
    """Whether axes can be one: every reduction takes all of them or none, and none is long."""
    if not all(isinstance(extent_of(axis), int) for axis in own):
        return False
    return all(
        len(frozenset(own).intersection(other.own)) in (0, len(own))
        for other in plan.facts.reductions
    )


def _columns(
    plan: GpuPlan, columns: Sequence[Node], units: list[tuple[str, int]]
) -> None:
    """Threads along the axes of the output that no reduction's result runs along."""
    axes = [axis for axis in columns if extent_of(axis) != 1]
    if not axes:
        return
    ordered = plan.by_stride(axes, plan.write)
    best = ordered[-1]
    several = len(ordered) > 1 and all(isinstance(extent_of(axis), int) for axis in ordered)
    if several and len(plan.facts.outs) == 1:
        plan.parts(ordered, units)
        return
    plan.parts([best], plan.along(best, units))
