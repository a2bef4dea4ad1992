"""Reductions of one kernel share the loops that they can."""

from __future__ import annotations

from baregrad.ir.core.node import toposort
from baregrad.ir.core.op import Ops
from tests.schedule.graphs import check, param


def loops_of(plan: object) -> int:
    """How many different ranges the reductions of a plan's only kernel close."""
    (kernel,) = plan.kernels  # type: ignore[attr-defined]
    closed = set()
    for node in toposort(kernel):
        if node.op is Ops.REDUCE:
            closed.update(node.src[node.arg.monoid.arity :])
    return len(closed)


def test_independent_reductions_of_different_depth_share_a_loop() -> None:
    """One sum reads what other reductions made, the other does not: still one pass."""
    x, w = param(0, 40, 300), param(1, 40, 300)
    away = (x - x.mean(1, keep=True)).contiguous()
    plan = check([(away * w).sum(1), w.sum(1)], kernels=2)
    closed = {
        axis
        for node in toposort(plan.kernels[-1])
        if node.op is Ops.REDUCE
        for axis in node.src[1:]
    }
    assert len(closed) == 1


def test_dependent_reductions_keep_their_own_loops() -> None:
    x = param(0, 40, 300)
    away = x - x.mean(1, keep=True)
    assert loops_of(check([(away * away).mean(1)], kernels=1)) == 2


def test_loops_that_would_wait_for_each_other_are_not_shared() -> None:
    """Over x and over y one reduction each needs the other's array folded first."""
    x, y = param(0, 40, 300), param(1, 40, 200)
    over_x = (x * y.max(1, keep=True)).exp().sum(1)
    over_y = (y * (x * x).sum(1, keep=True)).exp().max(1)
    assert loops_of(check([over_x + over_y], kernels=1)) == 3
