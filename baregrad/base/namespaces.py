"""Namespaces: those whose names are read all the time, and names that one has not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TypeVar, cast

Table = TypeVar("Table")
_NOTHING: Mapping[str, str] = MappingProxyType({})


class _Namespace:
    """An object that has what it holds to itself: its class has none of it."""


def namespace(table: type[Table]) -> Table:
    """An object with the attributes of a class: the interpreter reads them in half the time.

    It remembers where an object's own attributes are, but looks those of a class up again at every
    use, and compiling reads tens of thousands.
    """
    made = _Namespace()
    for name, value in vars(table).items():
        if not name.startswith("__") or name == "__doc__":
            setattr(made, name, value)
    return cast(Table, made)


def unknown_name(
    owner: str, name: str, names: Iterable[str], meant: Mapping[str, str] = _NOTHING
) -> AttributeError:
    """The error for a name that `owner` has not, which names the nearest that it has.

    names: those that it has. meant: what is nearest by meaning, before what is so by spelling.
    """
    from difflib import get_close_matches

    known = {each.lower(): each for each in names}
    close = get_close_matches(name.lower(), list(known), 1, 0.3)
    near = meant.get(name) or (known[close[0]] if close else None)
    message = f"{owner} has no {name!r}"
    if near is not None and not name.startswith("__"):
        message += f"; the nearest that it has is {near!r}"
    return AttributeError(message, name=name)
