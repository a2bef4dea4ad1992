"""What a model is said to take, against what it then takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from baregrad import Tensor
from baregrad.base.errors import ArgumentError
from baregrad.engine.session import Session, use_session
from baregrad.io.gguf import by_name
from baregrad.llm.models.cache import ContiguousCache
from baregrad.llm.models.loading import open_model
from baregrad.llm.models.memory import cache_nbytes, memory_of, weights_nbytes
from baregrad.llm.models.traits import DecoderTraits, ExpertTraits, LayerTraits, RopeTraits
from baregrad.runtime.host_memory import size_class
from tests.llm.models.plain_decoder import FAMILIES


@pytest.mark.parametrize("name", ["qwen2", "deepseek2"])
def test_figures_are_those_of_the_call(name: str, tmp_path: Path) -> None:
    plain = FAMILIES[name]
    weights = plain.draw()
    plain.write(tmp_path / "model.gguf", weights)
    used: list[int] = []

    def note(run: Any) -> None:
        nbytes = run.executable.arena_nbytes(run.program.variables)
        used.append(size_class(nbytes) if nbytes else 0)

    with use_session(Session()) as session:
        model = open_model(tmp_path / "model.gguf")
        decoder = model.decoder()
        figures = memory_of(decoder.traits, model.source.types, 48, chunk=12)
        cache = ContiguousCache(decoder.traits, 48)
        cache.place(36)
        places = Tensor(np.arange(36, 48, dtype=np.int32)).realize()
        words = Tensor(np.ones(12, np.int32)).realize()
        session.watching.observers.append(note)
        hidden = decoder(words, places, cache.layers)
        cache.realize(decoder.logits(hidden[11:]))
        held = sum(array.nbytes for array in cache.arrays)
    assert figures.weights == sum(w.nbytes for w in weights.values())
    assert figures.cache == held
    assert abs(figures.workspace - max(used)) <= 0.05 * max(used)
    assert figures.total == figures.weights + figures.cache + figures.workspace


def test_experts_are_never_widened() -> None:
    experts = ExpertTraits(count=8, used=2, hidden=1792)
    rope = RopeTraits("norm", 64)
    layer = LayerTraits(8, 2, 64, 64, 1792, 0.125, rope, experts=experts)
    traits = DecoderTraits("llama", 512, 1000, 4096, "rms", 1e-5, (layer,))
    types = dict.fromkeys(traits.shapes(), by_name("Q4_K"))
    for count in (1, 16):
        figures = memory_of(traits, types, 64, chunk=count)
        # Less than one matrix of one expert takes, packed.
        assert figures.workspace < count * 512 * 1792 * 144 // 256


def test_packed_weights_take_their_bytes(tmp_path: Path) -> None:
    plain = FAMILIES["qwen2"]
    plain.write(tmp_path / "model.gguf", plain.draw())
    traits = open_model(tmp_path / "model.gguf").decoder().traits
    types = dict.fromkeys(traits.shapes(), by_name("Q8_0"))
    matrices = {n: s for n, s in traits.shapes().items() if len(s) == 2 and s[1] % 32 == 0}
    types |= {name: by_name("F16") for name in types if name not in matrices}
    expected = 0
    for name, shape in traits.shapes().items():
        count = int(np.prod(shape))
        expected += count * 34 // 32 if name in matrices else count * (4 if len(shape) == 1 else 2)
    assert weights_nbytes(traits, types) == expected
    # Two layers, keys and values of two heads of 8.
    assert cache_nbytes(traits, 10, "float16") == 2 * 2 * 2 * 8 * 10 * 2
    with pytest.raises(ArgumentError, match="1 to 8"):
        memory_of(traits, types, 8, chunk=9)
