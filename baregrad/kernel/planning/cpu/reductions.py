"""Schedules for kernels with reductions: rows, columns, softmax and norms, contractions.

The largest reduction decides. Its lanes lie along an axis of the output if the loads are
contiguous there (no lane ever meets another), else along a reduced axis (lanes are folded at the
end). Axes that some operand does not depend on are spread over registers, so that each load feeds
several products.
"""

from __future__ import annotations

import itertools
from functools import partial
from math import prod

from baregrad.dtypes import dtypes
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.kernel.facts.analysis import Reduction, iterations, out_axes
from baregrad.kernel.language.schedule import Schedule
from baregrad.kernel.loops.loop_pieces import scoped_below
from baregrad.kernel.loops.outer_products import is_outer
from baregrad.kernel.planning.common.pool import choose_pool
from baregrad.kernel.planning.common.tiling import MOST_TOGETHER, PlannedAxis, loop_names
from baregrad.kernel.planning.cpu.byte_products import plan_byte_products
from baregrad.kernel.planning.cpu.convolutions import plan_windows, windows_of
from baregrad.kernel.planning.cpu.delays import late_stores, store_late
from baregrad.kernel.planning.cpu.elementwise import is_dear
from baregrad.kernel.planning.cpu.gemm_blocked import plan_blocks
from baregrad.kernel.planning.cpu.gemm_fallback import plan_contraction
from baregrad.kernel.planning.cpu.lanes import FOLD_OPS, lane_axis, packed_axis
from baregrad.kernel.planning.cpu.streams import nbytes_of, prefetch_arrays, stream_outputs
from baregrad.kernel.planning.cpu.sum_plan import (
    SumPlan,
    accesses_below,
    counts_order,
    cut_rows,
)

SEVERAL = 4
MOST_ROWS = 8
STREAMED_ROWS = 2
# Rows that are summed at once where they are short.
ROWS_AT_ONCE = 4
# How many groups of long rows that are summed at once there must be, for threads to share.
LEAST_ROWS = 8
LONG_ROW = 1 << 10
# Tiles of rows of a block, at least: a row that is kept is made anew for each block.
LEAST_TILES = 4
# And at most: results of all of them are written beside each other, on as many lines.
MOST_ROWS_OF_BLOCK = 64
# Floats that are summed at once, without a loop: fewer than fill a register.
FEW = 15
# Elements between neighbours of an axis that are loaded together.
NEAR = (1, 2)
# Steps over the bits of the same bytes that are written out.
PACKED_STEPS = 8
# Bytes of the vectors of sums that may be made wider than a register.
REGISTER_NBYTES = 16
# What a step costs beside the registers of its vector, in one of them, and how much more masked
# ones cost.
STEP_COST = 0.25
MASKED_COST = 1.1


def plan_reductions(plan: SumPlan) -> Schedule:
    """CpuPlan the largest reduction, then the others, then the outputs."""
    windows = windows_of(plan)
    if windows is not None:
        found = plan_windows(plan, windows)
        if found is not None:
            loops, pool = found
            _plan_rest(plan, windows.lane)
            return plan.schedule(_names(plan, loops), pool)
    blocked = plan_byte_products(plan) or plan_blocks(plan)
    if blocked is not None:
        return blocked
    lane = lane_axis(plan)
    if lane is None or not lane.inside(plan.main.own):
        _plan_short(plan, plan.main, lane)
    order: list[PlannedAxis] = []
    if lane is None:
        plan.because("no vectors: scalars cost the largest reduction no more")
        _unroll_scalars(plan)
    else:
        kind = "a reduced axis, folded at the end" if lane.reduced else "an axis of the output"
        plan.because("vectors of up to {} along {}, {}: its loads cost least",
                     plan.lanes, lane.name, kind)
        order = _tile(plan, lane)
    order = order or [axis for axis in plan.axes if not axis.reduced]
    _plan_rest(plan, lane)
    # What is left a loop is known only now: the threads may share it.
    pool = choose_pool(plan, order)
    names = _names(plan, order)
    if lane is None or lane.reduced:
        stream_outputs(plan)
        late = late_stores(plan, order, pool)
        prefetch_arrays(plan, None if late is None else late.stores)
        if late is not None:
            store_late(plan, late)
    return plan.schedule(names, pool)


