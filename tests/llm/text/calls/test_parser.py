"""Answers of each family, whole and in pieces: calls, thoughts, and not a letter lost."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import pytest

from baregrad.llm.text.calls import AnswerFormat, AnswerParser, AnswerPart, PartKind, answer_format

TOOLS = [
    {"type": "function", "function": {"name": "get", "parameters": {
        "type": "object", "properties": {
            "city": {"type": "string"}, "n": {"type": "integer"}, "all": {"type": "boolean"}}}}},
    {"type": "function", "function": {"name": "other"}},
]
FORMATS = {
    "tags": AnswerFormat("tags", "<think>", "</think>"),
    "functions": AnswerFormat("functions", "<think>", "</think>"),
    "bare": AnswerFormat("bare"),
    "mistral": AnswerFormat("mistral", "[THINK]", "[/THINK]", id_length=9),
    "deepseek": AnswerFormat("deepseek", "<think>", "</think>"),
    "harmony": AnswerFormat("harmony"),
}
ARGS = {"city": "Zürich \"{x}\" ]", "n": 3}
JSON = json.dumps(ARGS, ensure_ascii=False)
CALL = f'{{"name": "get", "arguments": {JSON}}}'
# (format, answer, thought, text, calls)
ANSWERS: tuple[tuple[str, str, str, str, list[tuple[str, Any]]], ...] = (
    ("tags", "Just <text> & {more}.\n", "", "Just <text> & {more}.\n", []),
    ("tags", f"<think>\nhm <b>\n</think>\n\nOK.\n<tool_call>\n{CALL}\n</tool_call>", "hm <b>",
     "OK.", [("get", ARGS)]),
    ("tags", f"<tool_call>{CALL}</tool_call>\n<tool_call>"
     '{"arguments": {}, "id": "q", "name": "other"}</tool_call> done', "", "done",
     [("get", ARGS), ("other", {})]),
    ("tags", f'<tool_call>[{CALL}, {{"name": "other"}}]</tool_call>', "", "",
     [("get", ARGS), ("other", {})]),
    ("tags", f'<tool_call>{{"name": "get", "arguments": {json.dumps(JSON)}}}</tool_call>', "", "",
     [("get", ARGS)]),
    ("tags", '<tool_call>{"name": "other", "arguments": null}</tool_call>', "", "",
     [("other", {})]),
    ("tags", 'see <tool_call>{"nme": 1}</tool_call> so', "",
     'see <tool_call>{"nme": 1}</tool_call> so', []),
    ("tags", 'see <tool_call> nothing <tool', "", 'see <tool_call> nothing <tool', []),
    ("tags", "<think>never ends", "never ends", "", []),
    ("functions", "Fine.\n<tool_call>\n<function=get>\n<parameter=city>\nZürich \"{x}\" ]\n"
     "</parameter>\n<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>", "", "Fine.",
     [("get", ARGS)]),
    ("functions", "<function=get><parameter=city>1</parameter><parameter=all>True</parameter>"
     "</function>", "", "", [("get", {"city": "1", "all": True})]),
    ("functions", "<tool_call><function=other></function></tool_call>", "", "", [("other", {})]),
    ("bare", f'{{"name": "get", "parameters": {JSON}}}', "", "", [("get", ARGS)]),
    ("bare", f'<|python_tag|>{{"type": "function", "name": "get", "parameters": {JSON}}}; {CALL}',
     "", "", [("get", ARGS), ("get", ARGS)]),
    ("bare", f"```json\n[{CALL}]\n```", "", "", [("get", ARGS)]),
    ("bare", f"```tool_code\n{CALL}\n```", "", "", [("get", ARGS)]),
    ("bare", '{"name": "Bob", "age": 3}', "", '{"name": "Bob", "age": 3}', []),
    ("bare", '{"answer": 3}', "", '{"answer": 3}', []),
    ("bare", "```python\nprint()\n```", "", "```python\nprint()\n```", []),
    ("bare", "Hello {you}", "", "Hello {you}", []),
    ("mistral", f'[TOOL_CALLS][{{"name": "get", "arguments": {JSON}, "id": "abcdefghi"}}]', "", "",
     [("get", ARGS)]),
    ("mistral", f"[THINK]so[/THINK]Yes[TOOL_CALLS]get[ARGS]{JSON}[TOOL_CALLS]other[ARGS]{{}}", "so",
     "Yes", [("get", ARGS), ("other", {})]),
    ("mistral", f"[TOOL_CALLS]get[CALL_ID]123456789[ARGS]{JSON}", "", "", [("get", ARGS)]),
    ("deepseek", "I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get\n"
     f"```json\n{JSON}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>other\n"
     "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>", "", "I look.",
     [("get", ARGS), ("other", {})]),
    ("deepseek", f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get<｜tool▁sep｜>{JSON}"
     "<｜tool▁call▁end｜><｜tool▁calls▁end｜>", "", "", [("get", ARGS)]),
    ("harmony", "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
     f"to=functions.get <|constrain|>json<|message|>{JSON}", "Hm.", "", [("get", ARGS)]),
    ("harmony", "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final"
     "<|message|>Hello <b>", "Hm.", "Hello <b>", []),
    ("harmony", "Plain.", "", "Plain.", []),
)


def summary(parts: list[AnswerPart]) -> tuple[str, str, list[tuple[str, Any]]]:
    """Return thought, text and calls, having checked the order of a call's parts."""
    thought = text = ""
    names: list[str] = []
    arguments: list[str] = []
    ended = 0
    for part in parts:
        if part.kind is PartKind.TEXT:
            text += part.text
        elif part.kind is PartKind.THOUGHT:
            thought += part.text
        elif part.kind is PartKind.CALL:
            assert part.index == len(names) == ended
            assert part.id
            names.append(part.name)
            arguments.append("")
        elif part.kind is PartKind.ARGUMENTS:
            assert part.index == len(names) - 1
            arguments[-1] += part.text
        else:
            ended += 1
    assert ended == len(names)
    calls = [(name, json.loads(value)) for name, value in zip(names, arguments, strict=True)]
    return thought, text, calls


