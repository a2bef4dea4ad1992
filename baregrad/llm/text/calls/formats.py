"""How a family of models writes its answers, told from its chat template."""

from __future__ import annotations

from dataclasses import dataclass

# What opens and closes a thought; the first pair that a template has counts.
_THOUGHTS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<seed:think>", "</seed:think>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
)
_DEEPSEEK = (
    "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
)
_HARMONY = ("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|constrain|>")


@dataclass(frozen=True)
class AnswerFormat:
    """How answers are written.

    `calls` names the way of writing calls: "tags" (JSON between `<tool_call>` tags), "functions"
    (`<function=f>` in them), "bare" (the answer is JSON), "mistral", "deepseek", "harmony", or ""
    for none. `variant` tells ways of one family apart: "array", "named" or "identified" of mistral,
    "named" or "fenced" of deepseek. `opens` and `closes` are the tags of thoughts, or empty.
    `shown` are control tokens that the parser has to see. Ids of calls have `id_length` letters
    and digits. `is_told`: the template knows no tools; chats have to tell of them
    (`told_of_tools`).
    """

    calls: str
    opens: str = ""
    closes: str = ""
    shown: tuple[str, ...] = ()
    id_length: int = 24
    variant: str = ""
    is_told: bool = False

    def begins_in_thought(self, prompt: str) -> bool:
        """Whether a prompt ends by opening a thought, so that the answer begins in it."""
        return bool(self.opens) and prompt.rstrip().endswith(self.opens)


def answer_format(template: str) -> AnswerFormat:
    """Return how a model answers whose chat template this is."""
    opens, closes = next((pair for pair in _THOUGHTS if pair[1] in template), ("", ""))
    thoughts = (opens, closes) if opens else ()
    if "<|channel|>" in template and "<|message|>" in template:
        return AnswerFormat("harmony", shown=_HARMONY)
    if "[TOOL_CALLS]" in template:
        marks = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")
        variant = "identified" if "[CALL_ID]" in template else "named"
        return AnswerFormat(
            "mistral", opens, closes, (*marks, *thoughts), id_length=9,
            variant=variant if "[ARGS]" in template else "array",
        )
    if _DEEPSEEK[1] in template:
        variant = "fenced" if "```json" in template else "named"
        return AnswerFormat(
            "deepseek", opens, closes, (*_DEEPSEEK, *thoughts), variant=variant
        )
    marks = ("<tool_call>", "</tool_call>", *thoughts)
    if "<function=" in template and "<parameter=" in template:
        return AnswerFormat("functions", opens, closes, marks)
    if "<arg_key>" in template:
        return AnswerFormat("", opens, closes, thoughts)
    if "tools" in template and "<tool_call>" not in template:
        return AnswerFormat("bare", opens, closes, ("<|python_tag|>", *thoughts))
    return AnswerFormat("tags", opens, closes, marks, is_told="tools" not in template)