def _unroll_scalars(plan: SumPlan) -> None:
    """Make several sums of scalars side by side, each of which waits for its last addition.

    They are neighbours' along a short axis, so that no sum has another order.
    """
    if len(plan.facts.reductions) > 1 or iterations(plan.main.own) <= FEW:
        return
    for axis in reversed(plan.axes):
        if axis.reduced or axis.planned or not axis.inside(plan.main.free):
            continue
        if 1 < axis.size <= MOST_ROWS and axis.extent == axis.size:
            plan.because("{} sums of {} side by side: each waits for its last addition",
                         axis.size, axis.name)
            plan.unroll(axis, axis.size)
            return


def _unroll_packed(plan: SumPlan, own: tuple[Node, ...], room: int) -> None:
    """Spread short axes along which some bytes stand still, each step reading other bits of them.

    What is read and made of them is shared by the steps. own: the axes of a loop over packed bytes.
    room: steps that there may be.
    """
    packed = [
        access for access in plan.facts.accesses
        if access.array.dtype is dtypes.uint8 and not access.axes.isdisjoint(own)
    ]
    shared = {
        axis.name: sum(axis.stride(access) == 0 for access in packed)
        for axis in plan.axes if axis.inside(own) and not axis.planned
    }
    axes = [axis for axis in plan.axes if shared.get(axis.name)]
    for axis in sorted(axes, key=lambda axis: (-shared[axis.name], axis.size)):
        if 1 < axis.size <= room and axis.extent == axis.size:
            plan.because("{} steps of {} at once: they read other bits of the same bytes",
                         axis.size, axis.name)
            plan.unroll(axis, axis.size)
            room //= axis.size


def _plan_rest(plan: SumPlan, lane: PlannedAxis | None) -> None:
    """CpuPlan what is beside the main reduction."""
    taken = lane if lane is not None and not lane.reduced else None
    for reduction in plan.facts.reductions:
        # Without lanes the main one's axes have none for others either: its order is its own.
        is_scalar = lane is None and not set(reduction.own).isdisjoint(plan.main.own)
        if reduction is not plan.main and not is_scalar:
            _plan_other(plan, reduction, taken)
    _plan_outputs(plan, taken)
    _plan_stages(plan, taken)
    for axis in plan.axes:
        plan.keep(axis)


def _names(plan: SumPlan, order: list[PlannedAxis]) -> list[str]:
    """The loops from the outermost on."""
    return loop_names(order) + _reduced_order(plan)


def _plan_short(plan: SumPlan, reduction: Reduction, lane: PlannedAxis | None) -> bool:
    """Fold a few floats at once, if that is what a reduction does and they have no lanes yet.

    Items that are side by side are folded by halves, as a vector's lanes are. So a short sum has
    the same bits whichever axis has lanes, which depends on how the operands lie.
    lane: the axis that has lanes around it.
    """
    axis = _short_axis(plan, reduction)
    if axis is None:
        return False
    # One after the other functions would be computed, where no axis around has lanes; and a row
    # that other reductions fold as well is read in one vector.
    wide = is_dear(reduction.node.src) or len(plan.facts.reductions) > 1
    if lane is None and wide and not plan.meets_vector(axis):
        plan.vectorise(axis, axis.size)
    else:
        plan.unroll(axis, axis.size)
    return True


def _short_axis(plan: SumPlan, reduction: Reduction) -> PlannedAxis | None:
    """The only axis of a reduction of a few floats, which may be planned; None of any other."""
    if not counts_order(reduction.node) or not reduction.node.arg.monoid.commutative:
        return None
    own = [axis for axis in plan.axes if axis.inside(reduction.own) and axis.extent != 1]
    if len(own) != 1 or len(own[0].nodes) != 1 or own[0].planned:
        return None
    if own[0].extent != own[0].size or own[0].size > FEW or is_outer(reduction.node.src[0]):
        return None
    return own[0]


def _tile(plan: SumPlan, lane: PlannedAxis) -> list[PlannedAxis]:
    """Bind the register tile of the main reduction; the data axes in the order of their loops."""
    if not lane.reduced:
        return plan_contraction(plan, lane)
    inner = _tile_inner(plan, lane)
    data = [axis for axis in plan.axes if not axis.reduced and axis not in inner]
    # The reduction is done once for all that runs along other axes than its results.
    first = [axis for axis in data if axis.inside(plan.main.free)]
    return first + inner + [axis for axis in data if axis not in first]


