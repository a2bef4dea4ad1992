"""Docstrings: each module says what lives there, each public thing what it does."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator

import baregrad
from tests.house.source import assert_none, sources


def test_every_module_says_what_lives_there() -> None:
    assert_none(source.name for source in sources() if not ast.get_docstring(source.tree))


def public_parts(name: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield a public object and, of a class, the public methods and properties it defines."""
    yield name, value
    if not inspect.isclass(value):
        return
    for one in value.__mro__:
        if not one.__module__.startswith("baregrad"):
            continue
        for part, member in vars(one).items():
            plain = inspect.isfunction(member) or isinstance(
                member, property | classmethod | staticmethod
            )
            if plain and not part.startswith("_"):
                yield f"{name}.{part}", member


def documented() -> Iterator[tuple[str, str]]:
    for name in baregrad.__all__:
        value = getattr(baregrad, name)
        if not name.startswith("__") and not inspect.ismodule(value):
            for part, member in public_parts(name, value):
                yield part, inspect.getdoc(member) or ""


def test_the_public_face_is_documented() -> None:
    assert_none(name for name, text in documented() if not text)


def test_docstrings_begin_with_one_sentence() -> None:
    found = []
    for name, text in documented():
        first = text.partition("\n\n")[0].rstrip()
        if text and not first.endswith((".", ":", "?")):
            found.append(name)
    assert_none(found)
