"""Messages as clients send them, made into what chat templates expect."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from baregrad.base.errors import ArgumentError

# A template that asks whether a content is null means something by it.
_ASKS_FOR_NULL = re.compile(r"content\W{0,3}\s+is\s+(not\s+)?none", re.IGNORECASE)


def messages_for(
    template: str, messages: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return messages for a template, none of the given ones changed.

    Arguments of calls come as JSON in a string and are made the mappings that templates expect.
    Texts in parts are joined by newlines. A missing content is empty, or null for a template that
    asks about it. Raises ArgumentError for what is no message.
    """
    asks_for_null = bool(_ASKS_FOR_NULL.search(template))
    return [_message(message, index, asks_for_null) for index, message in enumerate(messages)]


def _message(message: Mapping[str, Any], index: int, asks_for_null: bool) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise ArgumentError(f"messages[{index}] is no object", found=type(message).__name__)
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise ArgumentError(f"messages[{index}] has no role", found=repr(role))
    made = dict(message)
    content = _content(message.get("content"), f"messages[{index}].content")
    calls = message.get("tool_calls")
    if calls:
        made["tool_calls"] = [_call(call, f"messages[{index}].tool_calls") for call in calls]
    else:
        # An empty list would make templates begin a call that never comes.
        made.pop("tool_calls", None)
    if not content and asks_for_null and calls:
        content = None
    elif content is None:
        content = ""
    made["content"] = content
    return made


def _content(content: Any, where: str) -> str | list[Any] | None:
    """Return a content as one text; parts that are no text stay parts."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise ArgumentError(f"{where} is neither text nor parts", found=type(content).__name__)
    texts = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif not isinstance(part, Mapping):
            raise ArgumentError(f"{where} holds what is no part", found=type(part).__name__)
        elif isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            return list(content)
    return "\n".join(texts)


def _call(call: Any, where: str) -> dict[str, Any]:
    """Return a call whose arguments are a mapping."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ArgumentError(f"{where} holds what is no call of a function", found=repr(call)[:80])
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError) as error:
            raise ArgumentError(
                f"{where} holds arguments that are no JSON", found=repr(arguments[:80])
            ) from error
    return {**call, "function": {**function, "arguments": arguments}}
