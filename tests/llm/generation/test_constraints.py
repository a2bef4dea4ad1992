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


@pytest.mark.parametrize(
    "form",
    [("json_schema", '{"$ref": "#"}'), ("lark", 'start: start "a"'), ("regex", r"[^\s\S]"),
     ("grammar", "root ::= root")],
)
def test_what_no_text_can_be_is_refused_when_it_is_asked_for(form: tuple[str, str]) -> None:
    with pytest.raises(ArgumentError, match="no text is of this form"):
        CONSTRAINTS.make(AnswerForm(*form))


def test_long_chains_of_rules_do_not_end_the_process() -> None:
    rules = "".join(f'r{at}: r{at + 1} "b"\n' for at in range(9000))
    constraint = CONSTRAINTS.make(AnswerForm("lark", f'start: r0\n{rules}r9000: "a"'))
    assert allowed(constraint) == [ord("a")]
    links = {f"a{at}": {"properties": {"x": {"$ref": f"#/$defs/a{at + 1}"}}} for at in range(2500)}
    schema = {"$ref": "#/$defs/a0", "$defs": {**links, "a2500": {"type": "null"}}}
    CONSTRAINTS.make(AnswerForm("json_schema", json.dumps(schema)))


def test_what_was_made_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Constraints(Bytes(), 300)
    first = made.make(AnswerForm("regex", "ab"))
    first.add(ord("a"))
    monkeypatch.setattr(made, "_compiled", None)
    assert allowed(made.make(AnswerForm("regex", "ab"))) == [ord("a")]
    assert allowed(first) == [ord("b")]


def fits(form: AnswerForm, text: str) -> bool:
    """Whether a text may be an answer."""
    constraint = CONSTRAINTS.make(form)
    for token in text.encode():
        if token not in allowed(constraint):
            return False
        constraint.add(token)
    return Bytes.eos in allowed(constraint)


def drawn(rng: random.Random, rules: list[str], depth: int) -> tuple[str, str]:
    """A part of a GBNF grammar, and the same as a regular expression; rules are added."""
    kind = rng.randrange(2 if depth == 0 else 6)
    if kind == 0:
        text = "".join(rng.choices("abc", k=rng.randint(1, 3)))
        return f'"{text}"', text
    if kind == 1:
        return rng.choice([("[ab]", "[ab]"), ("[^b]", "[^b]"), (".", "."), ('[\\x61-b"]', '[ab"]')])
    one, same = drawn(rng, rules, depth - 1)
    if kind == 2:
        times = rng.choice(["*", "+", "?", "{2}", "{1,}", "{0,2}"])
        return f"({one}){times}", f"(?:{same}){times}"
    if kind == 3:
        rules.append(f"rule-{len(rules)} ::= {one} # {one}")
        return f"rule-{len(rules) - 1}", same
    two, other = drawn(rng, rules, depth - 1)
    if kind == 4:
        return f"({one} | {two})", f"(?:{same}|{other})"
    return f"{one} {two}", same + other


def test_grammars_mean_what_their_notation_says() -> None:
    rng, found = random.Random(5), [0, 0]
    for _ in range(60):
        rules: list[str] = []
        whole, pattern = drawn(rng, rules, 3)
        form = AnswerForm("grammar", "\n".join([f"root ::= {whole}", *rules]))
        for _ in range(12):
            text = "".join(rng.choices("abc", k=rng.randint(0, 4)))
            wanted = re.fullmatch(pattern, text) is not None
            assert fits(form, text) is wanted, (form.text, text)
            found[wanted] += 1
    assert min(found) > 60
    assert fits(AnswerForm("grammar", r'root ::= "\u00e9ab" [\U0001f600-] | "x"'), "éab😀")


JSON = r"""
root ::= object # of llama.cpp's own examples
value ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""


def test_a_grammar_with_cycles() -> None:
    form = AnswerForm("grammar", JSON)
    assert fits(form, r'{"a": [1, -2.5e3, {"b\n\u00e9": null}], "c":"é" }')
    assert not fits(form, '{"a": [1, }') and not fits(form, '{"a": 1}}')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("root ::= a", "no rule is named a"), ("top ::= \"a\"", "named root"),
        ("root ::= (\"a\"", "parentheses"), ("root ::= \"a\")", "parentheses"),
        ("root ::= *", "nothing stands before"), ('root ::= "a\nroot', "line 1 of the grammar"),
        ('root ::= "a"\nroot ::= "b"', "there twice"), (r'root ::= "\q"', "no character"),
        ('root ::= "a"\n\n ! "b"', "line 3 of the grammar"),
        (r'root ::= "\U00110000"', "no character"),
        ('"a" root ::= "a"\nroot ::= "b"', "line 1 of the grammar"),
    ],
)
def test_what_is_wrong_with_a_grammar_is_told(text: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        CONSTRAINTS.make(AnswerForm("grammar", text))
