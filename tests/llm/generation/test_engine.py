"""Answers depend on their requests alone, whatever traffic they are answered in."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from baregrad.base.errors import ArgumentError, BaregradError, QueueFull
from baregrad.llm.generation.constraints import AnswerForm
from baregrad.llm.generation.engine import AnswerEngine
from baregrad.llm.generation.guessing import LookupGuesser, guess_by_lookup
from baregrad.llm.generation.paged_cache import PagedCache
from baregrad.llm.generation.request import AnswerPiece, AnswerRequest, ChosenToken, Stream
from baregrad.llm.generation.sampling import Sampling
from baregrad.llm.generation.stepper import Stepper
from tests.llm.generation.stand_in import END, WORDS, ByteTokenizer, SmallDecoder

CONTEXT = 160
Maker = Callable[..., AnswerEngine]


@pytest.fixture(scope="module")
def steppers() -> dict[int, Stepper]:
    """Steppers by their pages: of caches that hold all, and no more than one context."""
    decoder = SmallDecoder()
    return {
        pages: Stepper(
            decoder, PagedCache(decoder.cache_rows(), pages, "f16"), WORDS,
            rows=6, chunk=32, context=CONTEXT,
        )
        for pages in (80, 11)
    }  # fmt: skip


@pytest.fixture
def make(steppers: dict[int, Stepper]) -> Maker:
    def made(pages: int = 80, **options: Any) -> AnswerEngine:
        steppers[pages].cache.pool.forget()
        return AnswerEngine(steppers[pages], ByteTokenizer(), **options)

    return made


def pieces(stream: Stream) -> list[AnswerPiece]:
    return list(stream)


def answer(stream: Stream) -> tuple[list[int], str, str | None]:
    """The tokens, the text and the reason of an answer that has ended."""
    found = pieces(stream)
    tokens = [token.token for piece in found for token in piece.tokens]
    return tokens, "".join(piece.text for piece in found), found[-1].reason


def told(stream: Stream) -> list[Any]:
    """All of an answer, log-probabilities bit by bit."""
    found = pieces(stream)
    scored = [token for piece in found for token in piece.prompt]
    return [piece.tokens for piece in found], stream.usage.answer, scored


def random_request(rng: random.Random, prefixes: list[list[int]]) -> AnswerRequest:
    """A prompt that perhaps begins as others do, with settings of any kind."""
    tokens = list(rng.choice(prefixes)) if rng.random() < 0.6 else []
    tokens += [rng.randrange(256) for _ in range(rng.randrange(1, 40))]
    settings: dict[str, Any] = {"seed": rng.randrange(1 << 64), "ignores_ends": True}
    settings["temperature"] = rng.choice([0.0, 0.7, 1.3])
    if rng.random() < 0.4:
        settings |= {"top_k": rng.randrange(1, 60), "top_p": rng.uniform(0.2, 1.0)}
    if rng.random() < 0.2:
        settings |= {"min_p": 0.05, "typical_p": 0.8}
    if rng.random() < 0.3:
        settings |= {"repeat_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.1}
    if rng.random() < 0.2:
        settings["logit_bias"] = {rng.randrange(256): 4.0, rng.randrange(256): -5.0}
    if rng.random() < 0.3:
        settings["logprobs"] = rng.randrange(6)
    settings["max_tokens"] = rng.choice((3, 20, 60))
    form = AnswerForm("regex", "[a-z ]{3,9}") if rng.random() < 0.1 else None
    scored = rng.randrange(len(tokens) + 1) if rng.random() < 0.2 else None
    turn = rng.random() < 0.5
    return AnswerRequest(
        tokens, Sampling(**settings), form, client=rng.choice("abc"), is_turn=turn,
        scored_from=scored,
    )


def next_turn(rng: random.Random, last: AnswerRequest, written: list[Any]) -> AnswerRequest:
    """A prompt that goes on from what was told of an answer."""
    answer = [chosen.token for piece in written[0] for chosen in piece]
    tokens = [*last.tokens, *answer, *(rng.randrange(256) for _ in range(rng.randrange(1, 20)))]
    settings = Sampling(seed=rng.randrange(1 << 64), max_tokens=5, logprobs=3, ignores_ends=True)
    return AnswerRequest(tokens[: CONTEXT - 8], settings)


def run_mix(make: Maker, seed: int, alone: Maker | None = None) -> dict[str, int]:
    """Answer random requests in random traffic and compare each with its run alone."""
    rng = random.Random(seed)
    prefixes = [[rng.randrange(256) for _ in range(rng.choice((16, 40, 64)))] for _ in range(2)]
    requests = [random_request(rng, prefixes) for _ in range(rng.randrange(3, 9))]
    guesser = LookupGuesser() if rng.random() < 0.5 else None
    engine = make(rng.choice((80, 11, 11)), guesser=guesser)
    streams, cancelled = [], set()
    for number, request in enumerate(requests):
        streams.append(engine.submit(request))
        for _ in range(rng.randrange(6)):
            engine.step()
        if rng.random() < 0.15:
            streams[number].cancel()
            cancelled.add(number)
    engine.run()
    asked = [
        (request, told(streams[number])) for number, request in enumerate(requests)
        if number not in cancelled
    ]
    turns = [next_turn(rng, request, written) for request, written in asked]
    found = [engine.submit(turn) for turn in turns]
    engine.run()
    asked += [(turn, told(stream)) for turn, stream in zip(turns, found, strict=True)]
    assert engine.stepper.cache.pool.free == engine.stepper.cache.pool.count - 1
    for number, (request, written) in enumerate(asked):
        lone = make(80)
        wanted = lone.submit(request)
        lone.run()
        assert written == told(wanted), f"mix {seed}, request {number}"
    return engine.statistics()


def test_traffic_changes_no_bit(make: Maker) -> None:
    found = [run_mix(make, seed) for seed in range(5, 10)]
    for name in ("preemptions", "cached_tokens", "accepted_tokens", "kept_tokens"):
        assert sum(each[name] for each in found), name


@pytest.mark.slow
@pytest.mark.parametrize("part", range(25))
def test_much_traffic_changes_no_bit(make: Maker, part: int) -> None:
    """Twenty of 500 mixes: `-m slow -k much_traffic -n 8` runs all, `--lf` those that failed."""
    for seed in range(100 + 20 * part, 120 + 20 * part):
        run_mix(make, seed)


def test_greedy_answers_are_the_decoder_s(make: Maker) -> None:
    engine, decoder = make(), SmallDecoder()
    prompt = list(b"In the beginning")
    stream = engine.submit(
        AnswerRequest(prompt, Sampling(temperature=0.0, max_tokens=12, ignores_ends=True))
    )
    engine.run()
    found, _, reason = answer(stream)
    tokens, scores = list(prompt), []
    for token in found:
        scores = decoder.scores(tokens)
        assert scores[token] > scores.max() - 1e-2  # pages are of float16
        tokens.append(token)
    assert (len(found), reason) == (12, "length")


def test_a_prefix_is_found_and_not_computed_again(make: Maker) -> None:
    engine = make()
    prompt = [int(t) for t in np.random.default_rng(3).integers(0, 256, 70)]
    settings = Sampling(temperature=0.0, max_tokens=3)
    first = engine.submit(AnswerRequest(prompt, settings))
    engine.run()
    again = engine.submit(AnswerRequest(prompt, settings))
    other = engine.submit(AnswerRequest(prompt, settings, salt=b"other"))
    engine.run()
    assert told(first) == told(again) == told(other)
    assert (first.usage.cached, again.usage.cached, other.usage.cached) == (0, 64, 0)


def test_the_next_turn_finds_the_answer(make: Maker) -> None:
    engine = make(11)
    prompt = [int(t) for t in np.random.default_rng(5).integers(0, 256, 37)]
    settings = Sampling(temperature=0.0, max_tokens=30, ignores_ends=True)
    turn = engine.submit(AnswerRequest(prompt, settings, is_turn=True))
    text = engine.submit(AnswerRequest([9, *prompt], settings))
    engine.run()
    follow = [[*start, *answer(stream)[0], 1, 2] for start, stream in
              ((prompt, turn), ([9, *prompt], text))]
    streams = [engine.submit(AnswerRequest(tokens, settings)) for tokens in follow]
    engine.run()
    # Whole pages of 16 of 37 + 30 tokens; of another request, of the prompt alone.
    assert [stream.usage.cached for stream in streams] == [64, 32]
    assert engine.counts.kept_tokens == 64 - 37
    alone = make()
    wanted = alone.submit(AnswerRequest(follow[0], settings))
    alone.run()
    assert told(streams[0]) == told(wanted)


def test_whoever_needs_pages_gets_those_of_ended_answers(make: Maker) -> None:
    engine = make(11)
    settings = Sampling(max_tokens=100, ignores_ends=True)
    engine.submit(AnswerRequest([1] * 20, settings, is_turn=True))
    while not engine.counts.finished:
        engine.step()
    assert engine.stepper.cache.pool.free < 5
    stream = engine.submit(AnswerRequest([2] * 100, settings))
    engine.run()
    assert len(answer(stream)[0]) == 60 and not engine.counts.kept_tokens
    assert engine.stepper.cache.pool.free == engine.stepper.cache.pool.count - 1


def test_prompts_are_scored(make: Maker) -> None:
    """Against the decoder in float64; a part of the prompt that is not scored may be known."""
    engine, decoder = make(11), SmallDecoder()
    prompt = [int(t) for t in np.random.default_rng(6).integers(0, 256, 100)]
    settings = Sampling(temperature=0.0, max_tokens=2, logprobs=3, ignores_ends=True)
    asked = [AnswerRequest(prompt, settings, scored_from=first) for first in (1, 70, 100)]
    asked.append(AnswerRequest(prompt, replace(settings, logprobs=0), scored_from=0))
    streams = []
    for request in asked:
        streams.append(engine.submit(request))
        engine.run()
    assert [stream.usage.cached for stream in streams] == [0, 64, 96, 0]
    told_of = [pieces(stream) for stream in streams]
    rows = [[token for piece in each for token in piece.prompt] for each in told_of]
    assert [len(each) for each in rows] == [99, 30, 0, 100]
    assert rows[3][0] == ChosenToken(prompt[0])
    assert rows[1] == rows[0][69:]
    assert [row.logprob for row in rows[3][1:]] == [row.logprob for row in rows[0]]
    assert [row.token for row in rows[0]] == prompt[1:]
    for at in (1, 50, 99):
        scores = decoder.scores(prompt[:at])
        wanted = scores - np.log(np.exp(scores - scores.max()).sum()) - scores.max()
        row = rows[0][at - 1]
        assert row.logprob == pytest.approx(wanted[prompt[at]], abs=2e-2)
        assert [value for _, value in row.best] == pytest.approx(
            np.sort(wanted)[::-1][:3].tolist(), abs=2e-2)
    plain = engine.submit(replace(asked[0], scored_from=None))
    engine.run()
    tokens = [[piece.tokens for piece in each if piece.tokens] for each in told_of[:3]]
    assert tokens == [[piece.tokens for piece in pieces(plain) if piece.tokens]] * 3
    for first in (-1, 101):
        with pytest.raises(ArgumentError, match="told from"):
            engine.submit(replace(asked[0], scored_from=first))


def test_stops_and_ends(make: Maker) -> None:
    engine = make()
    prompt = list(b"abc")
    plain = engine.submit(AnswerRequest(prompt, Sampling(seed=1, max_tokens=30, ignores_ends=True)))
    engine.run()
    text = answer(plain)[1]
    stop = text[5:7]
    settings = Sampling(seed=1, max_tokens=30, ignores_ends=True, stops=(stop, "\0\0"))
    stopped = engine.submit(AnswerRequest(prompt, settings))
    ended = engine.submit(
        AnswerRequest(prompt, Sampling(seed=1, max_tokens=30, logit_bias={END: 1000.0}))
    )
    engine.run()
    assert answer(stopped)[1:] == (text[: text.index(stop)], "stop")
    assert answer(ended) == ([END], "", "stop")


def test_forms_hold(make: Maker) -> None:
    engine = make()
    request = AnswerRequest(list(b"?"), Sampling(seed=5), AnswerForm("regex", "(yes|no) [0-9]{2}"))
    stream = engine.submit(request)
    engine.run()
    _, text, reason = answer(stream)
    assert text[:-3] in ("yes", "no")
    assert text[-2:].isdigit()
    assert reason == "stop"
    with pytest.raises(ArgumentError):
        engine.submit(AnswerRequest([1], form=AnswerForm("regex", "(")))


def test_what_does_not_fit_is_refused(make: Maker) -> None:
    engine = make(most_waiting=2)
    for request, message in (
        (AnswerRequest([]), "the prompt is empty"),
        (AnswerRequest([0] * CONTEXT), "160 tokens, wanted 159"),
        (AnswerRequest([WORDS]), "no such token"),
        (AnswerRequest([1], Sampling(logit_bias={WORDS: 1.0})), "no such token"),
    ):
        with pytest.raises(ArgumentError, match=message):
            engine.submit(request)
    streams = [engine.submit(AnswerRequest([1], Sampling(max_tokens=2))) for _ in range(2)]
    with pytest.raises(QueueFull, match="found 2, wanted fewer than 2"):
        engine.submit(AnswerRequest([1]))
    engine.run()
    assert all(answer(stream)[2] for stream in streams)
    with pytest.raises(ArgumentError, match="smaller than a whole context"):
        small = PagedCache(SmallDecoder().cache_rows(), 4)
        AnswerEngine(Stepper(SmallDecoder(), small, WORDS, context=160), ByteTokenizer())


def test_clients_take_turns(make: Maker) -> None:
    """One client's many requests do not keep another's single one waiting."""
    engine = make()
    many = [
        engine.submit(AnswerRequest([n], Sampling(max_tokens=20, ignores_ends=True), client="a"))
        for n in range(20)
    ]
    single = engine.submit(AnswerRequest([99], Sampling(max_tokens=1), client="b"))
    while not single.usage.answer:
        engine.step()
    assert sum(stream.usage.answer > 0 for stream in many) < 6
    engine.run()


def test_a_thread_answers_and_cancels(make: Maker) -> None:
    with make() as engine:
        streams = [
            engine.submit(AnswerRequest([n], Sampling(max_tokens=100, ignores_ends=True)))
            for n in range(8)
        ]
        heard: list[AnswerPiece] = []
        done = threading.Event()

        def hear(piece: AnswerPiece) -> None:
            heard.append(piece)
            if piece.reason:
                done.set()

        streams[0].listen(hear)
        next(iter(streams[1]))
        streams[1].cancel()
        assert answer(streams[1])[2] == "cancelled"
        assert done.wait(120)
        assert [p.reason for p in heard if p.reason] == ["length"]
        assert sum(len(p.tokens) for p in heard) == 100
        streams[2].listen(lambda piece: 1 / 0)
        assert all(answer(stream)[2] == "length" for stream in streams[3:])
        left = engine.submit(AnswerRequest([1], Sampling(max_tokens=150, ignores_ends=True)))
    assert answer(left)[2] in ("cancelled", "length")
    with pytest.raises(QueueFull):
        engine.submit(AnswerRequest([1]))
    assert engine.stepper.cache.pool.free == engine.stepper.cache.pool.count - 1


def test_scores_that_are_not_numbers_end_one_answer_alone() -> None:
    class Broken(SmallDecoder):
        """Writes no numbers for the token 7."""

        def __call__(self, words: Any, positions: Any, caches: Any) -> Any:
            hidden = super().__call__(words, positions, caches)
            return (words == 7)[:, None].where(float("nan"), hidden)

    decoder = Broken()
    stepper = Stepper(decoder, PagedCache(decoder.cache_rows(), 12), WORDS, rows=3, context=64)
    engine = AnswerEngine(stepper, ByteTokenizer())
    greedy = Sampling(temperature=0.0, max_tokens=4, logit_bias={7: -1e4})
    broken, sound = (engine.submit(AnswerRequest([t], greedy)) for t in (7, 8))
    engine.run()
    with pytest.raises(BaregradError, match="no token can be chosen"):
        answer(broken)
    assert len(answer(sound)[0]) == 4
    assert engine.statistics()["failed"] == 1


def test_an_error_in_a_step_ends_what_runs_and_nothing_else(make: Maker) -> None:
    engine = make()
    run = engine.stepper.run_chunk
    with engine:
        engine.stepper.run_chunk = None  # type: ignore[assignment, method-assign]
        failed = engine.submit(AnswerRequest([1, 2]))
        with pytest.raises(BaregradError, match="a step of the engine failed"):
            answer(failed)
        engine.stepper.run_chunk = run  # type: ignore[method-assign]
        assert len(answer(engine.submit(AnswerRequest([1], Sampling(max_tokens=2))))[0]) <= 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_nobody_waits_for_a_thread_that_has_ended(make: Maker) -> None:
    engine = make()
    run = engine.stepper.run_rows

    def end(rows: Any) -> Any:
        raise KeyboardInterrupt

    try:
        engine.stepper.run_rows = end  # type: ignore[method-assign]
        settings = Sampling(max_tokens=9, ignores_ends=True)
        streams = [engine.submit(AnswerRequest([n], settings)) for n in range(9)]
        assert engine.is_alive
        engine.start()
        for stream in streams:
            with pytest.raises(BaregradError, match="a step of the engine failed: found Keyboard"):
                answer(stream)
        with pytest.raises(QueueFull, match="closed"):
            engine.submit(AnswerRequest([1]))
        assert not engine.is_alive
        engine.close()
    finally:
        engine.stepper.run_rows = run  # type: ignore[method-assign]
    assert engine.stepper.cache.pool.free == engine.stepper.cache.pool.count - 1


def test_guesses_by_looking_up() -> None:
    assert guess_by_lookup([1, 2, 3, 9, 1, 2, 3], 2) == [9, 1]
    assert guess_by_lookup([5, 3, 4, 7, 3, 8, 3], 5) == [8, 3]
    assert guess_by_lookup([1, 2, 3], 4) == []
    assert guess_by_lookup([1, 1], 0) == []
