"""What loops read, computed before them: once, along with what is read after them as well."""

from __future__ import annotations

from typing import Any

import numpy as np

from baregrad import func
from baregrad.engine.control.sources import shared_below
from baregrad.engine.session import Session, use_session
from baregrad.ir.core.op import Ops
from baregrad.tensor import Tensor

A = np.random.default_rng(0).normal(size=(6, 8)).astype(np.float32)
B = np.random.default_rng(1).normal(size=(8, 4)).astype(np.float32)


def test_what_is_read_before_and_after_a_loop_is_computed_once() -> None:
    with use_session(Session()) as session:
        runs: list[Any] = []
        a, b = Tensor(A).realize(), Tensor(B).realize()
        session.watching.observers.append(runs.append)
        product = a @ b
        end, _ = func.scan(lambda c, row: (c + row, None), Tensor.zeros(4), product.tanh())
        found = (product.exp() + end).numpy()
        wanted = np.exp(A @ B) + np.tanh(A @ B).sum(0)
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
        names = [step.kernel.arg.name for run in runs for one in run.programs
                 for step in one.executable.plan.steps]
        assert sum("_8" in name for name in names) == 1, names


def test_views_and_what_is_quick_are_not_kept() -> None:
    with use_session(Session()):
        a = Tensor(A).realize()
        quick, long = a + 1, a.sum(1)
        source = (quick * 2 + long.reshape(6, 1)).node
        after = (quick.exp() + long.reshape(6, 1).expand(6, 8)).node
        found = shared_below([source, after], [source], lambda node: node.op is not Ops.BUFFER)
        assert found == [long.node]
        assert shared_below([source], [source], lambda node: True) == []
        largest, _ = a.max(1)
        only = shared_below([largest.node, a.argmax(1).node], [largest.exp().node],
                            lambda node: node.op is not Ops.BUFFER)
        assert all(one.op is not Ops.REDUCE or one.arg.monoid.arity == 1 for one in only)
