"""Formats are told from what templates write."""

from __future__ import annotations

import pytest

from baregrad.llm.text.calls import answer_format


@pytest.mark.parametrize(("template", "calls", "opens", "shown"), [
    ("{% if tools %}<tool_call>{{ x }}</tool_call>{% endif %}<think></think>", "tags", "<think>",
     "<tool_call>"),
    ("{{ tools }}<tool_call><function=a><parameter=b>", "functions", "", "</tool_call>"),
    ("{{ tools }}<|python_tag|>ipython", "bare", "", "<|python_tag|>"),
    ("[AVAILABLE_TOOLS][TOOL_CALLS][THINK][/THINK]", "mistral", "[THINK]", "[TOOL_CALLS]"),
    ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜></think>", "deepseek",
     "<think>", "<｜tool▁sep｜>"),
    ("<|start|><|channel|><|message|>", "harmony", "", "<|channel|>"),
    ("{{ tools }}", "bare", "", "<|python_tag|>"),
    ("<arg_key>{{ tools }}<tool_call></think>", "", "<think>", "<think>"),
    ("{{ messages }}", "tags", "", "<tool_call>"),
])
def test_formats(template: str, calls: str, opens: str, shown: str | None) -> None:
    form = answer_format(template)
    assert (form.calls, form.opens) == (calls, opens)
    assert shown is None or shown in form.shown
    assert form.is_told == (template == "{{ messages }}")
    assert form.id_length == (9 if calls == "mistral" else 24)
