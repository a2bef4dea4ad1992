"""Strings that remember which of their characters a user wrote.

A template cuts, joins and replaces what it is given. A `Marked` goes through all of that as any
string does, and a mask of the same length goes along. Where an operation does not say which
characters come from where, all of the outcome counts as the user's: what a user wrote is never
taken for the template's, and at worst a template's own control token is tokenised as plain text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, SupportsIndex, cast

USER = b"\1"
TEMPLATE = b"\0"


def _of_each_letter(name: str) -> Callable[[Any], str]:
    """Return a method that changes letters; where one becomes two, all counts as the user's."""
    change = getattr(str, name)

    def method(self: Any) -> str:
        text = change(self)
        return with_mask(text, mask_of(self)) if len(text) == len(self) else mark(text)

    return method


def _of_the_whole(name: str) -> Callable[..., str]:
    """Return a method whose outcome is the user's throughout."""
    change = getattr(str, name)

    def method(self: Any, *arguments: Any, **named: Any) -> str:
        return mark(change(self, *arguments, **named))

    return method


class Marked(str):
    """A string with a mask of one byte for each character: 1 where a user wrote it."""

    # Out of a template's reach, as all names with an underscore are.
    _mask: bytes

    def __str__(self) -> str:
        return self

    def __repr__(self) -> str:
        return mark(str.__repr__(self))

    def __getitem__(self, at: SupportsIndex | slice) -> str:
        if isinstance(at, slice):
            return with_mask(str.__getitem__(self, at), self._mask[at])
        letter = str.__getitem__(self, at)
        index = at.__index__()
        return with_mask(letter, self._mask[index : index + 1 or None])

    def __iter__(self) -> Iterator[str]:
        for at in range(len(self)):
            yield self[at]

    def __add__(self, other: str) -> str:
        if not isinstance(other, str):
            return NotImplemented
        return join("", (self, other))

    def __radd__(self, other: str) -> str:
        return join("", (other, self))

    def __mul__(self, times: SupportsIndex) -> str:
        return with_mask(str.__mul__(self, times), self._mask * times.__index__())

    __rmul__ = __mul__

    def __mod__(self, values: Any) -> str:
        return mark(str.__mod__(self, values))

    def __rmod__(self, template: str) -> str:
        return mark(str.__mod__(template, self))

    def __format__(self, form: str) -> str:
        return mark(str.__format__(self, form))

    def strip(self, letters: str | None = None) -> str:
        """Cut both ends, as `str.strip` does."""
        return cast("Marked", self.lstrip(letters)).rstrip(letters)

    def lstrip(self, letters: str | None = None) -> str:
        """Cut the beginning, as `str.lstrip` does."""
        return self[len(self) - len(str.lstrip(self, letters)) :]

    def rstrip(self, letters: str | None = None) -> str:
        """Cut the end, as `str.rstrip` does."""
        return self[: len(str.rstrip(self, letters))]

    def removeprefix(self, prefix: str) -> str:
        """Cut a beginning, as `str.removeprefix` does."""
        return self[len(prefix) :] if self.startswith(prefix) else self

    def removesuffix(self, suffix: str) -> str:
        """Cut an end, as `str.removesuffix` does."""
        return self[: -len(suffix)] if suffix and self.endswith(suffix) else self

    def split(self, separator: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        """Split, as `str.split` does."""
        return self._located(str.split(self, separator, maxsplit), separator)

    def rsplit(self, separator: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        """Split from the end, as `str.rsplit` does."""
        return self._located(str.rsplit(self, separator, maxsplit), separator)

    def splitlines(self, keepends: bool = False) -> list[str]:
        """Split into lines, as `str.splitlines` does."""
        return self._located(str.splitlines(self, keepends), None)

    def partition(self, separator: str) -> tuple[str, str, str]:
        """Split at the first separator, as `str.partition` does."""
        head, between, _ = str.partition(self, separator)
        stop = len(head) + len(between)
        return self[: len(head)], self[len(head) : stop], self[stop:]

    def rpartition(self, separator: str) -> tuple[str, str, str]:
        """Split at the last separator, as `str.rpartition` does."""
        head, between, _ = str.rpartition(self, separator)
        stop = len(head) + len(between)
        return self[: len(head)], self[len(head) : stop], self[stop:]

    def replace(self, old: str, new: str, count: SupportsIndex = -1) -> str:
        """Replace, as `str.replace` does."""
        return replace(self, old, new, count.__index__())

    def join(self, parts: Iterable[str]) -> str:
        """Join, as `str.join` does."""
        return join(self, parts)

    lower = _of_each_letter("lower")
    upper = _of_each_letter("upper")
    capitalize = _of_each_letter("capitalize")
    title = _of_each_letter("title")
    swapcase = _of_each_letter("swapcase")
    casefold = _of_each_letter("casefold")
    center = _of_the_whole("center")
    ljust = _of_the_whole("ljust")
    rjust = _of_the_whole("rjust")
    zfill = _of_the_whole("zfill")
    expandtabs = _of_the_whole("expandtabs")
    translate = _of_the_whole("translate")
    format = _of_the_whole("format")
    format_map = _of_the_whole("format_map")

    def _located(self, pieces: list[str], separator: str | None) -> list[str]:
        """Return pieces with their masks: a separator apart, or by white space, which none has."""
        at = 0
        found = []
        for piece in pieces:
            if separator is None:
                at = str.find(self, piece, at)
            found.append(self[at : at + len(piece)])
            at += len(piece) + len(separator or "")
        return found


def with_mask(text: str, mask: bytes) -> str:
    """Return a text with its mask; a plain string where no character is a user's."""
    if USER not in mask:
        return str.__str__(text)
    marked = Marked(text)
    marked._mask = mask
    return marked


def mark(text: str) -> str:
    """Return a text all of whose characters count as a user's."""
    return with_mask(text, USER * len(text))


def mask_of(text: str) -> bytes:
    """Return the mask of any string."""
    return text._mask if isinstance(text, Marked) else TEMPLATE * len(text)


def join(separator: str, parts: Iterable[str]) -> str:
    """Join strings, marked or not."""
    parts = list(parts)
    text = str.join(separator, parts)
    if not isinstance(separator, Marked) and not any(isinstance(part, Marked) for part in parts):
        return text
    return with_mask(text, mask_of(separator).join(map(mask_of, parts)))


def replace(text: str, old: str, new: str, count: int = -1) -> str:
    """Replace in a string, marked or not, by another."""
    whole = str.replace(text, old, new, count)
    if not isinstance(text, Marked) and not isinstance(new, Marked):
        return whole
    if not old:
        return mark(whole)
    pieces = Marked.split(text, old, count) if isinstance(text, Marked) else text.split(old, count)
    return join(new, pieces)


def mark_all(value: Any) -> Any:
    """Return a value of JSON's kind with every string in it marked."""
    if isinstance(value, str):
        return mark(value)
    if isinstance(value, Mapping):
        return {mark_all(key): mark_all(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [mark_all(inner) for inner in value]
    return value


def holds_marked(value: Any, depth: int = 99) -> bool:
    """Whether a value is marked, or holds what is, so many levels down."""
    if isinstance(value, Marked):
        return True
    if depth and isinstance(value, Mapping):
        return any(holds_marked(inner, depth - 1) for pair in value.items() for inner in pair)
    if depth and isinstance(value, list | tuple):
        return any(holds_marked(inner, depth - 1) for inner in value)
    return False


def text_of(value: Any) -> str:
    """Return what `str` makes of a value, marked where the value holds what is marked."""
    text = str(value)
    if not isinstance(value, str) and holds_marked(value):
        return mark(text)
    return text


def spans_of(text: str) -> list[tuple[str, bool]]:
    """Return a text as (part, whether the template wrote it), in order."""
    mask = mask_of(text)
    text = str.__getitem__(text, slice(None))
    spans = []
    at = 0
    while at < len(text):
        other = TEMPLATE if mask[at] else USER
        stop = mask.find(other, at)
        stop = len(text) if stop < 0 else stop
        spans.append((text[at:stop], other == USER))
        at = stop
    return spans
