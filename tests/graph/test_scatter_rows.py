"""Long scatters by sorted places on GPUs, and in parts where no rows are written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from baregrad import bind, render, variable
from baregrad.dtypes import dtypes
from baregrad.engine.compiler import Compiler
from baregrad.engine.session import current_session
from baregrad.graph import canonicalise, scatter_rows
from baregrad.ir.core.attrs import Scatter
from baregrad.ir.core.monoid import primitive
from baregrad.ir.core.node import Node, extent_of, toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel import facts_of
from baregrad.schedule import make_plan
from baregrad.tensor import Tensor
from baregrad.tensor.array import nodes
from baregrad.testing.ptx_device import ptx_session
from tests.graph.graphs.gpu_graphs import F32, F64, HOPPER, RNG, argument, changed, merge_at


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs and parts of a size that tests have time for."""
    merge_at(monkeypatch, 16, 1)
    monkeypatch.setattr(scatter_rows, "STEPS", 4)
    monkeypatch.setattr(scatter_rows, "LEAST", 8)
    # What may be written in any order needs no sort: that is for all else.
    monkeypatch.setattr(scatter_rows, "_is_sooner", lambda *_: False)


def is_in_order(made: Node) -> bool:
    """Whether some scatter of a graph still keeps its order."""
    return any(
        node.op is Ops.SCATTER and not (node.arg.apart or node.arg.atomic)
        for node in toposort(made)
    )


