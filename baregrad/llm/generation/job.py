"""One request in the engine: its tokens, its pages, and the text that has come out of it."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from baregrad.llm.generation.constraints import Constraint
from baregrad.llm.generation.layer_pages import PAGE
from baregrad.llm.generation.page_pool import prefix_hashes
from baregrad.llm.generation.paged_cache import Saved
from baregrad.llm.generation.request import AnswerPiece, AnswerRequest, ChosenToken, Stream
from baregrad.llm.generation.stepper import StepResult, TokenChoice, TokenRow
from baregrad.llm.generation.stops import StopFinder


class TextMaker(Protocol):
    """Turns tokens into text as they come."""

    def add(self, token: int) -> str:
        """Return the characters that a token completes."""

    def finish(self) -> str:
        """Return what is left."""


class Job:
    """A request's state. `computed` tokens have their keys and values in its pages."""

    def __init__(
        self,
        request: AnswerRequest,
        stream: Stream,
        seed: int,
        text: TextMaker,
        ends: frozenset[int],
        most: int,
        constraint: Constraint | None,
    ) -> None:
        """Begin with a prompt; `most`: how many tokens the answer has at most."""
        self.request, self.stream, self.seed = request, stream, seed
        self.tokens = list(request.tokens)
        self.prompt = len(self.tokens)
        self.most = most
        self.computed = 0
        self.pages: list[int] = []
        self.hashes = prefix_hashes(self.tokens, request.salt)
        self.published = 0
        self.saved: Saved | None = None
        self.admitted = 0
        self._ends = frozenset() if request.sampling.ignores_ends else ends
        self._all_ends = ends
        self._text = text
        self._stops = StopFinder(request.sampling.stops)
        self._constraint = constraint
        self._counts: Counter[int] = Counter()

    @property
    def is_prompt(self) -> bool:
        """Whether some of the prompt is still to be computed."""
        return self.computed < self.prompt

    @property
    def can_be_guessed(self) -> bool:
        """Whether tokens may be guessed ahead: what follows them needs no step by step state."""
        return self._constraint is None and not self.request.sampling.has_penalties

    @property
    def left(self) -> int:
        """Return how many tokens the answer may still have."""
        return self.most - (len(self.tokens) - self.prompt)

    @property
    def read_from(self) -> int:
        """Return the first token of the prompt whose scores are wanted."""
        scored_from = self.request.scored_from
        return self.prompt - 1 if scored_from is None else max(scored_from - 1, 0)

    def next_chunk(self, chunk: int) -> int:
        """Return where the next chunk of the prompt ends: chunks end at the same places always."""
        return min(self.prompt, (self.computed // chunk + 1) * chunk)

    def become_prompt(self) -> bool:
        """Make a prompt of the whole pages of prompt and answer; whether there is more to compute.

        An answer's keys and values come from steps of single rows, whose rounding is not that of
        chunks: before others may find them, they are computed as a prompt's are.
        """
        self.computed = self.prompt
        self.prompt = len(self.tokens) // PAGE * PAGE
        self.hashes = prefix_hashes(self.tokens, self.request.salt)
        return self.is_prompt

    def row(self, position: int, token: int) -> TokenRow:
        """Return the row of a token, whose choice is that of the token after it."""
        return TokenRow(token, position, self.pages, self.choice())

    def choice(self) -> TokenChoice:
        """Return how the next token is chosen."""
        bits = None if self._constraint is None else self._constraint.bits()
        return TokenChoice(self.request.sampling, self.seed, self._edits(), bits)

    def full_pages(self) -> int:
        """Return how many of its pages the prompt fills and has been computed for."""
        return min(self.computed, self.prompt) // PAGE

    def _edits(self) -> list[tuple[int, float, float, float]]:
        sampling = self.request.sampling
        if not sampling.has_edits:
            return []
        bias = sampling.logit_bias
        if not sampling.has_penalties:
            return [(token, added, 1.0, 0.0) for token, added in bias.items()]
        last = sampling.repeat_last
        latest = set(self.tokens[-last:]) if last and sampling.repeat_penalty != 1.0 else set()
        found = []
        for token in {*bias, *self._counts, *latest}:
            count = self._counts[token]
            less = count * sampling.frequency_penalty
            less += sampling.presence_penalty if count else 0.0
            divisor = sampling.repeat_penalty if token in latest else 1.0
            found.append((token, bias.get(token, 0.0), divisor, less))
        return sorted(found)

    def add(self, result: StepResult, number: int) -> bool:
        """Take the token that a step chose in a row; return whether the answer goes on."""
        token = int(result.tokens[number])
        self.tokens.append(token)
        self.stream.usage.answer += 1
        told = (self._told(token, result, number),)
        is_end = token in self._ends or (self._constraint is not None and token in self._all_ends)
        text = ""
        if not is_end:
            self._counts[token] += 1
            if self._constraint is not None:
                self._constraint.add(token)
            text = self._stops.add(self._text.add(token))
        if self._stops.found is not None:
            self.stream.put(AnswerPiece(text, told, "stop", self._stops.found))
            return False
        is_done = is_end or (self._constraint is not None and self._constraint.is_done)
        if is_done or self.left <= 0:
            text += self._rest()
            reason = "stop" if is_done or self._stops.found is not None else "length"
            self.stream.put(AnswerPiece(text, told, reason, self._stops.found))
            return False
        if text or told:
            self.stream.put(AnswerPiece(text, told))
        return True

    def _rest(self) -> str:
        """What was held back, by characters that are not whole or by stops."""
        text = self._stops.add(self._text.finish())
        return text if self._stops.found is not None else text + self._stops.finish()

    def _told(self, token: int, result: StepResult, number: int) -> ChosenToken:
        count = self.request.sampling.logprobs
        if count is None or result.logprobs is None:
            return ChosenToken(token)
        best = zip(
            result.best[number][:count].tolist(), result.best_logprobs[number][:count].tolist(),
            strict=True,
        )
        return ChosenToken(token, float(result.logprobs[number]), tuple(best))

