"""How tokens of one answer are chosen: the settings of a request, checked when they are made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from baregrad.base.errors import ArgumentError

MOST_LOGPROBS = 20
MOST_STOPS = 16
MOST_BIASES = 1024
_EMPTY: Mapping[int, float] = MappingProxyType({})


@dataclass(frozen=True)
class Sampling:
    """The settings of one request; by default each token is drawn from the model's distribution.

    Scores are changed and tokens left out in this order: `logit_bias` is added by token;
    `repeat_penalty` divides positive scores (and multiplies negative ones) of the `repeat_last`
    latest tokens, `presence_penalty` is subtracted once and `frequency_penalty` for each occurrence
    from tokens of the answer; `top_k` leaves the k best (0 all), `typical_p` those whose surprise
    is closest to the expected one, `top_p` the best whose probabilities add up to p, `min_p` those
    at least p times as probable as the best. Then scores are divided by `temperature`; at 0 the
    best is taken. Tokens of equal score stay or go together.

    `seed`: the same numbers at each run, None for fresh ones. `logprobs`: how many alternatives are
    told with each token, None for none and no log-probability either. `stops`: texts that end the
    answer and are not part of it. `max_tokens`: None for as many as the context holds.
    `ignores_ends`: the model's own ends end nothing.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    repeat_last: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=lambda: _EMPTY)
    seed: int | None = None
    logprobs: int | None = None
    stops: tuple[str, ...] = ()
    max_tokens: int | None = None
    ignores_ends: bool = False

    def __post_init__(self) -> None:
        _check("temperature", self.temperature, 0.0, 100.0)
        _check("top_p", self.top_p, 0.0, 1.0)
        _check("min_p", self.min_p, 0.0, 1.0)
        _check("typical_p", self.typical_p, 0.0, 1.0)
        _check("repeat_penalty", self.repeat_penalty, 1e-3, 1e3)
        _check("presence_penalty", self.presence_penalty, -100.0, 100.0)
        _check("frequency_penalty", self.frequency_penalty, -100.0, 100.0)
        _check_count("top_k", self.top_k, 0, 1 << 30)
        _check_count("repeat_last", self.repeat_last, 0, 1 << 30)
        if self.seed is not None:
            _check_count("seed", self.seed, -(1 << 63), (1 << 64) - 1)
        if self.logprobs is not None:
            _check_count("logprobs", self.logprobs, 0, MOST_LOGPROBS)
        if self.max_tokens is not None:
            _check_count("max_tokens", self.max_tokens, 1, 1 << 30)
        if len(self.stops) > MOST_STOPS or not all(self.stops):
            raise ArgumentError(
                "stops are texts", found=f"{len(self.stops)}, or an empty one",
                wanted=f"{MOST_STOPS} at most",
            )
        if len(self.logit_bias) > MOST_BIASES:
            raise ArgumentError(
                "too many biases", found=len(self.logit_bias), wanted=f"{MOST_BIASES} at most"
            )
        for token, bias in self.logit_bias.items():
            _check_count("a token of logit_bias", token, 0, 1 << 30)
            if bias != -math.inf:
                _check(f"the bias of token {token}", bias, -1e4, 1e4)

    @property
    def is_greedy(self) -> bool:
        """Whether the best token is taken, so that no filter matters."""
        return self.temperature == 0.0

    @property
    def has_edits(self) -> bool:
        """Whether scores of single tokens are changed."""
        return bool(self.logit_bias) or self.has_penalties

    @property
    def has_penalties(self) -> bool:
        """Whether what was written before changes scores."""
        return (
            self.repeat_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )

    @property
    def is_plain(self) -> bool:
        """Whether choosing needs no more than scores, filters and noise."""
        return not self.has_edits and self.logprobs is None and self.typical_p >= 1.0


def _check(name: str, value: float, least: float, most: float) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:
        raise ArgumentError(f"{name} is a number", found=value, wanted=f"{least:g} to {most:g}")


def _check_count(name: str, value: int, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ArgumentError(f"{name} is an integer", found=value, wanted=f"{least} to {most}")
