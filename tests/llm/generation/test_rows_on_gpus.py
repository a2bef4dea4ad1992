"""What a GPU makes of one sequence has the same bits, whatever sequences a step has beside it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from baregrad import Tensor, bind, variable
from baregrad.dtypes import dtypes
from baregrad.io.gguf import PackedWeight, by_name
from baregrad.llm.generation.layer_pages import PAGE, LayerPages, PagedLayer, StepPlaces
from baregrad.llm.generation.paged_cache import PagedCache
from baregrad.llm.generation.sampling import Sampling
from baregrad.llm.generation.stepper import Stepper, TokenChoice, TokenRow
from baregrad.llm.models.decoder import LanguageModel
from baregrad.llm.models.traits import CacheRow, DecoderTraits, LayerTraits, RopeTraits
from baregrad.testing.ptx_device import ptx_session
from tests.io.gguf.packed import random_rows

HEADS, GROUPS, WIDTH, EACH, MOST = 4, 2, 32, 4, 16
LENGTH = EACH * PAGE
COUNTS = (1, 2, 5, MOST)
DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "q8_0": "bfloat16"}
slow = pytest.mark.slow


def attended(query: Any, keys: Any, values: Any, seen: int) -> Any:
    """One query (heads, width) over the first keys and values (tokens, groups, width)."""
    grouped = query.reshape(GROUPS, -1, WIDTH)
    powers = np.exp(np.einsum("kgd,nkd->kgn", grouped, keys[:seen]) * WIDTH**-0.5)
    weights = powers / powers.sum(-1, keepdims=True)
    return np.einsum("kgn,nkd->kgd", weights, values[:seen]).reshape(HEADS, WIDTH)


def assert_alike(found: list[Any], exact: Any, tolerance: float) -> None:
    """The results are right, and the beginning of the last."""
    np.testing.assert_allclose(found[-1], exact, atol=tolerance, rtol=tolerance)
    for some in found:
        np.testing.assert_array_equal(some, found[-1][: len(some)])


@pytest.mark.parametrize("window", [0, 20])
@pytest.mark.parametrize(
    "kind", ["f16", "q8_0", *[pytest.param(one, marks=slow) for one in ("bf16", "f32")]]
)
def test_attention_over_pages(kind: str, window: int) -> None:
    """Each sequence writes its token's key and value, then attends to all it has."""
    random, dtype = np.random.default_rng(1), DTYPES[kind]
    tables = random.permutation(EACH * MOST).reshape(MOST, EACH).astype(np.int32)
    places = random.integers(0, LENGTH, MOST).astype(np.int32)
    places[:2] = LENGTH - 1, 0
    shapes = (LENGTH * MOST, GROUPS), (LENGTH * MOST, GROUPS), (MOST, HEADS), *((MOST, GROUPS),) * 2
    with ptx_session():
        keys, values, query, key, value = (
            Tensor(random.standard_normal((*shape, WIDTH)).astype(np.float32)).cast(dtype).realize()
            for shape in shapes
        )
        pages = LayerPages(EACH * MOST, CacheRow(GROUPS, WIDTH, WIDTH, False), kind)
        every = Tensor(np.arange(LENGTH * MOST, dtype=np.int32))
        pages.write(every // PAGE, every % PAGE, keys, values)
        pages.arrays[0].realize(*pages.arrays[1:])
        table, at = Tensor(tables).realize(), Tensor(places).realize()
        found = []
        for count in COUNTS:
            rows = bind(variable("rows", 1, MOST), count)
            layer = PagedLayer(pages, StepPlaces(table[:rows], at[:rows]))
            mixed = layer.attend(
                query[:rows], key[:rows], value[:rows], scale=WIDTH**-0.5, window=window
            )
            mixed.realize(*pages.arrays)
            found.append(mixed.cast(dtypes.float32).numpy())
        stored = [
            one.cast(dtypes.float32).numpy().astype(np.float64).reshape(-1, PAGE, GROUPS, WIDTH)
            for one in pages.gathered(every[: EACH * MOST])
        ]
        queries = query.cast(dtypes.float32).numpy().astype(np.float64)
        del pages, layer, mixed, every, table, at, keys, values, query, key, value
    exact = []
    for number, place in enumerate(places):
        held = [one[tables[number]].reshape(LENGTH, GROUPS, WIDTH) for one in stored]
        first = max(0, place + 1 - window) if window else 0
        exact.append(attended(queries[number], *[one[first:] for one in held], place + 1 - first))
    assert_alike(found, np.stack(exact), 2.0**-7 if dtype == "bfloat16" else 2.0**-10)


@pytest.mark.parametrize("stored", ["bfloat16", "float8_e4m3fn"])
def test_attention_over_arrays(stored: str) -> None:
    random = np.random.default_rng(2)
    with ptx_session():
        query, keys, values = (
            Tensor(random.standard_normal((MOST, *shape, WIDTH)).astype(np.float32)).cast(dtype)
            .realize()
            for shape, dtype in (((HEADS, 1), "bfloat16"), *(((GROUPS, 150), stored),) * 2)
        )
        found = []
        for count in COUNTS:
            rows = bind(variable("rows", 1, MOST), count)
            mixed = query[:rows].scaled_dot_product_attention(
                keys[:rows].cast("bfloat16"), values[:rows].cast("bfloat16"), enable_gqa=True
            )
            found.append(mixed.squeeze(2).cast(dtypes.float32).numpy())
        read = [
            one.cast(dtypes.float32).numpy().astype(np.float64) for one in (query, keys, values)
        ]
        del query, keys, values, mixed
    exact = [
        attended(one[:, 0], key.swapaxes(0, 1), value.swapaxes(0, 1), 150)
        for one, key, value in zip(*read, strict=True)
    ]
    assert_alike(found, np.stack(exact), 2.0**-7)


class Blocks:
    """Random weights of one packed type, by a model's names."""

    def __init__(self, traits: DecoderTraits, kind: str) -> None:
        self.row, self.shapes = by_name(kind), traits.shapes()
        self.types = dict.fromkeys(self.shapes, self.row)

    def weight(self, name: str) -> PackedWeight:
        shape = self.shapes[name]
        rows, width = shape
        raw = random_rows(self.row, rows, width, list(self.shapes).index(name), 0.02)
        return PackedWeight(self.row, shape, Tensor(raw).realize())

    def vector(self, name: str) -> Tensor:
        return Tensor.ones(*self.shapes[name]).contiguous().realize()


WORDS, ROWS = 40, 3
ROPE = RopeTraits("norm", 32, 1e4)
TRAITS = DecoderTraits(
    "llama", 64, WORDS, 64, "rms", 1e-5, (LayerTraits(2, 1, 32, 32, 64, 32**-0.5, ROPE),),
    is_tied=False,
)  # fmt: skip


class Steps:
    """Steps over a few sequences, and what they leave in the cache and choose."""

    def __init__(self) -> None:
        model = LanguageModel(TRAITS, Blocks(TRAITS, "Q4_0"), dtype="bfloat16")
        self.cache = PagedCache(model.cache_rows(), 1 + 2 * ROWS, "bf16")
        self.stepper = Stepper(model, self.cache, WORDS, rows=ROWS, chunk=16, context=32)
        self.listed = TokenChoice(Sampling(temperature=0.0, logprobs=3), 0)

    def held(self) -> list[bytes]:
        return [bytes(one._raw()) for layer in self.cache.layers for one in layer.arrays]

    def prompt(self, number: int, tokens: list[int], ends: list[int]) -> Any:
        pages, choice = [1 + 2 * number, 2 + 2 * number], self.listed
        for begin, end in pairwise([0, *ends, len(tokens)]):
            last = choice if end == len(tokens) else None
            found = self.stepper.run_chunk(tokens[begin:end], begin, pages, last)
        return self.listing(found, 0)

    def rows(self, tokens: dict[int, tuple[int, int]], sampling: Sampling | None = None) -> Any:
        """Some sequences' next tokens and places; what is chosen for each."""
        choice = TokenChoice(sampling, 7) if sampling else self.listed
        found = self.stepper.run_rows([
            TokenRow(token, place, [1 + 2 * number, 2 + 2 * number], choice)
            for number, (token, place) in tokens.items()
        ])
        return [] if sampling else [self.listing(found, at) for at in range(len(tokens))]

    @staticmethod
    def listing(found: Any, at: int) -> Any:
        return int(found.tokens[at]), bytes(found.best_logprobs[at]), bytes(found.logprobs[at])


@pytest.mark.slow
def test_steps_of_a_decoder() -> None:
    """In chunks that end anywhere, and beside others, which may be chosen in other ways."""
    random = np.random.default_rng(3)
    prompts = [random.integers(0, WORDS, count).tolist() for count in (20, 18, 23)]
    with ptx_session():
        steps = Steps()
        firsts = [steps.prompt(number, one, [16]) for number, one in enumerate(prompts)]
        held = steps.held()
        for number, one in enumerate(prompts):
            assert steps.prompt(number, one, [1, 7, 17]) == firsts[number]
        assert steps.held() == held
        following = {
            number: (firsts[number][0], len(one)) for number, one in enumerate(prompts)
        }
        alone = [steps.rows({number: following[number]})[0] for number in following]
        held = steps.held()
        for order in ((2, 0), (1, 2, 0)):
            found = steps.rows({number: following[number] for number in order})
            assert found == [alone[number] for number in order]
        for sampling in (Sampling(temperature=0.0), Sampling(temperature=0.7, top_k=5)):
            steps.rows(following, sampling)
        assert steps.held() == held
        del steps
    assert len(set(alone)) == ROWS
