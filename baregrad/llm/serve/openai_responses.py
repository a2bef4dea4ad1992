"""OpenAI's responses: requests made into chats, and answers in items."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from baregrad.llm.serve.asked import (
    BOOKKEEPING_FIELDS,
    MOST_LOGPROBS,
    SAMPLING_FIELDS,
    AskedChat,
    arguments_of,
    checked_tools,
    form_of,
    sampling_of,
    wanted_calls,
    wants_one_call,
)
from baregrad.llm.serve.chat_answers import check_reason
from baregrad.llm.serve.event_writer import Events, EventWriter
from baregrad.llm.serve.fields import Fields
from baregrad.llm.serve.history import check_history
from baregrad.llm.serve.refusals import RequestRefused
from baregrad.llm.serve.served import AnswerNews, Answers, Served
from baregrad.llm.text.calls import AnswerPart, PartKind

# Nothing is kept between requests.
_KEPT_ELSEWHERE = ("previous_response_id", "conversation", "prompt")
_LOGPROBS = "message.output_text.logprobs"
_FIELDS = (
    *SAMPLING_FIELDS, *BOOKKEEPING_FIELDS, *_KEPT_ELSEWHERE, "input", "instructions",
    "max_output_tokens", "max_tool_calls", "tools", "tool_choice", "parallel_tool_calls",
    "reasoning", "text", "stream", "stream_options", "include", "truncation", "background",
    "top_logprobs",
)


@dataclass(frozen=True)
class AskedResponse:
    """A chat, and what of the request the answer repeats."""

    chat: AskedChat
    echo: Mapping[str, Any]


def asked_response(body: Fields) -> AskedResponse:
    """Return what a request asks for; raises RequestRefused.

    Nothing is kept between requests, so that one that goes on from another is refused. Tools that
    are no functions are left out: agents send them along with those that they need.
    """
    body.only(_FIELDS)
    for name in _KEPT_ELSEWHERE:
        if body.has(name):
            raise RequestRefused(
                f"{name} is not offered: no answers are kept here; send the whole input",
                param=name,
            )
    if body.whole("top_logprobs", 0, MOST_LOGPROBS) or _LOGPROBS in body.texts("include"):
        raise RequestRefused(
            "log-probabilities of responses are not offered; chats have them",
            param="top_logprobs" if body.has("top_logprobs") else "include",
        )
    if body.flag("background"):
        raise RequestRefused("background is not offered", param="background")
    messages: list[dict[str, Any]] = []
    if body.text("instructions", ""):
        messages.append({"role": "system", "content": body.text("instructions")})
    if isinstance(body.values.get("input"), str):
        messages.append({"role": "user", "content": body.text("input")})
    else:
        for item in body.objects("input"):
            _add_item(messages, item)
    if not messages:
        raise body.refuse("input", "a text, or an array of items")
    check_history(messages)
    sampling = sampling_of(body)
    most = body.whole("max_output_tokens", 1, 1 << 30)
    if most is not None:
        sampling["max_tokens"] = most
    choice = body.values.get("tool_choice")
    tools = _tools(body)
    must_call = wanted_calls(body, tools)
    effort = body.inner("reasoning").text("effort", "")
    template = {"reasoning_effort": effort, "enable_thinking": effort != "none"} if effort else {}
    chat = AskedChat(
        messages=messages, sampling=sampling,
        tools=[] if choice == "none" else tools, must_call=must_call,
        calls_once=wants_one_call(body),
        form=form_of(body.inner("text").inner("format")), template=template,
        streams=body.flag("stream"), client=body.text("user", ""),
    )
    names = ("instructions", "temperature", "top_p", "max_output_tokens", "metadata")
    return AskedResponse(chat, {name: body.values.get(name) for name in names} | {
        "tools": body.array("tools"), "tool_choice": choice or "auto",
        "parallel_tool_calls": body.flag("parallel_tool_calls", True),
    })


def _tools(body: Fields) -> list[dict[str, Any]]:
    return checked_tools([
        {"type": "function", "function": {
            "name": tool.text("name"), "description": tool.text("description", ""),
            "parameters": dict(tool.inner("parameters").values),
        }}
        for tool in body.objects("tools") if tool.text("type") == "function"
    ])


def _add_item(messages: list[dict[str, Any]], item: Fields) -> None:
    """Add an item of the input to a chat; calls in a row are one message's."""
    kind = item.text("type", "message")
    if kind == "function_call":
        call = {
            "id": item.text("call_id"), "type": "function",
            "function": {"name": item.text("name"), "arguments": arguments_of(item)},
        }
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": None})
        messages[-1].setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        messages.append({
            "role": "tool", "tool_call_id": item.text("call_id"),
            "content": _content(item, "output"),
        })
    elif kind == "message":
        role = item.text("role")
        if role not in ("user", "assistant", "system", "developer"):
            raise item.refuse("role", "user, assistant, system or developer")
        role = "system" if role == "developer" else role
        messages.append({"role": role, "content": _content(item, "content")})
    elif kind != "reasoning":
        raise item.refuse("type", "message, function_call, function_call_output or reasoning")


def _content(item: Fields, key: str) -> str:
    """Return a text, or the texts of an array of parts."""
    if not isinstance(item.values.get(key), list):
        return item.text(key)
    texts = []
    for part in item.objects(key):
        if part.text("type") not in ("input_text", "output_text", "text"):
            raise RequestRefused(
                f"{part.name('type')} is {part.text('type')!r}: this model reads text alone",
                param=part.path,
            )
        texts.append(part.text("text"))
    return "\n".join(texts)


