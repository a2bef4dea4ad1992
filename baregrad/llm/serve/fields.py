"""Reading a request's fields, each of the kind that it has to be."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Collection, Mapping
from typing import Any

from baregrad.llm.serve.refusals import RequestRefused
from baregrad.llm.text.templates.messages import MOST_DEPTH, is_too_deep

_LARGEST = sys.float_info.max


class Fields:
    """An object of a request; null counts as missing, as clients send it for what they leave out.

    `path` names the object in what a client is told. Each reader raises RequestRefused for a value
    of another kind.
    """

    def __init__(self, values: Any, path: str = "") -> None:
        if not isinstance(values, Mapping):
            raise RequestRefused(
                f"{path or 'the request'} has to be an object, not {kind_of(values)}",
                param=path or None,
            )
        self.values = values
        self.path = path

    def name(self, key: str) -> str:
        """Return a field's whole name."""
        return f"{self.path}.{key}" if self.path else key

    def has(self, key: str) -> bool:
        """Whether a field is there and not null."""
        return self.values.get(key) is not None

    def only(self, known: Collection[str]) -> None:
        """Refuse what nobody reads: a setting that has no effect would be missed in silence."""
        for key in self.values:
            if key not in known and self.has(key):
                near = difflib.get_close_matches(key, known, 1)
                hint = f"; did you mean {near[0]}?" if near else ""
                name = self.name(key)[:80]
                raise RequestRefused(
                    f"{name} is not a field that is known here{hint}", param=name,
                    code="unknown_parameter",
                )

    def refuse(self, key: str, wanted: str) -> RequestRefused:
        """Return the refusal of a field's value."""
        name = self.name(key)
        if not self.has(key):
            return RequestRefused(f"{name} is missing: {wanted} is needed", param=name)
        value = self.values[key]
        shown = json.dumps(value, ensure_ascii=False)[:80]
        return RequestRefused(f"{name} has to be {wanted}, not {shown}", param=name)

    def text(self, key: str, otherwise: str | None = None) -> str:
        """Return a text; it has to be there unless something else is given."""
        value = self.values.get(key)
        if value is None and otherwise is not None:
            return otherwise
        if not isinstance(value, str):
            raise self.refuse(key, "a text")
        return value

    def number(self, key: str) -> float | None:
        """Return a number, or None."""
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refuse(key, "a number")
        if not abs(value) <= _LARGEST:
            raise self.refuse(key, "a number that fits in 64 bits of a float")
        return float(value)

    def whole(self, key: str, least: int, most: int) -> int | None:
        """Return a whole number within bounds, or None."""
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.refuse(key, f"a whole number from {least} to {most}")
        return value

    def flag(self, key: str, otherwise: bool = False) -> bool:
        """Return a flag."""
        value = self.values.get(key)
        if value is None:
            return otherwise
        if not isinstance(value, bool):
            raise self.refuse(key, "true or false")
        return value

    def array(self, key: str) -> list[Any]:
        """Return an array, empty where it is missing."""
        value = self.values.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.refuse(key, "an array")
        return value

    def inner(self, key: str) -> Fields:
        """Return an object in a field, empty where it is missing."""
        value = self.values.get(key)
        return Fields({} if value is None else value, self.name(key))

    def objects(self, key: str) -> list[Fields]:
        """Return the objects of an array."""
        name = self.name(key)
        return [Fields(value, f"{name}[{at}]") for at, value in enumerate(self.array(key))]

    def texts(self, key: str) -> list[str]:
        """Return the texts of an array, or one text as an array of one."""
        value = self.values.get(key)
        if isinstance(value, str):
            return [value]
        found = self.array(key)
        if not all(isinstance(text, str) for text in found):
            raise self.refuse(key, "a text or an array of texts")
        return found


def kind_of(value: Any) -> str:
    """Return what a value is, in JSON's words."""
    if value is None:
        return "null"
    kinds = (
        (bool, "true or false"), (int | float, "a number"), (str, "a text"), (list, "an array"),
    )
    return next((name for kind, name in kinds if isinstance(value, kind)), "an object")


def parse(body: bytes) -> Fields:
    """Return a request's object; raises RequestRefused for what is no JSON."""
    try:
        value = json.loads(body, object_pairs_hook=_object, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise RequestRefused(f"the request is no JSON: {error}") from error
    if is_too_deep(value):
        raise RequestRefused(f"the request is nested more than {MOST_DEPTH} deep")
    return Fields(value)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        name = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object has two values of {name[:80]!r}")
    return found


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is no number of JSON")
