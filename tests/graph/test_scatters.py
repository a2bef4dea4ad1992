"""Scatters that write each row once become choices by place; long sums are cut into parts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from baregrad.dtypes import DType, dtypes
from baregrad.engine.session import current_session
from baregrad.graph import canonicalise
from baregrad.graph import scatters as module
from baregrad.graph.scatters import scatter_in_parts
from baregrad.ir.core.attrs import Scatter
from baregrad.ir.core.monoid import primitive
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.tensor_level import evaluate_all
from baregrad.ir.verify.verify import verify
from baregrad.schedule import make_plan
from baregrad.tensor import Tensor
from baregrad.tensor.array import nodes
from baregrad.testing.ptx_device import ptx_session
from tests.graph.graphs.canonical import ops
from tests.graph.graphs.gpu_graphs import F32, HOPPER, RNG, argument
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


# --- in any order -------------------------------------------------------------------------------


@pytest.fixture
def gpu() -> Iterator[None]:
    """A GPU that interprets PTX, as the device."""
    with ptx_session():
        assert current_session().default_device() == "NV"
        yield


def added(base: Any, places: Any, values: Any) -> Any:
    """Exact sums, each rounded once: by Python's integers and fractions."""
    found = base.copy()
    for place in np.unique(places):
        addends = [float(one) for one in (base[place], *values[places == place])]
        if all(map(math.isfinite, addends)):
            found[place] = np.float32(math.fsum(addends))
        else:
            found[place] = np.float32(sum(one for one in addends if not math.isfinite(one)))
    return found


def on_gpu(base: Any, places: Any, values: Any) -> Any:
    return Tensor(base).scatter_add(0, Tensor(places), Tensor(values)).numpy()


def spread_numbers(count: int) -> Any:
    """Numbers of all exponents, with many that cancel each other."""
    exponents = RNG.integers(-149, 120, count)
    numbers = np.ldexp(RNG.standard_normal(count), exponents).astype(np.float32)
    numbers[1::3] = -numbers[: len(numbers[1::3])]
    return numbers


@pytest.mark.parametrize(("count", "rows"), ((600, 1), (5000, 4), (700, 90)))
def test_sums_in_any_order_are_exact(count: int, rows: int, gpu: None) -> None:
    """Many numbers that are added up in float64 would be of no use where they cancel."""
    values, places = spread_numbers(count), RNG.integers(-rows, rows, count)
    base = RNG.standard_normal(rows).astype(np.float32)
    wanted = added(base, places % rows, values)
    found = on_gpu(base, places, values)
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-38)
    again = RNG.permutation(count)
    np.testing.assert_array_equal(on_gpu(base, places[again], values[again]), found)


@pytest.fixture(params=("planes", "greatest"))
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which way floats are added up as integers, whatever takes longer."""
    name: str = request.param
    costs = {"planes": "_cost_of_planes", "greatest": "_cost_by_greatest"}
    monkeypatch.setattr(module, costs[name], lambda *_: 0)
    return name


@pytest.mark.parametrize(("count", "rows"), ((600, 1), (5000, 4), (700, 90)))
def test_sums_by_the_greatest_addend_lose_less_than_floats_do(
    count: int, rows: int, gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the order, and however many are too small to be there at all."""
    monkeypatch.setattr(module, "_cost_by_greatest", lambda *_: 0)
    places = RNG.integers(0, rows, count)
    exponents = RNG.integers(-149, 100, count)
    values = np.ldexp(RNG.standard_normal(count), exponents).astype(np.float32)
    values[1::3] = -values[: len(values[1::3])]
    base = np.zeros(rows, np.float32)
    found = on_gpu(base, places, values)
    again = RNG.permutation(count)
    np.testing.assert_array_equal(on_gpu(base, places[again], values[again]), found)
    wanted = added(base, places, values)
    largest = np.array([np.abs(values[places == row]).max(initial=0) for row in range(rows)])
    assert (np.abs(found - wanted) <= 2.0**-24 * np.maximum(largest, np.abs(wanted))).all()


