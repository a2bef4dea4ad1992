"""Whether the package is what its files say, as far as a look at what is loaded of it tells.

Somebody may have put functions, classes or numbers of his own where ours were, to measure or to try
something. What such a process captures is of no use to others, nor is theirs to it.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping
from functools import cached_property
from types import FunctionType
from typing import Any

from baregrad.tensor.jit.identity import OTHERS
from baregrad.tensor.jit.trees import PLAIN

_TRUSTED = OTHERS | {"baregrad"}


class Replaced(Exception):
    """Something of the package has been replaced by somebody else's."""


def loaded_marks(prefixes: tuple[str, ...]) -> dict[str, str]:
    """For each loaded module of these prefixes a hash of where its functions stand, and of numbers.

    Equal in all processes that changed nothing. Raises Replaced where somebody else's code is found
    at a name of a module, or of a class. Numbers that are no constants of modules or attributes of
    classes, and what lies in dicts and lists, are not looked at.
    """
    found = {}
    for name, module in list(sys.modules.items()):
        if name.startswith(prefixes):
            words = "\n".join(_module_words(name, dict(vars(module))))
            found[name] = hashlib.blake2b(words.encode(), digest_size=8).hexdigest()
    return found


def _module_words(name: str, held: Mapping[str, Any]) -> Iterator[str]:
    """What a module has of its own; of what it took from elsewhere no more than whose that is."""
    for key, value in held.items():
        kind = type(value)
        if kind in PLAIN or kind is tuple:
            if key.isupper() and _is_plain(value):
                yield f"{key}={value!r}"
        elif kind is FunctionType:
            _check_function(value)
            if value.__module__ == name:
                yield _function_word(key, value)
        elif isinstance(value, type):
            _check_name(value.__module__, key)
            if value.__module__ == name:
                yield from _class_words(value)
        else:
            _check_name(kind.__module__, key)


def _class_words(kind: type[Any]) -> Iterator[str]:
    yield f"class {kind.__qualname__}"
    for key, value in list(vars(kind).items()):
        if type(value) in PLAIN or type(value) is tuple:
            if not key.startswith("__") and _is_plain(value):
                yield f"{key}={value!r}"
            continue
        for function in _functions_of(value):
            if type(function) is FunctionType:
                _check_function(function)
                yield _function_word(key, function)
        if not isinstance(value, type):
            _check_name(type(value).__module__, key)


def _functions_of(value: Any) -> tuple[Any, ...]:
    """What runs where an attribute of a class is asked for or called."""
    if type(value) is FunctionType:
        return (value,)
    if isinstance(value, staticmethod | classmethod):
        return (value.__func__,)
    if isinstance(value, property):
        return (value.fget, value.fset)
    return (value.func,) if isinstance(value, cached_property) else ()


def _function_word(key: str, function: FunctionType) -> str:
    return f"{key} {function.__qualname__} {function.__code__.co_firstlineno}"


def _is_plain(value: Any) -> bool:
    return type(value) is not tuple or all(type(each) in PLAIN for each in value)


def _check_function(function: Any) -> None:
    """Raise Replaced for a function of somebody else's, also if it is wrapped by another."""
    while type(function) is FunctionType:
        _check_name(function.__globals__.get("__name__"), function.__qualname__)
        function = function.__dict__.get("__wrapped__")


def _check_name(module: Any, called: str) -> None:
    top = module.partition(".")[0] if isinstance(module, str) else ""
    # Functions of named tuples are made among names of their own.
    if top not in _TRUSTED and not top.startswith("namedtuple_"):
        raise Replaced(called)
