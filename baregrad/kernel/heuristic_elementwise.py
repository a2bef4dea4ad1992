"""Schedules for kernels without reductions: maps, copies, permutations, gathers."""

from __future__ import annotations

from baregrad.dtypes import dtypes
from baregrad.kernel.analysis import Access, itemsize
from baregrad.kernel.heuristic_pool import choose_pool
from baregrad.kernel.schedule_value import Schedule, Split
from baregrad.kernel.tiling import Plan, PlannedAxis
from baregrad.target.cpu import CpuTarget

# Vectors at a time: their instructions take turns, so that none waits for the one before.
SEVERAL = 4
TRANSPOSE_TILE = 16


def plan_elementwise(plan: Plan, target: CpuTarget) -> Schedule:
    """Vectors along the axis that most accesses are contiguous in, several at a time."""
    lanes = lanes_of(plan, target)
    vector = best_vector_axis(plan.axes, plan.facts.accesses, lanes)
    across: PlannedAxis | None = None
    if vector is None:
        plan.because("no vectors: no axis makes accesses cheaper than one element at a time")
    else:
        plan.because("vectors of up to {} along {}: its accesses cost least", lanes, vector.name)
        across = _transposed(plan, vector)
        if across is not None:
            plan.because("tiles along {}: another access is contiguous there", across.name)
        plan.vectorise(vector, lanes, 1 if across is not None else SEVERAL)
    for axis in plan.axes:
        if axis is across:
            _block(plan, axis)
        else:
            plan.keep(axis)
    order = _by_write_stride(plan)
    if vector is not None:
        order.remove(vector)
        order.append(vector)
    order, pool = choose_pool(plan, order, target)
    names = [name for axis in order for name, _ in axis.loops[:1]]
    names += [name for axis in order for name, _ in axis.loops[1:]]
    return plan.schedule(names, pool)


def lanes_of(plan: Plan, target: CpuTarget) -> int:
    """Lanes of a register for the widest element that is moved, at most 4 bytes wide when mixed."""
    # A scalar is made ready outside the loops.
    moved = {access.array.dtype for access in plan.facts.accesses if access.axes}
    widest = max(map(itemsize, moved), default=4)
    narrow = dtypes.float16 in moved or dtypes.bfloat16 in moved
    return max(target.lanes(max(widest, 4 if narrow else 1)), 2)


def best_vector_axis(
    axes: list[PlannedAxis], accesses: tuple[Access, ...], lanes: int
) -> PlannedAxis | None:
    """The axis with the cheapest accesses for each element; None if scalars are as good."""
    best: PlannedAxis | None = None
    least = 0.8 * sum(2.0 if access.write else 1.0 for access in accesses)
    for axis in axes:
        if axis.size < 2:
            continue
        used = min(lanes, axis.size)
        cost = 0.0
        for access in accesses:
            weight = 2.0 if access.write else 1.0
            cost += weight * access_cost(axis.stride(access), used) / used
        if cost < least:
            best, least = axis, cost
    return best


def access_cost(stride: int | None, lanes: int) -> float:
    """What one vector access costs, in plain vector loads."""
    if stride == 0:
        return 0.5
    if stride == 1:
        return 1.0
    return float(lanes) + (2.0 if stride is None else 0.0)


def _transposed(plan: Plan, vector: PlannedAxis) -> PlannedAxis | None:
    """The axis in which an access that strides along `vector` is contiguous."""
    for access in plan.facts.accesses:
        if vector.stride(access) in (0, 1, None):
            continue
        for axis in plan.axes:
            if axis is not vector and axis.stride(access) == 1 and axis.size > 1:
                return axis
    return None


def _block(plan: Plan, axis: PlannedAxis) -> None:
    """Leave a short loop inside, so that a line read is used whole before it leaves the cache."""
    if not isinstance(axis.extent, int) or axis.extent <= TRANSPOSE_TILE:
        plan.keep(axis)
        return
    axis.planned = True
    tail = f"{axis.name}t" if axis.extent % TRANSPOSE_TILE else ""
    parts = ((f"{axis.name}o", 0), (f"{axis.name}i", TRANSPOSE_TILE))
    plan.steps.append(Split(axis.name, parts, tail))
    axis.loops = [(parts[0][0], axis.extent // TRANSPOSE_TILE), (parts[1][0], TRANSPOSE_TILE)]
    if tail:
        axis.loops.append((tail, axis.extent % TRANSPOSE_TILE))


def _by_write_stride(plan: Plan) -> list[PlannedAxis]:
    write = next(access for access in plan.facts.accesses if access.write)

    def key(axis: PlannedAxis) -> int:
        stride = axis.stride(write)
        return 1 << 62 if stride is None else stride

    return sorted(plan.axes, key=key, reverse=True)
