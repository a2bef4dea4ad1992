"""Forms are enforced token by token, and refused where they cannot be."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest

from baregrad.base.errors import ArgumentError
from baregrad.llm.generation.constraints import AnswerForm, Constraints

pytest.importorskip("llguidance", reason="answers of a form need llguidance")


class Bytes:
    """A vocabulary of the 256 bytes, some words, and two ends."""

    bos = None
    eos = 260
    ends = frozenset({260, 261})
    size = 262
    _words = (b"true", b'{"', b'":', b" of")

    def encode(self, text: str, *, add_bos: bool | None = None) -> list[int]:
        return list(text.encode())

    def is_control(self, token: int) -> bool:
        return token in self.ends

    def token_bytes(self, token: int) -> bytes:
        if token < 256:
            return bytes([token])
        return self._words[token - 256] if token < 260 else b"<end>"


CONSTRAINTS = Constraints(Bytes(), 300)


def allowed(constraint: Any) -> list[int]:
    bits = constraint.bits()
    return [token for token in range(300) if bits[token // 32] >> (token % 32) & 1]


def written(form: AnswerForm, seed: int, most: int = 400) -> str:
    """Text of random tokens that a form allows, until it ends."""
    rng, constraint, text = random.Random(seed), CONSTRAINTS.make(form), b""
    for _ in range(most):
        choices = allowed(constraint)
        words = [token for token in choices if token not in Bytes.ends]
        if len(words) < len(choices) and (not words or rng.random() < 0.3):
            return text.decode()
        # Printable text that closes soon, so that random walks end.
        good = [t for t in words if chr(t % 256) in '"}]' or t >= 256] or words
        token = rng.choice(good if rng.random() < 0.5 else words)
        constraint.add(token)
        text += Bytes().token_bytes(token)
    return ""


def test_a_schema_holds() -> None:
    schema = {
        "type": "object", "required": ["name", "age"], "additionalProperties": False,
        "properties": {
            "name": {"type": "string", "maxLength": 4}, "age": {"type": "integer", "maximum": 99},
        },
    }
    texts = [written(AnswerForm("json_schema", json.dumps(schema)), seed) for seed in range(20)]
    found = [json.loads(text) for text in texts if text]
    assert len(found) > 5
    for each in found:
        assert set(each) == {"name", "age"}
        assert len(each["name"]) <= 4
        assert isinstance(each["age"], int)
        assert each["age"] <= 99


@pytest.mark.parametrize("form", [
    AnswerForm("json_schema", "true"), AnswerForm("json_object"),
    AnswerForm("json_schema", '{"type": "object", "properties": {"a": {"type": "array"}}}'),
])
def test_white_space_has_an_end(form: AnswerForm) -> None:
    constraint = CONSTRAINTS.make(form)
    for letter in '{\n\n' + " " * 40:
        constraint.add(ord(letter))
    assert not {9, 10, 13, 32} & set(allowed(constraint))
    for text in ({"a": [1, {"b": "c"}]}, {}):
        for indent in (None, 4):
            constraint = CONSTRAINTS.make(form)
            for byte in json.dumps(text, indent=indent).encode():
                constraint.add(byte)
            assert set(allowed(constraint)) & Bytes.ends


def test_other_forms_hold() -> None:
    for seed in range(10):
        assert re.fullmatch("(yes|no)!*", written(AnswerForm("regex", "(yes|no)!{0,3}"), seed))
        for kind in ("lark", "grammar"):
            assert written(AnswerForm(kind, 'start: "a" | "b" "c"'), seed) in ("a", "bc")
        gbnf = 'root ::= number (" and " number)?\nnumber ::= [1-3]{2} # two digits\n'
        assert re.fullmatch("[1-3]{2}( and [1-3]{2})?", written(AnswerForm("grammar", gbnf), seed))
    texts = [written(AnswerForm("json_object"), seed) for seed in range(10)]
    assert any(isinstance(json.loads(text), dict) for text in texts if text)


def test_what_is_not_allowed_is_refused() -> None:
    constraint = CONSTRAINTS.make(AnswerForm("regex", "ab"))
    assert allowed(constraint) == [97]
    constraint.add(97)
    constraint.add(98)
    assert set(allowed(constraint)) == set(Bytes.ends)
    assert constraint.is_done
    with pytest.raises(ArgumentError):
        CONSTRAINTS.make(AnswerForm("regex", "ab")).add(99)


@pytest.mark.parametrize(
    "form",
    [
        ("json_schema", "{"), ("json_schema", "3"), ("json_schema", "[" * 100000),
        ("json_schema", '{"type": "nothing"}'),
        ("json_schema", '{"type": "array", "uniqueItems": true}'),
        ("json_schema", '{"type": "object", "not": {"required": ["a"]}}'),
        ("json_schema", '{"$ref": "https://example.com/x.json"}'),
        ("grammar", "root ::= other"), ("grammar", ""), ("grammar", "root ::= " + "(" * 20000),
        ("grammar", "no grammar"), ("grammar", 'start: "a'),
        ("regex", "("), ("lark", "start: nothing"), ("other", ""), ("regex", "a" * (1 << 19)),
    ],
    ids=lambda form: f"{form[0]} {form[1][:30]}",
)
def test_forms_that_cannot_be_enforced(form: tuple[str, str]) -> None:
    with pytest.raises(ArgumentError):
        CONSTRAINTS.make(AnswerForm(*form))


def test_what_ends_in_no_word_is_refused_by_its_reason() -> None:
    with pytest.raises(ArgumentError) as caught:
        CONSTRAINTS.make(AnswerForm("json_schema", '{"$ref": "#"}')).bits()
    assert "state" not in str(caught.value)
