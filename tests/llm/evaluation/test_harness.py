"""Log-likelihoods against the decoder in float64, through requests like those of lm_eval."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from baregrad.llm.evaluation import HarnessModel
from baregrad.llm.generation.engine import AnswerEngine
from baregrad.llm.generation.paged_cache import PagedCache
from baregrad.llm.generation.stepper import Stepper
from tests.llm.generation.stand_in import END, WORDS, ByteTokenizer, SmallDecoder

CONTEXT = 66
DECODER = SmallDecoder(sharpness=1.0)


class Bytes(ByteTokenizer):
    """Takes what the harness asks for, and begins texts with a token if it may."""

    bos = 300 - 40

    def encode(self, text: str, *, specials: bool = False, add_bos: bool | None = None) -> Any:
        return [self.bos] * (add_bos is None) + list(text.encode())


@pytest.fixture(scope="module")
def model() -> Iterator[HarnessModel]:
    stepper = Stepper(
        DECODER, PagedCache(DECODER.cache_rows(), 41, "f32"), WORDS, rows=4, chunk=32,
        context=CONTEXT,
    )
    with AnswerEngine(stepper, Bytes()) as engine:
        made = SimpleNamespace(name="small", tokenizer=Bytes(), template=None, engine=engine)
        yield HarnessModel(made)  # type: ignore[arg-type]


def wanted(before: list[int], tokens: list[int]) -> tuple[float, bool]:
    total, is_greedy = 0.0, True
    for at, token in enumerate(tokens):
        scores = DECODER.scores([*before, *tokens[:at]])
        total += scores[token] - scores.max() - np.log(np.exp(scores - scores.max()).sum())
        is_greedy &= bool(scores.argmax() == token)
    return total, is_greedy


def test_likelihoods_of_continuations(model: HarnessModel) -> None:
    before = list(b"In the beginning there was")
    greedy: list[int] = []
    for _ in range(3):
        greedy.append(int(DECODER.scores([*before, *greedy]).argmax()))
    pairs = [(before, list(b" light")), (before, greedy), ([END], list(b"A text of its own")),
             (before, greedy[:1]), (before * 4, list(b" x"))] * 14
    found = model._loglikelihood_tokens([(None, *pair) for pair in pairs])
    assert len(found) == 70
    for (first, second), (value, is_greedy) in zip(pairs[:4], found, strict=False):
        expected = wanted(first, second)
        assert value == pytest.approx(expected[0], abs=2e-3) and is_greedy == expected[1]
    assert [is_greedy for _, is_greedy in found[:4]] == [False, True, False, True]
    # Of what is too long, the end counts.
    whole = [*before * 4, *b" x"][-(CONTEXT - 1) :]
    assert found[4][0] == pytest.approx(wanted(whole[:-2], whole[-2:])[0], abs=2e-3)
    assert found[5:10] == found[:5]


def test_likelihoods_of_whole_texts(model: HarnessModel) -> None:
    text = "It was a bright cold day in April, and the clocks were striking thirteen. " * 2
    short = SimpleNamespace(args=("abc",))
    found = model.loglikelihood_rolling([SimpleNamespace(args=(text,)), short])
    tokens = model.tok_encode(text)
    assert len(tokens) > 2 * CONTEXT and tokens[0] == Bytes.bos
    whole, total, done = [Bytes.bos, *tokens], 0.0, 1
    while done < len(whole):
        end = min(done + CONTEXT - 2, len(whole))
        total += wanted(whole[max(end - CONTEXT + 1, 0) : done], whole[done:end])[0]
        done = end
    assert found[0] == pytest.approx(total, abs=2e-2)
    assert found[1] == pytest.approx(
        wanted([Bytes.bos], [Bytes.bos, *b"abc"])[0], abs=2e-3)


def test_answers_up_to_a_stop(model: HarnessModel) -> None:
    text, most = "Once upon a time", 12
    options = {"until": [], "max_gen_toks": most, "do_sample": False}
    plain = model.generate_until([SimpleNamespace(args=(text, options))])[0]
    tokens = model.tok_encode(text)
    for letter in plain:
        scores = DECODER.scores(tokens)
        assert scores[ord(letter)] > scores.max() - 1e-2
        tokens.append(ord(letter))
    stop = plain[4:6]
    options = {"until": [stop, "\0\0"], "max_gen_toks": most}
    assert model.generate_until([SimpleNamespace(args=(text, options))]) == [
        plain[: plain.index(stop)]]
    long = SimpleNamespace(args=(text * 20, options))
    assert len(model.generate_until([long])) == 1
