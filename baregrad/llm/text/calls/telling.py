"""Tools for models whose templates know none: told of in the chat itself."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

_INTRODUCTION = (
    "You may call functions. Each line here describes one as JSON:\n{tools}\n"
    "To call a function, answer with its name and its arguments as JSON, between tags:\n"
    '<tool_call>\n{{"name": "...", "arguments": {{}}}}\n</tool_call>\n'
    "Its result comes between <tool_response> and </tool_response>."
)
_REFUSES_SYSTEM = "System role not supported"


def told_of_tools(
    template: str, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return a chat in which tools, calls and results are texts, none of the messages changed.

    `messages` and `tools` are in the OpenAI API's form. The tools are told by the first message: of
    the system, or of the user where the `template` has no place for one.
    """
    made: list[dict[str, Any]] = []
    is_result = False
    for message in messages:
        text = message.get("content") or ""
        if message["role"] == "tool":
            text = f"<tool_response>\n{text}\n</tool_response>"
        if is_result and message["role"] in ("tool", "user"):
            # What answers calls is one message: templates want users and assistants in turns.
            made[-1]["content"] += "\n" + text
        elif message["role"] == "tool":
            made.append({"role": "user", "content": text})
        elif message.get("tool_calls"):
            kept = {name: message[name] for name in message if name != "tool_calls"}
            calls = map(_written, message["tool_calls"])
            made.append({**kept, "content": "\n".join([text] * bool(text) + [*calls])})
        else:
            made.append(dict(message))
        is_result = message["role"] == "tool"
    if tools:
        _tell(template, made, tools)
    return made


def _tell(
    template: str, messages: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> None:
    lines = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    text = _INTRODUCTION.format(tools=lines)
    has_system = "system" in template and _REFUSES_SYSTEM not in template
    role = "system" if has_system else "user"
    if not messages or messages[0]["role"] != role:
        messages.insert(0, {"role": role, "content": text})
    elif role == "system":
        messages[0]["content"] = f"{messages[0].get('content') or ''}\n\n{text}".strip()
    else:
        messages[0]["content"] = f"{text}\n\n{messages[0].get('content') or ''}".strip()


def _written(call: Mapping[str, Any]) -> str:
    """Return a call as the model writes it."""
    function = call["function"]
    arguments = function.get("arguments") or "{}"
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    name = json.dumps(function["name"], ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>'
