"""Guesses of the tokens that follow, which a step then checks all at once.

A guess costs a row of a step. What is chosen does not depend on guesses: each row's token is chosen
as it would be without them, and those that follow a wrong guess are thrown away.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from baregrad.llm.generation.job import Job

LONGEST = 3  # tokens that have to be the same for what followed them to be guessed
SEARCHED = 4096  # latest tokens that are searched


class Guesser(Protocol):
    """Guesses what follows the tokens of jobs."""

    def guess(self, jobs: Sequence[Job], most: Sequence[int]) -> list[list[int]]:
        """Return for each job its next tokens as guessed, at most so many."""

    def forget(self, job: Job) -> None:
        """Let go of what is kept for a job that has ended."""


def guesses_for(
    guesser: Guesser | None, jobs: Sequence[Job], most: int, spare: int
) -> list[list[int]]:
    """Return tokens guessed ahead for each job, at most so many, in `spare` rows of a step."""
    if guesser is None or spare < 1:
        return [[] for _ in jobs]
    counts = []
    for job in jobs:
        count = min(most, spare, job.left - 1) if job.can_be_guessed else 0
        counts.append(max(count, 0))
        spare -= counts[-1]
    return guesser.guess(jobs, counts)


class LookupGuesser:
    """Guesses what followed the same last tokens before, in the prompt or the answer."""

    def guess(self, jobs: Sequence[Job], most: Sequence[int]) -> list[list[int]]:
        """Return for each job its next tokens as guessed, at most so many."""
        return [
            guess_by_lookup(job.tokens, count) for job, count in zip(jobs, most, strict=True)
        ]

    def forget(self, job: Job) -> None:
        """Nothing is kept."""


def guess_by_lookup(tokens: Sequence[int], most: int) -> list[int]:
    """Return what followed the same last tokens the latest time, of as many as can be found."""
    if most < 1:
        return []
    text = list(tokens[-SEARCHED:])
    for length in range(min(LONGEST, len(text) - 1), 0, -1):
        last = text[-length:]
        for begin in range(len(text) - length - 1, -1, -1):
            if text[begin + length - 1] == last[-1] and text[begin : begin + length] == last:
                return text[begin + length : begin + length + most]
    return []
