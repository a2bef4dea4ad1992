"""Messages of clients become those that templates expect."""

from __future__ import annotations

from typing import Any

import pytest

from baregrad.base.errors import ArgumentError
from baregrad.llm.text.templates.messages import WRITINGS, messages_for


def call(arguments: Any) -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}


def test_arguments_become_mappings_and_nothing_given_is_changed() -> None:
    given = [{"role": "assistant", "content": None, "tool_calls": [call('{"a": [1]}')]}]
    made = messages_for("", given)
    assert made[0]["tool_calls"][0]["function"]["arguments"] == {"a": [1]}
    assert made[0]["content"] == ""
    assert given[0]["tool_calls"] == [call('{"a": [1]}')]
    for empty in ("", " ", {}):
        made = messages_for("", [{"role": "assistant", "tool_calls": [call(empty)]}])
        assert made[0]["tool_calls"][0]["function"]["arguments"] == {}


@pytest.mark.parametrize("text", [
    '{"a": ', "[1]", "3", "[" * 100_000, '{"a":' + "[" * 900 + "]" * 900 + "}",
])
def test_arguments_that_are_no_object_are_the_text_that_they_are(text: str) -> None:
    given = [{"role": "assistant", "tool_calls": [call(text), call(' {"a": "é"}'), call({"a": 1})]}]
    made = [
        [each["function"]["arguments"] for each in messages_for("", given, way)[0]["tool_calls"]]
        for way in WRITINGS
    ]
    assert made == [
        [text, {"a": "é"}, {"a": 1}], [text, ' {"a": "é"}', '{"a": 1}'],
        [{"_unparsed": text}, {"a": "é"}, {"a": 1}],
    ]


def test_a_template_that_asks_gets_null() -> None:
    given = [{"role": "assistant", "content": "", "tool_calls": [call("{}")]}]
    assert messages_for("{% if m['content'] is none %}", given)[0]["content"] is None
    assert messages_for("{% if m.content is not none %}", given)[0]["content"] is None
    assert messages_for("{{ m.content }}", given)[0]["content"] == ""


def test_parts_are_joined_and_empty_calls_left_out() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    made = messages_for("", [{"role": "user", "content": parts, "tool_calls": []}])
    assert made == [{"role": "user", "content": "a\nb"}]
    image = [{"type": "image_url", "image_url": {}}]
    assert messages_for("", [{"role": "user", "content": image}])[0]["content"] == image


@pytest.mark.parametrize(("message", "words"), [
    ("hello", "no object"),
    ({"content": "x"}, "no role"),
    ({"role": "user", "content": 3}, "neither text nor parts"),
    ({"role": "user", "content": [3]}, "no part"),
    ({"role": "assistant", "tool_calls": [3]}, "no call"),
    ({"role": "assistant", "tool_calls": [call(3)]}, "neither text nor object"),
])
def test_what_is_no_message_is_refused(message: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        messages_for("", [message])
