"""Sums of products: factors that do not vary along the summed axes come out."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from baregrad.dtypes import dtypes
from baregrad.graph import canonicalise
from baregrad.ir.core.node import toposort
from baregrad.ir.core.op import Ops
from baregrad.tensor import Tensor
from tests.graph.graphs.canonical import canonical, count
from tests.schedule.graphs import check, param, sink, value


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


def test_results_that_are_alike_when_a_factor_left_are_made_once() -> None:
    """As in the gradient of a product of which sums along a side are all that is wanted."""
    g, w = param(0, 9, 30, 1, 1), param(1, 9, 1, 40, 50)
    made = (g.expand(9, 30, 40, 50) * w).sum(3)
    (reduction,) = [one for one in toposort(canonical(made)) if one.op is Ops.REDUCE]
    assert math.prod(reduction.shape) == 9 * 40
    check([made])


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


@pytest.mark.parametrize("scale", [math.inf, -math.inf, math.nan, 0.0, -0.0, 2.5])
def test_what_is_no_plain_number_stays_in_sums(scale: float) -> None:
    """Infinities of both signs sum to NaN, and a zero keeps large values from overflowing."""
    array = np.array([[1, -2, 3], [0.5, 2, 3], [3e38, 3e38, 3e38], [-3e38, 3e38, 1]], np.float32)
    scaled = Tensor(array) * scale
    ours = (scaled.sum(1), -(scaled * Tensor(array).sign()).mean(1), scaled @ Tensor.ones(3, 2))
    kept = torch.from_numpy(array) * scale
    signs = torch.from_numpy(np.sign(array))
    theirs = (kept.sum(1), -(kept * signs).mean(1), kept @ torch.ones(3, 2))
    for found, wanted in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(found.numpy()[:2], wanted.numpy()[:2], rtol=1e-5)
        if scale != 2.5:
            np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-5)


@pytest.mark.parametrize("count_of", [2, 3, 8])
def test_a_sum_of_matrix_products_is_a_sum_of_each(count_of: int) -> None:
    """As is the gradient of what several matrices are multiplied by; one is subtracted."""
    pairs = [
        (param(2 * at, 6, 1, 30), param(2 * at + 1, 1, 5, 30)) for at in range(count_of)
    ]
    total = pairs[0][0] * pairs[0][1]
    for number, (x, w) in enumerate(pairs[1:]):
        total = total - x * w if number == 0 else total + x * w
    made = total.sum(2)
    found = canonical(made)
    sums = [one for one in toposort(found) if one.op is Ops.REDUCE]
    assert len(sums) == count_of
    assert all(one.src[0].op is Ops.MUL for one in sums)
    check([made], tolerance=1e-3)


def test_terms_that_others_have_as_well_are_summed_once() -> None:
    """Each of 60 sums is that of the two before: no two ways to a product make it twice."""
    before, last = (param(2 * at, 6, 1, 30) * param(2 * at + 1, 1, 5, 30) for at in range(2))
    for _ in range(60):
        before, last = last, before + last
    made = last.sum(2)
    assert count(canonical(made), Ops.REDUCE) == 2


@pytest.mark.parametrize("scaled", [
    lambda a, b, s: a * 2.0 + b,
    lambda a, b, s: (a + b) * 0.5,
    lambda a, b, s: b - (a * 0.25 - b * 3.0) * s,
    lambda a, b, s: (a * s + b) * 2.0,
], ids=["one", "both", "nested", "by row"])  # fmt: skip
def test_matrix_products_that_are_scaled_are_summed_apart(
    scaled: Callable[[Tensor, Tensor, Tensor], Tensor]
) -> None:
    x, w, y, v = param(0, 6, 1, 30), param(1, 1, 5, 30), param(2, 6, 1, 30), param(3, 1, 5, 30)
    made = scaled(x * w, y * v, param(4, 6, 1, 1)).sum(2)
    sums = [one for one in toposort(canonical(made)) if one.op is Ops.REDUCE]
    assert len(sums) == 2
    assert all(one.src[0].op is Ops.MUL and len(one.src[0].src) == 2 for one in sums)
    factors = [factor for one in sums for factor in one.src[0].src]
    assert not any(factor.mask & (Ops.MUL.bit | Ops.ADD.bit) for factor in factors)
    check([made], tolerance=1e-3)


def test_a_row_beside_matrix_products_is_summed_once() -> None:
    """As the product with the zeros that an LSTM begins with, in its weights' gradient."""
    x, w, row = param(0, 6, 1, 30), param(1, 1, 5, 30), param(2, 6, 1, 30)
    made = (x * w + row * 0.0).sum(2)
    sums = [one for one in toposort(canonical(made)) if one.op is Ops.REDUCE]
    assert sorted(one.shape for one in sums) == [(6, 1), (6, 5)]
    check([made], tolerance=1e-3)


def test_products_with_a_vector_are_summed_together() -> None:
    """No result but one reads such a matrix: one pass over memory does for both."""
    x, w, y, v = param(0, 1, 30), param(1, 20, 30), param(2, 1, 30), param(3, 20, 30)
    found = canonical((x * w + y * v).sum(1))
    assert count(found, Ops.REDUCE) == 1