def test_addends_and_places_that_are_sums_are_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One kernel finds exponents, another adds up: they might not sum in the same order."""
    monkeypatch.setattr(module, "_cost_by_greatest", lambda *_: 0)
    left, right = argument(1, F32, 3000, 2), argument(2, F32, 2, 8)
    values = Tensor._make(left, "NV") @ Tensor._make(right, "NV")
    places = (Tensor._make(left, "NV").sum(-1) * 100).long().reshape(-1, 1).expand(3000, 8)
    base = Tensor._make(argument(0, F32, 3000, 8), "NV")
    sink = Node(Ops.SINK, dtypes.token, (base.scatter_add(0, places, values).node,))
    plan = make_plan(canonicalise(sink, None, HOPPER), donate={}, target=HOPPER)
    scatters = [kernel for kernel in plan.kernels if kernel.arg.name.startswith("scatter")]
    assert len(scatters) == 2
    for kernel in scatters:
        assert not any(node.op is Ops.REDUCE for node in toposort(kernel))


@pytest.mark.parametrize("rows", (50, 400))
def test_each_row_of_few_addends_is_rounded_once(rows: int, way: str, gpu: None) -> None:
    """Rows of other magnitudes do not matter, nor do zeros and subnormal numbers."""
    places = np.concatenate((np.arange(rows), RNG.integers(0, rows, 3 * rows)))
    scales = np.ldexp(1.0, RNG.integers(-148, 120, rows))
    values = (RNG.integers(-99, 99, 4 * rows) * scales[places]).astype(np.float32)
    base = (RNG.integers(-9, 9, rows) * scales).astype(np.float32)
    np.testing.assert_array_equal(on_gpu(base, places, values), added(base, places, values))


def test_infinities_and_what_is_no_number_stay_what_they_are(way: str, gpu: None) -> None:
    values = np.ones(100, np.float32)
    places = np.arange(100) % 10
    values[[1, 12, 22, 13, 34, 45]] = [np.inf, np.inf, -np.inf, -np.inf, np.nan, 3e38]
    values[[55, 66, 76]] = [3e38, np.inf, np.inf]
    base = np.zeros(10, np.float32)
    base[8] = -np.inf
    found = on_gpu(base, places, values)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(found, added(base, places, values))
    assert np.isinf(found[5])


@pytest.mark.parametrize("rows", (1, 7, 300))
@pytest.mark.parametrize("dtype", (np.int32, np.uint32, np.int64, np.uint64))
def test_integers_are_added_up_in_any_order_and_wrap(dtype: Any, rows: int, gpu: None) -> None:
    top = np.iinfo(dtype).max
    values = RNG.integers(0, top, 5000, dtype=dtype, endpoint=True)
    places = RNG.integers(0, rows, 5000)
    base = RNG.integers(0, 9, rows).astype(dtype)
    wanted = base.copy()
    np.add.at(wanted, places, values)
    np.testing.assert_array_equal(on_gpu(base, places, values), wanted)


@pytest.mark.parametrize("reduce", ("amax", "amin"))
@pytest.mark.parametrize("rows", (3, 200))
@pytest.mark.parametrize("dtype", (np.int32, np.uint64, np.float32, np.float64))
def test_extremes_are_found_in_any_order(
    dtype: Any, rows: int, reduce: str, gpu: None
) -> None:
    """Of floats whatever their signs; what is no number is more extreme than any."""
    places = RNG.integers(0, rows - 1, 2000)
    if np.dtype(dtype).kind == "f":
        values = RNG.standard_normal(2000).astype(dtype)
        values[:2], places[:2] = [np.nan, np.inf], 0
        values[2:4], places[2:4], values[places == 1] = -np.inf, 1, -5
        base = np.linspace(-2, 1, rows).astype(dtype)
    else:
        info = np.iinfo(dtype)
        values = RNG.integers(info.min, info.max, 2000, dtype=dtype, endpoint=True)
        base = RNG.integers(info.min, info.max, rows, dtype=dtype)
    wanted = base.copy()
    with np.errstate(invalid="ignore"):
        (np.maximum if reduce == "amax" else np.minimum).at(wanted, places, values)
    found = Tensor(base).scatter_reduce(0, Tensor(places), Tensor(values), reduce).numpy()
    np.testing.assert_array_equal(found, wanted)


def test_no_thread_looks_for_extremes_alone() -> None:
    sources = (argument(0, F32, 99), argument(1, F32, 9999), argument(2, dtypes.int64, 9999))
    node = Node(Ops.SCATTER, F32, sources, Scatter(primitive(Ops.MAX, F32)))
    made = canonicalise(Node(Ops.SINK, dtypes.token, (node,)), None, HOPPER)
    assert all(one.arg.atomic for one in toposort(made) if one.op is Ops.SCATTER)


def test_places_of_several_axes_and_rows_are_added_up_in_any_order(gpu: None) -> None:
    base = RNG.standard_normal((5, 6, 3)).astype(np.float32)
    values = RNG.standard_normal((300, 3)).astype(np.float32)
    first, second = RNG.integers(0, 5, 300), RNG.integers(0, 6, 300)
    total = Tensor(base).index_put((Tensor(first), Tensor(second)), Tensor(values), True)
    wanted = base.astype(np.float64)
    np.add.at(wanted, (first, second), values)
    np.testing.assert_allclose(total.numpy(), wanted, rtol=1e-6, atol=1e-6)


def test_a_place_outside_is_not_added_to() -> None:
    """At any level: a check of the places is made elsewhere, if somebody asks for it."""
    base, values = argument(0, dtypes.int32, 4), argument(1, dtypes.int32, 9)
    how = Scatter(primitive(Ops.ADD, dtypes.int32), atomic=True)
    node = Node(Ops.SCATTER, dtypes.int32, (base, values, argument(2, dtypes.int64, 9)), how)
    places = np.array([0, 1, -1, 3, 4, 3, 3, 99, -99])
    given = [np.zeros(4, np.int32), np.arange(9, dtype=np.int32), places]
    (found,) = evaluate_all((node,), dict(enumerate(given)))
    np.testing.assert_array_equal(found, [0, 1, 0, 3 + 5 + 6])


@pytest.mark.parametrize(("count", "rows", "beside", "is_atomic"), (
    (1 << 22, 1 << 16, 1, True), (5436, 4, 1, True), (8192, 50304, 768, False),
    (1 << 20, 1 << 26, 1, False), (1 << 29, 1 << 10, 1, True), (1 << 30, 1 << 10, 1, False),
))
def test_what_takes_less_memory_than_a_sort_is_added_up_in_any_order(
    count: int, rows: int, beside: int, is_atomic: bool
) -> None:
    shape = (count, beside)
    line = nodes.reshape(argument(2, dtypes.int64, count), (count, 1))
    places = (nodes.broadcast(line, shape), nodes.iota_along(shape, 1))
    how = Scatter(primitive(Ops.ADD, F32))
    sources = (argument(0, F32, rows, beside), argument(1, F32, *shape), *places)
    made = canonicalise(
        Node(Ops.SINK, dtypes.token, (Node(Ops.SCATTER, F32, sources, how),)), None, HOPPER
    )
    scatters = [node for node in toposort(made) if node.op is Ops.SCATTER]
    assert any(node.arg.atomic for node in scatters) == is_atomic
    if is_atomic:
        # Zeros, the additions, and what they come to; fewer copies before that, if there are many.
        assert len(make_plan(made, donate={}, target=HOPPER).kernels) == 3 + (count > 1 << 22)


def test_no_sum_of_fixed_point_runs_over() -> None:
    """The widest significand, shifted as far as it may be, as often as there are addends."""
    for bits in range(1, module.MOST_BITS + 1):
        width, planes = module._planes((1 << bits) - 1)
        largest = ((1 << 24) - 1) << (width - 1)
        assert largest * ((1 << bits) - 1) < 1 << 63
        assert (planes - 1) * width <= 254 < planes * width