def _tile_inner(plan: SumPlan, lane: PlannedAxis) -> list[PlannedAxis]:
    """Lanes along a reduced axis: several rows times several columns, or several accumulators."""
    reused = plan.reused(plan.reads, lane)
    if not reused:
        return _tile_rows(plan, lane)
    reused = reused[:2]
    # An operand that is read once streams from memory: neighbours in memory, not in registers.
    streamed = any(all(axis.stride(access) != 0 for axis in reused) for access in plan.reads)
    most = STREAMED_ROWS if streamed else MOST_ROWS
    sizes = [axis.size for axis in reused] + [1] * (2 - len(reused))
    kinds = [tuple(axis.stride(access) != 0 for axis in reused) for access in plan.reads]
    lanes = plan.lanes_of(plan.main.node)
    steps = max(lane.size // lanes, 1)
    best = (float("inf"), 1, 1)
    for first in range(min(sizes[0], most), 0, -1):
        for second in range(min(sizes[1], most), 0, -1):
            if first * second >= plan.registers:
                continue
            loads = [prod(itertools.compress((first, second), kind)) for kind in kinds]
            cycles = plan.cycles(first * second, sum(loads), min(loads))
            cycles = cycles * steps + FOLD_OPS * first * second
            cost = cycles * -(-sizes[0] // first) * -(-sizes[1] // second)
            if cost < best[0] * 0.999:
                best = (cost, first, second)
    products = best[1] * best[2]
    count = 1 if products >= 6 else _accumulators(lane, lanes, products)
    plan.vectorise(lane, lanes, count)
    outside: list[PlannedAxis] = []
    for axis, times in zip(reused, best[1:], strict=False):
        plan.because("{} steps of {} in registers: loads are shared", times, axis.name)
        block = _rows_of_block(plan, axis, times)
        if block:
            plan.because("{} rows of {} at a time: the second cache holds them", block, axis.name)
            outside.append(cut_rows(plan, axis, block, partial(_spread, plan, times)))
        else:
            plan.unroll(axis, times)
    held = products * max(count, min(steps, 2))
    _unroll_packed(plan, plan.main.own, min(PACKED_STEPS, plan.registers // (2 * held)))
    return [*outside, *reversed(reused)]


def _rows_of_block(plan: SumPlan, axis: PlannedAxis, times: int) -> int:
    """Rows of the operand beside a kept one that the second cache holds; 0 if it holds all.

    All of them are read again for the next few of the kept rows.
    """
    kept = [access for access in plan.reads if access.array.op is Ops.STAGE]
    rows = [
        access for access in plan.reads
        if access.array.op is Ops.PARAM and axis.stride(access)
    ]
    if packed_axis(plan) is None or len(rows) != 1 or any(axis.inside(k.axes) for k in kept):
        return 0
    nbytes = max(iterations(plan.main.own), 1) * rows[0].array.dtype.itemsize
    room = min(plan.target.l2_bytes // 2 // nbytes, MOST_ROWS_OF_BLOCK)
    block = max(room // times, LEAST_TILES) * times
    return block if axis.size > 2 * block else 0


def _spread(plan: SumPlan, times: int, axis: PlannedAxis) -> None:
    plan.unroll(axis, min(times, axis.size))


def _tile_rows(plan: SumPlan, lane: PlannedAxis) -> list[PlannedAxis]:
    """Lanes along a reduced axis of operands that are read once: several sums, or several rows."""
    if _is_from_memory(plan):
        count = plan.target.rows_from_memory
        rows = _rows_at_once(plan, count)
        if rows is not None:
            plan.because("{} rows at once: memory is read in several places", count)
            _vectorise_sums(plan, plan.main, lane)
            plan.unroll(rows, count)
            return [rows]
        lanes = _lanes_from_memory(plan)
        if lanes < plan.lanes_of(plan.main.node):
            count = _vectorise_sums(plan, plan.main, lane, lanes)
            plan.because("{} sums apart, of {} lanes: memory is read faster in narrow vectors",
                         count, lanes)
            return []
    together = _side_by_side(plan, plan.main)
    count = _vectorise_sums(plan, plan.main, lane)
    rows = _short_rows(plan)
    if rows is None:
        if count * together > 1:
            plan.because("{} sums apart: one alone would wait for its last addition",
                         count * together)
        return []
    plan.because("{} short rows at once: one waits for its steps", ROWS_AT_ONCE)
    plan.unroll(rows, ROWS_AT_ONCE)
    return [rows]


def _vectorise_sums(
    plan: SumPlan, reduction: Reduction, lane: PlannedAxis, lanes: int = 0
) -> int:
    """Lanes along a reduced axis for sums that are read once; how many vectors each sum has.

    Which elements are added to one sum depends on the axis and on the sum's dtype alone, so that
    the bits are the same whatever the elements are computed from, and whatever is computed beside.
    Where registers do not hold all of the sums that are made side by side, each has fewer.

    They are one wide vector, masked where it does not divide the axis. Of what is dear to compute,
    or read in narrow vectors (of `lanes`), it is so many vectors of the sums of that one. What is
    kept along the axis as well is dear to compute: its vectors take turns.
    """
    if any(lane.inside(stage.src[1:]) for stage in plan.facts.stages):
        return _vectorise_staged(plan, lane)
    node = reduction.node
    own = plan.lanes_of(node)
    together = _side_by_side(plan, reduction)
    room = plan.target.vector_registers * 3 // 4 // together
    count = _accumulators(lane, own)
    bits = own * node.dtype.itemsize
    if bits >= REGISTER_NBYTES and node.arg.monoid.primitive:
        most = MOST_TOGETHER if room >= MOST_TOGETHER else max(SEVERAL * 2 // together, 2)
        width = _wide(lane, own, most, plan.target.masks)
        # A lone sum does too little beside a mask, where several vectors leave nothing over.
        if width and (lane.size % width == 0 or lane.size % (own * count) or room < count):
            # What is dear to compute has values of its own in registers.
            each = lanes or (own if is_dear(node.src) else width)
            plan.vectorise_masked(lane, width, min(each, width))
            return width // min(each, own)
    if room < count:
        count = _accumulators(lane, own, together)
    # Two vectors or fewer are one: nothing is left over.
    plan.vectorise(lane, own, count if room < 2 else max(count, 2))
    return count


def _wide(lane: PlannedAxis, lanes: int, most: int, masks: bool) -> int:
    """The lanes, in one to `most` registers, in which an axis costs least; 0 to split it.

    Powers of two: compilers split others. In part of an axis they cost as much as in all.
    """
    size = lane.extent
    if not isinstance(size, int) or size <= lanes:
        return 0

    def cost(width: int) -> float:
        masked = 1.0 if size % width == 0 else MASKED_COST
        return -(-size // width) * (width // lanes + STEP_COST) * masked

    widths = [lanes << power for power in range(most.bit_length())]
    return min([width for width in widths if masks or size % width == 0], key=cost, default=0)


def _side_by_side(plan: SumPlan, main: Reduction) -> int:
    """How many reductions run in the loops of the main one: none of them reads another."""
    if len(plan.facts.reductions) == 1:
        return 1
    depth: dict[Node, int] = {}
    for reduction in plan.facts.reductions:
        node = reduction.node
        below = [depth[other] for other in scoped_below(node.src) if other in depth]
        depth[node] = max(below, default=-1) + 1
    kinds = [(each.own, each.free, depth[each.node]) for each in plan.facts.reductions]
    return kinds.count((main.own, main.free, depth[main.node]))


def _is_from_memory(plan: SumPlan) -> bool:
    """Whether it is a lone sum of long rows, each read from memory once."""
    facts = plan.facts
    if len(facts.reductions) > 1 or len(facts.outs) > 1 or iterations(plan.main.own) < LONG_ROW:
        return False
    if out_axes(facts.outs[0]) != plan.main.free:
        return False
    return max(map(nbytes_of, plan.reads), default=0) >= plan.target.l2_bytes


def _rows_at_once(plan: SumPlan, count: int) -> PlannedAxis | None:
    """The axis of the results of which `count` are summed at once.

    A core may have more lines under way where it reads several streams: the machine follows each
    of them for a page at a time.
    """
    for axis in plan.axes if count > 1 else ():
        if axis.inside(plan.main.free) and isinstance(axis.extent, int):
            if axis.extent % count == 0 and axis.extent >= LEAST_ROWS * count:
                return axis
    return None


def _lanes_from_memory(plan: SumPlan) -> int:
    """The lanes of the vectors in which a sum is read, where that is all that takes time.

    That is where no cache holds the array: near ones answer faster than narrow vectors are added.
    """
    node, target = plan.main.node, plan.target
    lanes = plan.lanes_of(node)
    if node.arg.monoid.primitive is not Ops.ADD or is_dear(node.src):
        return lanes
    if max(map(nbytes_of, plan.reads)) < target.l3_bytes:
        return lanes
    narrow = min(target.vector_bytes, target.vector_bytes_from_memory)
    return max(lanes * narrow // target.vector_bytes, min(lanes, 2))


def _short_rows(plan: SumPlan) -> PlannedAxis | None:
    """The axis of rows that are folded in one or two vectors, of which several take turns."""
    if iterations(plan.main.own) > 2 * plan.lanes_of(plan.main.node):
        return None
    for axis in reversed(plan.axes):
        # An axis that another reduction folds is planned with that one.
        if axis.reduced or axis.planned or not axis.inside(plan.main.free):
            continue
        if axis.extent == axis.size > ROWS_AT_ONCE and axis.size % ROWS_AT_ONCE == 0:
            return axis
    return None


def _accumulators(lane: PlannedAxis, lanes: int, others: int = 1) -> int:
    """How many vectors of a reduced axis have sums of their own, to hide the latency of one sum."""
    vectors = lane.size // lanes
    most = max(min(SEVERAL * 2 // others, vectors), 1)
    for count in (most, most - 1, most - 2):
        if count >= 3 and vectors % count == 0:
            return count
    return max(min(SEVERAL // others if others > 1 else SEVERAL, vectors), 1)


def _plan_other(plan: SumPlan, reduction: Reduction, taken: PlannedAxis | None) -> None:
    """Vectorise a further reduction along its own contiguous axis, unless it has lanes already."""
    own = [axis for axis in plan.axes if axis.inside(reduction.own)]
    if any(axis.planned for axis in own):
        return
    if taken is not None and taken.inside(reduction.free):
        _plan_short(plan, reduction, taken)
        return
    reads = accesses_below(reduction.node)
    for axis in own:
        near = axis.size > 1 and any(axis.stride(access) in NEAR for access in reads)
        if near and not plan.meets_vector(axis):
            _vectorise_sums(plan, reduction, axis)
            return
    _plan_short(plan, reduction, taken)


def _plan_outputs(plan: SumPlan, taken: PlannedAxis | None) -> None:
    """Vectorise each output along its contiguous axis where no reduction runs along that axis."""
    writes = [access for access in plan.facts.accesses if access.write] if taken is None else []
    for access, axis in itertools.product(writes, plan.axes):
        if axis.planned or axis.reduced or axis.size < 2 or axis.stride(access) != 1:
            continue
        along = any(axis.inside(reduction.free) for reduction in plan.facts.reductions)
        if not along and not plan.meets_vector(axis):
            plan.vectorise(axis, plan.lanes, 2)


def _plan_stages(plan: SumPlan, taken: PlannedAxis | None) -> None:
    """Vectorise the copying of staged values along their innermost axis, where lanes divide it."""
    for stage in plan.facts.stages:
        axis = next(axis for axis in plan.axes if axis.nodes[-1] is stage.src[-1])
        _unroll_packed(plan, stage.src[1:-1], PACKED_STEPS)
        meets = taken is not None and taken.inside(stage.ranges)
        if not axis.planned and not meets and not plan.meets_vector(axis):
            _vectorise_staged(plan, axis)


def _vectorise_staged(plan: SumPlan, axis: PlannedAxis) -> int:
    """Lanes along an axis of a stage, which cannot have a tail; how many vectors take turns."""
    if axis.extent == axis.size < 2 * plan.lanes:
        plan.vectorise(axis, plan.lanes, 2)
        return 1
    width = plan.lanes
    while width > 1 and axis.size % width:
        width //= 2
    if width == 1 or not isinstance(axis.extent, int):
        return 1
    count = next(n for n in (SEVERAL, 2, 1) if axis.size % (n * width) == 0)
    plan.vectorise(axis, width, count)
    return count


def _reduced_order(plan: SumPlan) -> list[str]:
    """Loops of the main reduction, the longest inside; tails follow what they end."""
    own = [axis for axis in plan.axes if axis.inside(plan.main.own) and axis.loops]
    # Copies lie in the order of the axes, as the operands that are not copied mostly do.
    if not plan.stages:
        own.sort(key=lambda axis: min(axis.loops[0][1], 16))
    return loop_names(own) if len(own) > 1 else []
