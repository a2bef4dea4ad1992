"""The engine: many requests at once over one decoder, in a thread of its own.

Each turn computes a chunk of one prompt, if any waits, and a row of every answer. The tokens of an
answer depend on its request alone: prompts are cut at the same places always, steps are the same
kernels for any number of rows, and pages that a prompt left in the cache hold what another would
compute.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Protocol

import numpy as np

from baregrad.base.errors import ArgumentError, BaregradError, QueueFull
from baregrad.llm.generation.choosing import NOTHING
from baregrad.llm.generation.constraints import AnswerForm, Constraint, Constraints, Words
from baregrad.llm.generation.guessing import Guesser, guesses_for
from baregrad.llm.generation.job import Job, TextMaker
from baregrad.llm.generation.request import AnswerPiece, AnswerRequest, ChosenToken, Stream
from baregrad.llm.generation.scheduler import Scheduler
from baregrad.llm.generation.stepper import SCORED, Stepper, StepResult, TokenRow


class EngineTokenizer(Words, Protocol):
    """What of a tokenizer the engine uses."""

    def detokenizer(self, *, shown: Sequence[str] = ()) -> TextMaker:
        """Return what turns an answer's tokens into text as they come."""


@dataclass
class Counts:
    """What the engine has done since it began, in requests, tokens and steps."""

    requests: int = 0
    refused: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    answer_tokens: int = 0
    kept_tokens: int = 0
    guessed_tokens: int = 0
    accepted_tokens: int = 0
    steps: int = 0


