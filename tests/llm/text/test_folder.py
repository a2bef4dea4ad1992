"""Folders of Hugging Face are tokenised as the library itself does it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from baregrad.base.errors import FileFormatError, UnsupportedError
from baregrad.llm.text import tokenizer_of_folder
from tests.llm.text.vocabularies import byte_pairs, random_text, scored_metadata

KINDS = ("bytes", "pieces", "metaspace", "words")


def engine(kind: str) -> Any:
    """Return a small tokeniser of a kind, as their authors put them together."""
    if kind == "bytes":
        tokens, merges = byte_pairs()
        found = tokenizers.Tokenizer(models.BPE(
            {text: index for index, text in enumerate(tokens)},
            [tuple(pair.split(" ")) for pair in merges]))
        found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        found.decoder = decoders.ByteLevel()
    elif kind == "words":
        words = ["[UNK]", "[CLS]", "[SEP]", "the", "fox", "##es", "a", "##b", ","]
        found = tokenizers.Tokenizer(models.WordPiece(
            {text: index for index, text in enumerate(words)}, unk_token="[UNK]"))
        found.normalizer = normalizers.BertNormalizer()
        found.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        found.decoder = decoders.WordPiece()
    else:
        metadata = scored_metadata()
        texts = [text for text in metadata["tokenizer.ggml.tokens"] if text != "<|im_end|>"]
        scores = metadata["tokenizer.ggml.scores"]
        found = tokenizers.Tokenizer(models.Unigram(
            [(text, scores[at] / 100 - 1) for at, text in enumerate(texts)], 0, True))
        steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                 decoders.Strip(" ", 1, 0)]
        if kind == "pieces":
            found.normalizer = normalizers.Sequence([
                normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        else:
            found.pre_tokenizer = pre_tokenizers.Metaspace("▁", "first", split=False)
        found.decoder = decoders.Sequence(steps)
    found.add_special_tokens(["<s>", "</s>", "<|im_start|>", "<|im_end|>"])
    found.add_tokens(["<tool_call>"])
    bos = found.token_to_id("<s>")
    found.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A $B", [("<s>", bos)])
    return found


def write(folder: Path, kind: str) -> Any:
    found = engine(kind)
    found.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"bos_token": {"content": "<s>"}, "eos_token": "</s>"}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 5]}))
    return found


@pytest.mark.differential
@pytest.mark.parametrize("kind", KINDS)
def test_texts_are_tokenised_as_by_the_library(tmp_path: Path, kind: str) -> None:
    reference = write(tmp_path, kind)
    tokenizer = tokenizer_of_folder(tmp_path)
    for seed in range(150):
        text = random_text(seed)
        reference.encode_special_tokens = False
        ids = reference.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text, specials=True, add_bos=False) == ids
        assert tokenizer.encode(text, specials=True) == reference.encode(text).ids
        spans = [(text, True)]
        assert tokenizer.encode_spans(spans, add_bos=False) == ids
        reference.encode_special_tokens = True
        plain = reference.encode(text, add_special_tokens=False).ids
        found = tokenizer.encode(text, add_bos=False)
        assert not any(map(tokenizer.is_control, found))
        if not any(map(tokenizer.is_control, plain)):
            assert found == plain
        if kind == "bytes":
            assert tokenizer.decode(plain) == text == reference.decode(plain)


@pytest.mark.parametrize("kind", KINDS)
def test_words_decode_as_by_the_library(tmp_path: Path, kind: str) -> None:
    reference = write(tmp_path, kind)
    tokenizer = tokenizer_of_folder(tmp_path)
    for text in ("the foxes , the fox", "the fox"):
        ids = tokenizer.encode(text)
        # The library takes spaces before marks away, which were there.
        assert tokenizer.decode(ids) == text
        assert reference.decode(ids) in (text, text.replace(" ,", ","))


@pytest.mark.parametrize("kind", KINDS)
def test_a_user_text_never_becomes_a_control_token(tmp_path: Path, kind: str) -> None:
    write(tmp_path, kind)
    tokenizer = tokenizer_of_folder(tmp_path)
    start, end = tokenizer.id_of("<|im_start|>"), tokenizer.id_of("<|im_end|>")
    ids = tokenizer.encode_spans(
        [("<|im_start|>", True), ("the<|im_end|> fox", False), ("<|im_end|>", True)])
    assert ids[0] == tokenizer.bos
    assert [token for token in ids[1:] if tokenizer.is_control(token)] == [start, end]
    assert ids[-1] == end


def test_a_letter_that_becomes_another_forges_no_token(tmp_path: Path) -> None:
    reference = engine("metaspace")
    reference.normalizer = normalizers.NFKC()
    reference.save(str(tmp_path / "tokenizer.json"))
    tokenizer = tokenizer_of_folder(tmp_path)
    forged = "the ＜/s＞"
    for ids in (
        tokenizer.encode(forged, add_bos=False),
        tokenizer.encode_spans([("<|im_start|>", True), (forged, False)], add_bos=False)[1:],
    ):
        assert not any(map(tokenizer.is_control, ids))
        assert tokenizer.decode(ids).strip() == "the </s>"


def test_no_text_is_cut_or_padded_as_the_file_says(tmp_path: Path) -> None:
    described = engine("bytes")
    described.enable_padding(length=64)
    described.enable_truncation(8)
    described.save(str(tmp_path / "tokenizer.json"))
    tokenizer = tokenizer_of_folder(tmp_path)
    for text in ("a", "the quick brown fox " * 20):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_ends_are_those_of_all_files(tmp_path: Path) -> None:
    write(tmp_path, "bytes")
    tokenizer = tokenizer_of_folder(tmp_path)
    assert tokenizer.ends == {3, 5, tokenizer.id_of("</s>"), tokenizer.id_of("<|im_end|>")}
    assert tokenizer.adds_bos and not tokenizer.adds_eos


def test_folders_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"no tokenizer\.json"):
        tokenizer_of_folder(tmp_path)
    file = tmp_path / "tokenizer.json"
    for text, words in (("{", "no JSON"), ("[]", "no object"), ("{}", "broken")):
        file.write_text(text)
        with pytest.raises(FileFormatError, match=words):
            tokenizer_of_folder(tmp_path)
    described = json.loads(engine("bytes").to_str())
    described["decoder"] = {"type": "CTC", "pad_token": "a", "word_delimiter_token": "|",
                            "cleanup": True}
    file.write_text(json.dumps(described))
    with pytest.raises(UnsupportedError, match="CTC"):
        tokenizer_of_folder(tmp_path)
    described = json.loads(engine("words").to_str())
    lost = {**described, "model": {**described["model"], "unk_token": "[GONE]"}}
    later = json.loads(engine("bytes").to_str())
    later["post_processor"] = {
        "type": "TemplateProcessing", "pair": [], "special_tokens": {},
        "single": [{"SpecialToken": {"id": "[GONE]", "type_id": 0}}],
    }
    for broken in (lost, later):
        file.write_text(json.dumps(broken))
        with pytest.raises(FileFormatError, match="broken"):
            tokenizer_of_folder(tmp_path).encode("What \u4f60\U0001f469 is not known")
