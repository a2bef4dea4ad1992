"""The application: routes, keys, limits and errors, over one served model."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from baregrad.base.errors import MissingDependency
from baregrad.llm.serve import anthropic_messages, openai_responses
from baregrad.llm.serve.asked import asked_chat
from baregrad.llm.serve.chat_answers import chat_answer, chat_chunks
from baregrad.llm.serve.completions import (
    asked_completion,
    begin_completion,
    completion_answer,
    completion_chunks,
)
from baregrad.llm.serve.event_stream import EventStream, disconnected, event
from baregrad.llm.serve.fields import Fields, parse
from baregrad.llm.serve.metrics import metrics_text
from baregrad.llm.serve.refusals import RequestRefused, refusal_of
from baregrad.llm.serve.served import Served, ServedModel

_LOG = logging.getLogger("baregrad.serve")
_PUBLIC = ("/health",)


@dataclass(frozen=True)
class ServerSettings:
    """Who may ask, and how much.

    key: what clients have to send as their API key; None lets everybody in. origins: pages of other
    addresses that browsers may ask from, none by default. most_bytes: the largest request.
    """

    key: str | None = None
    origins: tuple[str, ...] = ()
    most_bytes: int = 32 * 2**20


def application(model: ServedModel, settings: ServerSettings | None = None) -> Any:
    """Return the ASGI application that serves a model; raises MissingDependency."""
    try:
        from starlette.applications import Starlette
        from starlette.middleware import Middleware
        from starlette.middleware.cors import CORSMiddleware
        from starlette.routing import Route
    except ImportError as error:
        raise MissingDependency(package="starlette", extra="serve") from error
    wanted = settings or ServerSettings()
    desk = _Desk(Served(model), wanted)
    middleware = [
        Middleware(
            CORSMiddleware, allow_origins=list(wanted.origins), allow_methods=["*"],
            allow_headers=["*"],
        )
    ] if wanted.origins else []
    routes = []
    for path, method, handler in desk.routes():
        routes.append(Route(path, desk.endpoint(handler, path), methods=[method]))
    return Starlette(
        routes=routes, middleware=middleware,
        exception_handlers={404: desk.not_found, 405: desk.not_found},
    )


Handler = Callable[[Any], Awaitable[Any]]


class _Desk:
    """Takes requests and hands out answers."""

    def __init__(self, served: Served, settings: ServerSettings) -> None:
        self._served = served
        self._settings = settings
        self._statuses: Counter[int] = Counter()
        self._begun = int(time.time())

    def routes(self) -> list[tuple[str, str, Handler]]:
        """Return all paths, with the method and what answers."""
        rows: list[tuple[str, str, Handler]] = [
            ("/health", "GET", self._health),
            ("/metrics", "GET", self._metrics),
            ("/v1/models", "GET", self._models),
            ("/v1/models/{name:path}", "GET", self._one_model),
        ]
        posts: tuple[tuple[str, Handler], ...] = (
            ("/tokenize", self._tokenize),
            ("/detokenize", self._detokenize),
            ("/v1/chat/completions", self._chat),
            ("/v1/completions", self._completion),
            ("/v1/responses", self._responses),
            ("/v1/messages", self._messages),
            ("/v1/messages/count_tokens", self._count_tokens),
        )
        return rows + [(path, "POST", handler) for path, handler in posts]

    def endpoint(self, handler: Handler, path: str) -> Handler:
        """Return what Starlette calls for a path: keys first, then the answer or the refusal."""

        async def answer(request: Any) -> Any:
            begun = time.perf_counter()
            try:
                if path not in _PUBLIC:
                    self._check_key(request)
                response = await handler(request)
            except asyncio.CancelledError:
                raise
            except Exception as error:  # noqa: BLE001 - a client is told of whatever it is
                refusal = refusal_of(error)
                if refusal.status >= 500:
                    _LOG.exception("a request failed")
                body = refusal.anthropic_body() if "messages" in path else refusal.body()
                headers = {"retry-after": "1"} if refusal.status == 429 else None
                response = _json(body, refusal.status, headers)
            status = getattr(response, "status_code", 200)
            self._statuses[status] += 1
            _LOG.info(json.dumps({
                "path": path, "status": status,
                "seconds": round(time.perf_counter() - begun, 4),
            }))
            return response

        return answer

    async def not_found(self, request: Any, error: Any) -> Any:
        """Answer a request for what is not here."""
        self._statuses[error.status_code] += 1
        refusal = RequestRefused(
            f"{request.method} {request.url.path} is not offered", status=error.status_code,
            code="not_found",
        )
        return _json(refusal.body(), refusal.status)

    # --- what is asked of the server -------------------------------------------------------------

    async def _health(self, request: Any) -> Any:
        return _json({"status": "ok"})

    async def _metrics(self, request: Any) -> Any:
        from starlette.responses import PlainTextResponse

        text = metrics_text(self._served.model.engine.statistics(), self._statuses)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def _models(self, request: Any) -> Any:
        return _json({"object": "list", "data": [self._model()]})

    async def _one_model(self, request: Any) -> Any:
        name = request.path_params["name"]
        if name != self._served.model.name:
            raise RequestRefused(
                f"there is no model {name!r}", status=404, param="model", code="model_not_found"
            )
        return _json(self._model())

    def _model(self) -> dict[str, Any]:
        return {
            "id": self._served.model.name, "object": "model", "created": self._begun,
            "owned_by": "baregrad",
        }

    async def _tokenize(self, request: Any) -> Any:
        body = await self._read(request)
        text = body.text("content" if body.has("content") else "prompt")
        tokens = await asyncio.to_thread(
            self._served.model.tokenizer.encode, text,
            specials=body.flag("parse_special", True),
            add_bos=None if body.flag("add_special") else False,
        )
        return _json({"tokens": tokens, "count": len(tokens)})

    async def _detokenize(self, request: Any) -> Any:
        body = await self._read(request)
        tokens = body.array("tokens")
        if not all(isinstance(token, int) and not isinstance(token, bool) for token in tokens):
            raise body.refuse("tokens", "an array of whole numbers")
        text = self._served.model.tokenizer.decode(tokens, specials=True)
        return _json({"content": text, "prompt": text})

    # --- what is asked of the model --------------------------------------------------------------

    async def _chat(self, request: Any) -> Any:
        asked = asked_chat(await self._read(request))
        answers = await self._served.chat(asked)
        head = self._head("chatcmpl-")
        if asked.streams:
            chunks = chat_chunks(self._served, answers, asked, head)
            return EventStream(_openai_events(chunks), answers.cancel)
        return _json(await _unless_left(
            request, chat_answer(self._served, answers, asked, head), answers.cancel
        ))

    async def _completion(self, request: Any) -> Any:
        asked = asked_completion(await self._read(request))
        begun = await begin_completion(self._served, asked)
        head = self._head("cmpl-")

        def cancel() -> None:
            for answers in begun:
                answers.cancel()

        if asked.streams:
            chunks = completion_chunks(self._served, begun, asked, head)
            return EventStream(_openai_events(chunks), cancel)
        return _json(await _unless_left(
            request, completion_answer(self._served, begun, asked, head), cancel
        ))

    async def _responses(self, request: Any) -> Any:
        asked = openai_responses.asked_response(await self._read(request))
        answers = await self._served.chat(asked.chat)
        writer = openai_responses.ResponseWriter(self._served, answers, asked)
        if asked.chat.streams:
            events = _named_events(writer.events(), openai_responses.failure)
            return EventStream(events, answers.cancel)
        return _json(await _unless_left(request, writer.whole(), answers.cancel))

    async def _messages(self, request: Any) -> Any:
        asked = anthropic_messages.asked_message(await self._read(request))
        answers = await self._served.chat(asked)
        writer = anthropic_messages.MessageWriter(self._served, answers)
        if asked.streams:
            events = _named_events(writer.events(), anthropic_messages.failure)
            return EventStream(events, answers.cancel)
        return _json(await _unless_left(request, writer.whole(), answers.cancel))

    async def _count_tokens(self, request: Any) -> Any:
        asked = anthropic_messages.asked_message(await self._read(request), counts=True)
        _, tokens = await asyncio.to_thread(self._served.prompt, asked)
        return _json({"input_tokens": len(tokens)})

    # --- shared ----------------------------------------------------------------------------------

    def _head(self, prefix: str) -> dict[str, Any]:
        """Return what all objects of an answer begin with."""
        return {
            "id": prefix + secrets.token_hex(12), "created": int(time.time()),
            "model": self._served.model.name,
        }

    async def _read(self, request: Any) -> Fields:
        """Return a request's object; raises RequestRefused for one that is too large."""
        most = self._settings.most_bytes
        data = bytearray()
        async for piece in request.stream():
            data += piece
            if len(data) > most:
                raise RequestRefused(
                    f"the request is larger than {most} bytes", status=413,
                    code="request_too_large",
                )
        return parse(bytes(data))

    def _check_key(self, request: Any) -> None:
        """Let in who has the key: as OpenAI's clients send it, or as Anthropic's do."""
        if self._settings.key is None:
            return
        sent = request.headers.get("x-api-key", "")
        scheme, _, value = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            sent = value.strip()
        if not hmac.compare_digest(sent.encode(), self._settings.key.encode()):
            raise RequestRefused(
                "the API key is missing or wrong", status=401, kind="authentication_error",
                code="invalid_api_key",
            )


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Any:
    """Return an answer in JSON; halves of surrogate pairs that clients sent are no trouble."""
    from starlette.responses import Response

    data = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    return Response(data, status, headers, media_type="application/json")


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


async def _openai_events(chunks: AsyncIterator[dict[str, Any]]) -> AsyncIterator[bytes]:
    """Yield chunks as events, with what went wrong as one of them, up to the last word."""
    try:
        async for chunk in chunks:
            yield event(chunk)
    except Exception as error:  # noqa: BLE001 - the client is told of whatever it is
        _LOG.exception("a stream failed")
        yield event(refusal_of(error).body())
        return
    finally:
        await chunks.aclose()  # type: ignore[attr-defined]
    yield event("[DONE]")


async def _named_events(
    events: AsyncIterator[dict[str, Any]], failure: Callable[[RequestRefused], dict[str, Any]]
) -> AsyncIterator[bytes]:
    """Yield events that have their type as their name."""
    try:
        async for data in events:
            yield event(data, data["type"])
    except Exception as error:  # noqa: BLE001 - the client is told of whatever it is
        _LOG.exception("a stream failed")
        data = failure(refusal_of(error))
        yield event(data, data["type"])
    finally:
        await events.aclose()  # type: ignore[attr-defined]
