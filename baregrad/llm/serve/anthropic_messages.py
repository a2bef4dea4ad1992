"""Anthropic's messages: requests made into chats, and answers in blocks."""

from __future__ import annotations

import json
import secrets
from typing import Any

from baregrad.llm.serve.asked import AskedChat, checked_tools, form_of
from baregrad.llm.serve.chat_answers import check_reason, collect
from baregrad.llm.serve.event_writer import Events, EventWriter
from baregrad.llm.serve.fields import Fields
from baregrad.llm.serve.history import check_history
from baregrad.llm.serve.refusals import RequestRefused
from baregrad.llm.serve.served import AnswerNews, Answers, Served
from baregrad.llm.text.calls import AnswerPart, PartKind
from baregrad.llm.text.templates.messages import UNPARSED, object_of

_FIELDS = (
    "model", "messages", "max_tokens", "system", "temperature", "top_p", "top_k", "stop_sequences",
    "stream", "metadata", "tools", "tool_choice", "thinking", "output_config", "service_tier",
    "cache_control", "inference_geo", "speed", "context_management",
)
_REASONS = (("stop", "end_turn"), ("length", "max_tokens"), ("tool_calls", "tool_use"))


def asked_message(body: Fields, *, counts: bool = False) -> AskedChat:
    """Return the chat of a request; `counts` says that its tokens are only counted."""
    body.only(_FIELDS)
    body.text("model", "")
    _check_edits(body)
    messages: list[dict[str, Any]] = []
    system = _texts(body, "system")
    if system:
        messages.append({"role": "system", "content": system})
    if not body.objects("messages"):
        raise RequestRefused("messages has to hold at least one message", param="messages")
    for message in body.objects("messages"):
        messages += _messages(message)
    check_history(messages)
    most = body.whole("max_tokens", 1, 1 << 30)
    if most is None and not counts:
        raise body.refuse("max_tokens", "a whole number")
    sampling: dict[str, Any] = {
        "max_tokens": most, "temperature": body.number("temperature"),
        "top_p": body.number("top_p"), "top_k": body.whole("top_k", 0, 1 << 30),
        "stops": tuple(body.texts("stop_sequences")) or None,
    }
    tools = _tools(body)
    choice = body.inner("tool_choice")
    kind = choice.text("type", "auto")
    thinking = body.inner("thinking").text("type", "")
    template = {"enable_thinking": thinking != "disabled"} if thinking else {}
    return AskedChat(
        messages=messages,
        sampling={name: value for name, value in sampling.items() if value is not None},
        tools=[] if kind == "none" else tools,
        must_call=_wanted_calls(choice, tools),
        calls_once=choice.flag("disable_parallel_tool_use") or kind == "tool",
        form=form_of(body.inner("output_config").inner("format")),
        template=template,
        streams=body.flag("stream"),
        client=body.inner("metadata").text("user_id", ""),
    )


def _check_edits(body: Fields) -> None:
    """Refuse edits of the chat that would leave something out; agents ask for one that does not."""
    for edit in body.inner("context_management").objects("edits"):
        kind = edit.text("type")
        if not kind.startswith("clear_thinking_") or edit.values.get("keep") != "all":
            raise RequestRefused(
                f"{edit.name('type')} is {kind!r}: chats are not edited here, send what is to be "
                "read", param=edit.path,
            )


def _tools(body: Fields) -> list[dict[str, Any]]:
    for tool in body.objects("tools"):
        # Others are run by Anthropic's servers, or have schemas that its models alone know.
        if tool.text("type", "custom") != "custom":
            raise tool.refuse("type", "custom")
    return checked_tools([
        {"type": "function", "function": {
            "name": tool.text("name"), "description": tool.text("description", ""),
            "parameters": dict(tool.inner("input_schema").values),
        }}
        for tool in body.objects("tools")
    ])


def _wanted_calls(choice: Fields, tools: list[dict[str, Any]]) -> tuple[str, ...]:
    """Return the tools of which one has to be called."""
    kind = choice.text("type", "auto")
    names = tuple(tool["function"]["name"] for tool in tools)
    if kind in ("auto", "none"):
        return ()
    if kind == "tool":
        if choice.text("name") not in names:
            raise choice.refuse("name", "one of the tools")
        return (choice.text("name"),)
    if kind != "any" or not names:
        raise choice.refuse("type", "auto, none, any (with tools) or tool")
    return names


def _texts(fields: Fields, key: str) -> str:
    """Return a text, or the texts of an array of blocks."""
    if not fields.has(key):
        return ""
    value = fields.values[key]
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise fields.refuse(key, "a text or an array of blocks")
    return "\n".join(_block_text(block) for block in fields.objects(key))


def _block_text(block: Fields) -> str:
    if block.text("type", "text") != "text":
        raise RequestRefused(
            f"{block.name('type')} is {block.text('type')!r}: this model reads text alone",
            param=block.path,
        )
    return block.text("text")


