"""Requests and answers of `/v1/completions`: texts that are continued."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from baregrad.llm.generation.request import ChosenToken
from baregrad.llm.serve.asked import (
    BOOKKEEPING_FIELDS,
    FORM_FIELDS,
    MOST_ANSWERS,
    SAMPLING_FIELDS,
    AskedText,
    asked_form,
    sampling_of,
)
from baregrad.llm.serve.chat_answers import check_reason, usage_of
from baregrad.llm.serve.fields import Fields
from baregrad.llm.serve.refusals import RequestRefused
from baregrad.llm.serve.served import AnswerNews, Answers, Served, ServedModel, token_text

MOST_PROMPTS = 256
# What a request that says nothing gets, as OpenAI has it.
_TOKENS = 16
_FIELDS = (
    *SAMPLING_FIELDS, *BOOKKEEPING_FIELDS, *FORM_FIELDS, "prompt", "max_tokens", "logprobs", "n",
    "stream", "stream_options", "echo", "suffix", "best_of",
)


@dataclass(frozen=True)
class AskedCompletion:
    """Prompts to continue, each `answers` times."""

    prompts: Sequence[AskedText]
    answers: int
    streams: bool
    shows_usage: bool
    echoes: bool
    # Whether the prompt alone is wanted, with its log-probabilities.
    answers_nothing: bool


def asked_completion(body: Fields) -> AskedCompletion:
    """Return what a request asks for; raises RequestRefused."""
    body.only(_FIELDS)
    for name in ("suffix", "best_of"):
        if body.values.get(name) not in (None, "", 1):
            raise RequestRefused(f"{name} is not offered", param=name)
    sampling = sampling_of(body)
    echoes = body.flag("echo")
    logprobs = body.whole("logprobs", 0, 20)
    if logprobs is not None:
        sampling["logprobs"] = logprobs
    scores = echoes and logprobs is not None
    most = body.whole("max_tokens", 0 if scores else 1, 1 << 30)
    sampling["max_tokens"] = _TOKENS if most is None else max(most, 1)
    form = asked_form(body)
    client = body.text("user", "")
    return AskedCompletion(
        prompts=[
            AskedText(prompt, sampling, form, client, scores)
            for prompt in prompts_of(body, "prompt")
        ],
        answers=body.whole("n", 1, MOST_ANSWERS) or 1,
        streams=body.flag("stream"),
        shows_usage=body.inner("stream_options").flag("include_usage"),
        echoes=echoes,
        answers_nothing=most == 0,
    )


def prompts_of(body: Fields, key: str) -> list[str | list[int]]:
    """Return prompts: a text, tokens, or an array of either."""
    value = body.values.get(key)
    if isinstance(value, str) or _are_tokens(value):
        value = [value]
    if not isinstance(value, list) or not value:
        raise body.refuse(key, "a text, tokens, or an array of them")
    if len(value) > MOST_PROMPTS:
        raise body.refuse(key, f"at most {MOST_PROMPTS} texts")
    if not all(isinstance(prompt, str) or _are_tokens(prompt) for prompt in value):
        raise body.refuse(key, "a text, tokens, or an array of them")
    return value


def _are_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(
        isinstance(token, int) and not isinstance(token, bool) for token in value
    )


async def begin_completion(served: Served, asked: AskedCompletion) -> list[Answers]:
    """Begin the answers to all prompts; none where one is refused."""
    begun: list[Answers] = []
    try:
        for prompt in asked.prompts:
            begun.append(await served.continue_text(prompt, asked.answers))
    except BaseException:
        for answers in begun:
            answers.cancel()
        raise
    return begun


async def completion_answer(
    served: Served, begun: Sequence[Answers], asked: AskedCompletion, head: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the whole answer."""
    choices: list[dict[str, Any]] = []
    for answers, prompt in zip(begun, asked.prompts, strict=True):
        texts = [_TextWriter(served.model, asked, prompt) for _ in range(asked.answers)]
        async for news in answers.news():
            texts[news.answer].add(news)
        choices += [
            _choice(len(choices) + number, text.text, text.logprobs(text.rows), text.reason)
            for number, text in enumerate(texts)
        ]
    usages = [usage_of(answers) for answers in begun]
    return {**head, "object": "text_completion", "choices": choices, "usage": _sum(usages)}


async def completion_chunks(
    served: Served, begun: Sequence[Answers], asked: AskedCompletion, head: Mapping[str, Any]
) -> AsyncGenerator[dict[str, Any]]:
    """Yield the chunks of the answers, one prompt after another."""
    base = {**head, "object": "text_completion"}
    for number, (answers, prompt) in enumerate(zip(begun, asked.prompts, strict=True)):
        first = number * asked.answers
        texts = [_TextWriter(served.model, asked, prompt) for _ in range(asked.answers)]
        for index, text in enumerate(texts):
            if text.text:
                yield {**base, "choices": [_choice(first + index, text.text, None, None)]}
        async for news in answers.news():
            text = texts[news.answer]
            piece, rows = text.add(news)
            if piece or rows or text.reason is not None:
                choice = _choice(first + news.answer, piece, text.logprobs(rows), text.reason)
                yield {**base, "choices": [choice]}
    if asked.shows_usage:
        usages = [usage_of(answers) for answers in begun]
        yield {**base, "choices": [], "usage": _sum(usages)}


def _choice(index: int, text: str, logprobs: Any, reason: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}


class _TextWriter:
    """Puts one of the answers to a prompt together: its text, and rows of its tokens."""

    def __init__(self, model: ServedModel, asked: AskedCompletion, prompt: AskedText) -> None:
        self.text = ""
        self.rows: list[dict[str, Any]] = []
        self.reason: str | None = None
        self._model = model
        self._answers_nothing = asked.answers_nothing
        self._has_rows = "logprobs" in prompt.sampling
        if asked.echoes:
            tokens = prompt.prompt
            self.text = tokens if isinstance(tokens, str) else model.tokenizer.decode(tokens)
        self._place = 0 if prompt.scores else len(self.text)

    def add(self, news: AnswerNews) -> tuple[str, list[dict[str, Any]]]:
        """Add what is new, and return its text and rows."""
        text = "".join(part.text for part in news.parts)
        tokens = [*news.prompt, *news.tokens]
        if news.reason is not None:
            self.reason = check_reason(news.reason)
        if self._answers_nothing:
            text, tokens = "", [*news.prompt]
        rows = [self._row(token) for token in tokens] if self._has_rows else []
        self.text += text
        self.rows += rows
        return text, rows

    def logprobs(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
        """Return rows as OpenAI's completions tell them."""
        if not rows:
            return None
        names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        return {name: [row[name] for row in rows] for name in names}

    def _row(self, chosen: ChosenToken) -> dict[str, Any]:
        text, _ = token_text(self._model, chosen.token)
        best: dict[str, float] | None = None if chosen.logprob is None else {}
        for token, value in chosen.best:
            if best is not None:
                # Tokens that are no whole characters may look alike: the best of them stays.
                best.setdefault(token_text(self._model, token)[0], _finite(value))
        place = self._place
        self._place += len(text)
        return {
            "tokens": text, "top_logprobs": best, "text_offset": place,
            "token_logprobs": None if chosen.logprob is None else _finite(chosen.logprob),
        }


def _finite(logprob: float) -> float:
    """Return a log-probability that JSON has."""
    return max(logprob, -9999.0)


def _sum(usages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the usage of all prompts together."""
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    return {name: sum(usage[name] for usage in usages) for name in names} | {
        "prompt_tokens_details": {"cached_tokens": cached}
    }
