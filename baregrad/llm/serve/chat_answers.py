"""Answers of `/v1/chat/completions`, whole and in chunks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any

from baregrad.llm.serve.asked import AskedChat
from baregrad.llm.serve.refusals import RequestRefused
from baregrad.llm.serve.served import AnswerNews, Answers, Served, logprob_rows
from baregrad.llm.text.calls import AnswerPart, PartKind


class CollectedChat:
    """One answer, put together of what came."""

    def __init__(self) -> None:
        self.text = ""
        self.thought = ""
        self.calls: list[dict[str, Any]] = []
        self.logprobs: list[Mapping[str, Any]] = []
        self.reason = ""
        self.stop: str | None = None

    def add(self, served: Served, news: AnswerNews) -> None:
        """Add what is new."""
        for part in news.parts:
            if part.kind is PartKind.TEXT:
                self.text += part.text
            elif part.kind is PartKind.THOUGHT:
                self.thought += part.text
            elif part.kind is PartKind.CALL:
                self.calls.append({
                    "id": part.id, "type": "function",
                    "function": {"name": part.name, "arguments": ""},
                })
            elif part.kind is PartKind.ARGUMENTS:
                self.calls[part.index]["function"]["arguments"] += part.text
        self.logprobs += logprob_rows(served.model, news.tokens)
        if news.reason is not None:
            self.reason, self.stop = check_reason(news.reason), news.stop

    def message(self) -> dict[str, Any]:
        """Return the answer as a message."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.thought:
            message["reasoning_content"] = self.thought
        if self.calls:
            message["content"] = self.text or None
            message["tool_calls"] = self.calls
        return message


async def collect(served: Served, answers: Answers, count: int) -> list[CollectedChat]:
    """Wait for all answers."""
    found = [CollectedChat() for _ in range(count)]
    async for news in answers.news():
        found[news.answer].add(served, news)
    return found


async def chat_answer(
    served: Served, answers: Answers, asked: AskedChat, head: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the whole answer; `head` is what all of a request's objects begin with."""
    choices = [
        {
            "index": index,
            "message": found.message(),
            "logprobs": {"content": found.logprobs} if found.logprobs else None,
            "finish_reason": found.reason,
        }
        for index, found in enumerate(await collect(served, answers, asked.answers))
    ]
    return {
        **head, "object": "chat.completion", "choices": choices, "usage": usage_of(answers),
    }


async def chat_chunks(
    served: Served, answers: Answers, asked: AskedChat, head: Mapping[str, Any]
) -> AsyncGenerator[dict[str, Any]]:
    """Yield the chunks of the answers.

    Each begins with its role and an empty text, and ends with a reason and an empty delta; the
    usage follows all of them where it was asked for.
    """
    base = {**head, "object": "chat.completion.chunk"}
    if asked.shows_usage:
        base["usage"] = None
    waiting: list[list[Mapping[str, Any]]] = [[] for _ in range(asked.answers)]

    def chunk(index: int, delta: Mapping[str, Any], reason: str | None = None) -> dict[str, Any]:
        rows, waiting[index] = waiting[index], []
        logprobs = {"content": rows} if rows else None
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return {**base, "choices": [choice]}

    for index in range(asked.answers):
        yield chunk(index, {"role": "assistant", "content": ""})
    async for news in answers.news():
        waiting[news.answer] += logprob_rows(served.model, news.tokens)
        for part in news.parts:
            delta = _delta(part)
            if delta:
                yield chunk(news.answer, delta)
        if news.reason is not None:
            yield chunk(news.answer, {}, check_reason(news.reason))
    if asked.shows_usage:
        yield {**base, "choices": [], "usage": usage_of(answers)}


def _delta(part: AnswerPart) -> dict[str, Any]:
    """Return what a part adds to a message; nothing for the end of a call."""
    if part.kind is PartKind.TEXT:
        return {"content": part.text}
    if part.kind is PartKind.THOUGHT:
        return {"reasoning_content": part.text}
    if part.kind is PartKind.CALL:
        function = {"name": part.name, "arguments": ""}
        call = {"index": part.index, "id": part.id, "type": "function", "function": function}
        return {"tool_calls": [call]}
    if part.kind is PartKind.ARGUMENTS:
        call = {"index": part.index, "function": {"arguments": part.text}}
        return {"tool_calls": [call]}
    return {}


def check_reason(reason: str) -> str:
    """Return why an answer ended; one that was ended from outside is no answer."""
    if reason == "cancelled":
        raise RequestRefused("the answer was cancelled", status=503, kind="server_error")
    return reason


def usage_of(answers: Answers) -> dict[str, Any]:
    """Return the usage as OpenAI tells it."""
    prompt, cached, written = answers.usage
    return {
        "prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
