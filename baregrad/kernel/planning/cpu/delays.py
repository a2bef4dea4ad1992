"""Where a row had better be stored while the next one is read."""

from __future__ import annotations

from typing import NamedTuple

from baregrad.ir.core.op import Ops
from baregrad.kernel.facts.analysis import Facts, Reduction
from baregrad.kernel.gpu.pipelines import CPU_ENGINE
from baregrad.kernel.language.schedule import Bind, Pipeline, StreamOutput
from baregrad.kernel.loops.delayed_stores import times_taken
from baregrad.kernel.loops.loop_pieces import scoped_below
from baregrad.kernel.planning.common.tiling import CpuPlan, PlannedAxis
from baregrad.kernel.planning.cpu.elementwise import is_dear


class Late(NamedTuple):
    """The loop over rows whose stores wait for the next row, and the axis that they run along."""

    rows: str
    stores: PlannedAxis


def late_stores(plan: CpuPlan, order: list[PlannedAxis], pool: Bind | None) -> Late | None:
    """Where the stores of a row had better be made while the next one is read.

    That is where they pass the caches by, and what takes long to compute is kept for them: stores
    alone wait for memory, which has nothing to do while a core computes. A softmax of 8192 by 2048
    takes two cores of Zen 4 2.87 ms instead of 3.30. A layernorm is at memory's speed, and gains
    nothing; a log_softmax, which reads a row once more for its stores, takes 1.2 times as long. The
    loop that makes the stores leaves alone what is kept for them.
    """
    facts = plan.facts
    if not any(isinstance(step, StreamOutput) for step in plan.stages):
        return None
    first = _folded_first(facts)
    loops = [axis for axis in order if axis.loops]
    if first is None or len(loops) < 2:
        return None
    row, stores = loops[-2:]
    if not row.inside(first.free) or row.tiles or len(row.loops) > 1 or stores.inside(first.free):
        return None
    name, count = row.loops[0]
    if (count if pool is None or pool.axis != name else pool.grain) < 2:
        return None
    own = [axis for axis in plan.axes if axis.inside(first.own)]
    if len(own) != 1 or not own[0].loops:
        return None
    trips = [axis.loops[0][1] if isinstance(axis.extent, int) else 0 for axis in (stores, own[0])]
    return Late(name, stores) if times_taken(*trips) else None


def _folded_first(facts: Facts) -> Reduction | None:
    """The first of two reductions over rows, of which the other folds what is kept for the stores.

    None in kernels of other kinds: there the loop of the first one may not be the first loop, or
    not leave alone what is kept. A value under a condition is not handed on from row to row.
    """
    if len(facts.outs) > 1 or len(facts.reductions) != 2 or len(facts.stages) != 1:
        return None
    (stage,), value = facts.stages, facts.outs[0].src[1]
    first = next((each for each in facts.reductions if not scoped_below(each.node.src)), None)
    if first is None or first.node not in scoped_below(stage.src[:1]) or not is_dear(stage.src):
        return None
    if value.has(Ops.GUARD) or any(each.free != first.free for each in facts.reductions):
        return None
    return first if set(first.own).isdisjoint(stage.src[1:]) else None


def store_late(plan: CpuPlan, late: Late) -> None:
    """Store each row while the next one is read."""
    plan.because("a row is stored while the next is read: its stores wait for memory")
    plan.stages.append(Pipeline(late.rows, engine=CPU_ENGINE))
