"""Sorting by a network, and by places that elements find."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest

from baregrad.dtypes import DType, dtypes
from baregrad.engine.canonical import bind
from baregrad.engine.session import current_session
from baregrad.graph import canonicalise, sorts
from baregrad.ir.core.index import variable
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.tensor_level import evaluate_all
from baregrad.kernel import choose_schedule
from baregrad.kernel.language.schedule import Bind
from baregrad.schedule import make_plan
from baregrad.tensor import Tensor
from baregrad.tensor.ops import sorting
from baregrad.testing.ptx_device import ptx_session
from tests.graph.graphs.gpu_graphs import HOPPER, I32, RNG, argument, merge_at


def sorted_words(words: tuple[Node, ...], on_gpu: bool) -> Node:
    node = Node(Ops.SORT, words[-1].dtype, words)
    sink = Node(Ops.SINK, dtypes.token, (node,))
    return canonicalise(sink, None, HOPPER if on_gpu else None)


@pytest.mark.parametrize("way", (None, (64, 0), (2, 1), (2, 4), (16, 2)), ids=str)
@pytest.mark.parametrize("extent", (1, 2, 31, 64, 100))
@pytest.mark.parametrize("dtype", (I32, dtypes.int64, dtypes.uint64), ids=repr)
def test_one_word(
    dtype: DType, extent: int, way: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way is not None:
        merge_at(monkeypatch, *way)
    low = 0 if dtype.kind == "uint" else -1000
    given = np.stack([RNG.permutation(2000)[:extent] + low for _ in range(3)])
    given = given.astype(dtype.numpy)
    made = sorted_words((argument(0, dtype, 3, extent),), way is not None)
    assert not any(node.op is Ops.SORT for node in toposort(made))
    (found,) = evaluate_all(made.src, {0: given})
    np.testing.assert_array_equal(found, np.sort(given, -1))


@pytest.mark.parametrize("way", (None, (50, 0), (4, 1), (4, 3)), ids=str)
def test_two_words(way: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if way is not None:
        merge_at(monkeypatch, *way)
    # Few keys, so that positions decide, and the greatest there is among them.
    keys = RNG.choice([-5, 0, 7, (1 << 63) - 1], 50)
    places = np.arange(50)
    words = (argument(0, dtypes.int64, 50), argument(1, dtypes.int64, 50))
    (found,) = evaluate_all(sorted_words(words, way is not None).src, {0: keys, 1: places})
    np.testing.assert_array_equal(found, np.argsort(keys, kind="stable"))


def kernels(values: Any) -> int:
    sink = Node(Ops.SINK, dtypes.token, (values,))
    return len(make_plan(canonicalise(sink, None, HOPPER), donate={}, target=HOPPER).kernels)


def test_a_gpu_sorts_in_few_kernels() -> None:
    def of(*shape: int) -> Node:
        return Node(Ops.SORT, dtypes.int64, (argument(0, dtypes.int64, *shape),))

    # Runs by counting, then merged at once; a network of 8,192 would have 91 stages.
    assert kernels(of(8192)) <= 4
    assert kernels(of(64, 1024)) <= 4
    assert kernels(of(65536)) <= 6
    assert kernels(of(1 << 22)) <= 10


@pytest.mark.parametrize("shape", (
    (1, 2), (1, 2000), (141, 1088), (1, 8624), (1024, 4096), (1, 1 << 20), (3, 5_000_000),
), ids=str)  # fmt: skip
def test_runs_and_ways_make_up_a_row(shape: tuple[int, ...]) -> None:
    found = sorts._merging(shape, 1)
    assert shape[-1] <= found.total < shape[-1] + sorts.WIDE * prod(found.ways)
    assert all(1 < ways <= 1 << sorts.MOST_WAYS for ways in found.ways)
    # Comparing all is soonest of few; of many it would take hours.
    assert (found.ways == ()) == (prod(shape) <= 2000)


def test_levels_merge_about_as_many_runs_each() -> None:
    assert [sorts._ways(7, levels) for levels in (1, 2, 3)] == [(128,), (16, 8), (8, 4, 4)]


def test_lanes_search_runs_side_by_side_where_elements_are_few() -> None:
    """Each search is reads that wait for each other: a thread has one, or a machine has no room."""
    for shape, is_shared in (((8192,), True), ((512, 8192), False)):
        node = Node(Ops.SORT, dtypes.int64, (argument(0, dtypes.int64, *shape),))
        made = canonicalise(Node(Ops.SINK, dtypes.token, (node,)), None, HOPPER)
        *_, last = [one for one in make_plan(made, donate={}, target=HOPPER).kernels
                    if one.arg.name.startswith("reduce")]  # fmt: skip
        steps = choose_schedule(last, HOPPER).steps
        along = [one.axis[0] for one in steps if isinstance(one, Bind) and one.unit == "thread"]
        assert ("r" in along) == is_shared


@pytest.mark.parametrize("levels", (0, 1, 2))
@pytest.mark.parametrize("descending", (False, True))
@pytest.mark.parametrize(
    "dtype", (np.float16, np.float32, np.float64, np.bool_, np.uint8, np.int32, np.int64)
)
def test_on_the_gpu_of_the_tests(
    dtype: Any, descending: bool, levels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge_at(monkeypatch, 4 if levels else 70, levels)
    given = RNG.integers(0, 20, (2, 70)).astype(dtype)
    if np.issubdtype(dtype, np.floating):
        given[0, :4] = np.nan, -np.inf, -0.0, np.nan
    elif np.issubdtype(dtype, np.signedinteger):
        given[0, :3] = np.iinfo(dtype).max, np.iinfo(dtype).min, np.iinfo(dtype).max
    with ptx_session():
        assert current_session().default_device() == "NV"
        found = Tensor(given).sort(descending=descending)
        values, places = found.values.numpy(), found.indices.numpy()
    order = np.argsort(given, -1, kind="stable")
    if descending:
        # The last of equal ones comes first, counted from behind.
        order = 69 - np.argsort(given[:, ::-1], -1, kind="stable")[:, ::-1]
    np.testing.assert_array_equal(places, order)
    np.testing.assert_array_equal(values, np.take_along_axis(given, order, -1))


@pytest.mark.parametrize(("draw", "most"), (
    (lambda x: x.kthvalue(31), 2), (lambda x: x.topk(5), 3), (lambda x: x.sort()[0], 3),
), ids=("kthvalue", "topk", "sort"))  # fmt: skip
def test_few_elements_are_ranked_without_keys_in_memory(draw: Any, most: int) -> None:
    """A launch takes longer than to make each key anew for all that it is compared with."""
    x = Tensor._make(argument(0, dtypes.float32, 1, 64), "NV")
    found = draw(x)
    roots = tuple(one.node for one in found) if isinstance(found, tuple) else (found.node,)
    made = canonicalise(Node(Ops.SINK, dtypes.token, roots), None, HOPPER)
    assert len(make_plan(made, donate={}, target=HOPPER).kernels) <= most


def test_threads_of_a_block_rank_rows_that_lie_across(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one thread each tile, however the first pass reads its words."""
    monkeypatch.setattr(sorts, "is_worth_digits", lambda *_: True)
    x = Tensor._make(argument(0, dtypes.float32, 15306, 30), "NV").transpose(0, 1)
    made = canonicalise(Node(Ops.SINK, dtypes.token, (x.sort()[0].node,)), None, HOPPER)
    plan = make_plan(made, donate={}, target=HOPPER)
    ranked = [one for one in plan.kernels if one.arg.name.startswith("scan_30x120")]
    assert ranked
    for kernel in ranked:
        assert "'vector'" in str(choose_schedule(kernel, HOPPER))


