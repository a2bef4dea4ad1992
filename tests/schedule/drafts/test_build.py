"""Drafts put together: guards and sums that merge, comparisons of places, what is repeated."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.monoid import arg_extreme, primitive
from baregrad.ir.core.node import Node, alu, const, range_node, toposort
from baregrad.ir.core.op import Ops
from baregrad.schedule.drafts.build import array, guard, reduction, repeated
from tests.kernel import kernels as k
from tests.schedule.graphs import F32, I64, check, iota, iota_along, param

SUM = primitive(Ops.ADD, F32)
I, J = range_node(6, 0), range_node(4, 1)
X = k.at(k.param(1, 6, 4), I, J)
ZERO = const(0, F32)


def test_guards_of_constants_are_none() -> None:
    assert guard(const(True, dtypes.bool), X) is X
    assert guard(const(False, dtypes.bool), X) is ZERO
    assert guard(index.less(I, 3), ZERO) is ZERO
    truth = const(True, dtypes.bool)
    assert guard(index.less(I, 3), truth) is index.less(I, 3)


def test_nested_guards_are_one() -> None:
    made = guard(index.less(I, 3), guard(index.less(J, 2), X))
    assert made.op is Ops.GUARD
    assert made.src[1] is X
    assert set(index.conjuncts(made.src[0])) == {index.less(I, 3), index.less(J, 2)}


def test_a_condition_that_reads_stays_inside_the_guard_of_its_own_read() -> None:
    places = k.at(k.param(2, 6, dtype=I64), I)
    inner = guard(alu(Ops.CMPLT, places, const(3, I64)), X)
    made = guard(index.less(I, 3), inner)
    assert (made.op, made.src[1]) == (Ops.GUARD, inner)


def test_a_sum_of_guarded_sums_is_one_sum() -> None:
    inner = reduction(SUM, (X,), (J,), False)
    assert reduction(SUM, (inner,), (I,), True).src == (X, I, J)
    condition = index.less(I, 3)
    merged = reduction(SUM, (guard(condition, inner),), (I,), True)
    assert merged.src == (guard(condition, X), I, J)
    # A maximum of sums is none, and what others read stays what it is.
    largest = reduction(primitive(Ops.MAX, F32), (inner,), (I,), True)
    assert largest.src == (inner, I)
    assert reduction(SUM, (inner,), (I,), False).src == (inner, I)


def test_a_fold_along_no_axis_is_what_it_folds_but_for_tuples() -> None:
    zero = const(0, dtypes.index)
    assert reduction(SUM, (X,), (zero,), False) is X
    pair = arg_extreme(Ops.MAX, F32)
    made = reduction(pair, (X, const(0, I64)), (zero,), False)
    assert (made.op, made.arg.monoid) == (Ops.REDUCE, pair)


def test_what_is_scattered_many_times_to_one_place_counts_as_often() -> None:
    assert repeated(SUM, X, (J,), (I, J)) is X
    made = repeated(SUM, const(1.0, F32), (J,), (I, J))
    assert made.src == (const(1.0, F32), I)
    base, places = param(0, 3), param(1, 5, dtype=I64)
    ones = (param(2, 5) * 0.0 + 1.0).reshape(1, 5).expand(7, 5)
    wide = places.reshape(1, 5).expand(7, 5)
    order = np.array([0, 2, 2, 1, 2])
    arrays = {0: np.zeros(3, np.float32), 1: order, 2: np.zeros(5, np.float32)}
    check([base.scatter(ones, wide, op=Ops.ADD)], arrays)


def test_one_array_is_one_param() -> None:
    known: dict[object, Node] = {}
    first = array(known, 0, param(3, 4, 5).node)  # type: ignore[arg-type]
    assert array(known, 0, param(9, 4, 5).node) is first  # type: ignore[arg-type]
    assert array(known, 1, param(3, 4, 5).node) is not first  # type: ignore[arg-type]


@pytest.mark.parametrize("strict", [True, False])
def test_comparisons_of_places_are_index_arithmetic(strict: bool) -> None:
    """A causal mask needs no 64-bit lanes."""
    row, column = iota_along((9, 9), 0), iota_along((9, 9), 1)
    mask = column.alu(Ops.CMPLT if strict else Ops.CMPLE, row)
    plan = check([mask.where(param(0, 9, 9), 0.0)], kernels=1)
    compared = [n for n in toposort(plan.kernels[0]) if n.op in (Ops.CMPLT, Ops.CMPLE)]
    assert compared
    assert {child.dtype for node in compared for child in node.src} == {dtypes.index}
    # What is read from memory is compared as what it is.
    plan = check([param(1, 9, dtype=I64).alu(Ops.CMPLT, iota(9)).where(param(0, 9), 0.0)])
    compared = [n for n in toposort(plan.kernels[0]) if n.op is Ops.CMPLT]
    assert I64 in {child.dtype for node in compared for child in node.src}
