"""Where a row had better be stored while the next one is read."""

from __future__ import annotations

from typing import NamedTuple

from baregrad.kernel.delayed_stores import MOST_TOGETHER
from baregrad.kernel.heuristic_elementwise import is_dear
from baregrad.kernel.loop_pieces import scoped_below
from baregrad.kernel.pipelines import CPU_ENGINE
from baregrad.kernel.schedule_value import Bind, Pipeline, StreamOutput
from baregrad.kernel.tiling import Plan, PlannedAxis


class Late(NamedTuple):
    """The loop over rows whose stores wait for the next row, and the axis that they run along."""

    rows: str
    stores: PlannedAxis


def late_stores(plan: Plan, order: list[PlannedAxis], pool: Bind | None) -> Late | None:
    """Where the stores of a row had better be made while the next one is read.

    That is where they pass the caches by, and what is folded takes long to compute: stores alone
    wait for memory, which has nothing to do while a core computes. (A softmax of 2048 by 2048 takes
    two cores of Zen 4 0.57 ms instead of 0.63; a layernorm is at memory's speed, and gains
    nothing.) What is kept for the stores is left alone by the loop that makes them.
    """
    facts = plan.facts
    if len(facts.outs) > 1 or not any(isinstance(step, StreamOutput) for step in plan.stages):
        return None
    rows = facts.reductions[0].free
    loops = [axis for axis in order if axis.loops]
    if len(loops) < 2 or any(each.free != rows for each in facts.reductions):
        return None
    row, stores = loops[-2:]
    if not row.inside(rows) or row.tiles or len(row.loops) > 1 or stores.inside(rows):
        return None
    name, count = row.loops[0]
    if (count if pool is None or pool.axis != name else pool.grain) < 2:
        return None
    first = [each for each in facts.reductions if not scoped_below(each.node.src)]
    later = [each.node for each in facts.reductions if each not in first]
    if not any(is_dear(node.src) for node in (*later, *facts.stages)):
        return None
    own = [axis for axis in plan.axes if axis.inside(first[0].own)]
    if len(own) != 1 or not own[0].loops:
        return None
    if any(own[0].inside(stage.src[1:]) for stage in facts.stages):
        return None
    trips = [axis.loops[0][1] if isinstance(axis.extent, int) else 0 for axis in (own[0], stores)]
    if trips[0] < 2 or trips[1] % trips[0] or trips[1] // trips[0] > MOST_TOGETHER:
        return None
    return Late(name, stores)


def delay_stores(plan: Plan, late: Late) -> None:
    """Store each row while the next one is read."""
    plan.because("a row is stored while the next is read: its stores wait for memory")
    plan.stages.append(Pipeline(late.rows, engine=CPU_ENGINE))
