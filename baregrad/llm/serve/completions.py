"""Requests and answers of `/v1/completions`: texts that are continued."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from baregrad.llm.generation.request import ChosenToken
from baregrad.llm.serve.asked import (
    BOOKKEEPING_FIELDS,
    MOST_ANSWERS,
    SAMPLING_FIELDS,
    AskedText,
    form_of,
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
    *SAMPLING_FIELDS, *BOOKKEEPING_FIELDS, "prompt", "max_tokens", "logprobs", "response_format",
    "n", "stream", "stream_options", "echo", "suffix", "best_of",
)


@dataclass(frozen=True)
class AskedCompletion:
    """Prompts to continue, each `answers` times."""

    prompts: Sequence[AskedText]
    answers: int
    streams: bool
    shows_usage: bool
    echoes: bool


def asked_completion(body: Fields) -> AskedCompletion:
    """Return what a request asks for; raises RequestRefused."""
    body.only(_FIELDS)
    for name in ("suffix", "best_of"):
        if body.values.get(name) not in (None, "", 1):
            raise RequestRefused(f"{name} is not offered", param=name)
    sampling = sampling_of(body)
    sampling["max_tokens"] = body.whole("max_tokens", 1, 1 << 30) or _TOKENS
    logprobs = body.whole("logprobs", 0, 20)
    if logprobs is not None:
        sampling["logprobs"] = logprobs
    form = form_of(body.inner("response_format"))
    client = body.text("user", "")
    return AskedCompletion(
        prompts=[
            AskedText(prompt, sampling, form, client) for prompt in prompts_of(body, "prompt")
        ],
        answers=body.whole("n", 1, MOST_ANSWERS) or 1,
        streams=body.flag("stream"),
        shows_usage=body.inner("stream_options").flag("include_usage"),
        echoes=body.flag("echo"),
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
    usages = []
    for answers, prompt in zip(begun, asked.prompts, strict=True):
        echo = _echo(served, prompt) if asked.echoes else ""
        texts = [echo] * asked.answers
        reasons = [""] * asked.answers
        tokens: list[list[ChosenToken]] = [[] for _ in texts]
        async for news in answers.news():
            texts[news.answer] += "".join(part.text for part in news.parts)
            tokens[news.answer] += news.tokens
            if news.reason is not None:
                reasons[news.answer] = check_reason(news.reason)
        for text, reason, chosen in zip(texts, reasons, tokens, strict=True):
            choices.append({
                "index": len(choices), "text": text, "finish_reason": reason,
                "logprobs": _logprobs(served.model, chosen, len(echo)),
            })
        usages.append(usage_of(answers))
    return {**head, "object": "text_completion", "choices": choices, "usage": _sum(usages)}


async def completion_chunks(
    served: Served, begun: Sequence[Answers], asked: AskedCompletion, head: Mapping[str, Any]
) -> AsyncGenerator[dict[str, Any]]:
    """Yield the chunks of the answers, one prompt after another."""
    base = {**head, "object": "text_completion"}
    for number, (answers, prompt) in enumerate(zip(begun, asked.prompts, strict=True)):
        first = number * asked.answers
        starts = [0] * asked.answers
        if asked.echoes:
            echo = _echo(served, prompt)
            for index in range(asked.answers):
                yield {**base, "choices": [_choice(first + index, echo, None, None)]}
                starts[index] = len(echo)
        async for news in answers.news():
            text = "".join(part.text for part in news.parts)
            rows = _logprobs(served.model, news.tokens, starts[news.answer])
            starts[news.answer] += len(text)
            if text or rows or news.reason is not None:
                yield {**base, "choices": [_choice(
                    first + news.answer, text, rows, _reason(news)
                )]}
    if asked.shows_usage:
        usages = [usage_of(answers) for answers in begun]
        yield {**base, "choices": [], "usage": _sum(usages)}


def _choice(index: int, text: str, logprobs: Any, reason: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}


def _reason(news: AnswerNews) -> str | None:
    return None if news.reason is None else check_reason(news.reason)


def _echo(served: Served, prompt: AskedText) -> str:
    if isinstance(prompt.prompt, str):
        return prompt.prompt
    return served.model.tokenizer.decode(prompt.prompt)


def _logprobs(
    model: ServedModel, tokens: Sequence[ChosenToken], start: int
) -> dict[str, Any] | None:
    """Return log-probabilities as OpenAI's completions tell them."""
    chosen = [token for token in tokens if token.logprob is not None]
    if not chosen:
        return None
    texts = [token_text(model, token.token)[0] for token in chosen]
    offsets = []
    for text in texts:
        offsets.append(start)
        start += len(text)
    return {
        "tokens": texts,
        "token_logprobs": [token.logprob for token in chosen],
        "top_logprobs": [
            {token_text(model, token)[0]: value for token, value in row.best} for row in chosen
        ],
        "text_offset": offsets,
    }


def _sum(usages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the usage of all prompts together."""
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    return {name: sum(usage[name] for usage in usages) for name in names} | {
        "prompt_tokens_details": {"cached_tokens": cached}
    }
