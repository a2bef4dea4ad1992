"""Hugging Face folders written as GGUF files: the same model, by our reading and by `gguf`'s."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from gguf import GGUFReader

from baregrad import Tensor, safe_save
from baregrad.base.errors import UnsupportedError
from baregrad.llm.commands.quantize import quantise_model
from baregrad.llm.models.cache import ContiguousCache
from baregrad.llm.models.loading import open_model
from baregrad.llm.text import tokenizer_of
from baregrad.llm.text.folder import tokenizer_of_folder
from tests.llm.models.plain_decoder import FAMILIES, WORDS
from tests.llm.models.test_folders import SIZES, USUAL, theirs, write_config


def write_tokenizer(folder: Path, size: int, **changes: Any) -> None:
    """A byte-level BPE of few merges, cut as GPT-2's words are after single digits."""
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())[: size - 6]
    words = {letter: index for index, letter in enumerate(["<s>", "</s>", *letters])}
    merges = [("a", "b"), ("ab", "c")] if size > 200 else []
    for left, right in merges:
        words[left + right] = len(words)
    engine = tokenizers.Tokenizer(tokenizers.models.BPE(words, merges))
    cuts = tokenizers.pre_tokenizers
    engine.pre_tokenizer = cuts.Sequence([
        cuts.Digits(individual_digits=True), cuts.ByteLevel(add_prefix_space=False),
    ])
    engine.decoder = tokenizers.decoders.ByteLevel()
    engine.add_special_tokens(["<s>", "</s>"])
    described = {**json.loads(engine.to_str()), **changes}
    (folder / "tokenizer.json").write_text(json.dumps(described))
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"bos_token": "<s>", "eos_token": "</s>", "chat_template": "{{ messages }}"}
    ))  # fmt: skip


def logits(path: Path, words: np.ndarray) -> np.ndarray:
    decoder = open_model(path).decoder()
    cache = ContiguousCache(decoder.traits, len(words))
    places = Tensor(np.arange(len(words), dtype=np.int32))
    found: np.ndarray = decoder.logits(decoder(Tensor(words), places, cache.layers)).numpy()
    return found


def folder_of(folder: Path, family: str) -> dict[str, np.ndarray]:
    plain = replace(FAMILIES[family], rope="neox", factors=False)
    weights = plain.draw()
    safe_save(theirs(weights, USUAL, "model.layers"), folder / "model.safetensors")
    write_config(folder, {**SIZES, "model_type": family, "rope_theta": 10000.0})
    write_tokenizer(folder, WORDS)
    return weights


def test_a_folder_and_its_file_are_one_model(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    weights = folder_of(folder, "llama")
    text = quantise_model(str(folder), str(tmp_path / "a.gguf"), "F32")
    assert "F32" in text
    words = np.random.default_rng(1).integers(0, WORDS, 9).astype(np.int32)
    np.testing.assert_allclose(
        logits(tmp_path / "a.gguf", words), logits(folder, words), rtol=1e-5, atol=1e-5
    )
    # Rows of queries take turns in files of this architecture.
    found = {tensor.name: tensor for tensor in GGUFReader(tmp_path / "a.gguf").tensors}
    query = weights["blk.0.attn_q.weight"]
    halves = query.reshape(4, 2, -1, query.shape[-1])
    turns = np.stack([halves[:, 0], halves[:, 1]], 2).reshape(query.shape)
    assert np.array_equal(found["blk.0.attn_q.weight"].data, turns)


def test_a_folder_is_quantised_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    folder_of(folder, "llama")
    quantise_model(str(folder), str(tmp_path / "a.gguf"), "Q8_0")
    words = np.random.default_rng(1).integers(0, WORDS, 9).astype(np.int32)
    wanted = logits(folder, words)
    error = np.abs(logits(tmp_path / "a.gguf", words) - wanted).max()
    assert 0 < error < 0.05 * np.abs(wanted).max()


def test_the_tokeniser_goes_along(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    folder_of(folder, "llama")
    quantise_model(str(folder), str(tmp_path / "a.gguf"), "F16")
    files = open_model(tmp_path / "a.gguf")
    ours, wanted = tokenizer_of(files.metadata), tokenizer_of_folder(folder)
    assert files.template == "{{ messages }}"
    assert (ours.bos, ours.eos) == (wanted.bos, wanted.eos) == (0, 1)
    assert ours.size == WORDS
    for text in ("!!##", "</s>", "$%&"):
        for specials in (False, True):
            assert ours.encode(text, specials=specials) == wanted.encode(text, specials=specials)


@pytest.mark.parametrize("changes, message", [
    ({"model": {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 0}}, "BPE, of bytes or"),
    ({"pre_tokenizer": {"type": "Whitespace"}}, "no name for"),
])  # fmt: skip
def test_tokenisers_that_have_no_name_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    folder_of(folder, "llama")
    write_tokenizer(folder, WORDS, **changes)
    with pytest.raises(UnsupportedError, match=message):
        quantise_model(str(folder), str(tmp_path / "a.gguf"), "F16")
    assert not (tmp_path / "a.gguf").exists()
