"""Schedules for kernels without reductions: maps, copies, permutations, gathers."""

from __future__ import annotations

from baregrad.base.bits import is_power_of_two
from baregrad.ir.analysis.rows import LEAST_NEIGHBOURS
from baregrad.ir.core.node import Node, toposort
from baregrad.kernel.facts.analysis import EXPENSIVE_OPS, ArrayAccess, itemsize, op_flops
from baregrad.kernel.language.schedule import Schedule
from baregrad.kernel.loops.loop_pieces import SCOPED
from baregrad.kernel.planning.common.pool import choose_pool
from baregrad.kernel.planning.common.tiling import CpuPlan, PlannedAxis
from baregrad.kernel.planning.cpu.streams import prefetch_arrays, stream_outputs
from baregrad.target.cpu import PAGE_NBYTES

# Vectors at a time: their instructions take turns, so that none waits for the one before.
SEVERAL = 4
# Elements of fewer bits are converted on their way, which splits wide values.
WIDE_BITS = 32
# The most vectors of a row that are read one at a time, and of one whose vectors are read in
# halves, where that leaves nothing over.
FEW_VECTORS = 64
SHORT_VECTORS = 4
# Steps of a tile that is transposed in registers, at most, and what one of its vectors then costs.
MOST_STEPS = 16
TRANSPOSED_COST = 5.0
# A tile of as many pages and several vectors of each is too much text for more work than this.
LIGHT_FLOPS = 8
# Iterations that use a line again before it leaves the cache.
LINE_USES = 16


def plan_elementwise(plan: CpuPlan) -> Schedule:
    """Vectors along the axis that most accesses are contiguous in, several at a time."""
    lanes = plan.lanes
    stream_outputs(plan)
    vector = best_vector_axis(plan.axes, plan.facts.accesses, lanes)
    across: PlannedAxis | None = None
    if vector is None:
        plan.because("no vectors: no axis makes accesses cheaper than one element at a time")
    else:
        plan.because("vectors of up to {} along {}: its accesses cost least", lanes, vector.name)
        across = _beside(plan, vector)
        if across is not None:
            plan.because("steps along {}: transposed in registers, then stored", across.name)
            plan.vectorise(vector, lanes)
            plan.unroll(across, min(lanes, MOST_STEPS))
        else:
            across = _transposed(plan, vector)
            if across is not None:
                plan.because("tiles along {}: another access is contiguous there", across.name)
                plan.vectorise(vector, lanes)
                _block(plan, across)
            elif not _in_pages(plan, vector, plan.target.rows_from_memory):
                _vectorise(plan, vector)
    for axis in plan.axes:
        plan.keep(axis)
    order = _by_write_stride(plan)
    if vector is not None:
        order.remove(vector)
        order.append(vector)
    pool = choose_pool(plan, order)
    if not plan.stages and across is None:
        prefetch_arrays(plan)
    names = [name for axis in order for name, _ in axis.loops[:1]]
    names += [name for axis in order for name, _ in axis.loops[1:]]
    return plan.schedule(names, pool)


def _vectorise(plan: CpuPlan, axis: PlannedAxis) -> None:
    """Several vectors at a time: as one wide value where that is as good, else as several.

    A wide value is one instruction until machine code is made, and a tile that leaves nothing over
    is written once. What is dear has values of its own in registers, and lanes with a stride are
    read in ways that know the registers' width.
    """
    accesses = plan.facts.accesses
    cheap = not is_dear(plan.facts.outs)
    wide = cheap and all(axis.stride(access) in (0, 1) for access in accesses)
    wide = wide and not any(access.array.dtype.bits < WIDE_BITS for access in accesses)
    width = _even_width(axis, plan.lanes) if wide else 0
    if width:
        plan.vectorise(axis, width)
        return
    # Fewer at a time where that leaves one tail in place of two.
    size = axis.size if wide else 0
    count = 2 if size % (SEVERAL * plan.lanes) > plan.lanes > size % (2 * plan.lanes) else SEVERAL
    plan.vectorise(axis, plan.lanes, count, wide=wide)


