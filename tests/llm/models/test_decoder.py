"""Decoders of each family against PyTorch in float64, from files that `gguf` wrote."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from baregrad import Tensor, bind, jit, variable
from baregrad.base.errors import FileFormatError, ShapeError
from baregrad.base.options import options
from baregrad.engine.backends import CompiledBackend
from baregrad.engine.session import Session, use_session
from baregrad.io.gguf import GgufFile, PackedWeight, by_name
from baregrad.llm.models.cache import ContiguousCache
from baregrad.llm.models.decoder import LanguageModel
from baregrad.llm.models.loading import open_model
from baregrad.llm.models.traits import DecoderTraits, LayerTraits, RopeTraits
from baregrad.llm.models.weights import GgufWeights
from tests.llm.models.plain_decoder import FAMILIES, WORDS, Experts, Plain

LENGTH = 12


def loaded(plain: Plain, folder: Path) -> tuple[LanguageModel, dict[str, np.ndarray]]:
    weights = plain.draw()
    plain.write(folder / "model.gguf", weights)
    return LanguageModel.from_gguf(GgufFile.open(folder / "model.gguf")), weights


def words_of(count: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, WORDS, count).astype(np.int32)


def scores(decoder: LanguageModel, words: np.ndarray, cache: ContiguousCache) -> np.ndarray:
    places = np.arange(len(words), dtype=np.int32)
    return decoder.logits(decoder(Tensor(words), Tensor(places), cache.layers)).numpy()


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_scores_words_as_pytorch_does(name: str, tmp_path: Path) -> None:
    plain = FAMILIES[name]
    decoder, weights = loaded(plain, tmp_path)
    words = words_of(LENGTH)
    found = scores(decoder, words, ContiguousCache(decoder.traits, LENGTH))
    expected = plain.forward(weights, words)
    assert np.abs(expected).max() > 0.5
    np.testing.assert_allclose(found, expected, atol=2e-5)


@pytest.mark.parametrize("name", ["gemma3", "deepseek2", "deepseek3"])
def test_symbolic_steps_through_a_cache_score_as_one_call_does(name: str, tmp_path: Path) -> None:
    plain = FAMILIES[name]
    decoder, weights = loaded(plain, tmp_path)
    words = words_of(LENGTH)
    cache = ContiguousCache(decoder.traits, 32)
    at, count = variable("at", 0, 24), variable("count", 1, 8)
    buffer = Tensor(np.resize(words, 32)).realize()

    @jit
    def step(at: object, count: object) -> Tensor:
        cache.place(at)
        places = Tensor.arange(at, at + count)  # type: ignore[operator]
        part = buffer[at : at + count]  # type: ignore[operator]
        hidden = decoder(part, places, cache.layers)
        return decoder.logits(hidden[count - 1 : count])  # type: ignore[operator]

    expected = plain.forward(weights, words)
    place = 0
    for size in (4, 1, 2, 1, 4):
        found = step(bind(at, place), bind(count, size)).numpy()
        place += size
        np.testing.assert_allclose(found[0], expected[place - 1], atol=2e-5)
    assert place == LENGTH


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0"])
def test_packed_weights_score_as_what_they_stand_for(kind: str, tmp_path: Path) -> None:
    plain = replace(FAMILIES["mixtral"], width=64, head=16, hidden=96, experts=Experts(hidden=96))
    held = plain.write(tmp_path / "model.gguf", plain.draw(), GGMLQuantizationType[kind])
    file = GgufFile.open(tmp_path / "model.gguf")
    for exact in (True, False):
        decoder = LanguageModel.from_gguf(file, exact=exact)
        for count in (1, 5, 40):
            words = words_of(count)
            found = scores(decoder, words, ContiguousCache(decoder.traits, count))
            expected = plain.forward(held, words)
            if exact:
                np.testing.assert_allclose(found, expected, atol=3e-5)
            # Rounded activations are a percent off in each product, and may choose other experts.
            assert np.abs(found - expected).mean() < 0.1


def one_by_one(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Stacks of experts as files of Mixtral's first months have them."""
    found: dict[str, np.ndarray] = {}
    for name, numbers in weights.items():
        if "_exps." not in name:
            found[name] = numbers
            continue
        for at, expert in reversed(list(enumerate(numbers))):
            found[name.replace("_exps.", f".{at}.")] = np.ascontiguousarray(expert)
    return found


@pytest.mark.parametrize("kind", [None, GGMLQuantizationType.Q8_0])
def test_experts_that_a_file_keeps_one_by_one(
    kind: GGMLQuantizationType | None, tmp_path: Path
) -> None:
    plain = replace(FAMILIES["mixtral"], width=64, head=16, hidden=96, experts=Experts(hidden=96))
    stacked = plain.write(tmp_path / "stacked.gguf", plain.draw(), kind)
    plain.write(tmp_path / "apart.gguf", one_by_one(plain.draw()), kind)
    decoder = LanguageModel.from_gguf(GgufFile.open(tmp_path / "apart.gguf"), exact=True)
    words = words_of(5)
    found = scores(decoder, words, ContiguousCache(decoder.traits, 5))
    np.testing.assert_allclose(found, plain.forward(stacked, words), atol=3e-5)
    broken = one_by_one(plain.draw())
    del broken["blk.1.ffn_up.1.weight"]
    plain.write(tmp_path / "broken.gguf", broken)
    with pytest.raises(FileFormatError, match=r"blk\.1\.ffn_up_exps\.weight are no stack"):
        GgufWeights(GgufFile.open(tmp_path / "broken.gguf"))


