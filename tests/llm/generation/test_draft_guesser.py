"""A model that guesses changes how many steps an answer takes, and nothing else."""

from __future__ import annotations

import pytest

from baregrad.base.errors import ArgumentError
from baregrad.llm.generation.draft_guesser import DraftGuesser
from baregrad.llm.generation.engine import AnswerEngine
from baregrad.llm.generation.guessing import Guesser
from baregrad.llm.generation.paged_cache import PagedCache
from baregrad.llm.generation.request import AnswerRequest, Stream
from baregrad.llm.generation.sampling import Sampling
from baregrad.llm.generation.stepper import Stepper
from tests.llm.generation.stand_in import WORDS, ByteTokenizer, SmallDecoder


def stepper_of(decoder: SmallDecoder, pages: int = 40) -> Stepper:
    cache = PagedCache(decoder.cache_rows(), pages, "f32")
    return Stepper(decoder, cache, WORDS, rows=6, chunk=32, context=96)


@pytest.fixture(scope="module")
def large() -> Stepper:
    return stepper_of(SmallDecoder())


def answers(large: Stepper, guesser: Guesser | None) -> tuple[list[list[int]], dict[str, int]]:
    engine = AnswerEngine(large, ByteTokenizer(), guesser=guesser, guesses=3)
    streams: list[Stream] = []
    for number, temperature in enumerate((0.0, 0.8, 1.2)):
        settings = Sampling(temperature, seed=number, max_tokens=25, ignores_ends=True)
        streams.append(engine.submit(AnswerRequest([number + 1] * (5 + 20 * number), settings)))
        engine.step()
    engine.run()
    found = [[token.token for piece in stream for token in piece.tokens] for stream in streams]
    return found, engine.statistics()


def test_a_twin_is_always_right_and_a_stranger_changes_nothing(large: Stepper) -> None:
    wanted, plain = answers(large, None)
    twin = DraftGuesser(stepper_of(SmallDecoder()), WORDS)
    found, counts = answers(large, twin)
    assert found == wanted
    # The same model chooses the same tokens, by the same noise, but for those past the end.
    assert counts["accepted_tokens"] > 0.8 * counts["guessed_tokens"] > 0
    assert counts["steps"] < 0.7 * plain["steps"]
    stranger = DraftGuesser(stepper_of(SmallDecoder(seed=9, depth=1), pages=8), WORDS)
    found, counts = answers(large, stranger)
    assert found == wanted
    assert counts["accepted_tokens"] < counts["guessed_tokens"]
    for guesser in (twin, stranger):
        assert guesser._stepper.cache.pool.free == guesser._stepper.cache.pool.count - 1


def test_another_vocabulary_is_refused() -> None:
    with pytest.raises(ArgumentError, match="found 262 tokens, wanted 300"):
        DraftGuesser(stepper_of(SmallDecoder(depth=1)), 300)
