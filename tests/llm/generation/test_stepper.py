"""Steps choose what NumPy's forward pass says, and the same whatever is beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from baregrad.base.errors import ArgumentError
from baregrad.base.options import options
from baregrad.engine.session import Session, use_session
from baregrad.llm.generation.choosing import NOTHING
from baregrad.llm.generation.paged_cache import PagedCache
from baregrad.llm.generation.sampling import Sampling
from baregrad.llm.generation.stepper import Stepper, TokenChoice, TokenRow
from baregrad.tensor.jit import identity, kept
from tests.llm.generation.stand_in import WORDS, SmallDecoder

GREEDY = TokenChoice(Sampling(temperature=0.0), 0)
TOLD = TokenChoice(Sampling(temperature=0.0, logprobs=5), 0)


@pytest.fixture(scope="module")
def decoder() -> SmallDecoder:
    return SmallDecoder()


@pytest.fixture(scope="module")
def stepper(decoder: SmallDecoder) -> Stepper:
    cache = PagedCache(decoder.cache_rows(), 40, "f32")
    return Stepper(decoder, cache, WORDS, rows=6, chunk=32, context=160)


def softmaxed(scores: Any) -> Any:
    return scores - scores.max() - np.log(np.exp(scores - scores.max()).sum())


def test_scores_are_those_of_the_whole_text(decoder: SmallDecoder, stepper: Stepper) -> None:
    rng = np.random.default_rng(0)
    tokens = [int(t) for t in rng.integers(0, 256, 70)]
    pages = [4, 9, 2, 7, 30, 31]
    for start in (0, 32):
        assert stepper.run_chunk(tokens[start : start + 32], start, pages, None) is None
    found = stepper.run_chunk(tokens[64:], 64, pages, TOLD)
    for _ in range(12):
        assert found is not None
        truth = softmaxed(decoder.scores(tokens))
        assert found.tokens.tolist() == [int(truth.argmax())]
        np.testing.assert_allclose(found.logprobs[0], truth.max(), atol=2e-5)
        np.testing.assert_allclose(found.best_logprobs[0], np.sort(truth)[::-1][:20], atol=2e-5)
        np.testing.assert_allclose(truth[found.best[0]], found.best_logprobs[0], atol=2e-5)
        tokens.append(int(found.tokens[0]))
        found = stepper.run_rows([TokenRow(tokens[-1], len(tokens) - 1, pages, TOLD)])


@pytest.mark.slow
def test_a_later_process_finds_its_steps(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It builds no graph, and chooses the same bit by bit; other caches are other steps."""
    monkeypatch.setattr(kept, "IS_KEPT", True)
    monkeypatch.setattr(identity, "_OURS", (*identity._OURS, f"{SmallDecoder.__module__}."))
    built: list[int] = []
    call = SmallDecoder.__call__

    def counted(self: SmallDecoder, *given: Any) -> Any:
        built.append(1)
        return call(self, *given)

    monkeypatch.setattr(SmallDecoder, "__call__", counted)

    def process(kind: str) -> list[Any]:
        with use_session(Session()) as session:
            decoder = SmallDecoder()
            cache = PagedCache(decoder.cache_rows(), 40, kind)
            stepper = Stepper(decoder, cache, WORDS, rows=6, chunk=32, context=160)
            stepper.run_chunk(range(32), 0, [1, 2, 3], None)
            found = stepper.run_chunk(range(7), 32, [1, 2, 3], TOLD)
            told = [found]
            for at in range(39, 42):
                row = TokenRow(int(told[-1].tokens[0]), at, [1, 2, 3], TOLD)
                told.append(stepper.run_rows([row]))
            told.append(stepper.run_rows([row, row]))
            session.close()
        return [(each.tokens.tolist(), each.logprobs.tobytes()) for each in told]

    with options.override(cache_dir=tmp_path / "cache"):
        first = process("f16")
        assert len(built) == 3
        assert process("f16") == first and len(built) == 3
        process("bf16")
        assert len(built) == 6


def test_rows_of_one_sequence_are_as_if_one_by_one(stepper: Stepper) -> None:
    rng = np.random.default_rng(1)
    tokens = [int(t) for t in rng.integers(0, 256, 40)]
    stepper.run_chunk(tokens[:32], 0, [1, 2, 3], None)
    alone = [
        stepper.run_rows([TokenRow(tokens[at], at, [1, 2, 3], TOLD)]) for at in range(32, 36)
    ]
    stepper.run_chunk(tokens[:32], 0, [5, 6, 8], None)
    rows = [TokenRow(tokens[at], at, [5, 6, 8], TOLD) for at in range(32, 36)]
    together = stepper.run_rows([*rows, TokenRow(3, 0, [11], GREEDY)])
    for number, one in enumerate(alone):
        for name in ("tokens", "logprobs", "best_logprobs"):
            np.testing.assert_array_equal(getattr(one, name)[0], getattr(together, name)[number])


def test_edits_and_bits_of_one_row_are_of_no_other(stepper: Stepper) -> None:
    rows = [TokenRow(5, 0, [page], GREEDY) for page in (20, 21, 22)]
    (plain,) = set(stepper.run_rows(rows).tokens.tolist())
    bits = np.zeros(-(-WORDS // 32), np.int32)
    bits[33 // 32] = 1 << 33 % 32
    greedy = GREEDY.sampling
    edits = [(plain, 0.0, 1.0, 50.0), (7, 40.0, 1.0, 0.0)]
    rows[1] = TokenRow(5, 0, [21], TokenChoice(greedy, 0, edits))
    rows[2] = TokenRow(5, 0, [22], TokenChoice(greedy, 0, bits=bits))
    # Edits alone make no full mode: that is the request's.
    assert stepper.run_rows(rows).tokens.tolist() == [plain, 7, 33]
    rows[2] = TokenRow(5, 0, [22], TokenChoice(greedy, 0, bits=np.zeros_like(bits)))
    assert stepper.run_rows(rows).tokens.tolist() == [plain, 7, NOTHING]


def test_what_does_not_fit_is_refused(stepper: Stepper) -> None:
    with pytest.raises(ArgumentError, match="found 7, wanted 1 to 6"):
        stepper.run_rows([TokenRow(0, 0, [1], GREEDY)] * 7)
    with pytest.raises(ArgumentError, match="found 33, wanted 1 to 32"):
        stepper.run_chunk([0] * 33, 0, [1, 2, 3], None)
    with pytest.raises(ArgumentError):
        Stepper(stepper.decoder, stepper.cache, WORDS, rows=0)
