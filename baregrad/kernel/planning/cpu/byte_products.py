"""Schedules for products of rows of bytes, four a word: lanes are rows of the packed factor.

A block of one factor is a few words with a scale, as packed weights are, and the other factor has
words and scales to match. The words of a block are summed as whole numbers, one after the other.
What is unpacked of as many packed rows as a vector has lanes serves several rows of the other
factor, of which every lane has the same words. Each result is added up block after block, in the
same order whatever stands beside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from baregrad.base.bits import previous_power_of_two
from baregrad.ir.analysis.words import WORD_NBYTES, byte_products
from baregrad.ir.core.node import Node, toposort
from baregrad.kernel.language.schedule import Prefetch, Schedule, Split
from baregrad.kernel.planning.common.pool import choose_pool
from baregrad.kernel.planning.common.tiling import PlannedAxis, loop_names, points
from baregrad.kernel.planning.cpu.sum_plan import SumPlan, cut_rows

# Rows beside packed ones of a tile, at most.
MOST_ROWS = 16
# Registers for what passes through: scales, a product, a sum of whole numbers.
SPARE_REGISTERS = 6
# Of the first cache: rows of a vector that take as much, or more, are asked for two vectors ahead.
EARLY_SHARE = 4
# Scales of their own that words have, at most, as steps that read other bits of the same bytes.
MOST_STEPS = 8


def plan_byte_products(plan: SumPlan) -> Schedule | None:
    """The schedule of a sum of products of bytes in words; None for any other kernel."""
    main = plan.main
    dots = byte_products(main.node.src[0])
    if not dots or not _is_chain(dots) or len(plan.facts.reductions) > 1:
        return None
    packed_words = dots[0].src[0]
    data = [axis for axis in plan.axes if not axis.reduced]
    moving = [axis for axis in data if axis.inside(main.free) and axis.size > 1]
    packed = _longest(axis for axis in moving if axis.inside(packed_words.ranges))
    others = _longest(axis for axis in moving if not axis.inside(packed_words.ranges))
    steps = _unroll_steps(plan, packed_words)
    sums = [axis for axis in plan.axes if axis.reduced and axis not in steps]
    if packed is not None:
        _ask_ahead(plan, packed, sums)
        lanes = plan.target.lanes(4)
        plan.because("vectors of {} packed rows along {}", lanes, packed.name)
        plan.vectorise(packed, lanes, carried=True)
    blocks = [] if others is None else _tile(plan, others, len(dots))
    plan.tile_order += [name for tile in packed.tiles for name in tile] if packed else []
    for axis in plan.axes:
        plan.keep(axis)
    order = [*blocks, *[axis for axis in data if axis is not others]]
    order += [axis for axis in data if axis is others]
    pool = choose_pool(plan, order)
    return plan.schedule([*loop_names(order), *loop_names(sums), *loop_names(steps)], pool)


def _is_chain(dots: list[Node]) -> bool:
    """Whether each product but the first goes on with the sum of another."""
    return len({dot.src[2] for dot in dots} & {*dots}) == len(dots) - 1


def _longest(axes: Iterable[PlannedAxis]) -> PlannedAxis | None:
    return max(axes, key=lambda axis: axis.size, default=None)


def _ask_ahead(plan: SumPlan, packed: PlannedAxis, sums: list[PlannedAxis]) -> None:
    """Ask for the next rows of an array in memory while those of a vector are multiplied.

    A row of a few lines is no stream that the machine would notice.
    """
    blocks = next((axis for axis in sums if 1 < axis.size == axis.extent), None)
    if blocks is None:
        return
    nbytes: dict[int, int] = {}
    for access in plan.reads:
        row = (packed.stride(access) or 0) * access.array.dtype.itemsize
        if row * packed.size >= plan.target.l1_bytes:
            nbytes[access.array.arg.slot] = row * plan.target.lanes(4)
    for slot, rows in nbytes.items():
        plan.because("the next rows of array {} are asked for along {}", slot, blocks.name)
        share = -(-rows // blocks.size)
        # Rows that the first cache has no room for are asked for early.
        ahead = 2 * rows if rows * EARLY_SHARE >= plan.target.l1_bytes else rows
        plan.stages.append(Prefetch(slot, ahead, ((blocks.name, share),)))


def _tile(plan: SumPlan, others: PlannedAxis, words: int) -> list[PlannedAxis]:
    """Spread rows of the other factor over registers; the loops around all packed rows."""
    room = plan.target.vector_registers - words - SPARE_REGISTERS
    count = min(previous_power_of_two(max(room, 2)), MOST_ROWS, others.size)
    plan.because("{} rows of {} at once", count, others.name)
    spread = partial(_unroll_halving, plan, count)
    block = _rows_of_block(plan, others, count)
    found = []
    if block:
        plan.because("{} of them at a time: the first cache holds them", block)
        found.append(cut_rows(plan, others, block, spread))
    else:
        spread(others)
    plan.tile_order += [name for tile in others.tiles for name in tile]
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


def _unroll_steps(plan: SumPlan, words: Node) -> list[PlannedAxis]:
    """Write out short axes along which some `words` stand still; each step reads other bits."""
    room, found = MOST_STEPS, []
    below = set(toposort(words))
    # Not what says which matrix it is.
    reads = [access for access in plan.reads if access.read in below]
    packed = [access for access in reads if access.array.dtype.itemsize < WORD_NBYTES]
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
