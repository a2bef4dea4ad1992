"""Answers taken apart as they come: thoughts, text, and calls of tools.

Each family of models writes calls in its own way, which its chat template shows. Nothing that a
model wrote is lost or told twice: what looks like a call and is none is text.
"""

from baregrad.llm.text.calls.forcing import call_grammar, grammar_behind_thought
from baregrad.llm.text.calls.formats import AnswerFormat, answer_format
from baregrad.llm.text.calls.parser import AnswerParser
from baregrad.llm.text.calls.parts import AnswerPart, PartKind
from baregrad.llm.text.calls.telling import told_of_tools

__all__ = [
    "AnswerFormat", "AnswerParser", "AnswerPart", "PartKind", "answer_format", "call_grammar",
    "grammar_behind_thought", "told_of_tools",
]
