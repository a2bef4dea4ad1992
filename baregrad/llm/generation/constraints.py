"""Answers of a form: a JSON schema, any JSON object, a regular expression or a grammar.

`llguidance` tells with each step which tokens may follow, as bits. What it cannot enforce is
refused when a request is made; nothing of a form is ever left out.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from baregrad.base.errors import ArgumentError, MissingDependency
from baregrad.llm.text.gbnf import is_gbnf, lark_of_gbnf
from baregrad.llm.text.json_schemas import with_bounded_space

FORMS = ("json_schema", "json_object", "regex", "lark", "grammar")
MOST_TEXT = 1 << 18
_MOST_KEPT = 16
# The library descends into a grammar by recursion: rules or references in a chain as long as
# MOST_TEXT has room for end a process whose stack has 8 MB. They take less than 128 MB.
_STACK = 256 << 20
_STACK_LOCK = threading.Lock()


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
        # By form, the latest last.
        self._kept: OrderedDict[AnswerForm, Any] = OrderedDict()
        self._lock = threading.Lock()

    def make(self, form: AnswerForm) -> Constraint:
        """Return a constraint at its beginning, from any thread.

        Raises ArgumentError for what is not supported, and for what no text can be.
        """
        with self._lock:
            made = self._kept.get(form)
        if made is None:
            made = _on_large_stack(partial(self._compiled, form))
        with self._lock:
            self._kept[form] = made
            self._kept.move_to_end(form)
            if len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
            return Constraint(made.deep_copy(), self._scores)

    def _compiled(self, form: AnswerForm) -> Any:
        """Return a matcher that has told what may come first: the longest of its steps."""
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
                text = lark_of_gbnf(form.text) if is_gbnf(form.text) else form.text
                grammar = matcher.grammar_from_lark(text)
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
        made.compute_bitmask()
        _check(made, form.kind)
        return made


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


def _check(matcher: Any, what: str) -> None:
    if matcher.is_error():
        # Behind the reason the library tells all of its state.
        reason = matcher.get_error().partition("\n<state>")[0]
        if reason == "NoExtensionBias":
            reason = "no text is of this form"
        raise ArgumentError(f"the {what} cannot be enforced", found=reason[:500])


def _on_large_stack(work: Callable[[], Any]) -> Any:
    """Return what work returns, or raise what it raises, in a thread of _STACK bytes of stack."""
    found: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    thread = threading.Thread(target=run, name="baregrad-form", daemon=True)
    with _STACK_LOCK:
        before = threading.stack_size(_STACK)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    if errors:
        raise errors[0]
    return found[0]


def _library() -> ModuleType:
    try:
        import llguidance
    except ImportError as error:
        raise MissingDependency(package="llguidance", extra="llm") from error
    module: ModuleType = llguidance
    return module
