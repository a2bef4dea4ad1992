"""What the fields of a schedule's steps may hold."""

from __future__ import annotations

import keyword
from collections.abc import Callable
from dataclasses import fields
from types import MappingProxyType
from typing import Any


def has_typed_fields(step: Any) -> bool:
    """Whether each field of a step, a dataclass, holds what a field of its name may."""
    return all(_FIELDS[field.name](getattr(step, field.name)) for field in fields(step))


def _is_text(value: object) -> bool:
    return type(value) is str


def _is_count(number: object, least: int = 1) -> bool:
    return type(number) is int and number >= least


def _is_word(name: str) -> bool:
    """Whether it prints as the name of an argument, which is how some steps name axes."""
    return name.isidentifier() and not keyword.iskeyword(name)


def _are_shares(loops: tuple[tuple[str, int], ...]) -> bool:
    return all(_is_text(name) and _is_word(name) and _is_count(size) for name, size in loops)


def _are_parts(parts: tuple[tuple[str, int], ...]) -> bool:
    return _is_text(parts[0][0]) and _are_shares(parts[1:])


def _is_role(role: tuple[int, int]) -> bool:
    """Whether it is a number of warps, and one of registers or 0."""
    return type(role) is tuple and len(role) == 2 and _is_count(role[0]) and _is_count(role[1], 0)


# What each field of a step may hold.
_FIELDS: MappingProxyType[str, Callable[[Any], bool]] = MappingProxyType({
    **dict.fromkeys(("axis", "name", "unit", "tail", "engine"), _is_text),
    **dict.fromkeys(
        (
            "grain", "depth", "nbytes", "warps", "tiles", "keys", "blocks", "teams", "beside",
            "shares",
        ),
        _is_count,
    ),
    **dict.fromkeys(("param", "lanes", "ahead", "resident"), lambda number: _is_count(number, 0)),
    "axes": lambda values: all(map(_is_text, values)),
    "place": lambda place: type(place) is int and place in (0, 1),
    "parts": _are_parts,
    "loops": _are_shares,
    **dict.fromkeys(("masked", "cut"), lambda value: type(value) is bool),
    "pad": lambda value: value is None or type(value) is int,
    "swizzle": lambda value: type(value) is int,
    "instruction": _is_text,
    **dict.fromkeys(("copies", "products"), _is_role),
})
