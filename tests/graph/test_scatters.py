"""Scatters that write each row once become choices by place; others stay."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad.graph import canonicalise
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.tensor_level import evaluate_all
from tests.graph.graphs.canonical import ops
from tests.schedule.graphs import I64, check, iota, iota_along, param, sink, value


def test_picking_a_class_a_row_has_no_scatter() -> None:
    labels, d = param(0, 9, dtype=I64), param(1, 9)
    zeros = value(0.0).to((9, 5))
    made = zeros.scatter(d, iota(9), labels, op=Ops.ADD)
    assert Ops.SCATTER not in ops(made)
    check([made], kernels=1)
    check([zeros.scatter(d, iota(9), labels), zeros.scatter(d, iota(9), labels, op=Ops.MAX)])


def test_picking_with_axes_of_one_and_in_another_order() -> None:
    labels, d = param(0, 4, 1, 3, dtype=I64), param(1, 4, 1, 3)
    zeros = value(0.0).to((3, 6, 4))
    made = zeros.scatter(d, iota_along((4, 1, 3), 2), labels, iota_along((4, 1, 3), 0), op=Ops.ADD)
    assert Ops.SCATTER not in ops(made)
    check([made])


def test_rows_written_twice_stay_a_scatter() -> None:
    ids, d = param(0, 12, dtype=I64), param(1, 12, 4)
    zeros = value(0.0).to((5, 4))
    made = zeros.scatter(d, ids.reshape(12, 1), iota(4).reshape(1, 4), op=Ops.ADD)
    assert Ops.SCATTER in ops(made)
    check([made])


def test_array_that_is_there_is_written_in_place() -> None:
    labels, d, x = param(0, 9, dtype=I64), param(1, 9), param(2, 9, 5)
    assert Ops.SCATTER in ops(x.scatter(d, iota(9), labels))


@pytest.mark.parametrize("op", [None, Ops.ADD, Ops.MAX, Ops.MUL])
@pytest.mark.parametrize("start", [0.0, 2.5])
def test_a_choice_keeps_what_the_array_held_before(op: object, start: float) -> None:
    labels = np.array([4, 0, 2, 2, 1, 3, 0])
    given = np.random.default_rng(3).standard_normal(7).astype(np.float32)
    made = value(start).to((7, 5)).scatter(param(1, 7), iota(7), param(0, 7, dtype=I64), op=op)
    assert Ops.SCATTER not in ops(made)
    wanted = np.full((7, 5), start, np.float32)
    how = {None: lambda _, new: new, Ops.ADD: np.add, Ops.MAX: np.maximum, Ops.MUL: np.multiply}
    for row, label in enumerate(labels):
        wanted[row, label] = how[op](wanted[row, label], given[row])  # type: ignore[index]
    arrays = {0: labels, 1: given}
    (found,) = evaluate_all(canonicalise(sink(made)).src, arrays)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    "places",
    [
        lambda labels: (iota(7) + value(1, I64), labels),  # not from row 0 on
        lambda labels: (iota(7).flip(0), labels),
        lambda labels: (labels, labels),  # two places are looked up
    ],
)
def test_rows_that_are_not_counted_through_stay_a_scatter(places: object) -> None:
    labels = param(0, 7, dtype=I64)
    made = value(0.0).to((8, 8)).scatter(param(1, 7), *places(labels))  # type: ignore[operator]
    assert Ops.SCATTER in ops(made)
