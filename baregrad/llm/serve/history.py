"""Chats in which calls and their results fit together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from baregrad.llm.serve.refusals import RequestRefused


def check_history(messages: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a chat whose calls are not all answered, each once, by what follows them.

    A model is trained on no other chats. `messages` are in the OpenAI API's form, and calls of the
    last message may still wait for their results.
    """
    open_calls: dict[str, str] = {}
    for message in messages:
        if message["role"] == "tool":
            call = message.get("tool_call_id")
            if not isinstance(call, str) or call not in open_calls:
                raise _refused(
                    f"a result of a tool belongs to {call!r}, and no call before it that waits for "
                    "one has this id"
                )
            del open_calls[call]
            continue
        if open_calls:
            raise _refused(f"the call {next(iter(open_calls))!r} has no result")
        for called in message.get("tool_calls", ()):
            id = called.get("id")
            if not isinstance(id, str) or not id or id in open_calls:
                raise _refused(f"a call has to have an id of its own, not {id!r}")
            open_calls[id] = called["function"]["name"]


def _refused(message: str) -> RequestRefused:
    return RequestRefused(message, param="messages")
