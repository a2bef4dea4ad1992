"""Answers that a grammar of calls allows are calls, and others are not allowed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from baregrad.llm.generation.constraints import AnswerForm, Constraints
from baregrad.llm.text import tokenizer_of
from baregrad.llm.text.calls import (
    AnswerFormat,
    AnswerParser,
    PartKind,
    answer_format,
    call_grammar,
    grammar_behind_thought,
)
from tests.llm.text.vocabularies import byte_metadata

pytest.importorskip("llguidance", reason="grammars are read by llguidance")
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "get", "parameters": {
        "type": "object", "properties": {
            "n": {"type": "integer"}, "where": {"type": "string"},
            "unit": {"enum": ["m", "km"]}, "of": {"$ref": "#/$defs/point"}},
        "required": ["n"], "additionalProperties": False,
        "$defs": {"point": {"type": "array", "items": {"type": "number"}}}}}},
    {"type": "function", "function": {"name": "other"}},
]
BOTH = ("get", "other")
GET, OTHER = '{"n": 12}', '{"x": []}'
MARKS = (
    "<tool_call>", "</tool_call>", "<think>", "</think>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]",
    "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "<|channel|>", "<|message|>", "<|start|>", "<|end|>",
    "<|constrain|>", "<|call|>",
)
# Whether marks are control tokens or texts differs from vocabulary to vocabulary.
VOCABULARIES = (byte_metadata(), byte_metadata(controls=MARKS))
TEMPLATES = {
    "tags": "{{ tools }}<tool_call></tool_call><think></think>",
    "bare": "{{ tools }}",
    "functions": "{{ tools }}<tool_call><function=a><parameter=b></tool_call>",
    "array": "{{ tools }}[TOOL_CALLS]",
    "named": "{{ tools }}[TOOL_CALLS][ARGS]",
    "identified": "{{ tools }}[TOOL_CALLS][CALL_ID][ARGS]",
    "deepseek": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜></think>",
    "fenced": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>```json",
    "harmony": "<|start|><|channel|><|message|>",
}


def answers(*calls: tuple[str, str]) -> dict[str, str]:
    """Calls of a name with arguments in JSON, as each family writes them, by its template."""
    objects = [f'{{"name": "{name}", "arguments": {text}}}' for name, text in calls]
    tagged = []
    for name, text in calls:
        parameters = "".join(
            f"<parameter={key}>\n{value if isinstance(value, str) else json.dumps(value)}\n"
            "</parameter>\n" for key, value in json.loads(text).items()
        )
        tagged.append(f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>")
    fenced = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n{}\n```<｜tool▁call▁end｜>"
    named = "<｜tool▁call▁begin｜>{}<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
    first, last = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
    name, text = calls[0]
    return {
        "tags": "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in objects),
        "bare": objects[0].replace("arguments", "parameters"),
        "functions": "\n".join(tagged),
        "array": "[TOOL_CALLS] [" + ", ".join(objects) + "]",
        "named": "".join(f"[TOOL_CALLS]{name}[ARGS]{text}" for name, text in calls),
        "identified": "".join(
            f"[TOOL_CALLS]{name}[CALL_ID]abcDEF123[ARGS]{text}" for name, text in calls),
        "deepseek": first + "\n".join(named.format(*call) for call in calls) + last,
        "fenced": first + "\n".join(fenced.format(*call) for call in calls) + last,
        "harmony": f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{text}",
    }


def allows(metadata: Any, grammar: str, answer: str) -> bool:
    """Whether each token of an answer may follow those before it, and an end follows them all."""
    tokenizer = tokenizer_of(metadata)
    constraint = Constraints(tokenizer, tokenizer.size).make(AnswerForm("lark", grammar))
    assert tokenizer.eos is not None
    for token in [*tokenizer.encode(answer, specials=True), tokenizer.eos]:
        if not constraint.bits()[token // 32] >> (token % 32) & 1:
            return False
        constraint.add(token)
    return True


def forced(family: str, metadata: Any, names: tuple[str, ...] = BOTH) -> str:
    tokenizer = tokenizer_of(metadata)
    grammar = call_grammar(answer_format(TEMPLATES[family]), TOOLS, names, tokenizer)
    assert grammar is not None
    return grammar


def parsed(family: str, answer: str) -> list[tuple[str, Any]]:
    """The calls of an answer in which nothing else is told."""
    parser = AnswerParser(answer_format(TEMPLATES[family]), tools=TOOLS)
    found: list[tuple[str, str]] = []
    for part in parser.add(answer) + parser.finish():
        if part.kind is PartKind.CALL:
            found.append((part.name, ""))
        elif part.kind is PartKind.ARGUMENTS:
            found[-1] = (found[-1][0], found[-1][1] + part.text)
        else:
            assert part.kind is PartKind.CALL_END
    return [(name, json.loads(text)) for name, text in found]


@pytest.mark.parametrize("metadata", VOCABULARIES, ids=["texts", "controls"])
@pytest.mark.parametrize("family", TEMPLATES)
def test_calls_alone_are_allowed_and_read(family: str, metadata: Any) -> None:
    grammar = forced(family, metadata)
    get = ("get", '{"n": 12, "where": "a </b>\\nc", "unit": "km", "of": [1, 2.5]}')
    lone = answers(get)[family]
    assert allows(metadata, grammar, lone)
    assert parsed(family, lone) == [("get", json.loads(get[1]))]
    other = ("other", '{"x": "y"}')
    assert allows(metadata, grammar, answers(other)[family])
    assert parsed(family, answers(other)[family]) == [("other", {"x": "y"})]
    if family not in ("bare", "harmony"):
        several = answers(("get", GET), other)[family]
        assert allows(metadata, grammar, several)
        assert parsed(family, several) == [("get", {"n": 12}), ("other", {"x": "y"})]
    for name, text in (("third", "{}"), ("get", '{"n": "x"}'), ("get", "{}"),
                       ("get", '{"n": 1, "z": 2}'), ("get", '{"n": 1, "unit": "ft"}'),
                       ("get", '{"n": 1, "of": "x"}')):
        assert not allows(metadata, grammar, answers((name, text))[family]), text
    for text in ("Hello", "", "Well. " + lone, lone + " Done."):
        assert not allows(metadata, grammar, text)
    assert not allows(metadata, forced(family, metadata, ("other",)), lone)


@pytest.mark.parametrize("metadata", VOCABULARIES, ids=["texts", "controls"])
def test_a_thought_may_come_before_a_call(metadata: Any) -> None:
    call = answers(("get", GET))["harmony"]
    thought = "<|channel|>analysis<|message|>Hm, \n12.<|end|><|start|>assistant"
    assert allows(metadata, forced("harmony", metadata), thought + call)
    assert not allows(metadata, forced("harmony", metadata), thought)
    form, tokenizer = answer_format(TEMPLATES["tags"]), tokenizer_of(metadata)
    grammar = call_grammar(form, TOOLS, BOTH, tokenizer, in_thought=True)
    assert grammar is not None
    tags = answers(("get", GET))["tags"]
    assert allows(metadata, grammar, f"Hm, <b>\n12.\n</think>\n\n{tags}")
    assert not allows(metadata, grammar, tags) and not allows(metadata, grammar, "Hm.</think>\n\n")
    schema = json.dumps(TOOLS[0]["function"]["parameters"])
    grammar = grammar_behind_thought(form, "json_schema", schema, tokenizer)
    assert grammar is not None
    assert allows(metadata, grammar, f"Hm.\n</think>\n\n{GET}")
    assert not allows(metadata, grammar, f"Hm.\n</think>\n\n{OTHER}")
    assert not allows(metadata, grammar, GET)
    grammar = grammar_behind_thought(form, "regex", "a/b\n|c", tokenizer)
    assert grammar is not None
    assert allows(metadata, grammar, "Hm.</think>\n\na/b\n")
    assert not allows(metadata, grammar, "Hm.</think>\n\na/b")
    assert not allows(metadata, grammar, "c")
    for pattern, answer in ((r"a\/b/\\", "a/b/\\"), ("", ""), ("a\\\nb", "a\nb"), (r"\\/", "\\/")):
        grammar = grammar_behind_thought(form, "regex", pattern, tokenizer)
        assert grammar is not None
        assert allows(metadata, grammar, f"Hm.</think>\n\n{answer}")
        assert not allows(metadata, grammar, f"Hm.</think>\n\n{answer}/")
    assert grammar_behind_thought(form, "grammar", 'start: "a"', tokenizer) is None


def test_a_family_that_writes_no_calls() -> None:
    tokenizer = tokenizer_of(byte_metadata())
    assert call_grammar(AnswerFormat(""), TOOLS, ["get"], tokenizer) is None
