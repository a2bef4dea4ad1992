"""Grammars of answers that have to be calls."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from baregrad.llm.text.calls.formats import AnswerFormat


def call_grammar(
    form: AnswerFormat, tools: Sequence[Mapping[str, Any]], names: Collection[str]
) -> str | None:
    """Return a Lark grammar of answers that call some of the tools, and say nothing else.

    `tools` are in the OpenAI API's form, and `names` those that may be called. Returns None for a
    family whose calls no grammar of texts describes, as control tokens stand around them.
    """
    key = {"tags": "arguments", "bare": "parameters"}.get(form.calls)
    if key is None:
        return None
    functions = [tool["function"] for tool in tools if tool["function"]["name"] in names]
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": function["name"]},
                key: function.get("parameters") or {"type": "object"},
            },
            "required": ["name", key],
            "additionalProperties": False,
        }
        for function in functions
    ]
    call = json.dumps({"anyOf": calls} if len(calls) > 1 else calls[0])
    if form.calls == "bare":
        return f"start: call\ncall: %json {call}\n"
    return (
        'start: tagged ("\\n" tagged)*\n'
        'tagged: "<tool_call>\\n" call "\\n</tool_call>"\n'
        f"call: %json {call}\n"
    )
