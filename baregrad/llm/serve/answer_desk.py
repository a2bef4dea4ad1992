"""The desk of a model that answers: chats, completions, responses and messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any

from baregrad.llm.serve import anthropic_messages, openai_responses
from baregrad.llm.serve.asked import asked_chat
from baregrad.llm.serve.chat_answers import chat_answer, chat_chunks
from baregrad.llm.serve.chat_page import HEADERS, PAGE
from baregrad.llm.serve.completions import (
    asked_completion,
    begin_completion,
    completion_answer,
    completion_chunks,
)
from baregrad.llm.serve.desk import LOG, Desk, Handler, ServerSettings, as_json
from baregrad.llm.serve.event_stream import EventStream, disconnected, event
from baregrad.llm.serve.refusals import RequestRefused, refusal_of, stopping
from baregrad.llm.serve.served import Served, ServedModel


class AnswerDesk(Desk):
    """Lets a model answer, in whatever protocol it was asked."""

    def __init__(self, model: ServedModel, settings: ServerSettings) -> None:
        super().__init__(model.name, model.tokenizer, settings)
        self._served = Served(model)

    def routes(self) -> list[tuple[str, str, Handler]]:
        """Return all paths, with the method and what answers."""
        rows: tuple[tuple[str, Handler], ...] = (
            ("/v1/chat/completions", self._chat),
            ("/v1/completions", self._completion),
            ("/v1/responses", self._responses),
            ("/v1/messages", self._messages),
            ("/v1/messages/count_tokens", self._count_tokens),
        )
        page: list[tuple[str, str, Handler]] = [
            ("/", "GET", self._page), ("/tokenizer_info", "GET", self._tokenizer_info),
        ]
        return super().routes() + page + [(path, "POST", handler) for path, handler in rows]

    def statistics(self) -> Mapping[str, int]:
        """Return what the engine has done."""
        return self._served.model.engine.statistics()

    def is_well(self) -> bool:
        """Whether the engine answers."""
        return self._served.model.engine.is_alive

    async def _page(self, request: Any) -> Any:
        from starlette.responses import HTMLResponse

        return HTMLResponse(PAGE, headers=dict(HEADERS))

    async def _tokenizer_info(self, request: Any) -> Any:
        model = self._served.model
        ends = [
            None if token is None else model.tokenizer.decode([token], specials=True)
            for token in (model.tokenizer.bos, model.tokenizer.eos)
        ]
        template = None if model.template is None else model.template.text
        return as_json({"bos_token": ends[0], "eos_token": ends[1], "chat_template": template})

    async def _chat(self, request: Any) -> Any:
        asked = asked_chat(await self.read(request))
        answers = await self._served.chat(asked)
        head = self.head("chatcmpl-")
        if asked.streams:
            chunks = chat_chunks(self._served, answers, asked, head)
            return EventStream(_openai_events(chunks), answers.cancel, event(stopping().body()))
        return as_json(await _unless_left(
            request, chat_answer(self._served, answers, asked, head), answers.cancel
        ))

    async def _completion(self, request: Any) -> Any:
        asked = asked_completion(await self.read(request))
        begun = await begin_completion(self._served, asked)
        head = self.head("cmpl-")

        def cancel() -> None:
            for answers in begun:
                answers.cancel()

        if asked.streams:
            chunks = completion_chunks(self._served, begun, asked, head)
            return EventStream(_openai_events(chunks), cancel, event(stopping().body()))
        return as_json(await _unless_left(
            request, completion_answer(self._served, begun, asked, head), cancel
        ))

    async def _responses(self, request: Any) -> Any:
        asked = openai_responses.asked_response(await self.read(request))
        answers = await self._served.chat(asked.chat)
        writer = openai_responses.ResponseWriter(self._served, answers, asked)
        if asked.chat.streams:
            return _named_stream(writer.events(), openai_responses.failure, answers.cancel)
        return as_json(await _unless_left(request, writer.whole(), answers.cancel))

    async def _messages(self, request: Any) -> Any:
        asked = anthropic_messages.asked_message(await self.read(request))
        answers = await self._served.chat(asked)
        writer = anthropic_messages.MessageWriter(self._served, answers)
        if asked.streams:
            return _named_stream(writer.events(), anthropic_messages.failure, answers.cancel)
        return as_json(await _unless_left(request, writer.whole(), answers.cancel))

    async def _count_tokens(self, request: Any) -> Any:
        asked = anthropic_messages.asked_message(await self.read(request), counts=True)
        _, tokens = await asyncio.to_thread(self._served.prompt, asked)
        return as_json({"input_tokens": len(tokens)})


async def _unless_left(
    request: Any, answer: Awaitable[Any], cancel: Callable[[], None]
) -> Any:
    """Wait for an answer, and give it up where the client leaves before it is there."""
    answering = asyncio.ensure_future(answer)
    left = asyncio.ensure_future(disconnected(request.receive))
    try:
        await asyncio.wait({answering, left}, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            raise RequestRefused("the client left", status=499)
        return answering.result()
    finally:
        cancel()
        for task in (answering, left):
            if not task.done():
                task.cancel()
                await asyncio.wait({task})


async def _openai_events(chunks: AsyncGenerator[dict[str, Any]]) -> AsyncGenerator[bytes]:
    """Yield chunks as events, with what went wrong as one of them, up to the last word."""
    async with aclosing(chunks):
        try:
            async for chunk in chunks:
                yield event(chunk)
        except Exception as error:  # noqa: BLE001 - the client is told of whatever it is
            yield event(_refusal(error).body())
            return
    yield event("[DONE]")


Failure = Callable[[RequestRefused], dict[str, Any]]


def _named_stream(
    events: AsyncGenerator[dict[str, Any]], failure: Failure, cancel: Callable[[], None]
) -> EventStream:
    """Return a stream of events that have their type as their name."""
    last = failure(stopping())
    return EventStream(_named_events(events, failure), cancel, event(last, last["type"]))


async def _named_events(
    events: AsyncGenerator[dict[str, Any]], failure: Failure
) -> AsyncGenerator[bytes]:
    """Yield events that have their type as their name."""
    async with aclosing(events):
        try:
            async for data in events:
                yield event(data, data["type"])
        except Exception as error:  # noqa: BLE001 - the client is told of whatever it is
            data = failure(_refusal(error))
            yield event(data, data["type"])


def _refusal(error: Exception) -> RequestRefused:
    """Return what a client is told of a stream's end; a mistake of ours is logged."""
    refusal = refusal_of(error)
    if refusal is not error and refusal.status >= 500:
        LOG.error("a stream failed", exc_info=error)
    return refusal
