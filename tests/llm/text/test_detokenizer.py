"""Text comes token by token, never half a character, and all of it."""

from __future__ import annotations

from typing import Any

import pytest

from baregrad.llm.text import tokenizer_of
from tests.llm.text.vocabularies import byte_metadata, random_text, scored_metadata


@pytest.mark.parametrize("metadata", [byte_metadata(), scored_metadata()])
def test_pieces_are_the_decoded_text(metadata: dict[str, Any]) -> None:
    tokenizer = tokenizer_of(metadata)
    for seed in range(100):
        text = random_text(seed).replace("\ufffd", "")
        ids = tokenizer.encode(text, add_bos=False)
        detokenizer = tokenizer.detokenizer(is_start=True)
        pieces = [detokenizer.add(token) for token in ids]
        assert not any("\ufffd" in piece for piece in pieces)
        assert "".join(pieces) + detokenizer.finish() == text == tokenizer.decode(ids)


@pytest.mark.parametrize("metadata", [byte_metadata(), scored_metadata()])
def test_any_tokens_give_what_decoding_them_at_once_gives(metadata: dict[str, Any]) -> None:
    tokenizer = tokenizer_of(metadata)
    for seed in range(100):
        ids = [(seed * 7919 + step * 104729) % tokenizer.size for step in range(40)]
        detokenizer = tokenizer.detokenizer(is_start=True)
        pieces = "".join(map(detokenizer.add, ids)) + detokenizer.finish()
        assert pieces == tokenizer.decode(ids)


def test_a_character_that_never_ends_is_told_at_the_end() -> None:
    tokenizer = tokenizer_of(byte_metadata())
    detokenizer = tokenizer.detokenizer()
    ids = tokenizer.encode("🐢")[:-1]
    assert [detokenizer.add(token) for token in ids] == [""] * len(ids)
    assert detokenizer.finish() == "\ufffd"


def test_control_tokens_are_shown_when_asked_for() -> None:
    tokenizer = tokenizer_of(byte_metadata())
    ids = tokenizer.encode("a<|im_end|><|im_start|>", specials=True)
    assert tokenizer.decode(ids) == "a"
    assert tokenizer.decode(ids, specials=True) == "a<|im_end|><|im_start|>"
    detokenizer = tokenizer.detokenizer(shown=["<|im_start|>"])
    assert "".join(map(detokenizer.add, ids)) == "a<|im_start|>"


def test_the_first_space_of_a_continuation_stays() -> None:
    tokenizer = tokenizer_of(scored_metadata())
    ids = tokenizer.encode("the", add_bos=False)
    assert "".join(map(tokenizer.detokenizer().add, ids)) == " the"
    assert "".join(map(tokenizer.detokenizer(is_start=True).add, ids)) == "the"
