"""Scores and vectors of small random models of every family, beside those of `transformers`.

Slow, and where `transformers` is installed: `pytest -m slow tests/llm/models/test_transformers.py`.
The models are those of `benchmarks/models_beside_others.py`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from baregrad.llm.models.cache import ContiguousCache
from baregrad.llm.models.loading import open_model
from baregrad.tensor import Tensor
from benchmarks.models_beside_others import LENGTH, SIZES, WORDS, families, make

pytestmark = pytest.mark.slow


def test_scores_are_those_of_transformers(tmp_path: Path) -> None:
    """Of prompts that are read in three chunks, in float32."""
    pytest.importorskip("transformers", reason="the reference is transformers")
    words = np.random.default_rng(5).integers(0, WORDS, LENGTH).astype(np.int32)
    wrong = {}
    for name, config in families().items():
        folder = tmp_path / name.replace(" ", "_")
        wanted = make(config, folder, words)
        decoder = open_model(folder).decoder()
        cache = ContiguousCache(decoder.traits, 64)
        found = []
        for begin, end in ((0, 17), (17, 18), (18, LENGTH)):
            cache.place(begin)
            positions = Tensor(np.arange(begin, end, dtype=np.int32))
            hidden = decoder(Tensor(words[begin:end]), positions, cache.layers)
            found.append(decoder.logits(hidden).numpy())
        error = np.abs(np.concatenate(found) - wanted).max()
        if not error < 5e-6:
            wrong[name] = error
    assert wrong == {}


def test_vectors_are_those_of_bert(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    theirs = pytest.importorskip("transformers", reason="the reference is transformers")
    torch.manual_seed(0)
    sizes = {name: size for name, size in SIZES.items() if name != "num_key_value_heads"}
    model = theirs.AutoModel.from_config(theirs.BertConfig(**sizes)).eval().float()
    words = np.random.default_rng(5).integers(0, WORDS, (3, 12)).astype(np.int64)
    mask = np.arange(12) < np.array([12, 7, 1])[:, None]
    with torch.no_grad():
        for value in model.parameters():
            # Norms and biases begin as ones and zeros, which would hide their places.
            value += torch.randn(value.shape) * 0.05
        model.save_pretrained(tmp_path)
        hidden = model(
            torch.tensor(words), attention_mask=torch.tensor(mask.astype(np.int64))
        ).last_hidden_state.numpy()
    mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    wanted = mean / np.linalg.norm(mean, axis=-1, keepdims=True)
    encoder = open_model(tmp_path).encoder()
    found = encoder.embed_texts(Tensor(words.astype(np.int32)), Tensor(mask)).numpy()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6)