class ResponseWriter(EventWriter):
    """Writes one answer as a response, whole or as events."""

    def __init__(self, served: Served, answers: Answers, asked: AskedResponse) -> None:
        super().__init__(served, answers)
        self._asked = asked
        self._id = "resp_" + secrets.token_hex(12)
        self._created = int(time.time())
        self._output: list[dict[str, Any]] = []
        self._open: PartKind | None = None
        self._number = 0

    async def whole(self) -> dict[str, Any]:
        """Return the whole response."""
        last: dict[str, Any] = {}
        async for data in self.events():
            last = data
        found: dict[str, Any] = last["response"]
        return found

    def begin(self) -> Events:
        """Return the events of a response of which nothing is there."""
        return [
            self._event(kind, response=self._response("in_progress"))
            for kind in ("response.created", "response.in_progress")
        ]

    def part(self, part: AnswerPart) -> Events:
        """Return the events of a part, with the items that it ends and begins."""
        kind = part.kind
        if kind is PartKind.CALL_END:
            return self._close()
        found: list[dict[str, Any]] = []
        if kind is PartKind.CALL or (kind is not PartKind.ARGUMENTS and kind is not self._open):
            found += self._close() + self._begin(part)
        item = self._output[-1]
        at = len(self._output) - 1
        where = {"item_id": item["id"], "output_index": at}
        if kind is PartKind.TEXT:
            item["content"][0]["text"] += part.text
            found.append(self._event(
                "response.output_text.delta", **where, content_index=0, delta=part.text,
                logprobs=[],
            ))
        elif kind is PartKind.THOUGHT:
            item["content"][0]["text"] += part.text
            found.append(self._event(
                "response.reasoning_text.delta", **where, content_index=0, delta=part.text
            ))
        elif kind is PartKind.ARGUMENTS:
            item["arguments"] += part.text
            found.append(self._event(
                "response.function_call_arguments.delta", **where, delta=part.text
            ))
        return found

    def _begin(self, part: AnswerPart) -> list[dict[str, Any]]:
        """Begin an item."""
        kind = part.kind
        number = secrets.token_hex(12)
        item: dict[str, Any]
        if kind is PartKind.CALL:
            item = {
                "id": "fc_" + number, "type": "function_call", "status": "in_progress",
                "call_id": part.id, "name": part.name, "arguments": "",
            }
        elif kind is PartKind.THOUGHT:
            item = {
                "id": "rs_" + number, "type": "reasoning", "summary": [],
                "status": "in_progress", "content": [{"type": "reasoning_text", "text": ""}],
            }
        else:
            item = {
                "id": "msg_" + number, "type": "message", "role": "assistant",
                "status": "in_progress", "content": [_text_part()],
            }
        self._open = kind
        self._output.append(item)
        at = len(self._output) - 1
        shown = {**item, "content": []} if kind is PartKind.TEXT else {**item}
        found = [self._event("response.output_item.added", output_index=at, item=shown)]
        if kind is PartKind.TEXT:
            found.append(self._event(
                "response.content_part.added", item_id=item["id"], output_index=at,
                content_index=0, part=_text_part(),
            ))
        return found

    def _close(self) -> list[dict[str, Any]]:
        """End the item that is open."""
        if self._open is None:
            return []
        kind, self._open = self._open, None
        item, at = self._output[-1], len(self._output) - 1
        item["status"] = "completed"
        where = {"item_id": item["id"], "output_index": at}
        found: list[dict[str, Any]] = []
        if kind is PartKind.TEXT:
            part = item["content"][0]
            found = [
                self._event("response.output_text.done", **where, content_index=0,
                            text=part["text"], logprobs=[]),
                self._event("response.content_part.done", **where, content_index=0, part=part),
            ]
        elif kind is PartKind.THOUGHT:
            found = [self._event("response.reasoning_text.done", **where, content_index=0,
                                 text=item["content"][0]["text"])]
        else:
            found = [self._event("response.function_call_arguments.done", **where,
                                 name=item["name"], arguments=item["arguments"])]
        return [*found, self._event("response.output_item.done", output_index=at, item=item)]

    def end(self, news: AnswerNews) -> Events:
        """Return the end of the item that is open, and the whole response."""
        is_cut = check_reason(news.reason or "") == "length"
        closing = self._close()
        status = "incomplete" if is_cut else "completed"
        prompt, cached, written = self._answers.usage
        response = self._response(status) | {
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "usage": {
                "input_tokens": prompt, "input_tokens_details": {"cached_tokens": cached},
                "output_tokens": written, "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": prompt + written,
            },
        }
        return [*closing, self._event("response." + status, response=response)]

    def _response(self, status: str) -> dict[str, Any]:
        return {
            "id": self._id, "object": "response", "created_at": self._created, "status": status,
            "model": self._served.model.name, "output": [*self._output], "error": None,
            "incomplete_details": None, "usage": None, **self._asked.echo,
        }

    def _event(self, kind: str, **values: Any) -> dict[str, Any]:
        number = self._number
        self._number += 1
        return {"type": kind, "sequence_number": number, **values}


def failure(refusal: RequestRefused) -> dict[str, Any]:
    """Return the event that tells what went wrong."""
    return {
        "type": "error", "code": refusal.code, "message": refusal.message, "param": refusal.param,
    }


def _text_part() -> dict[str, Any]:
    return {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
