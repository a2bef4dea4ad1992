"""Constants folded, reductions made smaller, factors taken out of sums."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad.dtypes import DType, dtypes
from baregrad.graph import canonicalise
from baregrad.ir.core.attrs import Reduce
from baregrad.ir.core.monoid import arg_extreme
from baregrad.ir.core.node import Node, const, toposort
from baregrad.ir.core.op import Op, Ops
from baregrad.ir.evaluate.tensor_level import evaluate, to_raw
from tests.schedule.graphs import I64, A, check, param, sink, value


def canonical(x: A) -> Node:
    return canonicalise(sink(x)).src[0]


def count(node: Node, op: object) -> int:
    return sum(one.op is op for one in toposort(node))


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


@pytest.mark.parametrize("op", [Ops.ADD, Ops.MAX, Ops.MIN, Ops.MUL])
def test_reduction_of_repeated_elements(op: object) -> None:
    x = param(0, 3, 1, 5)
    made = x.expand(3, 4, 5).reduce(op, 1)
    found = canonical(made)
    assert count(found, Ops.REDUCE) == (1 if op is Ops.MUL else 0)
    check([made, x.expand(3, 4, 5).reduce(op, 1, 2), x.expand(3, 4, 5).reduce(op)])


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


def test_factors_come_out_of_sums() -> None:
    x, s = param(0, 30, 40), param(1, 30, 1)
    found = canonical((x * s * 0.5).sum(1))
    reduction = next(one for one in toposort(found) if one.op is Ops.REDUCE)
    assert reduction.src[0] is x.node
    check([(x * s * 0.5).sum(1), (x * s.expand(30, 40)).sum(0), (x * -2.0).sum()])


def test_scale_of_an_operand_comes_out() -> None:
    x, w = param(0, 8, 6), param(1, 6, 4)
    found = canonical((x * 0.125) @ w)
    reduction = next(one for one in toposort(found) if one.op is Ops.REDUCE)
    assert count(reduction, Ops.MUL) == 1
    check([(x * 0.125) @ w, x @ (w * 3.0)])


def test_factors_stay_in_half_precision_sums() -> None:
    """A sum of float16 may overflow where the scaled sum does not."""
    x = param(0, 8, dtype=dtypes.float16)
    found = canonical((x * value(0.125, dtypes.float16)).sum(0))
    assert next(o for o in toposort(found) if o.op is Ops.REDUCE).src[0].op is Ops.MUL


def test_a_mean_subtracted_inside_a_sum_stays_inside() -> None:
    """sum(x - m) is not sum(x) - n*m: the difference would be lost in rounding."""
    x = param(0, 20, 500)
    found = canonical((x - x.mean(1, keep=True)).sum(1))
    assert count(found, Ops.SUB) == 1
    check([(x - x.mean(1, keep=True)).sum(1)])


def test_sums_split_where_a_factor_is_a_reduction() -> None:
    x, w = param(0, 20, 50), param(1, 20, 50)
    d = (x * w).sum(1, keep=True)
    made = (x * 2.0 + w * d).sum(1)
    found = canonical(made)
    depth = [one for one in toposort(found) if one.op is Ops.REDUCE]
    assert all(not child.mask & Ops.REDUCE.bit for one in depth for child in one.src)
    check([made], tolerance=1e-3)


def test_sums_that_differ_by_a_factor_are_one() -> None:
    """As in the gradient of a batch norm: a product that several read, but so they do its part."""
    x, d, w = param(0, 20, 50), param(1, 20, 50), param(2, 20, 1)
    scaled = x * w.expand(20, 50)
    sums = [x.sum(1), scaled.sum(1), (x * d).sum(1), (scaled * d).sum(1)]
    found = canonicalise(sink(*sums, scaled))
    assert count(found, Ops.REDUCE) == 2
    check([*sums, scaled], tolerance=1e-4)


def test_a_product_that_others_read_is_summed_as_it_is() -> None:
    x, w = param(0, 20, 50), param(1, 20, 1)
    scaled = (x * 3.0).exp() * w.expand(20, 50)
    found = canonicalise(sink((scaled * scaled).sum(1), scaled))
    assert next(o for o in toposort(found) if o.op is Ops.REDUCE).src[0].src[0].op is Ops.MUL


def test_long_sums_are_made_in_parts() -> None:
    x = param(0, 512, 1024)
    plan = check([x.sum(), x.max(), (x * x).mean()], kernels=2, tolerance=1e-3)
    assert plan.arena_nbytes == 3 * 256


@pytest.mark.parametrize("shape", [(1 << 19,), (2, 1 << 18), (1, 300007), (64, 3, 64, 64)])
def test_parts_of_odd_shapes(shape: tuple[int, ...]) -> None:
    x = param(0, *shape)
    last = tuple(axis for axis in range(len(shape)) if axis != 1) or (0,)
    check([x.sum(), x.sum(*last)], tolerance=1e-2)