@pytest.mark.parametrize("kind", [None, GGMLQuantizationType.Q8_0])
@pytest.mark.parametrize("name", ["mixtral", "qwen2"])
def test_a_scale_beside_a_weight_is_a_part_of_it(
    name: str, kind: GGMLQuantizationType | None, tmp_path: Path
) -> None:
    """As files of NVFP4 have them: one for a matrix, one for each expert of a stack."""
    plain = replace(FAMILIES[name], width=64, head=16, hidden=96)
    if name == "mixtral":
        plain = replace(plain, experts=Experts(hidden=96))
    weights, draw = plain.draw(), np.random.default_rng(4)
    scales: dict[str, np.ndarray] = {}
    for each, numbers in weights.items():
        if each.startswith("blk.") and numbers.ndim > 1 and "_inp" not in each:
            count = len(numbers) if numbers.ndim == 3 else 1
            scale = draw.uniform(0.25, 4, count).astype(np.float32)
            scales[each.replace(".weight", ".scale")] = scale
            scales[each.replace(".weight", ".input_scale")] = scale[:1]
    held = plain.write(tmp_path / "model.gguf", weights | scales, kind)
    scaled = {
        each: numbers * held[each.replace(".weight", ".scale")].reshape(
            [-1] + [1] * (numbers.ndim - 1)
        ) if each.replace(".weight", ".scale") in scales else numbers
        for each, numbers in held.items() if not each.endswith("scale")
    }  # fmt: skip
    decoder = LanguageModel.from_gguf(GgufFile.open(tmp_path / "model.gguf"), exact=True)
    for count in (1, 5):
        words = words_of(count)
        found = scores(decoder, words, ContiguousCache(decoder.traits, count))
        expected = plain.forward(scaled, words)
        np.testing.assert_allclose(found, expected, atol=3e-5 * max(1, np.abs(expected).max()))
    wrong = weights | {"blk.0.attn_q.scale": np.ones(2, np.float32)}
    plain.write(tmp_path / "wrong.gguf", wrong)
    with pytest.raises(FileFormatError, match=r"attn_q\.scale is no scale"):
        GgufWeights(GgufFile.open(tmp_path / "wrong.gguf"))


@pytest.mark.parametrize(("dtype", "error"), [("float16", 0.02), ("bfloat16", 0.15)])
@pytest.mark.parametrize("name", ["gemma2", "deepseek3"])
def test_activations_of_16_bits(name: str, dtype: str, error: float, tmp_path: Path) -> None:
    plain = FAMILIES[name]
    weights = plain.draw()
    plain.write(tmp_path / "model.gguf", weights)
    decoder = open_model(tmp_path / "model.gguf").decoder(dtype=dtype)
    words = words_of(LENGTH)
    found = scores(decoder, words, ContiguousCache(decoder.traits, LENGTH, dtype))
    assert found.dtype == np.float32
    expected = plain.forward(weights, words)
    assert 1e-5 < np.abs(found - expected).max() < error


def test_layers_want_a_cache_each(tmp_path: Path) -> None:
    decoder, _ = loaded(FAMILIES["qwen2"], tmp_path)
    with pytest.raises(ShapeError, match="one for each of 2"):
        decoder(Tensor([1]), Tensor([0]), [])


class Unallocated:
    """Weights of the shapes that traits say, on a device that holds nothing."""

    def __init__(self, traits: DecoderTraits, kind: str) -> None:
        self.shapes = traits.shapes()
        self.kind = by_name(kind)

    def weight(self, name: str) -> PackedWeight:
        shape = self.shapes[name]
        width = self.kind.row_nbytes(shape[-1])
        packed = Tensor.empty(*shape[:-1], width, dtype="uint8", device="NULL")
        return PackedWeight(self.kind, shape, packed)

    def vector(self, name: str) -> Tensor:
        return Tensor.empty(*self.shapes[name], device="NULL")


def programs_of(depth: int, count: int) -> int:
    """How many kernels a call is made of, for a model as wide as Llama 3.1 405B."""
    layer = LayerTraits(128, 8, 128, 128, 53248, 128**-0.5, RopeTraits("norm", 128, 5e5))
    traits = DecoderTraits("llama", 16384, 128256, 131072, "rms", 1e-5, (layer,) * depth)
    with use_session(Session()) as session, options.override(device="NULL"):
        decoder = LanguageModel(traits, Unallocated(traits, "Q4_K"), device="NULL")
        cache = ContiguousCache(traits, 2048, device="NULL")
        words = Tensor.empty(count, dtype="int32")
        cache.place(bind(variable("at", 0, 2048 - count), 3))
        backend = session.backend("NULL")
        assert isinstance(backend, CompiledBackend)
        before = backend.compiler.compiled + backend.compiler.loaded
        places = Tensor.arange(cache.at, cache.at + count)
        hidden = decoder(words, places, cache.layers)
        cache.realize(decoder.logits(hidden[count - 1 :]))
        return backend.compiler.compiled + backend.compiler.loaded - before


def test_layers_alike_share_their_kernels() -> None:
    assert programs_of(6, 1) == programs_of(2, 1)
