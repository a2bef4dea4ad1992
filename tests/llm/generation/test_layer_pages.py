"""Attention over pages: NumPy's numbers, and the same bits however the tokens come."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from baregrad import Tensor, bind, jit, variable
from baregrad.base.errors import ArgumentError
from baregrad.base.options import options
from baregrad.dtypes import dtypes
from baregrad.graph import canonicalise
from baregrad.kernel.facts.stream_facts import stream_facts
from baregrad.llm.generation.layer_pages import (
    LayerPages,
    PagedLayer,
    StepPlaces,
    row_nbytes,
)
from baregrad.llm.models.traits import CacheRow
from baregrad.schedule import make_plan
from tests.graph.graphs.gpu_graphs import HOPPER
from tests.graph.streams.test_passes import graph_of

PAGES, HEADS, GROUPS, WIDTH, LENGTH = 24, 4, 2, 32, 130
RNG = np.random.default_rng(0)
KEYS, VALUES = (RNG.normal(size=(LENGTH, GROUPS, WIDTH)).astype(np.float32) for _ in range(2))
QUERIES = RNG.normal(size=(LENGTH, HEADS, WIDTH)).astype(np.float32)
TABLE = np.zeros(12, np.int32)
TABLE[:9] = 1 + RNG.permutation(PAGES - 1)[:9]


def wanted(at: int, window: int = 0, cap: float = 0.0) -> Any:
    """Attention of the token at a place, in float64."""
    first = max(0, at + 1 - window) if window else 0
    keys, values = (x[first : at + 1].astype(np.float64) for x in (KEYS, VALUES))
    query = QUERIES[at].reshape(GROUPS, -1, WIDTH).astype(np.float64)
    scores = np.einsum("kgd,nkd->kgn", query, keys) / 7
    if cap:
        scores = cap * np.tanh(scores / cap)
    powers = np.exp(scores)
    weights = powers / powers.sum(-1, keepdims=True)
    return np.einsum("kgn,nkd->kgd", weights, values).reshape(HEADS, WIDTH)


class Runs:
    """One jitted chunk and one jitted batch over the same pages."""

    def __init__(self, kind: str, **options: Any) -> None:
        pages = LayerPages(PAGES, CacheRow(GROUPS, WIDTH, WIDTH, False), kind)
        self.pages = pages
        tokens, self.count = variable("tokens", 1, 64), variable("pages", 1, 12)
        self.tokens = tokens

        def chunk(
            q: Tensor, k: Tensor, v: Tensor, table: Tensor, at: Tensor, t: Any, p: Any
        ) -> Tensor:
            table = table[:p] if table.ndim == 1 else table[:t, :p]
            layer = PagedLayer(pages, StepPlaces(table, at[:t]))
            return layer.attend(q[:t], k[:t], v[:t], scale=1 / 7, **options)

        self.chunk = jit(chunk)

    def run(self, begin: int, end: int, more: int, table: Any = TABLE) -> Any:
        """The tokens of a chunk, over `more` pages than it has."""
        positions = np.zeros(64, np.int32)
        positions[: end - begin] = np.arange(begin, end)
        arrays = [np.zeros((64, *x.shape[1:]), x.dtype) for x in (QUERIES, KEYS, VALUES)]
        for array, whole in zip(arrays, (QUERIES, KEYS, VALUES), strict=True):
            array[: end - begin] = whole[begin:end]
        count = min(12, -(-end // 16) + more)
        return self.chunk(
            *map(Tensor, arrays), Tensor(table), Tensor(positions),
            bind(self.tokens, end - begin), bind(self.count, count),
        ).numpy()


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "q8_0"])
def test_chunks_have_one_result_wherever_they_begin(kind: str) -> None:
    tolerance = {"f32": 1e-6, "f16": 1e-3, "bf16": 1e-2, "q8_0": 1e-2}[kind]
    runs = Runs(kind)
    first = np.concatenate([runs.run(a, b, 0) for a, b in ((0, 64), (64, 128), (128, 130))])
    truth = np.stack([wanted(at) for at in range(LENGTH)])
    np.testing.assert_allclose(first, truth, atol=tolerance * 5, rtol=tolerance * 5)
    for ends in ([0, 1, 2, 16, 50, 51, 83, 130], [0, 48, 64, 112, 130]):
        for more in (0, 1, 3, 9):
            parts = [runs.run(a, b, more) for a, b in pairwise(ends)]
            np.testing.assert_array_equal(np.concatenate(parts), first)


@pytest.mark.parametrize("kind", ["f32", "q8_0"])
def test_batches_have_one_result_whatever_is_beside(kind: str) -> None:
    runs = Runs(kind)
    alone = {}
    tables = np.tile(TABLE, (64, 1))
    for at in range(LENGTH):
        alone[at] = runs.run(at, at + 1, 0, tables)[0]
    chosen = [alone[at] for at in (3, 40, 129)]
    np.testing.assert_allclose(chosen[1], wanted(40), atol=2e-2)
    together = runs.run(70, 130, 2, tables)
    np.testing.assert_array_equal(together, np.stack([alone[at] for at in range(70, 130)]))


@pytest.mark.parametrize("table", [TABLE, np.tile(TABLE, (64, 1))], ids=["chunk", "batch"])
def test_windows_and_caps(table: Any) -> None:
    runs = Runs("f32", window=20, soft_cap=3.0)
    for begin, end in ((0, 64), (64, 100)):
        found = runs.run(begin, end, 1, table)
        truth = np.stack([wanted(at, 20, 3.0) for at in range(begin, end)])
        np.testing.assert_allclose(found, truth, atol=1e-5, rtol=1e-5)


def test_values_that_are_a_part_of_the_keys() -> None:
    pages = LayerPages(4, CacheRow(1, WIDTH, 24, True), "f32")
    table = Tensor(np.array([2, 1], np.int32))
    layer = PagedLayer(pages, StepPlaces(table, Tensor.arange(20, dtype="int32")))
    key = Tensor(KEYS[:20, :1])
    found = layer.attend(Tensor(QUERIES[:20]), key, key[..., :24], scale=1.0).numpy()
    scores = np.exp(QUERIES[19] @ KEYS[:20, 0].T)
    truth = scores / scores.sum(-1, keepdims=True) @ KEYS[:20, 0, :24]
    np.testing.assert_allclose(found[19], truth, rtol=1e-5, atol=1e-5)


def test_sizes_and_refusals() -> None:
    assert row_nbytes(CacheRow(2, 64, 32, False), "f16") == 2 * 96 * 2
    assert row_nbytes(CacheRow(2, 64, 32, False), "q8_0") == 2 * 96 + 2 * 3 * 2
    assert row_nbytes(CacheRow(1, 96, 64, True), "f32") == 96 * 4
    with pytest.raises(ArgumentError, match="found q3, wanted f32"):
        LayerPages(2, CacheRow(1, 32, 32, False), "q3")
    with pytest.raises(ArgumentError, match="width 20"):
        LayerPages(2, CacheRow(1, 20, 20, False), "q8_0")


def test_pages_of_bytes_keep_numbers_within_a_step_of_their_block() -> None:
    pages = LayerPages(1, CacheRow(GROUPS, 64, 64, False), "q8_0")
    sizes = np.exp2(RNG.integers(-6, 12, (16, GROUPS, 2, 1)))
    given = (RNG.normal(size=(16, GROUPS, 2, 32)) * sizes).astype(np.float32)
    at = Tensor.arange(16, dtype="int32")
    rows = Tensor(given.reshape(16, GROUPS, 64))
    pages.write(at * 0, at, rows, -rows)
    largest = np.abs(given).max(-1, keepdims=True).astype(np.float64)
    assert largest.min() >= 2.0**-7
    for found, sign in zip(pages.gathered(Tensor(np.zeros(1, np.int32))), (1, -1), strict=True):
        kept = found.numpy().astype(np.float64).reshape(given.shape)
        assert (np.abs(kept - sign * given) <= largest / 253).all()


def test_attention_of_a_chunk_leaves_out_keys_that_none_of_its_tokens_sees() -> None:
    first, count, pages = (
        variable(name, least, most)
        for name, least, most in (("first", 0, 127), ("tokens", 1, 64), ("pages", 1, 12))
    )
    with options.override(device="NULL"):
        layer = LayerPages(12, CacheRow(2, 64, 64, False), "bf16")
        table = Tensor.zeros(12, dtype=dtypes.int32).contiguous().realize()
        query = Tensor.zeros(64, 4, 64, dtype=dtypes.bfloat16).contiguous().realize()
        rows = Tensor.zeros(2, 64, 2, 64, dtype=dtypes.bfloat16).contiguous().realize()
        places = StepPlaces.of_chunk(table[:pages], first, count)
        mixed = PagedLayer(layer, places).attend(
            query[:count], rows[0][:count], rows[1][:count], scale=0.125
        )
        sink = graph_of(mixed, [table, query, rows])
    plan = make_plan(canonicalise(sink, None, HOPPER), target=HOPPER)
    found = [facts for kernel in plan.kernels if (facts := stream_facts(kernel)) is not None]
    (limits,) = [facts.limits for facts in found if facts.row is not None]
    assert [limit[1:] for limit in limits] == [(1, 1)]
