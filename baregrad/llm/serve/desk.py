"""What takes requests: keys, limits, errors, and what is asked of the server itself."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from baregrad.llm.serve.fields import Fields, parse
from baregrad.llm.serve.metrics import metrics_text
from baregrad.llm.serve.refusals import RequestRefused, refusal_of, stopping
from baregrad.llm.text.tokenizer import Tokenizer

LOG = logging.getLogger("baregrad.serve")
# What shows nothing of the model: a page asks for the key itself.
_PUBLIC = ("/", "/health")
# Two ways of asking for the tokens that a model's prompts begin with.
_ADD_SPECIAL = ("add_special", "add_special_tokens")
Handler = Callable[[Any], Awaitable[Any]]


@dataclass(frozen=True)
class ServerSettings:
    """Who may ask, and how much.

    key: what clients have to send as their API key; None lets everybody in. origins: pages of other
    addresses that browsers may ask from, none by default. most_bytes: the largest request.
    """

    key: str | None = None
    origins: tuple[str, ...] = ()
    most_bytes: int = 32 * 2**20


class Desk:
    """Takes requests and hands out answers; its kinds say what a model is asked."""

    def __init__(self, name: str, tokenizer: Tokenizer, settings: ServerSettings) -> None:
        self.name = name
        self._tokenizer = tokenizer
        self._settings = settings
        self._statuses: Counter[int] = Counter()
        self._begun = int(time.time())

    def routes(self) -> list[tuple[str, str, Handler]]:
        """Return all paths, with the method and what answers."""
        return [
            ("/health", "GET", self._health),
            ("/metrics", "GET", self._metrics),
            ("/v1/models", "GET", self._models),
            ("/v1/models/{name:path}", "GET", self._one_model),
            ("/tokenize", "POST", self._tokenize),
            ("/detokenize", "POST", self._detokenize),
        ]

    def statistics(self) -> Mapping[str, int]:
        """Return what was done."""
        raise NotImplementedError

    def is_well(self) -> bool:
        """Whether requests are answered."""
        return True

    def endpoint(self, handler: Handler, path: str) -> Handler:
        """Return what Starlette calls for a path: keys first, then the answer or the refusal."""

        async def answer(request: Any) -> Any:
            begun = time.perf_counter()
            try:
                if path not in _PUBLIC:
                    self._check_key(request)
                response = await handler(request)
            except asyncio.CancelledError:
                # Nobody but a server that stops cancels what answers.
                response = as_refusal(stopping(), path)
            except Exception as error:
                refusal = refusal_of(error)
                if refusal.status >= 500:
                    LOG.exception("a request failed")
                response = as_refusal(refusal, path)
            status = getattr(response, "status_code", 200)
            self._statuses[status] += 1
            LOG.info(json.dumps({
                "time": round(time.time(), 3), "path": path, "status": status,
                "seconds": round(time.perf_counter() - begun, 4),
            }))
            return response

        return answer

    async def not_found(self, request: Any, error: Any) -> Any:
        """Answer a request for what is not here."""
        self._statuses[error.status_code] += 1
        path = request.url.path
        # A path that takes another method is told apart.
        code = "not_found" if error.status_code == 404 else "method_not_allowed"
        refusal = RequestRefused(
            f"{request.method} {path} is not offered", status=error.status_code, code=code
        )
        return as_refusal(refusal, path, error.headers)

    # --- what is asked of the server -------------------------------------------------------------

    async def _health(self, request: Any) -> Any:
        if not self.is_well():
            raise RequestRefused("the engine has ended", status=503, kind="server_error")
        return as_json({"status": "ok"})

    async def _metrics(self, request: Any) -> Any:
        from starlette.responses import PlainTextResponse

        text = metrics_text(self.statistics(), self._statuses)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def _models(self, request: Any) -> Any:
        return as_json({"object": "list", "data": [self._model()]})

    async def _one_model(self, request: Any) -> Any:
        name = request.path_params["name"]
        if name != self.name:
            raise RequestRefused(
                f"there is no model {name!r}", status=404, param="model", code="model_not_found"
            )
        return as_json(self._model())

    def _model(self) -> dict[str, Any]:
        return {
            "id": self.name, "object": "model", "created": self._begun,
            "owned_by": "baregrad",
        }

    async def _tokenize(self, request: Any) -> Any:
        body = await self.read(request)
        body.only(("content", "prompt", "parse_special", *_ADD_SPECIAL, "model"))
        text = body.text("content" if body.has("content") else "prompt")
        tokens = await asyncio.to_thread(
            self._tokenizer.encode, text,
            specials=body.flag("parse_special", True),
            add_bos=None if any(map(body.flag, _ADD_SPECIAL)) else False,
        )
        return as_json({"tokens": tokens, "count": len(tokens)})

    async def _detokenize(self, request: Any) -> Any:
        body = await self.read(request)
        body.only(("tokens", "model"))
        tokens = body.array("tokens")
        are_whole = all(isinstance(each, int) and not isinstance(each, bool) for each in tokens)
        if not body.has("tokens") or not are_whole:
            raise body.refuse("tokens", "an array of whole numbers")
        text = self._tokenizer.decode(tokens, specials=True)
        return as_json({"content": text, "prompt": text})

    # --- shared ----------------------------------------------------------------------------------

    def head(self, prefix: str) -> dict[str, Any]:
        """Return what all objects of an answer begin with."""
        return {
            "id": prefix + secrets.token_hex(12), "created": int(time.time()),
            "model": self.name,
        }

    async def read(self, request: Any) -> Fields:
        """Return a request's object; raises RequestRefused for one that is too large.

        A type that is not JSON's is refused: pages of other addresses may send such requests
        without asking first.
        """
        from starlette.requests import ClientDisconnect

        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind and kind != "application/json" and not kind.endswith("+json"):
            raise RequestRefused(
                f"the content-type has to be application/json, not {kind[:80]!r}", status=415
            )
        most = self._settings.most_bytes
        data = bytearray()
        try:
            async for piece in request.stream():
                data += piece
                if len(data) > most:
                    raise RequestRefused(
                        f"the request is larger than {most} bytes", status=413,
                        code="request_too_large",
                    )
        except ClientDisconnect as error:
            raise RequestRefused("the client left", status=499) from error
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


def as_refusal(
    refusal: RequestRefused, path: str, headers: Mapping[str, str] | None = None
) -> Any:
    """Return a refusal in the form that clients of a path read."""
    more = {"retry-after": "1"} if refusal.status == 429 else {}
    body = refusal.anthropic_body() if path.startswith("/v1/messages") else refusal.body()
    return as_json(body, refusal.status, {**(headers or {}), **more})


def as_json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Any:
    """Return an answer in JSON; halves of surrogate pairs that clients sent are no trouble."""
    from starlette.responses import Response

    data = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    return Response(data, status, headers, media_type="application/json")
