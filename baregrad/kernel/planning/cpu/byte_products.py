"""Schedules for products of rows of bytes, four a word: lanes are words of blocks.

A block of one factor is a few words with a scale, as packed weights are, and the other factor has
words and scales to match. Words of a block that are summed as whole numbers follow one another;
those beside them, of one block or two, are a vector. What is unpacked of it serves several rows of
the other factor, whose words in turn serve several of its rows. Each result is added up block after
block, in the same order whatever stands beside it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from functools import partial

from baregrad.ir.analysis.words import byte_products
from baregrad.ir.core.attrs import MOST_RUNS
from baregrad.ir.core.node import Node, toposort
from baregrad.kernel.language.schedule import Collapse, Schedule, Split
from baregrad.kernel.planning.common.pool import choose_pool
from baregrad.kernel.planning.common.tiling import PlannedAxis, loop_names, points
from baregrad.kernel.planning.cpu.sum_plan import SumPlan, cut_rows

# Words of a vector that are joined for their length.
MOST_WORDS = 8
# Rows of a tile of either factor, at most.
MOST_ROWS = 8
# Operations of one block of two rows, of unpacking one, and of reading the other.
PRODUCT_COST, UNPACK_COST, READ_COST = 6.0, 8.0, 4.0
# Registers for what is unpacked of a block of a row, and for what passes through.
UNPACKED_REGISTERS, SPARE_REGISTERS = 4, 7
# Scales of their own that words have, at most, as steps that read other bits of the same bytes.
MOST_STEPS = 8


def plan_byte_products(plan: SumPlan) -> Schedule | None:
    """The schedule of a sum of products of bytes in words; None for any other kernel."""
    main = plan.main
    dots = byte_products(main.node.src[0])
    lane = _words(plan) if dots else None
    if lane is None or not _is_chain(dots) or len(plan.facts.reductions) > 1:
        return None
    packed_words = dots[0].src[0]
    lane = _joined(plan, lane)
    plan.because("vectors of the {} words of a block along {}", lane.size, lane.name)
    plan.whole(lane, lane.name, lane.size, "vector")
    plan.vectors.append(lane)
    data = [axis for axis in plan.axes if not axis.reduced]
    moving = [axis for axis in data if axis.inside(main.free) and axis.size > 1]
    packed = _longest(axis for axis in moving if axis.inside(packed_words.ranges))
    others = _longest(axis for axis in moving if not axis.inside(packed_words.ranges))
    blocks = _tile(plan, packed, others)
    steps = _unroll_steps(plan, packed_words, lane)
    for axis in plan.axes:
        plan.keep(axis)
    order = [*blocks, *[axis for axis in data if axis is not others]]
    order += [axis for axis in data if axis is others]
    pool = choose_pool(plan, order)
    sums = [axis for axis in plan.axes if axis.reduced and axis not in steps]
    return plan.schedule([*loop_names(order), *loop_names(sums), *loop_names(steps)], pool)


def _is_chain(dots: list[Node]) -> bool:
    """Whether each product but the first goes on with the sum of another."""
    return len({dot.src[2] for dot in dots} & {*dots}) == len(dots) - 1


def _longest(axes: Iterable[PlannedAxis]) -> PlannedAxis | None:
    return max(axes, key=lambda axis: axis.size, default=None)


def _words(plan: SumPlan) -> PlannedAxis | None:
    """The axis along which words of a block are neighbours: a vector holds all of them."""
    for axis in reversed(plan.axes):
        if not axis.inside(plan.main.own) or axis.extent != axis.size:
            continue
        if not 1 < axis.size <= plan.target.lanes(4) or axis.size & (axis.size - 1):
            continue
        if any(axis.stride(a) == 4 // a.array.dtype.itemsize for a in plan.reads):
            return axis
    return None


def _joined(plan: SumPlan, lane: PlannedAxis) -> PlannedAxis:
    """The words of a block, and others behind them that are made of other bits of the same bytes.

    Where they are side by side, or the same, they are one vector; scales may be those of its parts.
    """
    place = plan.axes.index(lane)
    outer = plan.axes[place - 1] if place else lane
    size = lane.size * outer.size
    if not outer.inside(plan.main.own) or outer.extent != outer.size or outer is lane:
        return lane
    if size > min(plan.target.lanes(4), MOST_WORDS) or size & (size - 1):
        return lane
    for access in plan.reads:
        stride, step = outer.stride(access), lane.stride(access)
        if step is None:
            return lane
        is_near = stride is not None and (stride == step * lane.size or outer.size <= MOST_RUNS)
        if stride != 0 and step != 0 and not is_near:
            return lane
    name, nodes = f"{outer.name}_{lane.name}", (*outer.nodes, *lane.nodes)
    plan.steps.append(Collapse((outer.name, lane.name), name))
    found = PlannedAxis(name, size, nodes, True, size)
    plan.axes[place - 1 : place + 1] = [found]
    return found


def _tile(
    plan: SumPlan, packed: PlannedAxis | None, others: PlannedAxis | None
) -> list[PlannedAxis]:
    """Spread rows of both factors over registers; the loops around all packed rows.

    Packed rows come from memory: a core reads so many at once fastest.
    """
    best = (float("inf"), 1, 1)
    most = min(plan.target.rows_from_memory, MOST_ROWS), MOST_ROWS
    sizes = [
        1 if axis is None else min(axis.size, size)
        for axis, size in zip((packed, others), most, strict=True)
    ]
    for rows, beside in itertools.product(*[range(1, size + 1) for size in sizes]):
        held = rows * beside + UNPACKED_REGISTERS * rows + SPARE_REGISTERS
        if held <= plan.target.vector_registers:
            cost = PRODUCT_COST + UNPACK_COST / beside + READ_COST / rows
            if packed is not None and packed.size % rows:
                cost += READ_COST
            best = min(best, (cost, rows, beside))
    found = []
    for axis, count in ((others, best[2]), (packed, best[1])):
        if axis is not None:
            plan.because("{} rows of {} at once", count, axis.name)
            spread = partial(_unroll_halving, plan, count)
            block = _rows_of_block(plan, axis, count) if axis is others else 0
            if block:
                plan.because("{} of them at a time: the first cache holds them", block)
                found.append(cut_rows(plan, axis, block, spread))
            else:
                spread(axis)
            plan.tile_order += [name for tile in axis.tiles for name in tile]
    return found


def _rows_of_block(plan: SumPlan, others: PlannedAxis, count: int) -> int:
    """Rows of the factor beside the packed one that the first cache holds; 0 if it holds all."""
    nbytes = 0
    for access in plan.reads:
        if others.stride(access) != 0:
            moving = [axis for axis in plan.own() if axis.stride(access) != 0]
            nbytes += points(moving) * access.array.dtype.itemsize
    block = max(plan.target.l1_bytes * 3 // 4 // max(nbytes, 1) // count, 1) * count
    return block if others.size > 2 * block else 0


def _unroll_halving(plan: SumPlan, count: int, axis: PlannedAxis) -> None:
    """Spread `count` rows over registers; of few rows that are left half as many, and so on.

    Rows one by one would take a block apart for each of them.
    """
    count = min(count, axis.size)
    plan.unroll(axis, count)
    tail = f"{axis.name}t"
    while (tail, 1) in axis.loops and count >= 4:
        count //= 2
        axis.loops.remove((tail, 1))
        outer, inner, rest = f"{tail}o", f"{tail}u", f"{tail}t"
        plan.steps.append(Split(tail, ((outer, 0), (inner, count)), rest))
        plan.bind(inner, "unroll")
        axis.tiles.append((inner,))
        axis.loops += [(outer, 1), (rest, 1)]
        tail = rest


def _unroll_steps(plan: SumPlan, words: Node, lane: PlannedAxis) -> list[PlannedAxis]:
    """Write out short axes along which some `words` stand still; each step reads other bits."""
    room, found = MOST_STEPS, []
    below = set(toposort(words))
    packed = [a for a in plan.reads if a.read in below and lane.nodes[-1] in a.axes]
    for axis in plan.axes:
        if not axis.inside(plan.main.own) or axis.planned or axis.extent != axis.size:
            continue
        if 1 < axis.size <= room and any(axis.stride(access) == 0 for access in packed):
            plan.because("{} steps of {} at once: they read other bits of the same bytes",
                         axis.size, axis.name)
            plan.unroll(axis, axis.size)
            room //= axis.size
            found.append(axis)
    return found
