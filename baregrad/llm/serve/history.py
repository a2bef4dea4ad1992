"""Chats in which calls and their results fit together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from baregrad.llm.serve.refusals import RequestRefused
from baregrad.llm.text.templates.messages import read_arguments


def check_history(messages: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a chat whose calls are not all answered, each once, by what follows them.

    A model is trained on no other chats. `messages` are in the OpenAI API's form, and calls of the
    last message may still wait for their results. A call within which its answer ended, so that its
    arguments are no object, could not be made: it need not have a result.
    """
    open_calls: dict[str, Any] = {}
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
        for id, arguments in open_calls.items():
            if isinstance(read_arguments(arguments), Mapping):
                raise _refused(f"the call {id!r} has no result")
        open_calls.clear()
        for called in message.get("tool_calls", ()):
            id = called.get("id")
            if not isinstance(id, str) or not id or id in open_calls:
                raise _refused(f"a call has to have an id of its own, not {id!r}")
            open_calls[id] = called["function"]["arguments"]


def _refused(message: str) -> RequestRefused:
    return RequestRefused(message, param="messages")
