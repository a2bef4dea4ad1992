"""Running folds on a GPU: the threads of a row, some elements of it each.

A row of so many elements that fit a block is one statement: each thread folds its own elements, and
all of them what is before each. Its threads and their elements depend on the length of the row
alone, so that the order of the additions does, too.
"""

from __future__ import annotations

from baregrad.base.bits import next_power_of_two
from baregrad.ir.core import index
from baregrad.ir.core.node import extent_of
from baregrad.ir.core.op import Ops
from baregrad.kernel.facts.analysis import iterations
from baregrad.kernel.planning.common.decisions import powers_from
from baregrad.kernel.planning.gpu.gpu_plan import WARPS, GpuPlan

# Shorter rows are folded by one thread each.
LEAST_ROW = 16
# The longest row of a block, and elements of a thread in rows from LONG_ROW on, in others, and in
# long ones where a formula combines them.
MOST_ROW = 4096
LONG_ROW = 256
LANES = 8
FEW_LANES = 4
FORMULA_LANES = 16
# The same, that a search tries at most.
MOST_LANES = 16


def plan_running(plan: GpuPlan) -> bool:
    """Threads along a running fold, if there is one along neighbours that fits a block."""
    facts = plan.facts
    if len(facts.scanned) != 1 or facts.ordered or facts.reductions or facts.stages:
        return False
    (axis,) = facts.scanned
    # Of a symbolic length the threads are those of the longest row.
    length = index.upper(extent_of(axis))
    if not LEAST_ROW <= length <= MOST_ROW:
        return False
    others = [each for each in facts.data if each is not axis and extent_of(each) != 1]
    strides = {access.stride(axis) for access in facts.accesses if axis in access.axes}
    folds = [node.arg.monoid for node in facts.order if node.op is Ops.SCAN]
    if not plan.uncertain.isdisjoint(facts.data):
        return False
    # A gradient reads its row from the end; what is scattered is written anywhere: where it is read
    # across, threads along the other axes gain nothing by it, unless they are many. How many there
    # are is not to change bits.
    if strides.isdisjoint((1, -1)) and (
        None not in strides
        or not all(monoid.is_exact for monoid in folds)
        or iterations(others) >= plan.target.busy_threads
    ):
        return False
    if any(not monoid.commutative for monoid in folds):
        return False
    lanes = LANES if length >= LONG_ROW else FEW_LANES
    if length >= LONG_ROW and any(monoid.primitive is None for monoid in folds):
        # Fewer threads find what comes before theirs, which takes functions.
        lanes = FORMULA_LANES
    room = plan.target.threads_per_block
    lanes = plan.pick("lanes", powers_from(lanes, max(-(-length // room), 1), MOST_LANES))
    threads = next_power_of_two(-(-length // lanes))
    # Threads that have nothing come last: how many there are changes no bits.
    threads = threads if others else max(threads, plan.warp)
    rows = max(WARPS * plan.warp // threads, 1)
    rows = plan.pick("rows of a block", powers_from(rows, 1, room // threads))
    plan.because("running folds of {}: {} threads with {} elements each", length, threads, lanes)
    plan.spread_rows(others, rows)
    plan.parts([axis], [("thread", threads), ("vector", lanes)])
    return True
