"""Which argument a method does not take, told where something went wrong because of it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from types import MappingProxyType
from typing import Any

import numpy as np

from baregrad.base.errors import ArgumentError, BaregradError, DTypeError, is_ours
from baregrad.ir.node import Node
from baregrad.tensor.axes import plain
from baregrad.tensor.operands import is_tensor

# Names of annotations that stand for several.
_ALIASES = MappingProxyType({
    "Array": "Tensor",
    "Scalar": "bool | int | float",
    "Operand": "Tensor | bool | int | float | np.ndarray | Node",
    "Axes": "int | Sequence[int] | None",
    "PerAxis": "int | Sequence[int]",
})
# A test of each annotation that says something, and its words: for one, and for several. An index
# node is a size that is known later.
_KINDS: MappingProxyType[str, tuple[Callable[[Any], bool], str, str]] = MappingProxyType({
    "Tensor": (is_tensor, "a tensor", "tensors"),
    "int": (lambda value: isinstance(plain(value), int | Node), "an integer", "integers"),
    "float": (lambda value: isinstance(plain(value), int | float), "a number", "numbers"),
    "bool": (lambda value: isinstance(value, bool | np.bool_), "a bool", "bools"),
    "str": (lambda value: isinstance(value, str), "a text", "texts"),
    "None": (lambda value: value is None, "None", "None"),
    "np.ndarray": (lambda value: isinstance(value, np.ndarray | np.generic), "an array", "arrays"),
    "Node": (lambda value: isinstance(value, Node), "a size", "sizes"),
})


def explain_arguments(owner: type) -> None:
    """Let the public methods of a class tell what they were given that they do not take.

    Nothing is looked at before something has gone wrong, and nothing that a method itself refuses
    in so many words: most arguments are checked where they are used.
    """
    made: dict[Any, Any] = {}
    for name, member in list(vars(owner).items()):
        if name.startswith("_"):
            continue
        kind = type(member) if isinstance(member, classmethod | staticmethod) else None
        function = member.__func__ if kind else member
        if inspect.isfunction(function):
            explained = made.get(function) or made.setdefault(function, _explained(function, name))
            setattr(owner, name, kind(explained) if kind else explained)


def _explained(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    @wraps(function)
    def method(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except BaregradError:
            raise
        except Exception as error:
            # What our own code gives to a method is our mistake.
            if not is_ours(sys._getframe(1).f_code):
                blame_arguments(error, function, name, args, kwargs)
            raise

    return method


def blame_arguments(
    error: Exception,
    function: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> None:
    """Raise, for what a function failed with, what is wrong with its arguments, if anything is.

    That is the first one that is not as it is annotated: DTypeError where a tensor is wanted, else
    ArgumentError. `name` is what they call the function.
    """
    signature = inspect.signature(function)
    try:
        bound = signature.bind(*args, **kwargs).arguments
    except TypeError:
        # Python says how many there are too many, or which is missing.
        return
    for key, given in bound.items():
        parameter = signature.parameters[key]
        wanted = _alternatives(str(parameter.annotation))
        values = given if parameter.kind is parameter.VAR_POSITIONAL else (given,)
        for value in () if parameter.kind is parameter.VAR_KEYWORD else values:
            if not any(_fits(value, each) for each in wanted):
                kind = DTypeError if wanted == ["Tensor"] else ArgumentError
                raise kind(
                    f"{name} does not take this as `{key}`",
                    found=f"{type(value).__name__} {value!r:.40}",
                    wanted=_words(wanted),
                ) from error


def _alternatives(annotation: str) -> list[str]:
    """The parts of a union, aliases spelled out."""
    found: list[str] = []
    part, depth = "", 0
    for character in annotation + "|":
        depth += (character == "[") - (character == "]")
        if character != "|" or depth:
            part += character
            continue
        part = part.strip()
        found += _alternatives(_ALIASES[part]) if part in _ALIASES else [part]
        part = ""
    return found


def _element(annotation: str) -> str:
    """What a sequence is annotated to hold, "" for what is no sequence."""
    for opening in ("Sequence[", "tuple["):
        if annotation.startswith(opening):
            return annotation[len(opening) : -1].removesuffix(", ...")
    return ""


def _fits(value: Any, annotation: str) -> bool:
    element = _element(annotation)
    if element:
        several = isinstance(value, Sequence) and not isinstance(value, str | bytes)
        return several and all(
            any(_fits(each, one) for one in _alternatives(element)) for each in value
        )
    test, _, _ = _KINDS.get(annotation.partition("[")[0], (None, "", ""))
    return test is None or test(value)


def _words(annotations: list[str]) -> str:
    """What is wanted, one of which each annotation names or several of which it holds."""
    found = []
    for each in annotations:
        element = _element(each)
        parts = [part for part in _alternatives(element) if part in _KINDS and part != "None"]
        if element:
            found.append("several " + " or ".join([_KINDS[part][2] for part in parts]))
        else:
            found.append(_KINDS[each.partition("[")[0]][1])
    *most, last = dict.fromkeys(found)
    return f"{', '.join(most)} or {last}" if most else last
