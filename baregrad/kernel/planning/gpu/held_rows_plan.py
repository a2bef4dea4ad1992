"""Schedules of kernels whose threads hold a row in registers: every loop over it lies alike."""

from __future__ import annotations

from baregrad.ir.core.node import extent_of
from baregrad.kernel.facts.row_tile import RowTile
from baregrad.kernel.language.schedule import Bind, Split
from baregrad.kernel.loops.held_rows import LANES, STEPS, THREADS, WARPS, row_axes
from baregrad.kernel.planning.common.decisions import powers_from
from baregrad.kernel.planning.gpu.gpu_plan import GpuPlan

# Threads of a block of several rows, and how many a search tries.
BLOCK, MOST_BLOCK = 128, 512
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
