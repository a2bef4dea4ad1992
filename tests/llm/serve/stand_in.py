"""A model that says what a test wants, and a client that speaks to an application in memory."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from baregrad.base.errors import ArgumentError, BaregradError, QueueFull
from baregrad.llm.generation.request import AnswerPiece, AnswerRequest, ChosenToken, Stream
from baregrad.llm.generation.sampling import Sampling
from baregrad.llm.serve import ServerSettings, VectorModel, application
from baregrad.llm.text import tokenizer_of
from baregrad.llm.text.templates import ChatTemplate
from tests.llm.text.vocabularies import byte_metadata

CONTEXT, WORDS = 2000, 100_000
TEMPLATE = (
    "{% if tools %}<|im_start|>tools\n{{ tools | tojson }} <tool_call></tool_call><|im_end|>\n"
    "{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}"
    "{{ c.function.arguments | tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n{% if enable_thinking %}<think>\n{% endif %}{# </think> #}"
)


class ScriptedEngine:
    """Answers each request with a text in pieces of three letters, from a thread of its own.

    Where `holds`, answers begin and do not go on. `fails` is what an answer ends with.
    """

    def __init__(self, answer: str) -> None:
        self.answer = answer
        self.holds = False
        self.fails: BaregradError | None = None
        self.is_full = False
        self.is_alive = True
        self.requests: list[AnswerRequest] = []
        self.streams: list[Stream] = []
        self.tokenizer = tokenizer_of(byte_metadata())

    def submit(self, request: AnswerRequest) -> Stream:
        if self.is_full:
            raise QueueFull("too many requests wait", found=9, wanted="fewer than 9")
        if not request.tokens or not all(0 <= token < WORDS for token in request.tokens):
            raise ArgumentError("no tokens, or such as do not exist")
        if len(request.tokens) >= CONTEXT:
            raise ArgumentError("the prompt is longer than the context", found=len(request.tokens))
        stream = Stream(len(request.tokens))
        stream.usage.cached = 2
        self.requests.append(request)
        self.streams.append(stream)
        threading.Thread(target=self._write, args=(request, stream), daemon=True).start()
        return stream

    def _write(self, request: AnswerRequest, stream: Stream) -> None:
        most = request.sampling.max_tokens or CONTEXT
        reason = "stop"
        if self.holds:
            stream.put(AnswerPiece("begun"))
            return
        if request.scored_from == 0:
            first, *others = request.tokens
            told = (ChosenToken(first), *(ChosenToken(t, -1.5, ((t, -1.5),)) for t in others))
            stream.put(AnswerPiece(prompt=told))
        for at in range(0, len(self.answer), 3):
            if stream.usage.answer == most:
                reason = "length"
                break
            text = self.answer[at : at + 3]
            stream.usage.answer += 1
            stream.put(AnswerPiece(text, self._tokens(request, text)))
        stream.put(AnswerPiece(reason=reason) if self.fails is None
                   else AnswerPiece(reason="error", error=self.fails))

    def _tokens(self, request: AnswerRequest, text: str) -> tuple[ChosenToken, ...]:
        count = request.sampling.logprobs
        if count is None:
            return ()
        token = self.tokenizer.encode(text)[0]
        return (ChosenToken(token, -0.5, tuple((token + n, -0.5 - n) for n in range(count))),)

    def statistics(self) -> dict[str, int]:
        return {"requests": len(self.requests), "running": 1}


class ScriptedModel:
    """A model around a scripted engine."""

    name = "small"

    def __init__(
        self, answer: str = "Hello there, friend.", template: str | None = TEMPLATE
    ) -> None:
        self.engine = ScriptedEngine(answer)
        self.tokenizer = self.engine.tokenizer
        self.template = None if template is None else ChatTemplate(template, "", "<|im_end|>")

    def sampling(self, **chosen: Any) -> Sampling:
        return Sampling(**{"temperature": 0.5, **chosen})

    def prompt(self, number: int = -1) -> str:
        """Return the prompt that a request brought."""
        return self.tokenizer.decode(self.engine.requests[number].tokens, specials=True)

    def close(self) -> None:
        if self.template is not None:
            self.template.close()


class Reply:
    """What came back."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""

    def json(self) -> Any:
        return json.loads(self.body)

    def events(self) -> list[Any]:
        """Return the data of each event; where events have names, these are their types."""
        found: list[Any] = []
        for block in self.body.decode().split("\n\n")[:-1]:
            lines = dict(line.split(": ", 1) for line in block.split("\n"))
            text = lines["data"]
            data = text if text == "[DONE]" else json.loads(text)
            if "event" in lines:
                assert data["type"] == lines["event"]
            found.append(data)
        return found


class Client:
    """Speaks to an application."""

    def __init__(self, model: ScriptedModel | VectorModel, **settings: Any) -> None:
        self.application = application(model, ServerSettings(**settings))

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Reply:
        return self.send("GET", path, b"", headers)

    def post(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> Reply:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.send("POST", path, data, headers)

    def send(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str] | None = None,
        leaves: Callable[[Reply], bool] | None = None,
    ) -> Reply:
        """Send a request; `leaves` says when the client goes away."""
        return asyncio.run(asyncio.wait_for(
            self._send(method, path, body, headers or {}, leaves), 60))

    async def _send(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str],
        leaves: Callable[[Reply], bool] | None,
    ) -> Reply:
        reply = Reply()
        sent = False

        async def receive() -> MutableMapping[str, Any]:
            nonlocal sent
            if not sent:
                sent = True
                return {"type": "http.request", "body": body, "more_body": False}
            while leaves is None or not leaves(reply):
                await asyncio.sleep(0.005)
            return {"type": "http.disconnect"}

        async def send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                reply.status = message["status"]
                reply.headers = {k.decode(): v.decode() for k, v in message.get("headers", ())}
            else:
                reply.body += message.get("body", b"")

        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method,
            "scheme": "http", "path": path, "raw_path": path.encode(), "query_string": b"",
            "root_path": "", "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
            "headers": [(k.lower().encode(), v.encode()) for k, v in headers.items()],
        }
        await self.application(scope, receive, send)
        return reply
