"""Namespaces whose names are read all the time."""

from __future__ import annotations

from typing import TypeVar, cast

Table = TypeVar("Table")


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
