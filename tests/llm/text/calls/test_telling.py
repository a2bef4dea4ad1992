"""Chats with tools become chats of texts, in turns."""

from __future__ import annotations

import json
from typing import Any

from baregrad.llm.text.calls import AnswerParser, PartKind, answer_format, told_of_tools

TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "get", "parameters": {"type": "object"}}}
]
WITH_SYSTEM = "{% if m.role == 'system' %}{{ m.content }}"


def call(id: str, arguments: Any) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": "get", "arguments": arguments}}


CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be kind."}, {"role": "user", "content": "Which?"},
    {"role": "assistant", "content": "Let me see.",
     "tool_calls": [call("a", '{"n": 1}'), call("b", {"n": "ü"})]},
    {"role": "tool", "tool_call_id": "a", "content": "7"},
    {"role": "tool", "tool_call_id": "b", "content": "8"}, {"role": "user", "content": "Well?"},
]


def test_calls_and_results_are_texts_in_turns() -> None:
    before = json.dumps(CHAT)
    made = told_of_tools(WITH_SYSTEM, CHAT, TOOLS)
    assert json.dumps(CHAT) == before
    assert [message["role"] for message in made] == ["system", "user", "assistant", "user"]
    assert made[0]["content"].startswith("Be kind.\n\n")
    assert json.dumps(TOOLS[0]["function"]) in made[0]["content"]
    assert made[1] == CHAT[1]
    assert made[3]["content"] == (
        "<tool_response>\n7\n</tool_response>\n<tool_response>\n8\n</tool_response>\nWell?")


def test_the_parser_reads_what_calls_are_told_as() -> None:
    form = answer_format(WITH_SYSTEM)
    assert form.is_told
    parser = AnswerParser(form, tools=TOOLS)
    parts = parser.add(told_of_tools(WITH_SYSTEM, CHAT, TOOLS)[2]["content"]) + parser.finish()
    texts = [part.text for part in parts if part.kind is PartKind.TEXT]
    arguments = [part.text for part in parts if part.kind is PartKind.ARGUMENTS]
    assert texts == ["Let me see."]
    assert [json.loads(text) for text in arguments] == [{"n": 1}, {"n": "ü"}]


def test_where_there_is_no_place_for_a_system() -> None:
    for template in ("{{ messages }}", "system{{ raise_exception('System role not supported') }}"):
        made = told_of_tools(template, [{"role": "user", "content": "Which?"}], TOOLS)
        assert len(made) == 1 and made[0]["content"].endswith("\n\nWhich?")
        assert '"get"' in made[0]["content"]
    assert told_of_tools(WITH_SYSTEM, CHAT[1:2], TOOLS)[0]["role"] == "system"
    assert told_of_tools(WITH_SYSTEM, CHAT[1:2], ()) == CHAT[1:2]
