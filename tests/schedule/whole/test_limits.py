"""Large graphs: cut into kernels, in time that grows with their size."""

from __future__ import annotations

import pytest

from baregrad.apps.instructions import count
from baregrad.graph import canonicalise
from baregrad.ir.core.node import toposort
from baregrad.ir.core.op import Ops
from baregrad.schedule import Plan, make_plan
from tests.schedule.graphs import A, check, param, sink
from tests.schedule.whole.resnet import resnet

MOST_ARRAYS = 26


def widest(plan: Plan) -> int:
    return max(len(step.buffers) for step in plan.steps)


def chain(count: int) -> A:
    x = param(0, 64)
    for i in range(count):
        x = x * 1.0001 + 0.5 if i % 2 else (x + 1.0).relu()
    return x


def left(count: int) -> A:
    total = param(0, 16)
    for i in range(1, count):
        total = total + param(i, 16)
    return total


def right(count: int) -> A:
    total = param(0, 16)
    for i in range(1, count):
        total = param(i, 16).relu() + total
    return total


def tree(count: int) -> A:
    level = [param(i, 16) for i in range(count)]
    while len(level) > 1:
        pairs = [level[i : i + 2] for i in range(0, len(level), 2)]
        level = [pair[0] + pair[1] if len(pair) == 2 else pair[0] for pair in pairs]
    return level[0]


def test_long_chain_is_cut() -> None:
    plan = check([chain(1000)], tolerance=1e-3)
    assert 5 <= len(plan.kernels) <= 30
    assert len(set(plan.kernels)) <= 3
    assert plan.arena_nbytes == 512


@pytest.mark.parametrize("make", [left, right, tree])
def test_sum_of_many_is_cut(make: object) -> None:
    plan = check([make(700)], tolerance=1e-3)  # type: ignore[operator]
    assert widest(plan) <= MOST_ARRAYS
    assert len(plan.kernels) < 120


def test_joined_arrays_are_cut() -> None:
    total = None
    for i in range(60):
        placed = param(i, 4).pad((4 * i, 4 * (59 - i)))
        total = placed if total is None else total + placed
    assert total is not None
    assert widest(check([total])) <= MOST_ARRAYS


def test_many_outputs() -> None:
    plan = check([param(i, 8) + 1.0 for i in range(300)], kernels=300)
    assert len(set(plan.kernels)) == 1


@pytest.mark.slow
def test_a_hundred_thousand_nodes() -> None:
    plan = make_plan(canonicalise(sink(chain(70_000))))
    assert len(toposort(sink(chain(70_000)))) > 100_000
    assert len(set(plan.kernels)) <= 3


@pytest.mark.slow
@pytest.mark.parametrize("make", [left, right, tree])
def test_sum_of_ten_thousand(make: object) -> None:
    plan = make_plan(canonicalise(sink(make(10_000))))  # type: ignore[operator]
    assert widest(plan) <= MOST_ARRAYS
    assert len(set(plan.kernels)) < 40


def test_training_step_of_a_residual_network_agrees() -> None:
    root = resnet(batch=2, size=16, blocks=(1, 1), width=4, classes=5)
    plan = check([A(node) for node in root.src], tolerance=2e-3)
    assert len(plan.kernels) < 75


def test_residual_network_is_scheduled_quickly() -> None:
    root = resnet(batch=3)
    plans = []
    cost = count(lambda: plans.append(make_plan(canonicalise(root))))
    kernels = len(plans[0].kernels)
    assert kernels <= 185
    assert len(set(plans[0].kernels)) <= 120
    # 34,000 instructions with Python 3.11.
    assert cost / kernels < 42_000


def test_kernels_of_a_residual_network_hold_no_views_and_no_division() -> None:
    plan = make_plan(canonicalise(resnet()))
    divided = [k for k in set(plan.kernels) if k.mask & (Ops.FLOORDIV.bit | Ops.MOD.bit)]
    assert divided == []