def _even_width(axis: PlannedAxis, lanes: int) -> int:
    """Lanes of which an axis has a whole number; 0 where only few would do."""
    size = axis.extent
    if not isinstance(size, int) or size <= lanes:
        return 0
    for width in (4 * lanes, 2 * lanes, lanes):
        if size % width == 0 and (width > lanes or size <= FEW_VECTORS * lanes):
            return width
    # Half a register at a time costs less than a tile and its tail where both are short.
    short = size % (lanes // 2) == 0 and size < SHORT_VECTORS * lanes
    return lanes // 2 if short and lanes > 2 else 0


def _in_pages(plan: CpuPlan, axis: PlannedAxis, pages: int) -> bool:
    """Tiles that write to several pages in turns; whether the axis is made of such tiles.

    Where a core reads several rows at once fastest, memory takes up sooner what passes the caches
    by: an Intel core's x*y+z of 16 MiB takes 1.44 ms one after the other, and 1.31 so. Where it
    reads one, as those of Zen 4, x+1 of 64 MiB takes 2.3 ms one after the other, and 2.9 so.
    """
    facts = plan.facts
    accesses = facts.accesses
    written = [access for access in accesses if access.write]
    widest = max(itemsize(access.array.dtype) for access in written)
    if not plan.stages or pages == 1:
        return False
    if not all(axis.stride(access) in (0, 1) for access in accesses):
        return False
    light = sum([op_flops(node) for node in facts.order]) <= LIGHT_FLOPS
    several = SEVERAL if light else 1
    rows = PAGE_NBYTES // (widest * plan.lanes * several)
    tile = pages * rows * several * plan.lanes
    if rows < 2 or not isinstance(axis.extent, int) or axis.extent % tile:
        return False
    name = axis.name
    sizes = dict(zip(
        [f"{name}{part}" for part in "wiuv"], (pages, rows, several, plan.lanes), strict=True
    ))
    units = {f"{name}w": "unroll", f"{name}u": "unroll", f"{name}v": "vector"}
    plan.cut(axis, {f"{name}o": 0, **sizes}, units)
    plan.vectors.append(axis)
    plan.tile_order.extend(units)
    axis.tiles.append(tuple(units))
    return True


def is_dear(values: tuple[Node, ...]) -> bool:
    """Whether some values take many operations, beside the reductions and stages that they read."""
    if not any(value.mask & EXPENSIVE_OPS for value in values):
        return False
    order = toposort(*values, enter=lambda node: not node.op.bit & SCOPED)
    return any(node.op.bit & EXPENSIVE_OPS for node in order)


def best_vector_axis(
    axes: list[PlannedAxis], accesses: tuple[ArrayAccess, ...], lanes: int, work: int = 0
) -> PlannedAxis | None:
    """The axis with the cheapest accesses for each element; None if scalars are as good.

    work: operations that are no accesses, where these are to count.
    """
    best: PlannedAxis | None = None
    least = 0.8 * sum(2.0 if access.write else 1.0 for access in accesses) + work
    for axis in axes:
        if axis.size < 2:
            continue
        used = min(lanes, axis.size)
        cost = work / used
        for access in accesses:
            weight = 2.0 if access.write else 1.0
            each = access_cost(axis.stride(access), used)
            if access.write and each > TRANSPOSED_COST and _steps(axes, axis, access, used):
                each = TRANSPOSED_COST
            cost += weight * each / used
        if cost < least:
            best, least = axis, cost
    return best


def access_cost(stride: int | None, lanes: int) -> float:
    """What one vector access costs, in plain vector loads."""
    return {0: 0.5, 1: 1.0, None: lanes + 2.0}.get(stride, float(lanes))


def _steps(
    axes: list[PlannedAxis], lane: PlannedAxis, access: ArrayAccess, lanes: int
) -> PlannedAxis | None:
    """The axis along which vectors of a large stride have neighbours, to be transposed with."""
    stride = lane.stride(access)
    if stride is None or not is_power_of_two(lanes):
        return None
    for axis in axes:
        if axis is lane or axis.stride(access) != 1 or not isinstance(axis.extent, int):
            continue
        if LEAST_NEIGHBOURS <= axis.extent and stride >= min(lanes, MOST_STEPS, axis.extent):
            return axis
    return None


def _beside(plan: CpuPlan, vector: PlannedAxis) -> PlannedAxis | None:
    """The axis whose steps are transposed with the vectors of a write."""
    for access in plan.facts.accesses:
        if access.write and vector.stride(access) not in (0, 1):
            return _steps(plan.axes, vector, access, min(plan.lanes, vector.size))
    return None


def _transposed(plan: CpuPlan, vector: PlannedAxis) -> PlannedAxis | None:
    """The axis in which an access that strides along `vector` is contiguous."""
    for access in plan.facts.accesses:
        if vector.stride(access) in (0, 1, None):
            continue
        for axis in plan.axes:
            if axis is not vector and axis.stride(access) == 1 and axis.size > 1:
                return axis
    return None


def _block(plan: CpuPlan, axis: PlannedAxis) -> None:
    """Leave a short loop inside, so that a line read is used whole before it leaves the cache."""
    if not isinstance(axis.extent, int) or axis.extent <= LINE_USES:
        plan.keep(axis)
        return
    tail = f"{axis.name}t" if axis.extent % LINE_USES else ""
    plan.cut(axis, {f"{axis.name}o": 0, f"{axis.name}i": LINE_USES}, {}, tail)
    if tail:
        axis.loops.append((tail, axis.extent % LINE_USES))


def _by_write_stride(plan: CpuPlan) -> list[PlannedAxis]:
    write = next(access for access in plan.facts.accesses if access.write)
    strides = {axis.name: axis.stride(write) for axis in plan.axes}
    far = {name: 1 << 62 if stride is None else stride for name, stride in strides.items()}
    return sorted(plan.axes, key=lambda axis: far[axis.name], reverse=True)
