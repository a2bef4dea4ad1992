"""Answers that a grammar of calls allows are calls, and others are not allowed."""

from __future__ import annotations

from typing import Any

import pytest

from baregrad.llm.generation.constraints import AnswerForm, Constraints
from baregrad.llm.text import tokenizer_of
from baregrad.llm.text.calls import AnswerFormat, AnswerParser, PartKind, call_grammar
from tests.llm.text.vocabularies import byte_metadata

pytest.importorskip("llguidance", reason="grammars are read by llguidance")
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "get", "parameters": {
        "type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"],
        "additionalProperties": False}}},
    {"type": "function", "function": {"name": "other"}},
]
GET = '{"name": "get", "arguments": {"n": 12}}'
OTHER = '{"name": "other", "arguments": {"x": []}}'


def allows(form: AnswerFormat, names: list[str], answer: str) -> bool:
    """Whether each token of an answer may follow those before it, and an end follows them all."""
    tokenizer = tokenizer_of(byte_metadata())
    grammar = call_grammar(form, TOOLS, names)
    assert grammar is not None
    constraint = Constraints(tokenizer, tokenizer.size).make(AnswerForm("lark", grammar))
    assert tokenizer.eos is not None
    for token in [*tokenizer.encode(answer), tokenizer.eos]:
        if not constraint.bits()[token // 32] >> (token % 32) & 1:
            return False
        constraint.add(token)
    return True


def test_calls_between_tags() -> None:
    form = AnswerFormat("tags")

    def tagged(call: str) -> str:
        return f"<tool_call>\n{call}\n</tool_call>"

    both = ["get", "other"]
    for answer in (tagged(GET), tagged(OTHER), tagged(GET) + "\n" + tagged(OTHER)):
        assert allows(form, both, answer)
        parser = AnswerParser(form, tools=TOOLS)
        kinds = {part.kind for part in parser.add(answer) + parser.finish()}
        assert PartKind.CALL in kinds and PartKind.TEXT not in kinds
    assert not allows(form, both, "Hello")
    assert not allows(form, both, tagged('{"name": "third", "arguments": {}}'))
    assert not allows(form, both, tagged('{"name": "get", "arguments": {"n": "x"}}'))
    assert not allows(form, ["get"], tagged(OTHER))


def test_bare_calls() -> None:
    form = AnswerFormat("bare")
    assert allows(form, ["get"], GET.replace("arguments", "parameters"))
    assert not allows(form, ["get"], GET)


def test_families_with_control_tokens_around_calls() -> None:
    for name in ("mistral", "deepseek", "harmony", "functions", ""):
        assert call_grammar(AnswerFormat(name), TOOLS, ["get"]) is None