@pytest.mark.parametrize(("extent", "k"), ((2, 2), (40, 3), (40, 40), (90, 2)))
@pytest.mark.parametrize("dtype", (np.float32, np.int32, np.uint8))
def test_few_of_few_elements_on_the_gpu_of_the_tests(dtype: Any, extent: int, k: int) -> None:
    """By their ranks, or one after the other: the first of equal ones first, NaN behind all."""
    given = RNG.integers(0, 20, (2, extent)).astype(dtype)
    if dtype is np.float32:
        given[0, 1], given[1, 0] = np.nan, -np.inf
    order = np.argsort(given, -1, kind="stable")
    with ptx_session():
        x = Tensor(given)
        found, nth = x.topk(k, largest=False), x.kthvalue(k)
        median, largest = x.median(-1), x.topk(k).values.numpy()
        places = [one[1].numpy() for one in (found, nth, median)]
    np.testing.assert_array_equal(places[0], order[:, :k])
    np.testing.assert_array_equal(places[1], order[:, k - 1])
    middle = order[:, (extent - 1) // 2]
    if dtype is np.float32:
        middle[0] = 1
    np.testing.assert_array_equal(places[2], middle)
    np.testing.assert_array_equal(largest, np.sort(given, -1)[:, ::-1][:, :k])


def test_least_one_after_the_other_on_the_gpu_of_the_tests(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    given = RNG.integers(0, 200, (1, 1200)).astype(np.float32)
    monkeypatch.setattr(sorting, "FEW_PAIRS", 0)
    with ptx_session():
        found = Tensor(given).topk(3, largest=False).indices.numpy()
    np.testing.assert_array_equal(found, np.argsort(given, -1, kind="stable")[:, :3])


def test_few_of_rows_whose_number_is_symbolic() -> None:
    given = RNG.standard_normal((8, 300)).astype(np.float32)
    with ptx_session():
        x = Tensor(given)[: bind(variable("n", 1, 8), 5)]
        found = [x.topk(5).values.numpy(), x[:, :20].topk(2).values.numpy()]
    for values, row, k in zip(found, (given[:5], given[:5, :20]), (5, 2), strict=True):
        np.testing.assert_array_equal(values, np.sort(row, -1)[:, ::-1][:, :k])


@pytest.mark.parametrize("extent", (40, 512, 1200))
def test_a_cpu_begins_kernels_too_soon_to_spare_them(extent: int) -> None:
    """Comparing each with each takes longer there than more kernels do."""
    roots = []
    for device in ("CPU", "NV"):
        x = Tensor._make(argument(0, dtypes.float32, 1, extent), device)
        roots.append((x.topk(3).indices.node, x.kthvalue(extent // 2).indices.node))
    cpu, gpu = (toposort(Node(Ops.SINK, dtypes.token, one)) for one in roots)
    pairs = [any(node.shape == (1, extent, extent) for node in one) for one in (cpu, gpu)]
    assert pairs == [False, extent < 1000]
