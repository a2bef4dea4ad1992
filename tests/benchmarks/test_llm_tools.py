"""Tools that compare with llama.cpp and load servers know what they are to tell apart."""

from __future__ import annotations

import asyncio
import unicodedata
from unittest import mock

import pytest

from baregrad.llm.text import byte_letters, tokenizer_of
from baregrad.llm.text.splits import SPLITS
from benchmarks import serve_load, tokeniser_agreement


def vocabulary(name: str) -> dict[str, object]:
    """A vocabulary of single bytes and a few pairs, which are tokens where a word holds both."""
    letters = [*byte_letters.LETTER_BYTES]
    words = [*letters, "ab", "Bc", "12", "aB"]
    return {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": name,
        "tokenizer.ggml.tokens": words, "tokenizer.ggml.token_type": [1] * len(words),
        "tokenizer.ggml.merges": ["a b", "B c", "1 2", "a B"],
        "tokenizer.ggml.add_bos_token": False,
    }  # fmt: skip


@pytest.mark.parametrize("name", tokeniser_agreement.THEIRS)
def test_what_llama_cpp_reads_otherwise_is_in_the_published_pattern(name: str) -> None:
    passes = SPLITS[name].passes
    for published, read in tokeniser_agreement.THEIRS[name]:
        assert published != read
        assert any(published in each for each in passes), published
    assert tokeniser_agreement.cut_as_theirs(vocabulary(name)) is not None


def test_capitals_are_told_apart_by_the_published_pattern_alone() -> None:
    """By hand: of "aB" the published pattern makes two words, and llama.cpp's tiny_aya one."""
    found = tokeniser_agreement.cut_as_theirs(vocabulary("tiny_aya"))
    assert found is not None and len(found.encode("aB")) == 1
    assert tokeniser_agreement.cut_as_theirs(vocabulary("gpt-2")) is None
    assert len(tokenizer_of(vocabulary("tiny_aya")).encode("aB")) == 2


def test_unknown_characters_are_replaced_and_no_others() -> None:
    text = "a\u0378b\U0003ffffé\ue000"
    assert tokeniser_agreement.known_alone(text) == "a\ue000b\ue000é\ue000"
    assert all(unicodedata.category(each) != "Cn" for each in tokeniser_agreement.known_alone(text))


@pytest.mark.parametrize("is_slow", [True, False])
def test_a_server_comes_to_rest_as_long_as_it_takes_steps(is_slow: bool) -> None:
    """Each look at a slow one finds a step more, and at the other always the same."""
    now, steps = 0.0, 0

    async def metrics(port: int) -> dict[str, float]:
        nonlocal now, steps
        now, steps = now + 50.0, steps + is_slow
        return {
            "baregrad_running": 0, "baregrad_waiting": 0, "baregrad_steps_total": steps,
            "baregrad_pages": 20, "baregrad_pages_free": min(steps, 20),
        }  # fmt: skip

    async def sleep(seconds: float) -> None:
        pass

    with (
        mock.patch.object(serve_load, "metrics", metrics),
        mock.patch("time.monotonic", lambda: now),
        mock.patch("asyncio.sleep", sleep),
    ):
        found = asyncio.run(serve_load.rest(0))
    assert serve_load.is_at_rest(found) == is_slow
