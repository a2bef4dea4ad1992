"""Tokenisers of folders told in the keys of GGUF files: they give the same tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from baregrad.base.errors import UnsupportedError
from baregrad.llm.text import tokenizer_of
from baregrad.llm.text.folder_vocabulary import vocabulary_metadata
from tests.llm.text.vocabularies import random_text, scored_metadata

METADATA = scored_metadata()
TEXTS = METADATA["tokenizer.ggml.tokens"]
FIRST = 259  # of the pieces, after <unk>, <s>, </s> and bytes


def write(folder: Path, *, prefix: str = "prepend", **changes: Any) -> Any:
    """A tokenizer.json as it is made of a SentencePiece model, and the library's reading of it."""
    ids = {text: at for at, text in enumerate(TEXTS) if text != "<|im_end|>"}
    pieces = TEXTS[FIRST:-1]
    merges = [
        (piece[:cut], piece[cut:])
        for piece in pieces for cut in range(1, len(piece))
        if piece[:cut] in ids and piece[cut:] in ids
    ]
    found = tokenizers.Tokenizer(models.BPE(
        ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))  # fmt: skip
    replace = normalizers.Replace(" ", "▁")
    if prefix == "prepend":
        found.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace])
    elif prefix == "none":
        found.normalizer = replace
        found.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    else:
        found.pre_tokenizer = pre_tokenizers.Metaspace("▁", prefix, split=False)
    found.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
        decoders.Strip(" ", 1, 0)])  # fmt: skip
    found.add_special_tokens(["<unk>", "<s>", "</s>", "<|im_end|>"])
    found.add_tokens([tokenizers.AddedToken("<tool_call>", normalized=False)])
    found.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A $B", [("<s>", 1)])
    described = json.loads(found.to_str())
    described["model"] |= changes
    (folder / "tokenizer.json").write_text(json.dumps(described))
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}))  # fmt: skip
    return found


@pytest.mark.differential
@pytest.mark.parametrize("prefix", ["prepend", "never", "none"])
def test_a_sentencepiece_vocabulary_gives_the_same_tokens(tmp_path: Path, prefix: str) -> None:
    reference = write(tmp_path, prefix=prefix)
    size = len(TEXTS) + 5
    told = vocabulary_metadata(tmp_path, size)
    assert len(told["tokenizer.ggml.tokens"]) == size
    tokenizer = tokenizer_of(told)
    assert (tokenizer.bos, tokenizer.eos, tokenizer.adds_bos) == (1, 2, True)
    seen: set[int] = set()
    for seed in range(200):
        text = random_text(seed)
        reference.encode_special_tokens = False
        ids = reference.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text, specials=True, add_bos=False) == ids
        assert tokenizer.encode("a" + text, specials=True) == reference.encode("a" + text).ids
        seen.update(ids)
    # Bytes, pieces, and what was added.
    assert any(3 <= at < FIRST for at in seen) and any(at >= len(TEXTS) - 1 for at in seen)


def test_what_files_cannot_tell_is_refused_by_name(tmp_path: Path) -> None:
    size = len(TEXTS) + 5
    for prefix in ("first", "always"):
        write(tmp_path, prefix=prefix)
        with pytest.raises(UnsupportedError, match="no key for"):
            vocabulary_metadata(tmp_path, size)
    write(tmp_path)
    described = json.loads((tmp_path / "tokenizer.json").read_text())
    merges = described["model"]["merges"]
    made = ["".join(pair) for pair in merges]
    # A word that two pairs make, the first of them last of all.
    at = next(at for at, word in enumerate(made) if made.count(word) > 1)
    write(tmp_path, merges=[*merges[:at], *merges[at + 1 :], merges[at]])
    with pytest.raises(UnsupportedError, match="order that scores cannot tell"):
        vocabulary_metadata(tmp_path, size)
    last = "".join(merges[-1])
    write(tmp_path, merges=[pair for pair in merges if "".join(pair) != last])
    with pytest.raises(UnsupportedError, match="no pair makes"):
        vocabulary_metadata(tmp_path, size)
    described["normalizer"] = {"type": "NFC"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(described))
    with pytest.raises(UnsupportedError, match="no key for"):
        vocabulary_metadata(tmp_path, size)
