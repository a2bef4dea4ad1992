"""Answers of a form: a JSON schema, any JSON object, a regular expression or a grammar.

`llguidance` tells with each step which tokens may follow, as bits. What it cannot enforce is
refused when a request is made; nothing of a form is ever left out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from baregrad.base.errors import ArgumentError, MissingDependency
from baregrad.llm.text.json_schemas import with_bounded_space

FORMS = ("json_schema", "json_object", "regex", "lark", "grammar")
MOST_TEXT = 1 << 18


class Words(Protocol):
    """What of a tokenizer constraints are made with."""

    size: int
    bos: int | None
    eos: int | None
    ends: frozenset[int]

    def encode(self, text: str, *, add_bos: bool | None = None) -> list[int]:
        """Return the tokens of a text."""

    def token_bytes(self, token: int) -> bytes:
        """Return what a token stands for."""

    def is_control(self, token: int) -> bool:
        """Whether a token steers the model, and no text shows it."""


@dataclass(frozen=True)
class AnswerForm:
    """The form of an answer: its kind, one of FORMS, and its text (a schema as JSON).

    The text of a `grammar` is Lark's, with a rule `start`, or GBNF with a rule `root`.
    """

    kind: str
    text: str = ""

    def __post_init__(self) -> None:
        if self.kind not in FORMS:
            raise ArgumentError("no such form", found=self.kind, wanted=", ".join(FORMS))
        if len(self.text) > MOST_TEXT:
            raise ArgumentError(
                "the form is too long", found=f"{len(self.text)} characters",
                wanted=f"{MOST_TEXT} at most",
            )


class Constraints:
    """Makes constraints for one vocabulary."""

    def __init__(self, words: Words, scores: int) -> None:
        """Prepare for a tokenizer, and a decoder that scores `scores` tokens."""
        self._library = _library()
        self._words = words
        self._scores = scores
        self._ends = sorted(words.ends)
        if not self._ends:
            raise ArgumentError("the vocabulary has no token that ends an answer")
        wrapper = self._library.TokenizerWrapper(_Adapter(words, scores))
        self._tokenizer = self._library.LLTokenizer(
            wrapper, n_vocab=scores, eos_token=self._ends
        )

    def make(self, form: AnswerForm) -> Constraint:
        """Return a constraint at its beginning. Raises ArgumentError for what is not supported."""
        matcher = self._library.LLMatcher
        try:
            if form.kind == "json_schema":
                schema = json.loads(form.text)
                if not isinstance(schema, (dict, bool)):
                    raise ValueError("a schema is an object")
                grammar = _of_json(matcher, schema)
            elif form.kind == "json_object":
                grammar = _of_json(matcher, {"type": "object"})
            elif form.kind == "regex":
                grammar = matcher.grammar_from_regex(form.text)
            elif form.kind == "grammar":
                grammar = matcher.grammar_from_lark(_as_lark(form.text))
            else:
                grammar = matcher.grammar_from_lark(form.text)
        except (ValueError, RecursionError) as error:
            raise ArgumentError(f"the {form.kind} cannot be read", found=str(error)) from error
        is_error, messages = matcher.validate_grammar_with_warnings(grammar, self._tokenizer)
        if is_error or messages:
            raise ArgumentError(
                f"the {form.kind} cannot be enforced", found="; ".join(messages)[:500],
                hint="nothing of a form is left out",
            )
        made = matcher(self._tokenizer, grammar, log_level=0)
        _check(made, form.kind)
        return Constraint(made, self._scores)


class Constraint:
    """What may follow in one answer."""

    def __init__(self, matcher: Any, scores: int) -> None:
        self._matcher = matcher
        self._width = -(-scores // 32)

    def bits(self) -> Any:
        """Return which tokens may follow: (words / 32 rounded up,) int32, the lowest bit first."""
        found = np.zeros(self._width, np.int32)
        raw = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        _check(self._matcher, "form")
        found.view(np.uint8)[: min(raw.size, found.nbytes)] = raw[: found.nbytes]
        return found

    def add(self, token: int) -> None:
        """Go on by a token that may follow."""
        if not self._matcher.consume_token(token):
            _check(self._matcher, "form")
            raise ArgumentError("the form does not allow a token", found=token)

    @property
    def is_done(self) -> bool:
        """Whether nothing but an end may follow."""
        return bool(self._matcher.is_stopped())


class _Adapter:
    """A vocabulary in the way llguidance asks for it."""

    def __init__(self, words: Words, scores: int) -> None:
        self.eos_token_id = min(words.ends)
        self.bos_token_id = words.bos
        pieces = [
            b"" if words.is_control(token) or token in words.ends else words.token_bytes(token)
            for token in range(min(words.size, scores))
        ]
        pieces += [b""] * (scores - len(pieces))
        # Tokens without text may never be chosen, but for ends.
        self.special_token_ids: Sequence[int] = [
            token for token, piece in enumerate(pieces) if not piece
        ]
        named = [piece or b"\xff<%d>" % token for token, piece in enumerate(pieces)]
        self.tokens = named
        self._words = words

    def __call__(self, text: bytes | str) -> list[int]:
        if isinstance(text, bytes):
            text = text.decode("utf-8", "replace")
        return self._words.encode(text, add_bos=False)


def _of_json(matcher: Any, schema: Any) -> str:
    grammar: str = matcher.grammar_from_json_schema(json.dumps(with_bounded_space(schema)))
    return grammar


def _as_lark(text: str) -> str:
    """Return a grammar in Lark's syntax. Raises ValueError for what is none."""
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        found: str = any_to_lark(text)
    except Exception as error:
        # The library raises this class itself.
        raise ValueError(str(error)[:500] or type(error).__name__) from error
    return found


def _check(matcher: Any, what: str) -> None:
    if matcher.is_error():
        # Behind the reason the library tells all of its state.
        reason = matcher.get_error().partition("\n<state>")[0]
        raise ArgumentError(f"the {what} cannot be enforced", found=reason[:500])


def _library() -> ModuleType:
    try:
        import llguidance
    except ImportError as error:
        raise MissingDependency(package="llguidance", extra="llm") from error
    module: ModuleType = llguidance
    return module
