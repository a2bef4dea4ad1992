"""Marked strings do what strings do, and know whose each character is.

The user's letters are capitals and the template's are not, so that each letter says whose it is.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from baregrad.llm.text.templates.marked import (
    Marked,
    holds_marked,
    join,
    mark,
    mark_all,
    mask_of,
    replace,
    spans_of,
    with_mask,
)


def owned(text: str) -> str:
    """Return a text whose capitals are a user's."""
    return with_mask(text, bytes(letter.isupper() for letter in text))


def plain(value: Any) -> Any:
    """Return a value with plain strings in it."""
    if isinstance(value, str):
        return str.__getitem__(value, slice(None))
    if isinstance(value, list | tuple):
        return type(value)(map(plain, value))
    return value


def strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [inner for part in value for inner in strings(part)]


PRECISE: tuple[Callable[[str, str, str], Any], ...] = (
    lambda a, b, c: a + b,
    lambda a, b, c: "xy" + a,
    lambda a, b, c: a + "xy",
    lambda a, b, c: a * 3,
    lambda a, b, c: a[1:-1],
    lambda a, b, c: a[::-1],
    lambda a, b, c: a[-1:] + a[:1],
    lambda a, b, c: [a[index] for index in range(-len(a), len(a))],
    lambda a, b, c: list(a),
    lambda a, b, c: a.strip(),
    lambda a, b, c: a.strip("aB "),
    lambda a, b, c: a.lstrip("A"),
    lambda a, b, c: a.rstrip("b "),
    lambda a, b, c: a.removeprefix(b),
    lambda a, b, c: a.removesuffix(b),
    lambda a, b, c: a.split(),
    lambda a, b, c: a.split(None, 1),
    lambda a, b, c: a.split(b or "x"),
    lambda a, b, c: a.split(b or "x", 1),
    lambda a, b, c: a.rsplit(b or "x", 1),
    lambda a, b, c: a.rsplit(),
    lambda a, b, c: a.splitlines(),
    lambda a, b, c: a.splitlines(True),
    lambda a, b, c: a.partition(b or "x"),
    lambda a, b, c: a.rpartition(b or "x"),
    lambda a, b, c: join(a, [b, "x", c]),
    lambda a, b, c: str(a),
)


def test_precise_operations_keep_each_letters_owner() -> None:
    rng = random.Random(5)
    for _ in range(400):
        texts = ["".join(rng.choice("aAbB \n") for _ in range(rng.randrange(9))) for _ in range(3)]
        texts[1] = texts[1][:2]
        for operation in PRECISE:
            found, expected = operation(*map(owned, texts)), operation(*texts)
            assert plain(found) == expected
            for text in strings(found):
                assert mask_of(text) == mask_of(owned(plain(text))), (texts, text)


def test_replacing_keeps_each_letters_owner() -> None:
    rng = random.Random(6)
    for _ in range(400):
        text, old, new = (
            "".join(rng.choice("aAbB") for _ in range(rng.randrange(1, size))) for size in (9, 3, 4)
        )
        for count in (-1, 1):
            expected = text.replace(old, new, count)
            for found in (
                replace(owned(text), owned(old), owned(new), count),
                replace(text.lower(), old.lower(), owned(new), count),
            ):
                if plain(found) == expected:
                    assert mask_of(found) == mask_of(owned(expected))


@pytest.mark.parametrize("change", [
    lambda text: text.lower(), lambda text: text.upper(), lambda text: text.title(),
    lambda text: text.center(20), lambda text: text.zfill(12), lambda text: f"{text:>9}",
    lambda text: str.__mod__("%s!", text) if not isinstance(text, Marked) else text.__rmod__("%s!"),
    lambda text: text % (), lambda text: text.expandtabs(),
    lambda text: repr(text), lambda text: text.translate({65: "q"}),
])
def test_no_operation_forgets_a_user(change: Callable[[str], str]) -> None:
    for text in ("Abc", "ABC DEF", "aßIJ"):
        found = change(owned(text))
        assert plain(found) == change(text)
        users = sum(letter.isupper() for letter in text)
        assert sum(mask_of(found)) >= users


def test_a_string_without_a_user_is_plain() -> None:
    assert not isinstance(owned("Abc")[1:], Marked)
    assert not isinstance(join("", ["a", "b"]), Marked)
    assert not holds_marked({"a": ["b", 3]})
    assert holds_marked(mark_all({"a": ["b", 3]}))
    assert mark_all({"a": 1}) == {"a": 1}


def test_what_is_no_index_is_refused_as_by_any_string() -> None:
    with pytest.raises(TypeError):
        mark("abc")["x"]  # type: ignore[index]
    with pytest.raises(IndexError):
        mark("abc")[3]


def test_spans() -> None:
    assert spans_of(join("", ["<a>", mark("b<c>"), "", mark("d"), "e"])) == [
        ("<a>", True), ("b<c>d", False), ("e", True)]
    assert spans_of("") == []
    assert spans_of("ab") == [("ab", True)]
