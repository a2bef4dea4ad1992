"""Which axis of a reduction lies across the lanes of vectors.

Estimates, in cycles for each element and step of the reduction, decide between the axes of the
output, neighbouring ones as one (a convolution's rows and columns), and the reduced axes.
"""

from __future__ import annotations

from baregrad.dtypes import dtypes
from baregrad.ir.core.node import toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel.facts.analysis import (
    EXPENSIVE,
    ArrayAccess,
    is_read,
    iterations,
    op_flops,
)
from baregrad.kernel.language.schedule import Collapse
from baregrad.kernel.planning.common.tiling import PlannedAxis, points
from baregrad.kernel.planning.cpu.sum_plan import SumPlan, counts_order

# Folding a register's lanes into one costs about this many operations.
FOLD_OPS = 10.0
# A panel is worth its copy from this many reads on.
READS_PER_COPY = 4
# Loads that a register tile shares among its steps, at most about.
STEPS_PER_LOAD = 6
# Cycles to copy an element into a panel: from adjacent elements, and one by one.
COPY_CYCLES = 0.4
GATHER_CYCLES = 2.0
# A register tile of fewer lanes than a full one takes about this part of its time.
TAIL_COST = 0.7
TILE_VECTORS = 2
# What is left of the machine's rate where both operands of a product have lanes.
FOLDED_USE = 0.6
# Tiles of an axis that are summed by lanes only because of what is computed of each element.
LEAST_FOLDED = 4
MOST_LANES = 1 << 20
# A vector load under a condition on its lanes: making the mask is most of the work.
MASK_COST = 6.0
# What a step of formulas takes more than one of a single operation, one element at a time.
FORMULA_COST = 3.0
# Every other element: two loads and what puts them together.
PAIR_LOADS = 4
# Floats that are added in order to one sum, from which on errors count: each is off by a half of
# the sum's last bit. A long axis has so many sums.
LEAST_TERMS, MOST_SUMS = 1 << 12, 64
# An axis that is worth its lanes: each of them has a few terms of its own.
LEAST_SIZE = 2 * MOST_SUMS
# Elements between steps from which each step reads another line.
FAR_STEP = 8


def lane_axis(plan: SumPlan) -> PlannedAxis | None:
    """The axis of the main reduction whose vectors cost least; None if scalars are as good."""
    best = packed_axis(plan)
    if best is not None:
        return best
    least = len(plan.reads) * 0.5 + 0.3
    if plan.main.node.arg.monoid.primitive is None:
        least *= FORMULA_COST
    free = [
        (axis, [axis.stride(access) == 0 for access in plan.reads])
        for axis in plan.axes
        if axis.nodes[-1] in plan.main.free
    ]
    operands = [(access, broadcast_cycles(plan, access)) for access in plan.reads]
    for axis in (*plan.axes, *_joined(plan)):
        if axis.size < 2 or not (axis.inside(plan.main.own) or axis.inside(plan.main.free)):
            continue
        cost = lane_cost(plan, operands, free, axis)
        if cost < least * (0.99 if best is not None and axis.reduced else 1.0):
            best, least = axis, cost
    if best is None:
        best = _axis_of_functions(plan, operands) or _axis_of_results(plan, operands, free, least)
    if best is None or best.inside(plan.main.own):
        best = _axis_of_terms(plan, 1 if best is None else min(best.size, MOST_SUMS)) or best
    if best is not None and best not in plan.axes:
        _collapse(plan, best)
    return best


def _axis_of_functions(
    plan: SumPlan, operands: list[tuple[ArrayAccess, float]]
) -> PlannedAxis | None:
    """A long axis of functions that cost more than bringing its distant elements together.

    How many results there are is not asked: the order of a sum is that of each of any number.
    """
    work = _work(plan)
    best, least = None, 0.5 * len(plan.reads) + work
    for axis in plan.own() if work and plan.main.node.arg.monoid.primitive is not None else ():
        if axis.size < LEAST_FOLDED * TILE_VECTORS * plan.lanes:
            continue
        use = FOLDED_USE * utilisation(axis.size, plan.lanes)
        cost = lane_cost(plan, operands, [], axis) + work / plan.lanes / use
        if cost < least:
            best, least = axis, cost
    return best


