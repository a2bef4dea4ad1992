"""Messages as clients send them, made into what chat templates expect."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from baregrad.base.errors import ArgumentError

# What stands before arguments that are no JSON where there has to be an object of them.
UNPARSED = "_unparsed"
# A template that asks whether a content is null means something by it.
_ASKS_FOR_NULL = re.compile(r"content\W{0,3}\s+is\s+(not\s+)?none", re.IGNORECASE)
# What is nested more deeply may be read, and yet fail to be written again from deeper in a program.
MOST_DEPTH = 128
Arguments = str | Mapping[str, Any]
Writing = Callable[[Arguments], Arguments]


def is_too_deep(value: Any) -> bool:
    """Whether JSON is nested more than MOST_DEPTH deep."""
    level = [value]
    for _ in range(MOST_DEPTH):
        level = [
            inner for each in level if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return False
    return True


def read_arguments(arguments: Arguments) -> Arguments:
    """Return the arguments of a call as a mapping, or as the text that they are if it is no JSON.

    An answer that came to its limit within a call has such a text. One that is nested too deeply
    is left a text as well.
    """
    if not isinstance(arguments, str):
        return arguments
    try:
        found = json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        return arguments
    return found if isinstance(found, dict) and not is_too_deep(found) else arguments


def _as_text(arguments: Arguments) -> str:
    """Return arguments as JSON in a text, or as the text that they are."""
    if isinstance(arguments, str):
        return arguments if arguments.strip() else "{}"
    return json.dumps(arguments, ensure_ascii=False)


def object_of(arguments: Arguments) -> Mapping[str, Any]:
    """Return arguments as a mapping, which names those that are no JSON."""
    found = read_arguments(arguments)
    return {UNPARSED: found} if isinstance(found, str) else found


# What templates do with arguments differs: most write a mapping as JSON, others join a text to
# theirs, or go through the names of a mapping. The first that a template does not fail on is right.
WRITINGS: tuple[Writing, ...] = (read_arguments, _as_text, object_of)


def messages_for(
    template: str, messages: Sequence[Mapping[str, Any]], writing: Writing = read_arguments
) -> list[dict[str, Any]]:
    """Return messages for a template, none of the given ones changed.

    `writing`, one of WRITINGS, says what the arguments of calls become. Texts in parts are joined
    by newlines. A missing content is empty, or null for a template that asks about it. Raises
    ArgumentError for what is no message.
    """
    asks_for_null = bool(_ASKS_FOR_NULL.search(template))
    return [
        _message(message, index, asks_for_null, writing) for index, message in enumerate(messages)
    ]


def _message(
    message: Mapping[str, Any], index: int, asks_for_null: bool, writing: Writing
) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise ArgumentError(f"messages[{index}] is no object", found=type(message).__name__)
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise ArgumentError(f"messages[{index}] has no role", found=repr(role))
    made = dict(message)
    content = _content(message.get("content"), f"messages[{index}].content")
    calls = message.get("tool_calls")
    if calls:
        where = f"messages[{index}].tool_calls"
        made["tool_calls"] = [_call(call, where, writing) for call in calls]
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


def _call(call: Any, where: str, writing: Writing) -> dict[str, Any]:
    """Return a call whose arguments are written in a way."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ArgumentError(f"{where} holds what is no call of a function", found=repr(call)[:80])
    arguments = function.get("arguments", {})
    if not isinstance(arguments, str | Mapping):
        raise ArgumentError(
            f"{where} holds arguments that are neither text nor object", found=repr(arguments)[:80]
        )
    return {**call, "function": {**function, "arguments": writing(arguments)}}
