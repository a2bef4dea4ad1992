"""Scatters that write each row once become choices by place; long sums are cut into parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from baregrad.dtypes import DType, dtypes
from baregrad.graph import canonicalise
from baregrad.graph import scatters as module
from baregrad.graph.scatters import scatter_in_parts
from baregrad.ir.core.attrs import Scatter
from baregrad.ir.core.monoid import primitive
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.tensor_level import evaluate_all
from baregrad.ir.verify.verify import verify
from tests.graph.graphs.canonical import ops
from tests.graph.graphs.gpu_graphs import F32, RNG, argument
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


# --- in parts -------------------------------------------------------------------------------------


def counting(count: int, shape: tuple[int, ...]) -> Node:
    """The numbers of a first axis, everywhere along the others."""
    line = Node(Ops.IOTA, I64, (), count)
    thin = Node(Ops.RESHAPE, I64, (line,), (count, *[1] * (len(shape) - 1)))
    return Node(Ops.EXPAND, I64, (thin,), shape)


def adding(
    writes: int, beside: int = 5, rows: int = 7, op: Ops = Ops.ADD, dtype: DType = F32,
    apart: bool = False,
) -> Node:  # fmt: skip
    """Values written at places of a base that are looked up, of each column its own."""
    base, values = argument(0, dtype, rows, beside), argument(1, dtype, writes, beside)
    chosen, columns = argument(2, I64, writes, beside), argument(3, I64, writes, beside)
    arg = Scatter(primitive(op, dtype), apart)
    return Node(Ops.SCATTER, dtype, (base, values, chosen, columns), arg)


def cut(node: Node) -> tuple[int, ...]:
    """The shape that is scattered into, after a check that the values are what they were."""
    sink = Node(Ops.SINK, dtypes.token, (node,))
    made = scatter_in_parts(toposort(sink), {})
    verify(made, "tensor")
    base, values, *_ = node.src
    arrays: list[Any] = [
        np.asarray(RNG.integers(-3, 4, one.shape)).astype(one.dtype.numpy) for one in (base, values)
    ]
    limits = [extent for extent in base.shape if isinstance(extent, int)]
    arrays += [RNG.integers(0, limit, values.shape) for limit in limits]
    given = dict(enumerate(arrays))
    (wanted,), (found,) = evaluate_all(sink.src, given), evaluate_all(made.src, given)
    # Whole numbers: sums of them are exact in any order.
    np.testing.assert_array_equal(found, wanted)
    (scatter,) = [one for one in toposort(made) if one.op is Ops.SCATTER]
    return scatter.shape


@pytest.mark.parametrize("writes", [512, 600, 640, 1000, 1024, 4096])
def test_as_many_parts_as_divide_the_writes(writes: int) -> None:
    most = min(module.MOST_PARTS, writes // module.LEAST_PART)
    parts = max(number for number in range(1, most + 1) if writes % number == 0)
    assert parts > 1 and cut(adding(writes)) == (parts, 7, 5)


@pytest.mark.parametrize("writes", [1, 100, 511, 601])
def test_few_writes_and_prime_numbers_of_them_stay(writes: int) -> None:
    assert cut(adding(writes)) == (7, 5)


def test_parts_of_a_large_array_take_no_more_memory_than_may_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for most, parts in ((7 * 5 * 10, 10), (7 * 5 * 5 + 1, 5), (7 * 5 * 2, 2), (7 * 5 * 2 - 1, 0)):
        monkeypatch.setattr(module, "MOST_ELEMENTS", most)
        assert cut(adding(640)) == ((parts, 7, 5) if parts else (7, 5))


def in_rows(writes: int) -> Node:
    """Each write has a row of its own: no two of them meet."""
    base, values = argument(0, F32, writes, 5), argument(1, F32, writes, 5)
    columns = argument(2, I64, writes, 5)
    places = (counting(writes, (writes, 5)), columns)
    return Node(Ops.SCATTER, F32, (base, values, *places), Scatter(primitive(Ops.ADD, F32)))


KEPT = {
    "a maximum": adding(640, op=Ops.MAX), "a product": adding(640, op=Ops.MUL),
    "half": adding(640, dtype=dtypes.float16), "said to be apart": adding(640, apart=True),
    "rows of their own": in_rows(640),
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_other_writes_stay_as_they_are(name: str) -> None:
    """Sums of few bits would be rounded elsewhere; writes that do not meet need no parts."""
    sink = Node(Ops.SINK, dtypes.token, (KEPT[name],))
    assert scatter_in_parts(toposort(sink), {}) is sink


@pytest.mark.parametrize("dtype", [dtypes.int32, dtypes.float64, dtypes.uint8])
def test_sums_of_other_kinds_are_cut(dtype: DType) -> None:
    assert cut(adding(640, dtype=dtype)) == (40, 7, 5)
