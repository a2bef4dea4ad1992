"""Schedules of kernels whose threads hold rows in registers: every loop over one lies alike.

Of rows of a few neighbours a thread has as many whole ones as fill its accesses.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from baregrad.base.bits import previous_power_of_two
from baregrad.ir.core.node import Node, extent_of
from baregrad.kernel.facts.analysis import itemsize, iterations, op_flops
from baregrad.kernel.facts.row_tile import RowTile
from baregrad.kernel.language.schedule import Bind, Split
from baregrad.kernel.loops.held_rows import LANES, STEPS, THREADS, WARPS, row_axes
from baregrad.kernel.planning.common.decisions import powers_from
from baregrad.kernel.planning.gpu.columns import can_be_one, in_order, moving
from baregrad.kernel.planning.gpu.gpu_plan import GpuPlan

# Threads of a block of several rows, and how many a search tries.
BLOCK, MOST_BLOCK = 128, 512
# Elements of a row that is a part of a thread's, of all its rows, and operations on these, at most.
MOST_SHORT, MOST_ELEMENTS, MOST_OPS = 24, 32, 1 << 11
UNITS = ((STEPS, "unroll"), (WARPS, "thread_y"), (THREADS, "thread"), (LANES, "vector"))


def plan_held_rows(plan: GpuPlan) -> bool:
    """Lay all axes of a row across threads as what is held of it lies; whether anything is held."""
    facts = plan.facts
    if not facts.stages:
        return False
    sizes = {axis.arg.axis: int(axis.src[0].arg) for axis in facts.axes if axis.arg.axis}
    tile = RowTile(*[sizes.get(name, 1) for name, _ in UNITS])
    for name, unit in UNITS:
        if sizes.get(name, 1) > 1:
            plan.steps.append(Bind(name, unit))
    row = row_axes(facts)
    rows = [axis for axis in facts.data if axis not in row]
    if tile.warps == 1:
        together = max(BLOCK // tile.threads, 1)
        most = MOST_BLOCK // tile.threads
        together = plan.pick("rows of a block", powers_from(together, 1, most))
        plan.spread_rows(rows, together, near=tile.threads < plan.warp)
    else:
        plan.grid(rows)
    who = "a block" if tile.warps > 1 else f"{tile.threads} threads"
    plan.because(
        "rows of {}, held in registers by {}: {} times {} elements for each thread",
        extent_of(row[0]), who, tile.steps, tile.lanes,
    )
    for axis in row:
        name = plan.name(axis)
        steps, *parts = [(f"{name}_{part}", size) for part, size in zip("swtv", tile, strict=True)]
        plan.steps.append(Split(name, ((steps[0], 0), *parts), masked=True))
        for (part, size), (_, unit) in zip((steps, *parts), UNITS, strict=True):
            if size > 1:
                plan.steps.append(Bind(part, unit))
    return True


def plan_short_rows(plan: GpuPlan, rows: Sequence[Node], columns: Sequence[Node]) -> bool:
    """Give threads whole rows, if they are short and lie beside each other; whether they do.

    columns: axes of the output along which sums are not. Each of several threads would make all
    sums of a row: the logarithms of the softmax of 4,542,280 rows of 3 numbers took four of them
    97 us on an H200.
    """
    facts = plan.facts
    several = [axis for axis in rows if extent_of(axis) != 1]
    own = [moving(each) for each in facts.reductions]
    along = [axes for axes in (list(columns), *own) if axes]
    known = all(isinstance(extent_of(axis), int) for axis in facts.axes)
    if not known or not several or not plan.uncertain.isdisjoint(facts.axes):
        return False
    if any(not each.free.isdisjoint(columns) for each in facts.reductions) or any(
        len(axes) > 1 and not can_be_one(plan, axes) for axes in own
    ):
        return False
    most = max(map(iterations, along), default=0)
    work = max(sum(op_flops(node) for node in facts.order), 1)
    # Of no neighbours, or one, there are no rows.
    if not 0 < most <= MOST_SHORT or most * work > MOST_OPS:
        return False
    row = plan.together(in_order(plan, several))
    apart = {each.stride(row[-1]) or 0 for each in facts.accesses if not each.write}
    if not any(1 < size <= 2 * MOST_SHORT for size in apart) or iterations(row) < plan.warp:
        return False
    each = _rows_of_thread(plan, iterations(rows), most, work)
    plan.because("rows of a few neighbours: {} whole ones for each thread", each)
    plan.grid([axis for axis in several if axis not in row])
    units = [("thread", BLOCK)]
    if each > 1:
        # What is in one access is a thread's; else threads read rows beside each other at once.
        is_one = apart <= {0, 1, most} and iterations(row) % each == 0
        units.insert(int(is_one), ("unroll", each))
    plan.parts(row, units, "grid")
    for axis in columns:
        if extent_of(axis) != 1:
            plan.steps.append(Bind(plan.name(axis), "unroll"))
    return True


def _rows_of_thread(plan: GpuPlan, count: int, size: int, work: int) -> int:
    """Rows of `size` elements that fill whole accesses, where there are enough of them.

    count: of all rows. work: operations of an element.
    """
    nbytes = size * min(itemsize(each.array.dtype) for each in plan.facts.accesses)
    each = plan.target.load_bytes // gcd(plan.target.load_bytes, nbytes)
    most = min(MOST_ELEMENTS // size, MOST_OPS // (size * work), count // plan.target.busy_threads)
    each = min(each, previous_power_of_two(max(most, 1)))
    return plan.pick("rows of a thread", powers_from(each, 1, each))
