"""Reading an answer that is still being written."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

T = TypeVar("T")
# What reads: it yields whenever it needs more text than there is.
Reading = Generator[None, None, T]
WHITE = " \t\r\n"


class MalformedCall(Exception):
    """What looked like a call is none; told to the parser, which makes it text."""


class AnswerSource:
    """The text of an answer as far as it came and was not read yet.

    `seen` is what was read since the last `mark`.
    """

    def __init__(self) -> None:
        self.text = ""
        self.is_final = False
        self.seen = ""

    def mark(self) -> None:
        """Forget what was read."""
        self.seen = ""

    def read(self, length: int) -> str:
        """Return the next characters, which are there."""
        text, self.text = self.text[:length], self.text[length:]
        self.seen += text
        return text

    def unread(self, text: str) -> None:
        """Put back what was read last."""
        self.text = text + self.text
        self.seen = self.seen.removesuffix(text)

    def peek(self, length: int) -> Reading[str]:
        """Return the next characters without reading them: fewer only where the answer ends."""
        while len(self.text) < length and not self.is_final:
            yield
        return self.text[:length]

    def skip(self, letters: str = WHITE) -> Reading[None]:
        """Read over some characters."""
        while True:
            self.read(len(self.text) - len(self.text.lstrip(letters)))
            if self.text or self.is_final:
                return
            yield

    def starts(self, word: str) -> Reading[bool]:
        """Read a word if it is next; whether it was."""
        for length in range(1, len(word) + 1):
            if (yield from self.peek(length)) != word[:length]:
                return False
        self.read(len(word))
        return True

    def expect(self, word: str) -> Reading[None]:
        """Read a word; anything else is no call."""
        if not (yield from self.starts(word)):
            raise MalformedCall(word)

    def until(self, words: Sequence[str], add: Callable[[str], None]) -> Reading[str | None]:
        """Hand on text as it comes up to one of some words, read it, and return it.

        Returns None where the answer ends before.
        """
        while True:
            found = [(at, -len(word), word) for word in words if (at := self.text.find(word)) >= 0]
            if found:
                at, _, word = min(found)
                add(self.read(at))
                self.read(len(word))
                return word
            if self.is_final:
                add(self.read(len(self.text)))
                return None
            add(self.read(len(self.text) - beginning(self.text, words)))
            yield

    def json(self, add: Callable[[str], None]) -> Reading[bool]:
        """Hand on a JSON value as it comes; whether it came to its end."""
        yield from self.skip()
        first = yield from self.peek(1)
        if not first or first in ",:]}":
            raise MalformedCall(first)
        depth = 0
        in_text = escaped = False
        is_word = first not in '{["'
        while True:
            for at, letter in enumerate(self.text):
                if is_word:
                    if letter in ",]} \t\r\n":
                        add(self.read(at))
                        return True
                elif escaped:
                    escaped = False
                elif in_text:
                    escaped = letter == "\\"
                    in_text = letter != '"'
                elif letter == '"':
                    in_text = True
                elif letter in "{[":
                    depth += 1
                elif letter in "}]":
                    depth -= 1
                if not (depth or in_text or is_word):
                    add(self.read(at + 1))
                    return True
            add(self.read(len(self.text)))
            if self.is_final:
                return is_word
            yield

    def whole_json(self) -> Reading[str]:
        """Return the text of a JSON value; one that does not end is no call."""
        parts: list[str] = []
        if not (yield from self.json(parts.append)):
            raise MalformedCall("".join(parts))
        return "".join(parts)


def beginning(text: str, words: Sequence[str]) -> int:
    """Return how much of a text's end may be the beginning of one of some words."""
    longest = max((len(word) for word in words), default=1) - 1
    for length in range(min(longest, len(text)), 0, -1):
        end = text[-length:]
        if any(word.startswith(end) for word in words):
            return length
    return 0
