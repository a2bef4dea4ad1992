"""The fields of attributes, whether their class is a dataclass or a named tuple."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any, NamedTuple


class AttributeField(NamedTuple):
    """A field of a class of attributes; `default` is `dataclasses.MISSING` when it has none."""

    name: str
    type: str
    default: Any


def attribute_fields(kind: Any) -> tuple[AttributeField, ...] | None:
    """The fields of a dataclass or a class of named tuples in order; None for any other class."""
    return _fields(kind)


@cache
def _fields(kind: type) -> tuple[AttributeField, ...] | None:
    if dataclasses.is_dataclass(kind):
        return tuple(
            AttributeField(one.name, str(one.type), one.default) for one in dataclasses.fields(kind)
        )
    names: tuple[str, ...] | None = getattr(kind, "_fields", None)
    if names is None or not issubclass(kind, tuple):
        return None
    types = kind.__annotations__
    defaults: dict[str, Any] = getattr(kind, "_field_defaults", {})
    return tuple(
        AttributeField(
            name,
            str(getattr(types[name], "__forward_arg__", types[name])),
            defaults.get(name, dataclasses.MISSING),
        )
        for name in names
    )