def _messages(message: Fields) -> list[dict[str, Any]]:
    """Return a message as one of a chat, and the results of tools in it as others before it."""
    role = message.text("role")
    if role not in ("user", "assistant", "system"):
        raise message.refuse("role", "user or assistant")
    if not isinstance(message.values.get("content"), list):
        return [{"role": role, "content": message.text("content")}]
    results: list[dict[str, Any]] = []
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for block in message.objects("content"):
        kind = block.text("type", "text")
        if kind == "tool_use":
            given = block.inner("input").values
            unparsed = given.get(UNPARSED) if len(given) == 1 else None
            arguments = json.dumps(given, ensure_ascii=False)
            if isinstance(unparsed, str):
                # It is one of our own answers.
                arguments = unparsed
            calls.append({
                "id": block.text("id"), "type": "function",
                "function": {"name": block.text("name"), "arguments": arguments},
            })
        elif kind == "tool_result":
            results.append({
                "role": "tool", "tool_call_id": block.text("tool_use_id"),
                "content": _texts(block, "content"),
            })
        elif kind == "thinking":
            thoughts.append(block.text("thinking", ""))
        elif kind != "redacted_thinking":
            texts.append(_block_text(block))
    made: dict[str, Any] = {"role": role, "content": "\n".join(texts)}
    if thoughts:
        made["reasoning_content"] = "\n".join(thoughts)
    if calls:
        made["tool_calls"] = calls
    return results + ([made] if texts or calls or thoughts or not results else [])


class MessageWriter(EventWriter):
    """Writes one answer as a message, whole or as events."""

    def __init__(self, served: Served, answers: Answers) -> None:
        super().__init__(served, answers)
        self._id = "msg_" + secrets.token_hex(12)
        # The block that is open, and how many there were.
        self._open: PartKind | None = None
        self._index = -1

    async def whole(self) -> dict[str, Any]:
        """Return the whole message."""
        found = (await collect(self._served, self._answers, 1))[0]
        content: list[dict[str, Any]] = []
        if found.thought:
            content.append({"type": "thinking", "thinking": found.thought, "signature": ""})
        if found.text or not (found.calls or found.thought):
            content.append({"type": "text", "text": found.text})
        for call in found.calls:
            function = call["function"]
            content.append({
                "type": "tool_use", "id": call["id"], "name": function["name"],
                "input": dict(object_of(function["arguments"])),
            })
        return self._message(content) | {
            "stop_reason": _stop_reason(found.reason, found.stop), "stop_sequence": found.stop,
            "usage": self._usage(),
        }

    def begin(self) -> Events:
        """Return the start of a message."""
        usage = {**self._usage(), "output_tokens": 0}
        return [{"type": "message_start", "message": self._message([]) | {
            "stop_reason": None, "stop_sequence": None, "usage": usage,
        }}]

    def part(self, part: AnswerPart) -> Events:
        """Return the events of a part, with the blocks that it ends and begins."""
        kind = part.kind
        if kind is PartKind.ARGUMENTS:
            return [self._delta({"type": "input_json_delta", "partial_json": part.text})]
        if kind is PartKind.CALL_END:
            return self._close()
        found: list[dict[str, Any]] = []
        if kind is PartKind.CALL or kind is not self._open:
            found += self._close()
            blocks: dict[PartKind, dict[str, Any]] = {
                PartKind.TEXT: {"type": "text", "text": ""},
                PartKind.THOUGHT: {"type": "thinking", "thinking": "", "signature": ""},
                PartKind.CALL: {
                    "type": "tool_use", "id": part.id, "name": part.name, "input": {},
                },
            }
            self._open = kind
            self._index += 1
            found.append({
                "type": "content_block_start", "index": self._index, "content_block": blocks[kind],
            })
        if kind is PartKind.TEXT:
            found.append(self._delta({"type": "text_delta", "text": part.text}))
        elif kind is PartKind.THOUGHT:
            found.append(self._delta({"type": "thinking_delta", "thinking": part.text}))
        return found

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _close(self) -> list[dict[str, Any]]:
        if self._open is None:
            return []
        self._open = None
        return [{"type": "content_block_stop", "index": self._index}]

    def end(self, news: AnswerNews) -> Events:
        """Return the end of the block that is open, and of the message."""
        reason = _stop_reason(check_reason(news.reason or ""), news.stop)
        return [
            *self._close(),
            {
                "type": "message_delta",
                "delta": {"stop_reason": reason, "stop_sequence": news.stop},
                "usage": self._usage(),
            },
            {"type": "message_stop"},
        ]

    def _message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id, "type": "message", "role": "assistant",
            "model": self._served.model.name, "content": content,
        }

    def _usage(self) -> dict[str, int]:
        prompt, cached, written = self._answers.usage
        return {
            "input_tokens": prompt - cached, "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": 0, "output_tokens": written,
        }


def failure(refusal: RequestRefused) -> dict[str, Any]:
    """Return the event that tells what went wrong."""
    return refusal.anthropic_body()


def _stop_reason(reason: str, stop: str | None) -> str:
    return "stop_sequence" if stop is not None else dict(_REASONS)[reason]