class AnswerEngine:
    """Answers requests; `start` lets a thread do so, or call `step` for each turn.

    most_waiting: requests that may wait; further ones raise QueueFull. guesses: the most tokens
    that are guessed ahead for one answer, by `guesser`.
    """

    def __init__(
        self,
        stepper: Stepper,
        tokenizer: EngineTokenizer,
        *,
        most_waiting: int = 256,
        guesser: Guesser | None = None,
        guesses: int = 4,
    ) -> None:
        pages = stepper.cache.pool.count - 1
        if pages < stepper.table_width:
            raise ArgumentError(
                "the cache is smaller than a whole context", found=f"{pages} pages",
                wanted=f"{stepper.table_width} or more",
            )
        self.stepper, self.tokenizer = stepper, tokenizer
        self.most_waiting = most_waiting
        self.counts = Counts()
        self._guesser, self._guesses = guesser, guesses
        self._scheduler = Scheduler(stepper.cache, stepper.rows)
        self._incoming: list[Job] = []
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._constraints: Constraints | None = None
        self._constraints_lock = threading.Lock()

    # --- from any thread -------------------------------------------------------------------------

    def submit(self, request: AnswerRequest) -> Stream:
        """Let a request wait for its turn and return the stream of its answer.

        Raises QueueFull where too many wait, ArgumentError for a prompt that does not fit, a token
        that does not exist, or a form that cannot be enforced.
        """
        most = self.check(request)
        constraint = None if request.form is None else self._constraint(request.form)
        stream = Stream(len(request.tokens))
        seed = request.sampling.seed
        job = Job(
            request, stream, secrets.randbits(63) if seed is None else seed,
            self.tokenizer.detokenizer(shown=request.shown), self.tokenizer.ends, most, constraint,
        )
        with self._wake:
            if self._is_closed:
                raise QueueFull("the engine has been closed")
            waiting = self.waiting
            if waiting >= self.most_waiting:
                self.counts.refused += 1
                raise QueueFull(
                    "too many requests wait", found=waiting,
                    wanted=f"fewer than {self.most_waiting}", hint="try again later",
                )
            self._incoming.append(job)
            self.counts.requests += 1
            self._wake.notify()
        return stream

    def check(self, request: AnswerRequest) -> int:
        """Return how many tokens a request's answer may have. Raises ArgumentError."""
        count, context = len(request.tokens), self.stepper.context
        if not count:
            raise ArgumentError("the prompt is empty", found="no token", wanted="one or more")
        if count >= context:
            raise ArgumentError(
                "the prompt is longer than the context", found=f"{count} tokens",
                wanted=f"{context - 1} at most",
            )
        if request.scored_from is not None and not 0 <= request.scored_from <= count:
            raise ArgumentError(
                "the prompt has no such place to be told from", found=request.scored_from,
                wanted=f"0 to {count}",
            )
        words = self.stepper.words
        for token in (*request.tokens, *request.sampling.logit_bias):
            if not 0 <= token < words:
                raise ArgumentError("no such token", found=token, wanted=f"0 to {words - 1}")
        return min(request.sampling.max_tokens or context, context - count)

    @property
    def is_alive(self) -> bool:
        """Whether what is submitted is answered: not once closed, or without its thread."""
        return not self._is_closed

    @property
    def waiting(self) -> int:
        """Return how many requests have not begun."""
        return len(self._incoming) + self._scheduler.waiting

    def statistics(self) -> dict[str, int]:
        """Return counts, and how many requests and pages there are of each kind now."""
        scheduler, pool = self._scheduler, self.stepper.cache.pool
        return asdict(self.counts) | {
            "running": len(scheduler.running), "waiting": self.waiting, "moved": scheduler.moved,
            "preemptions": scheduler.preemptions, "pages": pool.count - 1,
            "pages_free": pool.free, "pages_known": pool.known,
        }

    def start(self) -> AnswerEngine:
        """Let a thread take turns while there is work."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="baregrad engine", daemon=True)
            self._thread.start()
        return self

    def close(self) -> None:
        """End all answers as cancelled, and the thread."""
        with self._wake:
            self._is_closed = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._take_incoming()
        for job in self._scheduler.jobs():
            self._finish(job, AnswerPiece(reason="cancelled"))
        self._scheduler.let_go()

    def __enter__(self) -> AnswerEngine:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # --- turns -----------------------------------------------------------------------------------

    def step(self) -> bool:
        """Take one turn; whether there was work."""
        self._take_incoming()
        for job in self._scheduler.jobs():
            if job.stream.is_cancelled:
                self.counts.cancelled += 1
                self._finish(job, AnswerPiece(reason="cancelled"))
        self._scheduler.admit()
        prompt = self._scheduler.next_prompt()
        ended = self._scheduler.next_ended() if prompt is None else None
        if prompt is not None:
            self._run_chunk(prompt)
        elif ended is not None:
            self._keep_chunk(ended)
        answering = self._scheduler.answering()
        if answering:
            self._run_rows(answering)
        return prompt is not None or ended is not None or bool(answering)

    def run(self) -> None:
        """Take turns until nothing is left to do."""
        while self.step() or self.waiting:
            pass

    def _run(self) -> None:
        try:
            self._take_turns()
        except BaseException as error:
            # Nobody waits for a thread that is no more.
            with self._wake:
                self._is_closed = True
            self._take_incoming()
            self._fail(error, self._scheduler.jobs())
            raise

    def _take_turns(self) -> None:
        while True:
            with self._wake:
                while not (self._is_closed or self._incoming or self._scheduler.has_work):
                    self._wake.wait()
                if self._is_closed:
                    return
            try:
                self.step()
            except Exception as error:  # noqa: BLE001 - answers end with it, the engine goes on
                self._fail(error, self._scheduler.begun())

    def _take_incoming(self) -> None:
        with self._wake:
            for job in self._incoming:
                self._scheduler.add(job)
            self._incoming.clear()

    def _run_chunk(self, job: Job) -> None:
        begin, chunk = job.computed, self.stepper.chunk
        end = job.next_chunk(chunk)
        scores = job.request.scored_from is not None and end > job.read_from
        if scores:
            end = job.next_chunk(min(chunk, SCORED))
        if not self._scheduler.provide(job, end):
            return
        choice = job.choice() if end == job.prompt else None
        self.counts.steps += 1
        found = None
        if scores and not self._score(job, begin, end):
            return
        if choice is not None or not scores:
            # A token that is computed again, to choose what follows, gets the same bits.
            first = end - 1 if scores else begin
            found = self.stepper.run_chunk(job.tokens[first:end], first, job.pages, choice)
        if not begin or begin == job.stream.usage.cached:
            self.counts.cached_tokens += begin
        self.counts.prompt_tokens += end - begin
        job.computed = end
        self._scheduler.publish(job)
        if found is not None:
            self._take(job, found, 0)

    def _score(self, job: Job, begin: int, end: int) -> bool:
        """Tell the log-probabilities of what follows a chunk's tokens; whether the job goes on."""
        count = job.request.sampling.logprobs or 0
        following = [*job.tokens[begin + 1 : end + 1], 0][: end - begin]
        found = self.stepper.run_scores(
            job.tokens[begin:end], following, begin, job.pages, count
        )
        first = max(job.read_from, begin)
        if np.isnan(found.logprobs[first - begin : end - begin]).any():
            self._fail_scores(job)
            return False
        told = [ChosenToken(job.tokens[0])] if job.request.scored_from == 0 == begin else []
        told += [
            ChosenToken(
                job.tokens[at + 1], float(found.logprobs[at - begin]),
                tuple(zip(found.best[at - begin][:count].tolist(),
                          found.best_logprobs[at - begin][:count].tolist(), strict=True)),
            )
            for at in range(first, min(end, job.prompt - 1))
        ]  # fmt: skip
        if told:
            job.stream.put(AnswerPiece(prompt=tuple(told)))
        return True

    def _fail_scores(self, job: Job) -> None:
        self._scheduler.empty_pages(job)
        error = BaregradError(
            "no token can be chosen",
            found="scores that are not numbers, or no token that is allowed",
        )
        self.counts.failed += 1
        self._finish(job, AnswerPiece(reason="error", error=error))

    def _keep_chunk(self, job: Job) -> None:
        """Compute a chunk of an answer that has ended, so that the next turn finds it."""
        begin, end = job.computed, job.next_chunk(self.stepper.chunk)
        self.counts.steps += 1
        self.stepper.run_chunk(job.tokens[begin:end], begin, job.pages, None)
        self.counts.kept_tokens += end - begin
        job.computed = end
        self._scheduler.publish(job)
        if not job.is_prompt:
            self._scheduler.let_go(job)

    def _run_rows(self, jobs: list[Job]) -> None:
        spare = self.stepper.rows - len(jobs)
        guesses = guesses_for(self._guesser, jobs, self._guesses, spare)
        rows: list[TokenRow] = []
        spans: list[tuple[Job, int, list[int]]] = []
        for job, guessed in zip(jobs, guesses, strict=True):
            count = len(job.tokens)
            if job not in self._scheduler.running or not self._scheduler.provide(job, count):
                continue
            if not self._scheduler.can_provide(job, count + len(guessed)):
                guessed = []
            self._scheduler.provide(job, count + len(guessed))
            spans.append((job, len(rows), guessed))
            followed = [job.tokens[-1], *guessed]
            rows.extend(job.row(count - 1 + at, token) for at, token in enumerate(followed))
        if not rows:
            return
        self.counts.steps += 1
        found = self.stepper.run_rows(rows)
        for job, first, guessed in spans:
            self._take_guessed(job, found, first, guessed)

    def _take_guessed(
        self, job: Job, found: StepResult, first: int, guessed: list[int]
    ) -> None:
        """Take the token of a job's first row, and of the next as long as guesses were right."""
        self.counts.guessed_tokens += len(guessed)
        for at in range(len(guessed) + 1):
            job.computed += 1
            if not self._take(job, found, first + at):
                return
            if at == len(guessed) or guessed[at] != int(found.tokens[first + at]):
                return
            self.counts.accepted_tokens += 1

    def _take(self, job: Job, found: StepResult, number: int) -> bool:
        """Take a token that was chosen for a job; whether it goes on."""
        if int(found.tokens[number]) == NOTHING:
            self._fail_scores(job)
            return False
        self.counts.answer_tokens += 1
        try:
            goes_on = job.add(found, number)
        except BaregradError as error:
            self.counts.failed += 1
            self._finish(job, AnswerPiece(reason="error", error=error))
            return False
        if not goes_on:
            self.counts.finished += 1
            self._finish(job, None)
        return goes_on

    def _finish(self, job: Job, piece: AnswerPiece | None) -> None:
        """End a job; without a piece to tell, it came to its end and its answer may be kept."""
        if piece is None and job.request.is_turn:
            self._scheduler.keep(job)
        else:
            self._scheduler.remove(job)
        if self._guesser is not None:
            self._guesser.forget(job)
        if piece is not None:
            job.stream.put(piece)

    def _fail(self, error: BaseException, jobs: Sequence[Job]) -> None:
        """End jobs with an error, and forget what it may have left in pages."""
        known = error if isinstance(error, BaregradError) else BaregradError(
            "a step of the engine failed", found=f"{type(error).__name__}: {error}"
        )  # fmt: skip
        self._scheduler.pool.forget()
        self._scheduler.let_go()
        for job in jobs:
            self.counts.failed += 1
            self._finish(job, AnswerPiece(reason="error", error=known))

    def _constraint(self, form: AnswerForm) -> Constraint:
        with self._constraints_lock:
            if self._constraints is None:
                self._constraints = Constraints(self.tokenizer, self.stepper.words)
            made = self._constraints
        return made.make(form)

