"""Reductions made smaller: over repeated elements, constants, one element, or none."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from baregrad.dtypes import DType, dtypes
from baregrad.graph import canonicalise
from baregrad.ir.core.attrs import Reduce
from baregrad.ir.core.monoid import arg_extreme
from baregrad.ir.core.node import Node, const, toposort
from baregrad.ir.core.op import Op, Ops
from baregrad.ir.evaluate.tensor_level import evaluate, to_raw
from tests.graph.graphs.canonical import canonical, count
from tests.schedule.graphs import I64, A, check, param, sink


@pytest.mark.parametrize("op", [Ops.ADD, Ops.MAX, Ops.MIN, Ops.MUL])
def test_reduction_of_repeated_elements(op: object) -> None:
    x = param(0, 3, 1, 5)
    made = x.expand(3, 4, 5).reduce(op, 1)
    found = canonical(made)
    assert count(found, Ops.REDUCE) == (1 if op is Ops.MUL else 0)
    check([made, x.expand(3, 4, 5).reduce(op, 1, 2), x.expand(3, 4, 5).reduce(op)])


@pytest.mark.parametrize("op", [Ops.ADD, Ops.MAX, Ops.MUL])
def test_results_that_are_alike_are_made_once(op: Op) -> None:
    """The gradient by a factor whose products are summed along its columns, in its views."""
    x, y = param(0, 6, 4), param(1, 6)
    rows = x.reshape(6, 4, 1).expand(6, 4, 5)
    repeated = y.reshape(6, 1, 1).expand(6, 1, 5).reshape(6, 1, 5).expand(6, 4, 5)
    made = (rows * repeated).reduce(op, 0)
    (reduce,) = [node for node in toposort(canonical(made)) if node.op is Ops.REDUCE]
    assert prod(reduce.shape) == 4
    check([made])
    kept = (rows * repeated + param(2, 4, 5).reshape(1, 4, 5).expand(6, 4, 5)).reduce(op, 0)
    assert any(
        prod(node.shape) == 20 for node in toposort(canonical(kept)) if node.op is Ops.REDUCE
    )
    check([kept])


def test_repeated_half_precision_elements_are_counted_in_float32() -> None:
    x = param(0, 2, 1, dtype=dtypes.float16)
    check([x.expand(2, 3000).sum(1)], tolerance=1e-2)


def test_sum_of_repeated_integers_wraps() -> None:
    x = A(Node(Ops.EXPAND, dtypes.int8, (const(100, dtypes.int8),), ())).reshape(1).expand(3)
    assert int(evaluate(canonical(x.sum()))) == int(evaluate(x.sum().node)) == 44


def extreme(op: Op, x: A, *axes: int) -> Node:
    places = A(Node(Ops.IOTA, I64, (), x.shape[-1])).to(x.shape)
    arg = Reduce(arg_extreme(op, x.node.dtype), axes)
    return Node(Ops.REDUCE, x.node.dtype, (x.node, places.node), arg)


def part(whole: Node, position: int) -> A:
    return A(Node(Ops.PROJ, whole.arg.monoid.states[position], (whole,), position))


@pytest.mark.parametrize("op", [Ops.MAX, Ops.MIN])
@pytest.mark.parametrize(
    "dtype", [dtypes.float32, dtypes.float16, dtypes.int8, dtypes.uint64, dtypes.bool]
)
def test_the_value_of_an_argmax_alone_is_a_max(op: Op, dtype: DType) -> None:
    rng = np.random.default_rng(3)
    data = rng.integers(0, 2 if dtype is dtypes.bool else 50, (4, 7)).astype(dtype.name)
    if dtype.kind == "float":
        data[1, 3] = np.nan
        data[2, :] = -np.inf
    made = part(extreme(op, param(0, 4, 7, dtype=dtype), 1), 0)
    found = canonical(made)
    assert count(found, Ops.PROJ) == count(found, Ops.IOTA) == 0
    assert count(found, Ops.REDUCE) == 1
    check([made], {0: to_raw(data, dtype)}, tolerance=0)


def test_a_max_of_maxima_is_two_plain_ones() -> None:
    made = part(extreme(Ops.MAX, part(extreme(Ops.MAX, param(0, 2, 3, 4), 2), 0), 1), 0)
    assert count(canonical(made), Ops.PROJ) == 0
    check([made])


def test_an_argmax_whose_place_is_wanted_stays() -> None:
    whole = extreme(Ops.MAX, param(0, 4, 7), 1)
    root = canonicalise(sink(part(whole, 0), part(whole, 1)))
    assert count(root, Ops.PROJ) == 2
    check([part(whole, 0), part(whole, 1)])


def test_reduction_over_one_element_is_a_reshape() -> None:
    x = param(0, 3, 1, 5)
    assert count(canonical(x.sum(1)), Ops.REDUCE) == 0
    check([x.sum(1), x.max(0, 1)])


def test_reduction_over_no_element_is_the_identity() -> None:
    x = param(0, 0, 3)
    found = [canonical(x.sum(0)), canonical(x.max(0))]
    assert [evaluate(node).tolist() for node in found] == [[0.0] * 3, [-np.inf] * 3]


def test_sum_of_a_sum_is_one_sum() -> None:
    plan = check([param(0, 6, 7, 8).sum(2).sum(1)], kernels=1)
    assert count(plan.kernels[0], Ops.REDUCE) == 1


def test_sum_with_other_readers_is_not_computed_twice() -> None:
    inner = param(0, 60, 70, 80).sum(2)
    plan = check([inner, inner.sum(1)])
    assert sum(0 in step.buffers[len(step.writes) :] for step in plan.steps) == 1
