"""Constant arrays met by arithmetic become scalars, and constant expressions are computed."""

from __future__ import annotations

import pytest

from baregrad.dtypes import dtypes
from baregrad.ir.core.node import toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.tensor_level import evaluate
from tests.graph.graphs.canonical import canonical, count
from tests.schedule.graphs import I64, check, param, value


def test_constant_arrays_become_scalars() -> None:
    x = param(0, 3, 4)
    found = canonical(x * value(2.0).to((3, 4)) + value(0.5).to((3, 4)))
    assert count(found, Ops.EXPAND) == 0
    check([x * value(2.0).to((3, 4))])


def test_constant_expressions_are_computed() -> None:
    made = (value(2.0).to((3, 4)) * 3.0 + value(1.0).to((4,))).sqrt()
    leaves = [one for one in toposort(canonical(made)) if one.op is Ops.CONST]
    assert [float(leaf.arg) for leaf in leaves if leaf.dtype is dtypes.float32] == [
        pytest.approx(7**0.5)
    ]
    check([made])


def test_products_with_one_vanish() -> None:
    x = param(0, 3, 4)
    assert canonical(x * value(1.0).to((3, 4))) is x.node


def test_running_sum_of_ones_counts() -> None:
    made = value(1, I64).to((3, 5)).scan(1)
    found = canonical(made)
    assert count(found, Ops.SCAN) == 0
    assert evaluate(found).tolist() == [[1, 2, 3, 4, 5]] * 3


def test_running_maximum_of_a_constant_is_it() -> None:
    assert count(canonical(value(2.5).to((3, 5)).scan(0, Ops.MAX)), Ops.SCAN) == 0
