"""Guesses by a smaller model, which reads the same tokens in a cache of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from baregrad.base.errors import ArgumentError
from baregrad.llm.generation.choosing import NOTHING
from baregrad.llm.generation.job import Job
from baregrad.llm.generation.paged_cache import pages_of
from baregrad.llm.generation.stepper import Stepper, TokenChoice, TokenRow


@dataclass
class _Followed:
    """A job as the smaller model knows it: the tokens that its pages hold."""

    tokens: list[int] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)


class DraftGuesser:
    """Guesses what a smaller model would choose, with the same settings and the same noise."""

    def __init__(self, stepper: Stepper, words: int) -> None:
        """Take a stepper of the smaller model, for a model that scores `words` tokens."""
        if stepper.words != words:
            raise ArgumentError(
                "a model that guesses has the same tokens", found=f"{stepper.words} tokens",
                wanted=words,
            )
        self._stepper = stepper
        self._followed: dict[int, _Followed] = {}

    def guess(self, jobs: Sequence[Job], most: Sequence[int]) -> list[list[int]]:
        """Return for each job its next tokens as guessed, at most so many."""
        guesses: list[list[int]] = [[] for _ in jobs]
        wanted = {
            number: count for number, count in enumerate(most)
            if count > 0 and self._read(jobs[number], count)
        }
        while wanted:
            numbers = list(wanted)[: self._stepper.rows]
            rows = []
            for number in numbers:
                job, guessed = jobs[number], guesses[number]
                followed = self._followed[id(job)]
                token = guessed[-1] if guessed else job.tokens[-1]
                rows.append(TokenRow(token, len(followed.tokens), followed.pages, _choice(job)))
                followed.tokens.append(token)
            found = self._stepper.run_rows(rows).tokens.tolist()
            for number, token in zip(numbers, found, strict=True):
                wanted[number] -= 1
                if token == NOTHING or not wanted[number]:
                    del wanted[number]
                if token != NOTHING:
                    guesses[number].append(token)
        return guesses

    def forget(self, job: Job) -> None:
        """Let go of what is kept for a job that has ended."""
        followed = self._followed.pop(id(job), None)
        if followed is not None:
            self._stepper.cache.pool.give_back(followed.pages)

    def _read(self, job: Job, count: int) -> bool:
        """Read all but a job's last token, with room for `count` more; whether there is room."""
        stepper, pool = self._stepper, self._stepper.cache.pool
        followed = self._followed.setdefault(id(job), _Followed())
        end = len(job.tokens) - 1
        if end + count > stepper.context:
            return False
        taken = pool.take(max(pages_of(end + count) - len(followed.pages), 0))
        if taken is None:
            return False
        followed.pages.extend(taken)
        same = _same_beginning(followed.tokens, job.tokens[:end])
        del followed.tokens[same:]
        while len(followed.tokens) < end:
            begin = len(followed.tokens)
            part = job.tokens[begin : min(begin + stepper.chunk, end)]
            stepper.run_chunk(part, begin, followed.pages, None)
            followed.tokens.extend(part)
        return True


def _choice(job: Job) -> TokenChoice:
    # The noise of a token depends on its place and the seed, so that both models draw alike.
    return TokenChoice(replace(job.request.sampling, logprobs=None), job.seed)


def _same_beginning(one: Sequence[int], other: Sequence[int]) -> int:
    """How many first tokens are the same."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