def parse(form: AnswerFormat, pieces: list[str], **more: Any) -> list[AnswerPart]:
    parser = AnswerParser(form, **{"tools": TOOLS, **more})
    parts = [part for piece in pieces for part in parser.add(piece)]
    return parts + parser.finish()


@pytest.mark.parametrize(("name", "answer", "thought", "text", "calls"), ANSWERS)
def test_answers_in_any_pieces(
    name: str, answer: str, thought: str, text: str, calls: list[tuple[str, Any]]
) -> None:
    rng = random.Random(answer)
    for size in (1, 2, 3, 7, len(answer)):
        pieces = [answer[at : at + size] for at in range(0, len(answer), size)]
        assert summary(parse(FORMATS[name], pieces)) == (thought, text, calls), size
    for _ in range(10):
        cuts = sorted({0, len(answer), *(rng.randrange(len(answer)) for _ in range(6))})
        pieces = [answer[a:b] for a, b in itertools.pairwise(cuts)]
        assert summary(parse(FORMATS[name], pieces)) == (thought, text, calls)


def test_arguments_come_before_the_call_ends() -> None:
    parser = AnswerParser(FORMATS["tags"], tools=TOOLS)
    parts = parser.add('<tool_call>{"name": "get", "arguments": {"city": "Par')
    assert [part.kind for part in parts] == [PartKind.CALL, PartKind.ARGUMENTS]
    assert parts[1].text == '{"city": "Par'
    assert parser.add('is"}')[0].text == 'is"}'


def test_text_comes_as_soon_as_it_is_certain() -> None:
    parser = AnswerParser(FORMATS["tags"], tools=TOOLS)
    assert parser.add("Hello <b")[0].text == "Hello <b"
    assert parser.add("r> and <tool")[0].text == "r> and"
    assert parser.add("s>")[0].text == " <tools>"


def test_a_prompt_may_open_the_thought() -> None:
    form = answer_format("{{ '<think>\n' }} </think> tools <tool_call>")
    assert form.begins_in_thought("<|im_start|>assistant\n<think>\n")
    assert not form.begins_in_thought("<|im_start|>assistant\n")
    parts = parse(form, ["so\n</thi", "nk>\n\nYes"], in_thought=True)
    assert summary(parts) == ("so", "Yes", [])
    parts = parse(form, ["no end"], in_thought=True)
    assert summary(parts) == ("no end", "", [])


def test_without_tools_nothing_is_a_call() -> None:
    for name, answer, _, _, calls in ANSWERS:
        if calls and name != "harmony":
            found = summary(parse(FORMATS[name], [answer], tools=()))
            assert found[2] == []
            assert "get" in found[1] or "other" in found[1]


def test_ids_are_as_long_as_the_family_wants() -> None:
    ids = [part.id for part in parse(FORMATS["mistral"], [f"[TOOL_CALLS]get[ARGS]{JSON}"])
           if part.kind is PartKind.CALL]
    assert len(ids[0]) == 9 and ids[0].isalnum()
    given = parse(FORMATS["mistral"], ['[TOOL_CALLS][{"name": "get", "id": "abcdefghi"}]'])
    assert given[0].id == "abcdefghi"
    first, second = (
        next(part.id for part in parse(FORMATS["tags"], [f"<tool_call>{CALL}"])) for _ in range(2)
    )
    assert first != second


@pytest.mark.property
def test_no_letter_is_lost_or_told_twice() -> None:
    rng = random.Random(11)
    marks = [mark for form in FORMATS.values() for mark in form.shown] + [
        "<tool_call>", "</tool_call>", "<function=", "<parameter=", "[TOOL_CALLS]", "[ARGS]", "{",
        '{"name": "get"', '"arguments": {', "}", "]", "[", "```json", "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "word", " ", "\n", '"', "<", "<tool", ";"]
    for name in ("tags", "functions", "bare", "mistral", "deepseek"):
        form = AnswerFormat(name)
        for _ in range(300):
            pieces = [rng.choice(marks) for _ in range(rng.randrange(1, 12))]
            parts = parse(form, pieces)
            whole = "".join(pieces)
            text = "".join(part.text for part in parts if part.kind is PartKind.TEXT)
            if not any(part.kind is PartKind.CALL for part in parts):
                assert text == whole, name
            # And the same whatever the pieces are.
            again = "".join(part.text for part in parse(form, list(whole))
                            if part.kind is PartKind.TEXT)
            assert again == text, name
