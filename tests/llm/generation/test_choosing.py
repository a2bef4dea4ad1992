"""Filters leave the tokens that NumPy leaves, noise has the distribution that is asked for."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from baregrad import Tensor, bind, jit, variable
from baregrad.base.errors import ArgumentError
from baregrad.llm.generation.choosing import Mode, choose, settings_row
from baregrad.llm.generation.sampling import Sampling
from baregrad.testing.ptx_device import ptx_session

WORDS, ROWS = 700, 8
RNG = np.random.default_rng(0)
COUNT = variable("rows", 1, ROWS)
_STEPS = {
    mode: jit(lambda scores, settings, rows, mode=mode: choose(
        scores[:rows], settings[:rows], mode
    ).tokens)
    for mode in Mode
}  # fmt: skip


def chosen(scores: Any, settings: list[Any], mode: Mode) -> list[int]:
    """The tokens of rows of scores, ROWS at a time."""
    found: list[int] = []
    for begin in range(0, len(settings), ROWS):
        part = settings[begin : begin + ROWS]
        given, rows = np.zeros((ROWS, WORDS), np.float32), np.zeros((ROWS, 8), np.int32)
        given[: len(part)], rows[: len(part)] = scores, np.stack(part)
        bound = bind(COUNT, len(part))
        found += _STEPS[mode](Tensor(given), Tensor(rows), bound).numpy().tolist()
    return found


def left(scores: Any, sampling: Sampling) -> set[int]:
    """The tokens that filters leave, in float64."""
    order = np.argsort(-scores, kind="stable")
    kept = order[: sampling.top_k] if sampling.top_k else order
    powers = np.exp(scores[kept].astype(np.float64) - scores.max())
    if sampling.typical_p < 1:
        p = powers / powers.sum()
        distance = np.abs(-np.log(p) - (-(p * np.log(p)).sum()))
        near = np.argsort(distance, kind="stable")
        enough = int(np.searchsorted(np.cumsum(p[near]), sampling.typical_p)) + 1
        keep = np.sort(near[:enough])
        kept, powers = kept[keep], powers[keep]
    shares = np.cumsum(powers) / powers.sum()
    enough = int(np.searchsorted(shares, sampling.top_p)) + 1 if sampling.top_p < 1 else len(kept)
    kept, powers = kept[:enough], powers[:enough]
    return set(kept[powers >= sampling.min_p * powers.max()].tolist())


@pytest.mark.parametrize(
    "settings",
    [
        {"top_k": 7}, {"top_k": 1}, {"top_p": 0.3}, {"top_p": 0.0}, {"min_p": 0.2},
        {"top_k": 30, "top_p": 0.6}, {"typical_p": 0.4}, {"typical_p": 0.5, "top_k": 20},
        {"top_k": 10000}, {"top_p": 0.5, "min_p": 0.3},
        {"typical_p": 0.0}, {"typical_p": 0.6, "min_p": 0.4}, {"min_p": 1.0},
    ],
    ids=str,
)  # fmt: skip
def test_filters_leave_what_numpy_leaves(settings: dict[str, Any]) -> None:
    """A high temperature draws each of the few that are left sooner or later, and no other."""
    scores = (RNG.normal(size=WORDS) * 2.5).astype(np.float32)
    sampling = Sampling(temperature=60.0, **settings)
    wanted = left(scores, sampling)
    draws = min(40 * len(wanted), 600)
    found = set(chosen(
        scores, [settings_row(sampling, 3, place) for place in range(draws)], Mode.FULL
    ))  # fmt: skip
    assert found <= wanted
    if len(wanted) < 15:
        assert found == wanted


def test_temperature_gives_the_distribution() -> None:
    """Counts of 4,000 draws, by chi-square at a chance of 1e-6 to fail."""
    scores = np.full(WORDS, -50.0, np.float32)
    scores[:6] = [0.0, 1.0, 2.0, 0.5, -1.0, 1.5]
    for temperature in (0.5, 2.0):
        p = np.exp(scores[:6] / temperature)
        p /= p.sum()
        rows = [settings_row(Sampling(temperature=temperature), 11, at) for at in range(4000)]
        counts = np.bincount(chosen(scores, rows, Mode.SAMPLED), minlength=6)
        assert len(counts) == 6
        assert ((counts - 4000 * p) ** 2 / (4000 * p)).sum() < 38.0  # 5 degrees of freedom


def test_a_choice_is_of_its_row_alone() -> None:
    scores = (RNG.normal(size=WORDS)).astype(np.float32)
    sampling = Sampling(top_k=300, top_p=0.9)
    rows = [settings_row(sampling, seed, place) for seed in (1, 2**63 + 5) for place in range(20)]
    together = chosen(scores, rows, Mode.SAMPLED)
    alone = [chosen(scores, [row], Mode.SAMPLED)[0] for row in rows]
    assert together == alone == chosen(scores, rows, Mode.FULL)
    assert len(set(together[:20])) > 10
    assert together[:20] != together[20:]
    greedy = [settings_row(Sampling(temperature=0.0, top_k=5), 1, 0)]
    best = [int(scores.argmax())]
    assert chosen(scores, greedy, Mode.FULL) == chosen(scores, greedy, Mode.GREEDY) == best
    # In mode SAMPLED beside rows that draw, the best is taken all the same.
    assert chosen(scores, [*rows[:3], *greedy], Mode.SAMPLED)[3:] == best


def test_scores_that_are_no_numbers_choose_nothing() -> None:
    for bad in (math.nan, math.inf):
        scores = np.zeros(WORDS, np.float32)
        scores[50] = bad
        for mode in Mode:
            assert chosen(scores, [settings_row(Sampling(), 0, 0)], mode) == [-1]
    banned = np.full(WORDS, -math.inf, np.float32)
    assert chosen(banned, [settings_row(Sampling(), 0, 0)], Mode.SAMPLED) == [-1]


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": -1.0}, {"temperature": math.nan}, {"top_p": 1.5}, {"top_k": -1},
        {"min_p": "x"}, {"logprobs": 21}, {"stops": ("",)}, {"max_tokens": 0}, {"seed": 1.5},
        {"logit_bias": {-1: 1.0}}, {"logit_bias": {1: math.inf}}, {"repeat_penalty": 0.0},
        {"stops": ("a",) * 17}, {"logit_bias": dict.fromkeys(range(2000), 1.0)}, {"top_k": True},
    ],
    ids=lambda row: str(row)[:40],
)  # fmt: skip
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        Sampling(**settings)


@pytest.mark.parametrize("words", (1536, 320, 331))
def test_a_gpu_finds_the_first_greatest_by_parts(words: int) -> None:
    scores = np.random.default_rng(0).standard_normal((6, words)).astype(np.float32)
    scores[0, [words - 9, 5]], scores[1], scores[2, -1] = 9, 1, 50
    scores[3, 100], scores[4], scores[5, 7] = np.nan, -np.inf, np.inf
    wanted = np.where(np.isfinite(scores.max(-1)), scores.argmax(-1), -1)
    settings = np.stack([settings_row(Sampling(temperature=0.0), 1, 0)] * len(scores))
    with ptx_session():
        found = choose(Tensor(scores), Tensor(settings), Mode.GREEDY).tokens.numpy()
    assert (found == wanted).all()