def _axis_of_terms(plan: SumPlan, sums: int) -> PlannedAxis | None:
    """The longest axis of floats of which too many would be added in order to each of few sums.

    Its elements lie far apart; bringing them together takes less time than a lone sum waits.
    """
    node = plan.main.node
    if node.arg.monoid.primitive is None or not counts_order(node):
        return None
    longest = max(plan.own(), key=lambda axis: axis.size, default=None)
    terms = iterations(plan.main.own) // sums
    if longest is None or longest.size < LEAST_SIZE or terms < LEAST_TERMS:
        return None
    return longest


def _work(plan: SumPlan) -> float:
    """Cycles of the functions of what is summed, for one element."""
    own = frozenset(plan.main.own)
    axes = plan.main.free | own
    summed = [each for each in plan.facts.order if each.op in EXPENSIVE and each.ranges <= axes]
    return 0.5 * sum([op_flops(each) for each in summed if not own.isdisjoint(each.ranges)])


def _axis_of_results(
    plan: SumPlan, operands: list[tuple[ArrayAccess, float]],
    free: list[tuple[PlannedAxis, list[bool]]], least: float,
) -> PlannedAxis | None:
    """An axis of neighbouring sums of functions that cost more than bringing lanes together.

    Each is summed in the order in which scalars are, whatever is summed. least: what loads and
    additions of scalars cost.
    """
    work = _work(plan)
    best, least = None, least + work
    is_plain = plan.main.node.arg.monoid.primitive is not None
    for axis in plan.axes if work and is_plain else ():
        if axis.size < plan.lanes or not axis.inside(plan.main.free):
            continue
        cost = lane_cost(plan, operands, free, axis)
        cost += work / plan.lanes / utilisation(axis.size, plan.lanes)
        if cost < least:
            best, least = axis, cost
    return best


def packed_axis(plan: SumPlan) -> PlannedAxis | None:
    """The axis along which a row of numbers made of bytes was kept; None where none was.

    Along any other the bytes of as many rows would be taken apart at once, each by itself.
    """
    for access in plan.reads:
        stage = access.array
        if access.read is None or stage.op is not Ops.STAGE:
            continue
        if access.axes >= set(plan.main.own) and any(
            is_read(node) and node.dtype is dtypes.uint8 for node in toposort(stage)
        ):
            last = access.read.src[-1]
            return next((axis for axis in plan.own() if axis.nodes[-1] is last), None)
    return None


def lane_cost(
    plan: SumPlan, operands: list[tuple[ArrayAccess, float]],
    free: list[tuple[PlannedAxis, list[bool]]], lane: PlannedAxis
) -> float:
    """Cycles for each element and step with lanes along an axis.

    operands: each with the cycles of loading one element into all lanes. free: the axes of the
    reduction's results, and which operands do not move along them.
    """
    steps = max(iterations(plan.main.own), 1)
    use = utilisation(lane.size, plan.lanes)
    if lane.reduced:
        use *= FOLDED_USE
    cost = 0.5 / plan.lanes / use
    # Copies serve the steps of one other axis; an operand with lanes that runs along it has none.
    seconds = [second for second in free if second[0].nodes[-1] not in lane.nodes]
    loads = []
    for position, (access, broadcast) in enumerate(operands):
        reads = points([axis for axis, still in seconds if still[position]])
        loads.append(access_cycles(access, lane, reads, broadcast, plan.lanes))
    cycles = sum([moving for moving, _ in loads]) / use
    for _, still in seconds:
        total = 0.0
        for unmoved, (moving, fixed) in zip(still, loads, strict=True):
            total += fixed if unmoved else moving
        cycles = min(cycles, total / use)
    cost += cycles
    if lane.reduced:
        return cost + FOLD_OPS / 2 / steps
    for access in plan.facts.accesses:
        if access.write:
            stride = lane.stride(access)
            cost += (1.0 / plan.lanes if stride == 1 else 1.0) / steps
    return cost


