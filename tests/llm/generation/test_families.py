"""Decoders of each family over pages: right, and the same bits however a prompt is cut."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from baregrad import Tensor, bind, jit, variable
from baregrad.dtypes import dtypes
from baregrad.llm.generation.layer_pages import LayerPages, PagedLayer, StepPlaces
from baregrad.llm.models.loading import open_model
from tests.llm.models.plain_decoder import FAMILIES, WORDS

COUNT, MOST = 24, 8
CUTS = ([8, 8, 8], [1] * 24, [3, 8, 1, 7, 5])
QUICK = ("qwen2moe",)


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in FAMILIES
])  # fmt: skip
def test_a_prompt_gives_the_same_bits_however_it_is_cut(name: str, tmp_path: Path) -> None:
    plain = FAMILIES[name]
    weights = plain.draw()
    plain.write(tmp_path / "model.gguf", weights)
    decoder = open_model(tmp_path / "model.gguf").decoder()
    words = np.random.default_rng(1).integers(0, WORDS, COUNT + MOST).astype(np.int32)
    buffer = Tensor(words).realize()
    table = Tensor(np.array([2, 0], np.int32)).realize()
    at, count = variable("at", 0, COUNT), variable("count", 1, MOST)

    def stepper() -> Callable[[Any, Any], Tensor]:
        pages = [LayerPages(3, row, "f32") for row in decoder.cache_rows()]

        @jit
        def step(place: Any, size: Any) -> Tensor:
            positions = Tensor.arange(place, place + size, dtype=dtypes.int32)
            places = StepPlaces(table, positions)
            layers = [PagedLayer(each, places) for each in pages]
            found = Tensor.zeros(MOST, WORDS).contiguous()
            hidden = decoder(buffer[place : place + size], positions, layers)
            found[:size] = decoder.logits(hidden)
            return found

        return step

    results = []
    for cuts in CUTS:
        step, place, rows = stepper(), 0, []
        for size in cuts:
            rows.append(step(bind(at, place), bind(count, size)).numpy()[:size].copy())
            place += size
        results.append(np.concatenate(rows))
    np.testing.assert_allclose(results[0], plain.forward(weights, words[:COUNT]), atol=2e-5)
    for other in results[1:]:
        np.testing.assert_array_equal(other.view(np.uint32), results[0].view(np.uint32))
