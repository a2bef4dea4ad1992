"""Grammars of answers that have to be calls, or of a form, in the way a family writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

from baregrad.llm.text.calls.formats import AnswerFormat
from baregrad.llm.text.json_schemas import with_bounded_space

_ANYTHING = r"/(.|\n)*/"
_ESCAPED = re.compile(r"\\?.", re.S)
_IN_SLASHES = MappingProxyType({"/": r"\/", "\n": r"\n", "\\\n": r"\n"})


class Marks(Protocol):
    """What of a tokeniser grammars are made with."""

    def id_of(self, text: str) -> int | None:
        """Return the token that is spelled so, or None."""

    def is_control(self, token: int) -> bool:
        """Whether a token steers the model, and no text shows it."""


def call_grammar(
    form: AnswerFormat, tools: Sequence[Mapping[str, Any]], names: Collection[str], marks: Marks,
    in_thought: bool = False,
) -> str | None:
    """Return a Lark grammar of answers that call some of the tools, and say nothing else.

    `tools` are in the OpenAI API's form, and `names` those that may be called. `in_thought`: the
    prompt has begun a thought, which the answer ends first. Returns None for a family that writes
    no calls.
    """
    functions = [tool["function"] for tool in tools if tool["function"]["name"] in names]
    writer = _CallRules(form, functions, marks)
    kinds = {
        "tags": writer.tags, "bare": writer.bare, "functions": writer.functions,
        "mistral": writer.mistral, "deepseek": writer.deepseek, "harmony": writer.harmony,
    }
    if form.calls not in kinds:
        return None
    return _whole(form, kinds[form.calls](), marks, in_thought)


def grammar_behind_thought(form: AnswerFormat, kind: str, text: str, marks: Marks) -> str | None:
    """Return a Lark grammar of answers that end a thought and have a form then.

    `kind` and `text` are those of an `AnswerForm`: of one that is a whole grammar, None is
    returned.
    """
    if kind == "regex":
        # Two slashes with nothing between them would begin a comment.
        pattern = _ESCAPED.sub(lambda found: _IN_SLASHES.get(found[0], found[0]), text) or "(?:)"
        return _whole(form, [f"answer: /{pattern}/"], marks, True)
    if kind not in ("json_schema", "json_object"):
        return None
    schema = json.loads(text) if kind == "json_schema" else {"type": "object"}
    return _whole(form, [f"answer: {_json(schema)}"], marks, True)


def _whole(form: AnswerFormat, rules: Sequence[str], marks: Marks, in_thought: bool) -> str:
    start = ["start: answer"]
    if in_thought:
        start = ["start: thought answer", *_until("thought", form.closes + "\n\n", marks)]
    return "\n".join([*start, *rules]) + "\n"


def _until(rule: str, end: str, marks: Marks) -> list[str]:
    """Return a rule of any text up to an end: a mark, maybe with white space behind it."""
    word = end.rstrip()
    mark = _mark(word, marks)
    if mark.startswith("<"):
        return [f"{rule}: {_ANYTHING} {mark} {_literal(end[len(word):])}"]
    return [f"{rule}[suffix={_literal(end)}]: {_ANYTHING}"]


def _mark(text: str, marks: Marks) -> str:
    """Return what stands for a mark in a grammar: its control token, or its text."""
    token = marks.id_of(text)
    return f"<[{token}]>" if token is not None and marks.is_control(token) else _literal(text)


def _json(schema: Any) -> str:
    """Return what stands for JSON of a schema in a grammar."""
    return "%json " + json.dumps(with_bounded_space(schema))


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


class _CallRules:
    """Writes the rule `answer`, and those that it is made of, for each way of writing calls."""

    def __init__(
        self, form: AnswerFormat, functions: Sequence[Mapping[str, Any]], marks: Marks
    ) -> None:
        self._form = form
        self._functions = functions
        self._marks = marks

    def tags(self) -> list[str]:
        """JSON between tags."""
        return [
            'answer: tagged ("\\n" tagged)*',
            f'tagged: {self._mark("<tool_call>")} "\\n" call "\\n" {self._mark("</tool_call>")}',
            *self._named(_object("arguments")),
        ]

    def bare(self) -> list[str]:
        """One call as JSON, and nothing else."""
        return ["answer: call", *self._named(_object("parameters"))]

    def mistral(self) -> list[str]:
        """An array of calls, or `f[ARGS]{...}` for each."""
        opener = self._mark("[TOOL_CALLS]")
        if self._form.variant == "array":
            id = r'(", \"id\": \"" /[a-zA-Z0-9]{9}/ "\"")?'
            return [
                f'answer: {opener} " "? "[" call (", " call)* "]"',
                *self._named(_object("arguments", id)),
            ]
        between = self._mark("[ARGS]")
        if self._form.variant == "identified":
            between = f"{self._mark('[CALL_ID]')} /[a-zA-Z0-9]{{9}}/ {between}"
        return ["answer: call+", *self._named(f'{opener} "%s" {between} %s')]

    def deepseek(self) -> list[str]:
        """`f<sep>{...}`, or `function<sep>f` and the arguments in a fence."""
        begin, end = self._mark("<｜tool▁call▁begin｜>"), self._mark("<｜tool▁call▁end｜>")
        separator = self._mark("<｜tool▁sep｜>")
        text = f'{begin} "%s" {separator} %s {end}'
        if self._form.variant == "fenced":
            text = f'{begin} "function" {separator} "%s\\n```json\\n" %s "\\n```" {end}'
        first, last = self._mark("<｜tool▁calls▁begin｜>"), self._mark("<｜tool▁calls▁end｜>")
        return [f'answer: {first} call ("\\n"? call)* {last}', *self._named(text)]

    def harmony(self) -> list[str]:
        """A message to a function, maybe behind a thought."""
        channel, message, start, kind = (
            self._mark(f"<|{name}|>") for name in ("channel", "message", "start", "constrain")
        )
        return [
            "answer: analysis? call",
            f'analysis: {channel} "analysis" {message} thought {start} "assistant"',
            *_until("thought", "<|end|>", self._marks),
            *self._named(
                f'{channel} "commentary to=functions.%s " {kind} "json" {message} %s'
            ),
        ]

    def functions(self) -> list[str]:
        """`<function=f>` with its parameters between tags."""
        rules = [
            'answer: call ("\\n" call)*',
            f'call: {self._mark("<tool_call>")} "\\n" body "\\n" {self._mark("</tool_call>")}',
            "body: " + " | ".join(f"f{number}" for number in range(len(self._functions))),
        ]
        for number, function in enumerate(self._functions):
            rules += _tagged(f"f{number}", function)
        return rules

    def _named(self, text: str) -> list[str]:
        """Rules of calls: `text` has a place for the name, in a literal, and one for arguments.

        Each schema stands alone, so that what it refers to within itself is found.
        """
        rules = ["call: " + " | ".join(f"f{number}" for number in range(len(self._functions)))]
        for number, function in enumerate(self._functions):
            rules += [
                f"f{number}: " + text % (_literal(function["name"])[1:-1], f"a{number}"),
                f"a{number}: {_json(_parameters(function))}",
            ]
        return rules

    def _mark(self, text: str) -> str:
        return _mark(text, self._marks)


def _object(key: str, more: str = "") -> str:
    """A call as an object, with places for its name and its arguments, which stand at `key`."""
    return rf'"{{\"name\": \"%s\", \"{key}\": " %s {more} "}}"'


def _parameters(function: Mapping[str, Any]) -> Any:
    return function.get("parameters") or {"type": "object"}


def _tagged(rule: str, function: Mapping[str, Any]) -> list[str]:
    """Rules of a call with tags, its parameters in the order of the schema."""
    schema = _parameters(function)
    properties = schema.get("properties") or {}
    definitions = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    head = f"<function={function['name']}>\n"
    parts: list[str] = []
    rules: list[str] = []
    for at, (key, value) in enumerate(properties.items()):
        name = f"{rule}_{at}"
        begin = _literal(f"<parameter={key}>\n")
        is_needed = key in schema.get("required", ())
        parts.append(name if is_needed else f"{name}?")
        rules += [f"{name}: {begin} {name}_value", _value(f"{name}_value", value, definitions)]
    if not properties and schema.get("additionalProperties") is not False:
        parts.append(f"{rule}_any*")
        rules += [
            f'{rule}_any: "<parameter=" /[A-Za-z0-9_.-]+/ ">\\n" {rule}_value',
            _value(f"{rule}_value", {"type": "string"}, {}),
        ]
    return [" ".join([f"{rule}: {_literal(head)}", *parts, '"</function>"']), *rules]


def _value(rule: str, schema: Any, definitions: Mapping[str, Any]) -> str:
    """The rule of a value between tags: texts stand as they are, all else as JSON."""
    end = "\n</parameter>\n"
    options = schema.get("enum") if isinstance(schema, Mapping) else None
    if options and all(isinstance(option, str) for option in options):
        return f"{rule}: ({' | '.join(map(_literal, options))}) {_literal(end)}"
    if isinstance(schema, Mapping) and schema.get("type") == "string":
        return f"{rule}[suffix={_literal(end)}]: {_ANYTHING}"
    whole = {**schema, **definitions} if isinstance(schema, Mapping) else schema
    return f"{rule}: {rule}_json {_literal(end)}\n{rule}_json: {_json(whole)}"
