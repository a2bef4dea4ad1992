"""Steps of a decoder over a paged cache: a chunk of a prompt, or one row each of many sequences.

A step is one replay of one jitted function, from the tokens' vectors to the chosen tokens. Numbers
of tokens, rows and pages are symbolic, so that one capture serves all and no kernel depends on
them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, Protocol, TypeVar

import numpy as np

from baregrad.base.errors import ArgumentError
from baregrad.engine.canonical import bind
from baregrad.ir.core.index import variable
from baregrad.llm.generation.choosing import (
    COLUMNS,
    Chosen,
    Edits,
    Mode,
    choose,
    settings_row,
    with_logprobs,
)
from baregrad.llm.generation.layer_pages import StepPlaces
from baregrad.llm.generation.paged_cache import PagedCache, pages_of, views
from baregrad.llm.generation.sampling import MOST_LOGPROBS, Sampling
from baregrad.llm.models.cache import LayerCache
from baregrad.llm.models.traits import CacheRow
from baregrad.tensor import Tensor
from baregrad.tensor.jit.jit import Jit

P = ParamSpec("P")
R = TypeVar("R")

_EDIT_SIZES = (64, 4096, 1 << 18)  # changes of scores that a step's arrays have room for
SCORED = 64  # tokens of a prompt that are scored at once: each takes a row of all words
_NO_EDIT = (0.0, 1.0, 0.0)
_FIRST = 2  # columns of a row before its settings: its token and its position


class StepDecoder(Protocol):
    """What of a decoder steps are made of."""

    def cache_rows(self) -> list[CacheRow]:
        """Return what a token takes in a cache, for each layer."""

    def __call__(
        self, words: Tensor, positions: Tensor, caches: Sequence[LayerCache]
    ) -> Tensor:
        """Return the hidden states (T, width) of words (T,) at positions (T,)."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the scores (R, words) of the words after hidden states (R, width)."""


@dataclass(frozen=True)
class TokenChoice:
    """How the token after one row is chosen.

    edits: what is added to, divides and is subtracted from the scores of some tokens. bits: which
    tokens are allowed, all where it is None.
    """

    sampling: Sampling
    seed: int
    edits: Sequence[tuple[int, float, float, float]] = ()
    bits: Any = None

    @property
    def mode(self) -> Mode:
        """Return the least mode of a step that can make the choice."""
        return Mode.of(self.sampling, self.bits is not None)


@dataclass(frozen=True)
class TokenRow:
    """A token of a sequence whose pages hold all before it, and how the next one is chosen."""

    token: int
    position: int
    pages: Sequence[int]
    choice: TokenChoice


@dataclass(frozen=True)
class StepResult:
    """What a step chose for each row, as arrays on the host (see `Chosen`)."""

    tokens: Any
    logprobs: Any = None
    best: Any = None
    best_logprobs: Any = None


