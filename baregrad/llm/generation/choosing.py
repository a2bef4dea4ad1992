"""Choosing tokens by their scores on the device, a row of settings for each row of scores.

A row's choice depends on its scores and its settings alone. Randomness is counter-based: the noise
of a token is a function of the row's seed, its position and the token's number, so that it does not
matter when and beside what the row is computed.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from baregrad.base.options import is_gpu
from baregrad.dtypes import dtypes
from baregrad.ir.core.node import const
from baregrad.ir.core.op import Ops
from baregrad.llm.generation.sampling import MOST_LOGPROBS, Sampling
from baregrad.tensor import Tensor
from baregrad.tensor.array import nodes
from baregrad.tensor.array.operands import result
from baregrad.tensor.ops.sorting import sort_keys

NOTHING = -1  # what is chosen of scores that are not numbers, or where no token is allowed
_FEW_WORDS = 512
# Scores of a part of which a GPU finds the greatest, and how few it is worth for.
PART, LEAST_PART = 512, 64
_FLOATS = ("temperature", "top_p", "min_p", "typical_p")
_COUNTS = ("top_k", "position", "seed_low", "seed_high")
COLUMNS = len(_FLOATS) + len(_COUNTS)


class Mode(enum.IntEnum):
    """How much of choosing a step can do; each step is of the least that its rows need."""

    GREEDY = 0
    SAMPLED = 1
    FULL = 2

    @classmethod
    def of(cls, sampling: Sampling, is_constrained: bool) -> Mode:
        """Return the least mode that serves a request."""
        if is_constrained or not sampling.is_plain:
            return cls.FULL
        return cls.GREEDY if sampling.is_greedy else cls.SAMPLED


@dataclass(frozen=True)
class Chosen:
    """What a step gives for R rows, on the device.

    tokens: (R,) int32, NOTHING where there is none. In mode FULL also the log-probabilities that
    the model itself gave: logprobs (R,) of the tokens, and those of the best, `best` (R, 20) tokens
    and best_logprobs (R, 20), best first.
    """

    tokens: Tensor
    logprobs: Tensor | None = None
    best: Tensor | None = None
    best_logprobs: Tensor | None = None


@dataclass(frozen=True)
class Edits:
    """Changes of single scores: of E different pairs of row and token, at most one each.

    places: (E, 2) int32. numbers: (E, 3) float32: what is added, by what positive scores are then
    divided, and what is subtracted in the end.
    """

    places: Tensor
    numbers: Tensor


def settings_row(sampling: Sampling, seed: int, position: int) -> Any:
    """Return the settings of one row as COLUMNS int32, floats by their bits."""
    row = np.zeros(COLUMNS, np.int32)
    floats = [getattr(sampling, name) for name in _FLOATS]
    row[: len(_FLOATS)] = np.array(floats, np.float32).view(np.int32)
    words = np.array([seed & (1 << 64) - 1], np.uint64).view(np.int32)
    row[len(_FLOATS) :] = (min(sampling.top_k, (1 << 31) - 1), position, words[0], words[1])
    return row


def choose(
    scores: Tensor,
    settings: Tensor,
    mode: Mode,
    edits: Edits | None = None,
    allowed: Tensor | None = None,
) -> Chosen:
    """Choose a token for each row of scores (R, words) float32.

    settings: (R, COLUMNS) int32, of `settings_row`. allowed: (R, words / 32 rounded up) int32, a
    bit for each token, the lowest first. Edits and bits are those of mode FULL.
    """
    given = scores.contiguous()
    scores = given
    if edits is not None:
        scores = _edited(scores, edits)
    if allowed is not None:
        scores = _permitted(scores, allowed)
    best, high = _best(scores)
    if mode is Mode.GREEDY:
        tokens = best
    else:
        columns = _Columns(settings)
        drawn = _drawn(scores, high, columns, mode)
        tokens = (columns.number("temperature")[:, 0] == 0).where(best, drawn)
    is_number = (high[:, 0] - high[:, 0] == 0).cast(dtypes.bool)
    tokens = is_number.where(tokens.cast(dtypes.int32), NOTHING).cast(dtypes.int32)
    if mode is not Mode.FULL:
        return Chosen(tokens)
    return with_logprobs(given, tokens, MOST_LOGPROBS)


def _best(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Where the first greatest score of each row is (R,), and that score (R, 1).

    A GPU finds the greatest of each part of a row first, and then looks into one part alone.
    """
    words = scores.shape[-1]
    length = min(words & -words, PART)
    if not is_gpu(scores.device) or length < LEAST_PART:
        high = scores.amax(-1, True)
        return scores.argmax(-1), high
    parts = scores.unflatten(-1, (words // length, length))
    highs = parts.amax(-1).contiguous()
    part = highs.argmax(-1, True).contiguous()
    inside = parts.gather(1, part.unsqueeze(-1).expand(-1, 1, length)).argmax(-1)
    return (part * length + inside).squeeze(-1), highs.gather(-1, part)


class _Columns:
    """The settings of rows, by name, each (R, 1)."""

    def __init__(self, settings: Tensor) -> None:
        self._settings = settings

    def number(self, name: str) -> Tensor:
        at = _FLOATS.index(name)
        return self._settings[:, at : at + 1].bitcast(dtypes.float32)

    def count(self, name: str) -> Tensor:
        at = len(_FLOATS) + _COUNTS.index(name)
        return self._settings[:, at : at + 1]


def _edited(scores: Tensor, edits: Edits) -> Tensor:
    row, token = edits.places[:, 0], edits.places[:, 1]
    added, divisor, less = (edits.numbers[:, column] for column in range(3))
    found = scores[row, token] + added
    found = (found > 0).where(found / divisor, found * divisor) - less
    return scores.index_put((row, token), found)


def _permitted(scores: Tensor, allowed: Tensor) -> Tensor:
    """The scores, -inf where a token's bit is 0."""
    words = scores.shape[-1]
    tokens = Tensor.arange(words, dtype=dtypes.int32, device=scores.device)
    bits = allowed.index_select(1, tokens // 32) >> (tokens % 32)[None]
    return ((bits & 1) == 1).where(scores, float("-inf"))


# --- sampling ------------------------------------------------------------------------------------


def _drawn(scores: Tensor, high: Tensor, columns: _Columns, mode: Mode) -> Tensor:
    """A token of each row, drawn among those that the filters leave."""
    keys = _keys(scores).contiguous()
    top_k = columns.count("top_k")
    every = top_k <= 0
    ones = Tensor.ones(*scores.shape, dtype=dtypes.int32, device=scores.device)
    kept = keys >= _least_key(keys, ones, top_k)
    kept = every | kept
    powers = (scores - high).exp()
    powers = kept.where(powers, 0.0).contiguous()
    if mode is Mode.FULL:
        powers = _typical(scores - high, powers, columns.number("typical_p"))
    strongest = powers.amax(-1, True)
    top_p = columns.number("top_p")
    likely = keys >= _least_key(keys, powers, powers.sum(-1, True) * top_p)
    likely = (top_p >= 1) | likely | (powers == strongest)
    likely = likely & (powers > 0) & (powers >= strongest * columns.number("min_p"))
    warmth = columns.number("temperature")
    warmth = (warmth == 0).where(1.0, warmth)
    raised = (scores - high) / warmth - _noise(scores.shape, columns).log()
    return likely.where(raised, float("-inf")).argmax(-1)


def _keys(numbers: Tensor) -> Tensor:
    """Unsigned integers in the order of numbers."""
    signed = sort_keys(numbers.detach().node, False)
    bits = nodes.alu(Ops.XOR, signed, const(-(1 << 31), signed.dtype))
    return result(bits, numbers.detach()).bitcast(dtypes.uint32)


def _least_key(keys: Tensor, weights: Tensor, wanted: Tensor) -> Tensor:
    """The greatest key (R, 1) at or above which weights add up to what is wanted, 0 if none."""
    found = (keys[:, :1] * 0).cast(dtypes.uint32)
    for bit in reversed(range(32)):
        trial = found | (1 << bit)
        enough = (keys >= trial).where(weights, 0).sum(-1, True) >= wanted
        found = enough.where(trial, found).contiguous()
    return found


def _typical(scores: Tensor, powers: Tensor, typical_p: Tensor) -> Tensor:
    """The powers, 0 where a token's surprise is further from the mean than typical_p lets."""
    total = powers.sum(-1, True)
    there = powers > 0
    surprise = total.log() - there.where(scores, 0.0)
    mean = (powers * surprise).sum(-1, True) / total
    nearness = there.where(-(surprise - mean).abs(), float("-inf"))
    keys = _keys(nearness).contiguous()
    near = keys >= _least_key(keys, powers, total * typical_p)
    near = near | (nearness == nearness.amax(-1, True))
    return (typical_p >= 1).where(powers, near.where(powers, 0.0)).contiguous()


def _noise(shape: Sequence[Any], columns: _Columns) -> Tensor:
    """Exponentially distributed numbers (R, words): the least of noise / probability wins."""
    wide = dtypes.uint64
    tokens = Tensor.arange(shape[-1], dtype=wide, device=columns.count("position").device)
    places = (columns.count("position").cast(wide) << 32) + tokens
    low, high = (
        columns.count(name).bitcast(dtypes.uint32).cast(wide) for name in ("seed_low", "seed_high")
    )
    key = nodes.broadcast((low + (high << 32)).node, places.node.shape)
    bits = result(nodes.alu(Ops.THREEFRY, places.node, key), places)
    uniform = ((bits >> 32).cast(dtypes.float32) + 0.5) * 2.0**-32
    return -(-uniform).log1p()


# --- log-probabilities ---------------------------------------------------------------------------


def with_logprobs(scores: Tensor, tokens: Tensor, most: int) -> Chosen:
    """Return tokens (R,) int32 with their log-probabilities, and those of the `most` best.

    scores: (R, words) float32.
    """
    high = scores.amax(-1, True)
    total = (scores - high).exp().sum(-1, True).log() + high
    own = scores.take_along_dim(tokens.clamp(min=0).long()[:, None], 1) - total
    if most == 1:
        first = scores.argmax(-1, True).cast(dtypes.int32)
        return Chosen(tokens, own[:, 0], first, high - total)
    words = scores.shape[-1]
    # The best of few words would be found by sorting, for which rows have to be counted first.
    wide = scores if words >= _FEW_WORDS else scores.pad((0, _FEW_WORDS - words), value=-math.inf)
    best = wide.topk(min(most, words), -1)
    return Chosen(tokens, own[:, 0], best.indices.cast(dtypes.int32), best.values - total)
