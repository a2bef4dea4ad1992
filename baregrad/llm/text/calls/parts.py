"""What an answer consists of."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum


class PartKind(Enum):
    """What a part of an answer is."""

    TEXT = "text"
    THOUGHT = "thought"
    CALL = "call"
    ARGUMENTS = "arguments"
    CALL_END = "call_end"


@dataclass(frozen=True)
class AnswerPart:
    """A part of an answer, as it came.

    A call begins with CALL, which has its `index` among the calls, its `id` and `name`; ARGUMENTS
    with the same index follow, whose texts together are the arguments' JSON, and CALL_END.
    """

    kind: PartKind
    text: str = ""
    index: int = -1
    id: str = ""
    name: str = ""


class PartWriter:
    """Collects the parts of an answer.

    White space at a seam (around a thought or a call) belongs to the format and is left out; all
    other text is handed on, some of it later: white space waits for what follows it.
    """

    def __init__(self, id_length: int) -> None:
        self._parts: list[AnswerPart] = []
        self._id_length = id_length
        self._waiting = ""
        self._kind = PartKind.TEXT
        self._at_seam = False
        self.calls = 0

    def take(self) -> list[AnswerPart]:
        """Return what was collected since the last time."""
        parts, self._parts = self._parts, []
        return parts

    def text(self, text: str, kind: PartKind = PartKind.TEXT) -> None:
        """Add text of the answer, or of a thought."""
        if kind is not self._kind:
            self.seam()
            self._kind = kind
        if self._at_seam:
            text = text.lstrip()
        if not text:
            return
        self._at_seam = False
        text = self._waiting + text
        sure = text.rstrip()
        self._waiting = text[len(sure) :]
        if sure:
            self._parts.append(AnswerPart(kind, sure))

    def raw(self, text: str) -> None:
        """Add text that looked like a call; the white space around it is the answer's."""
        self._at_seam = False
        self.text(text)

    def seam(self) -> None:
        """Note that something else than text comes."""
        self._waiting = ""
        self._at_seam = True

    def end(self) -> None:
        """Note that the answer ends; white space that waited is text."""
        if self._waiting and self._kind is PartKind.TEXT:
            self._parts.append(AnswerPart(PartKind.TEXT, self._waiting))
        self._waiting = ""

    def call(self, name: str, id: str = "") -> Callable[[str], None]:
        """Begin a call and return what adds to its arguments."""
        self.seam()
        index = self.calls
        self.calls += 1
        self._parts.append(AnswerPart(PartKind.CALL, "", index, id or self._new_id(), name))

        def add(text: str) -> None:
            if text:
                self._parts.append(AnswerPart(PartKind.ARGUMENTS, text, index))

        return add

    def call_end(self) -> None:
        """End the call that was begun last."""
        self._parts.append(AnswerPart(PartKind.CALL_END, "", self.calls - 1))

    def _new_id(self) -> str:
        letters = string.ascii_letters + string.digits
        name = "".join(secrets.choice(letters) for _ in range(self._id_length))
        # One family wants exactly so many letters and digits.
        return name if self._id_length < 16 else "call_" + name
