"""Sorting by a network, and by places that elements find."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from baregrad.dtypes import DType, dtypes
from baregrad.engine.session import current_session
from baregrad.graph import canonicalise, sorts
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.tensor_level import evaluate_all
from baregrad.kernel import choose_schedule
from baregrad.schedule import make_plan
from baregrad.tensor import Tensor
from baregrad.testing.ptx_device import ptx_session
from tests.graph.graphs.gpu_graphs import HOPPER, I32, RNG, argument


def sorted_words(words: tuple[Node, ...], on_gpu: bool) -> Node:
    node = Node(Ops.SORT, words[-1].dtype, words)
    sink = Node(Ops.SINK, dtypes.token, (node,))
    return canonicalise(sink, None, HOPPER if on_gpu else None)


@pytest.mark.parametrize("on_gpu", (False, True))
@pytest.mark.parametrize("extent", (1, 2, 31, 64, 100))
@pytest.mark.parametrize("dtype", (I32, dtypes.int64, dtypes.uint64), ids=repr)
def test_one_word(
    dtype: DType, extent: int, on_gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sorts, "RUN", 2)
    monkeypatch.setattr(sorts, "STRIDE", 4)
    monkeypatch.setattr(sorts, "MOST_PAIRS", 0)
    low = 0 if dtype.kind == "uint" else -1000
    given = np.stack([RNG.permutation(2000)[:extent] + low for _ in range(3)])
    given = given.astype(dtype.numpy)
    made = sorted_words((argument(0, dtype, 3, extent),), on_gpu)
    assert not any(node.op is Ops.SORT for node in toposort(made))
    (found,) = evaluate_all(made.src, {0: given})
    np.testing.assert_array_equal(found, np.sort(given, -1))


@pytest.mark.parametrize("on_gpu", (False, True))
@pytest.mark.parametrize("pairs", (0, 1 << 26))
def test_two_words(on_gpu: bool, pairs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorts, "RUN", 4)
    monkeypatch.setattr(sorts, "MOST_PAIRS", pairs)
    # Few keys, so that positions decide, and the greatest there is among them.
    keys = RNG.choice([-5, 0, 7, (1 << 63) - 1], 50)
    places = np.arange(50)
    words = (argument(0, dtypes.int64, 50), argument(1, dtypes.int64, 50))
    (found,) = evaluate_all(sorted_words(words, on_gpu).src, {0: keys, 1: places})
    np.testing.assert_array_equal(found, np.argsort(keys, kind="stable"))


def kernels(values: Any) -> int:
    sink = Node(Ops.SINK, dtypes.token, (values,))
    return len(make_plan(canonicalise(sink, None, HOPPER), donate={}, target=HOPPER).kernels)


def test_a_gpu_sorts_in_few_kernels() -> None:
    def of(*shape: int) -> Node:
        return Node(Ops.SORT, dtypes.int64, (argument(0, dtypes.int64, *shape),))

    # Counting, and writing into a cleared array; a network of 8,192 would have 91 stages.
    assert kernels(of(8192)) <= 4
    assert kernels(of(64, 1024)) <= 4
    # 18 merges, in most of which few places search in all of a run, in two or three kernels.
    assert kernels(of(1 << 22)) <= 60


@pytest.mark.parametrize("dtype", (np.float32, np.float64, np.uint8))
def test_on_the_gpu_of_the_tests(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorts, "RUN", 4)
    monkeypatch.setattr(sorts, "STRIDE", 4)
    monkeypatch.setattr(sorts, "MOST_PAIRS", 0)
    given = RNG.integers(0, 20, (2, 70)).astype(dtype)
    if dtype is not np.uint8:
        given[0, :3] = np.nan, -np.inf, -0.0
    with ptx_session():
        assert current_session().default_device() == "NV"
        found = Tensor(given).sort()
        values, places = found.values.numpy(), found.indices.numpy()
    np.testing.assert_array_equal(values, np.sort(given, -1))
    np.testing.assert_array_equal(places, np.argsort(given, -1, kind="stable"))


@pytest.mark.parametrize(("draw", "most"), (
    (lambda x: x.kthvalue(31), 2), (lambda x: x.topk(5), 3), (lambda x: x.sort()[0], 3),
), ids=("kthvalue", "topk", "sort"))  # fmt: skip
def test_few_elements_are_ranked_without_keys_in_memory(draw: Any, most: int) -> None:
    """A launch takes longer than to make each key anew for all that it is compared with."""
    x = Tensor(argument(0, dtypes.float32, 1, 64))
    found = draw(x)
    roots = tuple(one.node for one in found) if isinstance(found, tuple) else (found.node,)
    made = canonicalise(Node(Ops.SINK, dtypes.token, roots), None, HOPPER)
    assert len(make_plan(made, donate={}, target=HOPPER).kernels) <= most


def test_threads_of_a_block_rank_rows_that_lie_across() -> None:
    """Not one thread each tile, however the first pass reads its words."""
    x = Tensor(argument(0, dtypes.float32, 15306, 30)).transpose(0, 1)
    made = canonicalise(Node(Ops.SINK, dtypes.token, (x.sort()[0].node,)), None, HOPPER)
    for kernel in make_plan(made, donate={}, target=HOPPER).kernels:
        schedule = choose_schedule(kernel, HOPPER)
        if kernel.arg.name.startswith("scan_30x120"):
            assert "'vector'" in str(schedule)
