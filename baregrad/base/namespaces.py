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


class UnknownName(AttributeError):
    """A name that something has not. The nearest is looked for when the error is shown.

    Most who ask, by `hasattr`, want no more than to know, and a search among a thousand names takes
    milliseconds.
    """

    names: tuple[str, ...] = ()
    nearest: str | None = None

    def __str__(self) -> str:
        from difflib import get_close_matches

        message, name = str(self.args[0]), str(self.name)
        known = {each.lower(): each for each in self.names}
        close = [] if self.nearest else get_close_matches(name.lower(), list(known), 1, 0.3)
        near = self.nearest or (known[close[0]] if close else None)
        if near is None or name.startswith("__"):
            return message
        return f"{message}; the nearest that it has is {near!r}"


def unknown_name(
    owner: str, name: str, names: Iterable[str], meant: Mapping[str, str] = _NOTHING
) -> AttributeError:
    """The error for a name that `owner` has not, which names the nearest that it has.

    names: those that it has. meant: what is nearest by meaning, before what is so by spelling.
    """
    error = UnknownName(f"{owner} has no {name!r}", name=name)
    error.names, error.nearest = tuple(names), meant.get(name)
    return error