def access_cycles(
    access: ArrayAccess, lane: PlannedAxis, reads: int, broadcast: float, lanes: int
) -> tuple[float, float]:
    """Cycles for each element to load an operand: with a second axis of the tile, and without.

    Only an operand that does not depend on the tile's second axis has copies. reads: how often each
    element is read.
    """
    # Backwards as forwards: a sum has one order, whichever way round its operands lie.
    stride = lane.stride(access)
    stride = None if stride is None else abs(stride)
    if stride == 0:
        cycles = broadcast / (TILE_VECTORS * lanes)
        return cycles, cycles
    load = 0.5 / lanes
    place = load if stride == 1 else PAIR_LOADS * load if stride == 2 else 1.0
    place *= MASK_COST if access.guarded else 1.0
    if lane.reduced:
        cycles = place / min(reads, STEPS_PER_LOAD // 2)
        return cycles, cycles
    shared = min(reads, STEPS_PER_LOAD)
    fixed = place / shared
    if reads >= READS_PER_COPY and access.copyable:
        copy = (COPY_CYCLES if stride == 1 else GATHER_CYCLES) * (2.0 if access.guarded else 1.0)
        fixed = min(fixed, copy / reads + load / shared)
    return place, fixed


def broadcast_cycles(plan: SumPlan, access: ArrayAccess) -> float:
    """Cycles to load an element into all lanes of a tile."""
    if access.guarded:
        return 3.0
    for axis in reversed(plan.axes):
        stride = axis.stride(access) if axis.inside(plan.main.own) else 0
        if stride != 0:
            return 0.5 if stride is not None and abs(stride) <= FAR_STEP else 1.0
    return 0.0


def utilisation(size: int, lanes: int) -> float:
    """How much of the lanes an axis of this size keeps busy, its tails being powers of two."""
    tile = TILE_VECTORS * lanes
    if size >= 32 * tile:
        return 1.0
    whole, rest = divmod(size, tile)
    parts = rest // lanes + (rest % lanes).bit_count()
    return size / tile / (whole + TAIL_COST * parts)


def _joined(plan: SumPlan) -> list[PlannedAxis]:
    """Neighbouring output axes as one, where the output is contiguous and reads can be copied."""
    write = next(access for access in plan.facts.accesses if access.write)
    data = [axis for axis in plan.axes if not axis.reduced and axis.size > 1]
    found: list[PlannedAxis] = []
    group: list[PlannedAxis] = []
    while True:
        size = points(group)
        axis = next((a for a in data if a.stride(write) == size), None)
        if axis is None or axis.extent != axis.size or not axis.inside(plan.main.free):
            return found
        known = plan.fresh[axis.nodes[-1]]
        if known.serial or known.whole or known.exact:
            return found
        group.insert(0, axis)
        if len(group) < 2:
            continue
        size = points(group)
        nodes = tuple(node for member in group for node in member.nodes)
        name = "_".join(member.name for member in group)
        joined = PlannedAxis(name, size, nodes, False, size)
        if size > MOST_LANES or not all(_copied(plan, joined, a) for a in plan.reads):
            return found
        found.append(joined)


def _copied(plan: SumPlan, joined: PlannedAxis, access: ArrayAccess) -> bool:
    if joined.stride(access) is not None:
        return True
    others = [axis for axis in plan.axes if axis.nodes[-1] not in joined.nodes]
    still = [a for a in others if a.inside(plan.main.free) and a.stride(access) == 0]
    return access.copyable and points(still) >= 2 * READS_PER_COPY


def _collapse(plan: SumPlan, joined: PlannedAxis) -> None:
    """Make neighbouring axes one; those that were collapsed before are undone first."""
    members = [axis for axis in plan.axes if axis.nodes[-1] in joined.nodes]
    names = tuple([plan.fresh[node].name for axis in members for node in axis.nodes])
    plan.steps = [
        step for step in plan.steps if not isinstance(step, Collapse) or step.axes[0] not in names
    ]
    plan.steps.append(Collapse(names, joined.name))
    place = plan.axes.index(members[0])
    plan.axes = [axis for axis in plan.axes if axis not in members]
    plan.axes.insert(place, joined)