class Stepper:
    """Runs steps of one decoder over one cache.

    rows: the most sequences of a step. chunk: the most tokens of a prompt in one step. context: the
    most tokens of a sequence. words: how many tokens the decoder scores.
    """

    def __init__(
        self,
        decoder: StepDecoder,
        cache: PagedCache,
        words: int,
        *,
        rows: int = 16,
        chunk: int = 256,
        context: int = 2048,
        device: str | None = None,
    ) -> None:
        for name, value in (("rows", rows), ("chunk", chunk), ("context", context)):
            if value < 1:
                raise ArgumentError(f"{name} of a step", found=value, wanted="1 or more")
        self.decoder, self.cache, self.words = decoder, cache, words
        self.rows, self.chunk, self.context = rows, chunk, context
        self.table_width = pages_of(context)
        self._device = device
        self._row_count = variable("rows", 1, rows)
        self._token_count = variable("tokens", 1, chunk)
        self._first = variable("first", 0, context - 1)
        self._page_count = variable("pages", 1, self.table_width)
        self._table: tuple[Any, Tensor] | None = None
        self._every_bit = np.full((rows, -(-words // 32)), -1, np.int32)
        self._row_steps = {mode: _jit(self._row_function(mode)) for mode in Mode}
        self._last_steps = {mode: _jit(self._last_function(mode)) for mode in Mode}
        self._chunk_step = _jit(self._chunk_function())
        self._score_steps = {most: _jit(self._score_function(most)) for most in (1, MOST_LOGPROBS)}

    def run_rows(self, rows: Sequence[TokenRow]) -> StepResult:
        """Choose the token after each of some rows, and keep their tokens in the cache.

        Rows of one sequence may stand beside each other, at positions that follow each other.
        """
        if not 1 <= len(rows) <= self.rows:
            raise ArgumentError("rows of a step", found=len(rows), wanted=f"1 to {self.rows}")
        table = np.zeros((self.rows, self.table_width), np.int32)
        control = np.zeros((self.rows, _FIRST + COLUMNS), np.int32)
        for number, row in enumerate(rows):
            table[number, : len(row.pages)] = row.pages
            control[number] = self._control(row)
        choices = [row.choice for row in rows]
        mode = max(choice.mode for choice in choices)
        pages = pages_of(1 + max(row.position for row in rows))
        # A lone row needs no symbol: its products are sums that read the weights once.
        count = 1 if self.rows == 1 else bind(self._row_count, len(rows))
        found = self._row_steps[mode](
            self._shared_table(table), self._tensor(control), *self._extras(mode, choices),
            count, bind(self._page_count, pages),
        )
        return StepResult(*(each.numpy() for each in found))

    def run_chunk(
        self, tokens: Sequence[int], start: int, pages: Sequence[int], choice: TokenChoice | None
    ) -> StepResult | None:
        """Keep a chunk of a prompt in the cache; with a choice, choose the token after it."""
        count = len(tokens)
        if not 1 <= count <= self.chunk:
            raise ArgumentError("tokens of a chunk", found=count, wanted=f"1 to {self.chunk}")
        common = self._chunk(pages, tokens)
        bound = self._chunk_sizes(start, count)
        if choice is None:
            self._chunk_step(*common, *bound)
            return None
        row = TokenRow(tokens[-1], start + count - 1, pages, choice)
        control = np.zeros((1, _FIRST + COLUMNS), np.int32)
        control[0] = self._control(row)
        mode = choice.mode
        found = self._last_steps[mode](
            *common, self._tensor(control), *self._extras(mode, [choice], 1), *bound
        )
        return StepResult(*(each.numpy() for each in found))

    def run_scores(
        self, tokens: Sequence[int], following: Sequence[int], start: int, pages: Sequence[int],
        most: int,
    ) -> StepResult:
        """Keep a chunk of a prompt in the cache, and tell of what follows each of its tokens.

        following: the token after each, of which the result has the log-probabilities, beside
        those of the `most` best tokens in its place.
        """
        count = len(tokens)
        if not 1 <= count <= min(self.chunk, SCORED) or count != len(following):
            raise ArgumentError("tokens of a chunk", found=count, wanted=f"1 to {SCORED}")
        found = self._score_steps[1 if most <= 1 else MOST_LOGPROBS](
            *self._chunk(pages, tokens, following),
            *self._chunk_sizes(start, count),
        )
        return StepResult(*(each.numpy() for each in found))

    def _chunk(self, pages: Sequence[int], *rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """A chunk's page table, and rows of numbers for its tokens."""
        table = np.zeros(self.table_width, np.int32)
        table[: len(pages)] = pages
        words = np.zeros((len(rows), self.chunk), np.int32)
        words[:, : len(rows[0])] = rows
        return self._tensor(table), self._tensor(words)

    def _chunk_sizes(self, start: int, count: int) -> tuple[Any, Any, Any]:
        """Where a chunk begins, its tokens, and the pages up to its end, bound."""
        pages = pages_of(start + count)
        return (
            bind(self._first, start), bind(self._token_count, count),
            bind(self._page_count, pages),
        )

    # --- the jitted functions --------------------------------------------------------------------

    def _row_function(self, mode: Mode) -> Callable[..., list[Tensor]]:
        # Not the cache: whose pages are whose changes from step to step.
        decoder, layers = self.decoder, self.cache.layers

        def rows_step(
            table: Tensor, control: Tensor, extras: tuple[Tensor, ...], edits: Any, rows: Any,
            pages: Any,
        ) -> list[Tensor]:
            table, control = table[:rows, :pages], control[:rows]
            words, positions = control[:, 0], control[:, 1]
            hidden = decoder(words, positions, views(layers, StepPlaces(table, positions)))
            scores = decoder.logits(hidden)
            return _choose(scores, control[:, _FIRST:], mode, extras, edits, rows)

        return rows_step

    def _last_function(self, mode: Mode) -> Callable[..., list[Tensor]]:
        decoder, layers = self.decoder, self.cache.layers

        def last_step(
            table: Tensor, words: Tensor, control: Tensor, extras: tuple[Tensor, ...], edits: Any,
            first: Any, count: Any, pages: Any,
        ) -> list[Tensor]:
            places = StepPlaces.of_chunk(table[:pages], first, count)
            hidden = decoder(words[0, :count], places.positions, views(layers, places))
            scores = decoder.logits(hidden[count - 1 : count])
            return _choose(scores, control[:, _FIRST:], mode, extras, edits, 1)

        return last_step

    def _chunk_function(self) -> Callable[..., None]:
        decoder, layers = self.decoder, self.cache.layers

        def chunk_step(table: Tensor, words: Tensor, first: Any, count: Any, pages: Any) -> None:
            places = StepPlaces.of_chunk(table[:pages], first, count)
            decoder(words[0, :count], places.positions, views(layers, places))

        return chunk_step

    def _score_function(self, most: int) -> Callable[..., list[Tensor]]:
        decoder, layers = self.decoder, self.cache.layers

        def score_step(
            table: Tensor, words: Tensor, first: Any, count: Any, pages: Any
        ) -> list[Tensor]:
            places = StepPlaces.of_chunk(table[:pages], first, count)
            words, following = words[0, :count], words[1, :count]
            scores = decoder.logits(decoder(words, places.positions, views(layers, places)))
            return _listed(with_logprobs(scores.contiguous(), following, most))

        return score_step

    # --- what is handed in -----------------------------------------------------------------------

    def _control(self, row: TokenRow) -> Any:
        settings = settings_row(row.choice.sampling, row.choice.seed, row.position + 1)
        return np.concatenate([np.array([row.token, row.position], np.int32), settings])

    def _extras(
        self, mode: Mode, choices: Sequence[TokenChoice], rows: int | None = None
    ) -> tuple[tuple[Tensor, ...], Any]:
        """Edits and bits of all rows, in arrays with room for more, and the number of edits."""
        if mode is not Mode.FULL:
            return (), 0
        found = [
            (number, *edit) for number, choice in enumerate(choices) for edit in choice.edits
        ] or [(0, 0, *_NO_EDIT)]
        room = next((size for size in _EDIT_SIZES if size >= len(found)), None)
        if room is None:
            raise ArgumentError("changes of scores in one step", found=len(found),
                                wanted=f"{_EDIT_SIZES[-1]} at most")  # fmt: skip
        places, numbers = np.zeros((room, 2), np.int32), np.zeros((room, 3), np.float32)
        places[: len(found)] = [edit[:2] for edit in found]
        numbers[: len(found)] = [edit[2:] for edit in found]
        bits = self._every_bit[: rows or self.rows].copy()
        for number, choice in enumerate(choices):
            if choice.bits is not None:
                bits[number] = choice.bits
        tensors = (self._tensor(places), self._tensor(numbers), self._tensor(bits))
        return tensors, bind(variable(f"edits_{room}", 1, room), len(found))

    def _shared_table(self, table: Any) -> Tensor:
        """The table on the device; it is uploaded only when a sequence has got a page."""
        if self._table is None or not np.array_equal(self._table[0], table):
            self._table = (table, self._tensor(table).realize())
        return self._table[1]

    def _tensor(self, array: Any) -> Tensor:
        return Tensor(array, device=self._device)


def _jit(function: Callable[P, R]) -> Jit[P, R]:
    return Jit(function, is_ours=True)


def _choose(
    scores: Tensor, settings: Tensor, mode: Mode, extras: tuple[Tensor, ...], edits: Any, rows: Any
) -> list[Tensor]:
    if not extras:
        return [choose(scores, settings, mode).tokens]
    places, numbers, bits = extras
    given = Edits(places[:edits], numbers[:edits])
    return _listed(choose(scores, settings, mode, given, bits[:rows]))


def _listed(chosen: Chosen) -> list[Tensor]:
    found = (chosen.tokens, chosen.logprobs, chosen.best, chosen.best_logprobs)
    return [each for each in found if each is not None]
