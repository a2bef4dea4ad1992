"""From a SINK to a plan: what is not planned, and graphs without work or elements."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad.base.errors import CompilerBug
from baregrad.dtypes import dtypes
from baregrad.ir.core.node import Node, const
from baregrad.ir.core.op import Ops
from baregrad.schedule import make_plan
from tests.schedule.graphs import A, check, param, random_inputs, run_plan, sink


def test_a_copy_to_another_device_is_not_planned() -> None:
    moved = A(Node(Ops.COPY, dtypes.float32, (param(0, 8, 8).node,), "REMOTE"))
    with pytest.raises(CompilerBug, match="one device"):
        make_plan(sink(moved * 2.0))


def test_arrays_without_elements() -> None:
    x = param(0, 0, 5)
    plan = check([x + 1.0, x.sum(0), x.reshape(5, 0).max(0), x.sum(1)], canonical=True)
    assert len(plan.kernels) == 1
    check([x + 1.0, x.sum(0)], canonical=False)


def test_scalars() -> None:
    x = param(0)
    check([x * 2.0 + 1.0, x.reshape(1, 1), x.reshape(1).sum(0)], kernels=1)


def test_a_plan_is_made_of_a_sink() -> None:
    with pytest.raises(CompilerBug, match="SINK"):
        make_plan(const(1, dtypes.int32))


def test_nothing_wanted() -> None:
    plan = make_plan(sink())
    assert plan.steps == ()
    assert plan.outputs == ()


def test_unread_arguments_are_not_in_the_plan() -> None:
    x, y = param(0, 4), param(7, 4)
    plan = make_plan(sink(y + 1.0))
    assert [b.slot for b in plan.buffers if b.kind == "param"] == [7]
    found = run_plan(plan, random_inputs(sink(x, y)))
    assert np.isfinite(found[0]).all()