@pytest.mark.parametrize("digits", (True, False))
@pytest.mark.parametrize("adds", (True, False))
@pytest.mark.parametrize("beside", ((), (5,), (2, 3)), ids=str)
@pytest.mark.parametrize("rows", (1, 3, 36, 50))
@pytest.mark.parametrize("count", (8, 37))
def test_rows_along_the_first_axis(
    count: int, rows: int, beside: tuple[int, ...], adds: bool, digits: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(scatter_rows, "is_worth_digits", lambda *_: digits)
    shape = (count, *beside)
    line = nodes.reshape(argument(2, dtypes.int64, count), (count, *(1 for _ in beside)))
    places = [nodes.broadcast(line, shape)]
    places += [nodes.iota_along(shape, axis) for axis in range(1, len(shape))]
    base, values = argument(0, F32, rows, *beside), argument(1, F32, *shape)
    how = Scatter(primitive(Ops.ADD, F32) if adds else None)
    node = Node(Ops.SCATTER, F32, (base, values, *places), how)
    arrays = [RNG.standard_normal(one).astype(np.float32) for one in (base.shape, shape)]
    made = changed(node, [*arrays, RNG.integers(0, rows, count)])
    assert not is_in_order(made)


def test_two_axes_that_are_looked_up_around_one_that_is_not() -> None:
    shape = (30, 4)
    looked = [argument(slot, dtypes.int32, 30) for slot in (2, 3)]
    first, last = (nodes.broadcast(nodes.reshape(one, (30, 1)), shape) for one in looked)
    places = (first, nodes.iota_along(shape, 1), last)
    how = Scatter(primitive(Ops.ADD, dtypes.int64))
    values = argument(1, dtypes.int64, *shape)
    node = Node(
        Ops.SCATTER, dtypes.int64, (argument(0, dtypes.int64, 3, 4, 2), values, *places), how
    )
    given = [RNG.integers(-9, 9, one) for one in ((3, 4, 2), shape)]
    chosen = [RNG.integers(0, extent, 30).astype(np.int32) for extent in (3, 2)]
    assert not is_in_order(changed(node, [*given, *chosen]))


@pytest.mark.parametrize(("most", "in_order"), ((1 << 20, False), (100, True)))
def test_places_that_differ_along_a_row_are_rows_of_their_own(
    most: int, in_order: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scatter_rows, "MOST_SORTED", most)
    shape = (40, 3)
    places = (argument(2, dtypes.int64, *shape), nodes.iota_along(shape, 1))
    how = Scatter(primitive(Ops.ADD, F32))
    node = Node(Ops.SCATTER, F32, (argument(0, F32, 6, 3), argument(1, F32, *shape), *places), how)
    arrays: list[Any] = [RNG.standard_normal(one).astype(np.float32) for one in ((6, 3), shape)]
    assert is_in_order(changed(node, [*arrays, RNG.integers(0, 6, shape)])) == in_order


@pytest.mark.parametrize("rows", (640, 601, 100))
def test_where_places_are_not_sorted_sums_are_cut(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scatter_rows, "MOST_SORTED", 0)
    base, values = argument(0, F32, 7, 5), argument(1, F32, rows, 5)
    # Of each column its own, so that no row is written as a whole.
    chosen = argument(2, dtypes.int64, rows, 5)
    line = Node(Ops.RESHAPE, dtypes.int64, (Node(Ops.IOTA, dtypes.int64, (), 5),), (1, 5))
    columns = Node(Ops.EXPAND, dtypes.int64, (line,), (rows, 5))
    adding = Scatter(primitive(Ops.ADD, F32))
    node = Node(Ops.SCATTER, F32, (base, values, chosen, columns), adding)
    made = changed(
        node,
        [
            RNG.standard_normal((7, 5)).astype(np.float32),
            RNG.standard_normal((rows, 5)).astype(np.float32),
            RNG.integers(0, 7, (rows, 5)),
        ],
    )
    (found,) = (one for one in toposort(made) if one.op is Ops.SCATTER)
    # 640 rows are 40 parts of 16; 601 is a prime number.
    assert found.shape == ((40, 7, 5) if rows == 640 else (7, 5))


@pytest.fixture
def gpu() -> Iterator[None]:
    """A GPU that interprets PTX, as the device."""
    with ptx_session():
        assert current_session().default_device() == "NV"
        yield


def in_order(base: Any, index: Any, values: Any) -> Any:
    """What one write after the other gives."""
    wanted = base.copy()
    for place, row in zip(index, values, strict=True):
        wanted[place] += row
    return wanted


@pytest.mark.parametrize("beside", ((), (5,), (130,)), ids=str)
def test_an_embedding_has_the_gradient_of_one_write_after_the_other(
    gpu: None, beside: tuple[int, ...]
) -> None:
    index = RNG.integers(0, 9, 45)
    index[10:30] = 4  # a run of several parts
    values = RNG.standard_normal((45, *beside)).astype(np.float32)
    weight = Tensor(np.zeros((9, *beside), np.float32)).requires_grad_()
    (weight[Tensor(index)] * Tensor(values)).sum().backward()
    assert weight.grad is not None
    found = weight.grad.numpy()
    wanted = in_order(np.zeros((9, *beside), np.float32), index, values)
    # A run of up to STEPS rows is added up in order: the very same bits.
    counts = np.bincount(index, minlength=9)
    np.testing.assert_array_equal(found[counts <= 4], wanted[counts <= 4])
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_what_a_row_gets_does_not_depend_on_how_many_writes_there_are(
    gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scatter_rows, "STEPS", 16)
    values = RNG.standard_normal((40, 16)).astype(np.float32)

    def total(others: int) -> Any:
        index = np.concatenate((np.full(40, 3), np.ones(others, np.int64)))
        given = np.concatenate((values, np.ones((others, 16), np.float32)))
        base = Tensor(np.zeros((5, 16), np.float32))
        return base.index_add(0, Tensor(index), Tensor(given)).numpy()[3]

    for others in (20, 100, 300):
        np.testing.assert_array_equal(total(others), total(0))


@pytest.mark.parametrize("shape", ((512, 1), (7,), (3, 40)), ids=str)
@pytest.mark.parametrize("start", (0.0, 2.5))
def test_few_writes_into_a_constant_are_one_kernel(
    shape: tuple[int, ...], start: float, gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    index = RNG.integers(0, shape[0], 32)
    values = RNG.integers(-9, 9, (32, *shape[1:])).astype(np.float32)
    base = Tensor.full(shape, start, dtype="float32")
    found = base.index_add(0, Tensor(index), Tensor(values)).numpy()
    wanted = np.full(shape, start, np.float32)
    np.add.at(wanted, index, values)
    np.testing.assert_array_equal(found, wanted)
    line = nodes.reshape(argument(2, dtypes.int64, 32), (32, *(1 for _ in shape[1:])))
    whole = (32, *shape[1:])
    places = [nodes.broadcast(line, whole)]
    places += [nodes.iota_along(whole, axis) for axis in range(1, len(whole))]
    how = Scatter(primitive(Ops.ADD, F32))
    zeros = nodes.full(start, shape, F32)
    node = Node(Ops.SCATTER, F32, (zeros, argument(1, F32, *whole), *places), how)
    made = canonicalise(Node(Ops.SINK, dtypes.token, (node,)), None, HOPPER)
    assert len(make_plan(made, donate={}, target=HOPPER).kernels) == 1


@pytest.mark.parametrize("elements", (512, 1 << 20))
def test_few_writes_into_few_elements_that_are_there_are_one_kernel(
    elements: int, gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever those hold; many are written in place."""
    monkeypatch.undo()
    sources = (argument(0, F32, elements), argument(1, F32, 32), argument(2, dtypes.int64, 32))
    node = Node(Ops.SCATTER, F32, sources, Scatter(primitive(Ops.ADD, F32)))
    made = canonicalise(Node(Ops.SINK, dtypes.token, (node,)), None, HOPPER)
    assert any(one.op is Ops.SCATTER for one in toposort(made)) == (elements > 512)
    base = np.array([-0.0, 1.5, -np.inf, np.nan, 7.0, -0.0], np.float32)
    places, values = RNG.integers(1, 5, 32), RNG.integers(1, 9, 32).astype(np.float32)
    found = Tensor(base).scatter_add(0, Tensor(places), Tensor(values)).numpy()
    wanted = in_order(base, places, values)
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(wanted))


@pytest.mark.parametrize("beside", ((), (5,)), ids=str)
@pytest.mark.parametrize(("count", "rows"), ((40, 3), (300, 7), (100, 5000)))
def test_of_rows_that_are_written_to_one_place_the_last_one_stays(
    count: int, rows: int, beside: tuple[int, ...], gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever comes last: of all threads the one with the greatest number writes."""
    monkeypatch.undo()
    base = RNG.standard_normal((rows, *beside)).astype(np.float32)
    places, values = RNG.integers(0, rows, count), RNG.standard_normal((count, *beside))
    values = values.astype(np.float32)
    target = Tensor(base).contiguous()
    target[Tensor(places)] = Tensor(values)
    wanted = base.copy()
    for place, value in zip(places, values, strict=True):
        wanted[place] = value
    np.testing.assert_array_equal(target.numpy(), wanted)


def test_no_places_are_sorted_where_the_last_write_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    places = tuple(argument(slot, dtypes.int64, 1 << 20) for slot in (2, 3))
    base, values = argument(0, F32, 1 << 10, 1 << 9), argument(1, F32, 1 << 20)
    node = Node(Ops.SCATTER, F32, (base, values, *places), Scatter())
    made = canonicalise(Node(Ops.SINK, dtypes.token, (node,)), None, HOPPER)
    assert len(make_plan(made, donate={0: (1 << 19) * 4}, target=HOPPER).kernels) <= 5
    assert not is_in_order(made)


def test_rows_that_nobody_writes_are_left_as_they_are(gpu: None) -> None:
    """Even zeros with a sign; and one row has all writes, or none has any of them."""
    base = np.array([-0.0, 2.5, -0.0, np.nan, np.inf], np.float32)
    for index in (np.full(100, 1), np.arange(100) % 2):
        values = RNG.integers(-9, 9, 100).astype(np.float32)
        found = Tensor(base).index_add(0, Tensor(index), Tensor(values)).numpy()
        wanted = base.copy()
        np.add.at(wanted, index, values)
        np.testing.assert_array_equal(found, wanted)
        np.testing.assert_array_equal(np.signbit(found), np.signbit(wanted))


def test_many_writes_into_few_rows_are_sorted_by_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no fold of many steps is left to a single thread."""
    monkeypatch.undo()
    base = nodes.full(0, (1 << 16,), F64)
    values, places = argument(1, F64, 1 << 22), argument(2, dtypes.int64, 1 << 22)
    node = Node(Ops.SCATTER, F64, (base, values, places), Scatter(primitive(Ops.ADD, F64)))
    made = canonicalise(Node(Ops.SINK, dtypes.token, (node,)), None, HOPPER)
    folds = [one.shape[one.arg.axis] for one in toposort(made) if one.op is Ops.SCAN]
    assert len(folds) >= 4 * 3 and max(folds) <= 4096
    assert len(make_plan(made, donate={}, target=HOPPER).kernels) <= 56


def test_what_a_row_gets_does_not_depend_on_the_others(gpu: None) -> None:
    values = RNG.standard_normal(60).astype(np.float32)
    alike = np.full(60, 3)
    among = np.where(np.arange(60) % 2, 1, 3)

    def total(index: Any, given: Any) -> Any:
        base = Tensor(np.zeros(5, np.float32))
        return base.index_add(0, Tensor(index), Tensor(given)).numpy()[3]

    mixed = np.zeros(60, np.float32)
    mixed[among == 3] = values[:30]
    mixed[among == 1] = 1e6
    assert total(among, mixed) == total(alike[:30], values[:30])


@pytest.mark.parametrize("axis", (0, 1, 2))
def test_slices_are_added_and_written_along_any_axis(gpu: None, axis: int) -> None:
    base = RNG.standard_normal((6, 7, 5)).astype(np.float32)
    index = RNG.integers(0, base.shape[axis], 20)
    shape = list(base.shape)
    shape[axis] = 20
    values = RNG.standard_normal(shape).astype(np.float32)
    added = Tensor(base).index_add(axis, Tensor(index), Tensor(values)).numpy()
    copied = Tensor(base).index_copy(axis, Tensor(index), Tensor(values)).numpy()
    wanted, last = np.moveaxis(base.copy(), axis, 0), np.moveaxis(base.copy(), axis, 0)
    for place, row in zip(index, np.moveaxis(values, axis, 0), strict=True):
        wanted[place] += row
        last[place] = row
    np.testing.assert_allclose(added, np.moveaxis(wanted, 0, axis), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(copied, np.moveaxis(last, 0, axis))


@pytest.mark.parametrize("beside", (5, 768))
def test_threads_add_no_more_rows_than_their_runs_have(
    beside: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = (8192, beside)
    line = nodes.reshape(argument(2, dtypes.int64, 8192), (8192, 1))
    monkeypatch.undo()  # the sizes are those that users have
    monkeypatch.setattr(scatter_rows, "_is_sooner", lambda *_: False)
    places = (nodes.broadcast(line, shape), nodes.iota_along(shape, 1))
    base = nodes.full(0, (50304, beside), F32)
    how = Scatter(primitive(Ops.ADD, F32))
    node = Node(Ops.SCATTER, F32, (base, argument(1, F32, *shape), *places), how)
    sink = canonicalise(Node(Ops.SINK, dtypes.token, (node,)), None, HOPPER)
    plan = make_plan(sink, donate={}, target=HOPPER)
    assert len(plan.kernels) <= 9
    compiler = Compiler(HOPPER, render.get("ptx"), None, None)
    bounded = 0
    for kernel in plan.kernels:
        made = {stage.name: stage.result for stage in compiler.stages(kernel)}
        loops = [one.src[0] for one in toposort(made["loop-bounds"]) if one.op is Ops.LOOP]
        bounded += any(not isinstance(extent_of(axis), int) for axis in loops)
    assert bounded == 2


@pytest.mark.parametrize("columns", (7, 16, 24))
def test_threads_add_up_whole_accesses_of_rows(gpu: None, columns: int) -> None:
    index = RNG.integers(0, 40, 300)
    values = RNG.integers(-8, 8, (300, columns)).astype(np.float32)
    wanted = np.zeros((40, columns), np.float32)
    np.add.at(wanted, index, values)
    base = Tensor(np.zeros((40, columns), np.float32))
    found = base.index_add(0, Tensor(index), Tensor(values)).numpy()
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("what", ("few", "sorted", "any order", "last"))
def test_a_symbolic_number_of_writes_is_planned_by_its_bound(
    gpu: None, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What there is not is written nowhere."""
    monkeypatch.setattr(scatter_rows, "_is_sooner", lambda *_: what in ("any order", "last"))
    most, beside = (7, 130) if what == "few" else (45, 5)
    index = RNG.integers(0, 9, most)
    values = RNG.integers(-9, 9, (most, beside)).astype(np.float32)
    start = np.full((9, beside), -0.0, np.float32)
    kernels: list[Node] = []
    watching = current_session().watching
    watching.observers.append(lambda run: kernels.extend(run.executable.plan.kernels))
    for count in (3, most - 1):
        n = bind(variable("n", 1, most), count)
        places, rows = Tensor(index)[:n], Tensor(values)[:n]
        base = Tensor(start)
        if what == "last":
            found = base.index_put((places,), rows)
            wanted = start.copy()
            for place, row in zip(index[:count], values[:count], strict=True):
                wanted[place] = row
        else:
            found = base.index_add(0, places, rows)
            wanted = in_order(start, index[:count], values[:count])
        np.testing.assert_array_equal(found.numpy(), wanted)
    assert kernels and not any(facts_of(kernel).ordered for kernel in kernels)
