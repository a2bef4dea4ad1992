"""Which argument a function does not take, said where something went wrong because of it."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FunctionType, MappingProxyType
from typing import Any, TypeVar

import numpy as np

from baregrad.base.errors import (
    ArgumentError,
    BaregradError,
    DTypeError,
    OutOfMemory,
    ShapeError,
    is_ours,
)
from baregrad.ir.core.node import Node
from baregrad.tensor.array.axes import plain
from baregrad.tensor.array.tensor_like import TensorLike

# Names of annotations that stand for several.
_ALIASES = MappingProxyType({
    "Array": "Tensor",
    "Scalar": "bool | int | float",
    "Operand": "Tensor | bool | int | float | np.ndarray | Node",
    "Axes": "int | Sequence[int] | None",
    "PerAxis": "int | Sequence[int]",
    "Path": "str | os.PathLike",
})
# A test of each annotation that says something, and its words: for one, and for several. An index
# node is a size that is known later.
_KINDS: MappingProxyType[str, tuple[Callable[[Any], bool], str, str]] = MappingProxyType({
    "Tensor": (lambda value: isinstance(value, TensorLike), "a tensor", "tensors"),
    "int": (
        lambda value: isinstance(plain(value), int | Node) and not isinstance(value, np.bool_),
        "an integer", "integers",
    ),
    "float": (
        lambda value: isinstance(plain(value), int | float) and not isinstance(value, np.bool_),
        "a number", "numbers",
    ),
    "bool": (lambda value: isinstance(value, bool | np.bool_), "a bool", "bools"),
    "str": (lambda value: isinstance(value, str), "a text", "texts"),
    "None": (lambda value: value is None, "None", "None"),
    "np.ndarray": (lambda value: isinstance(value, np.ndarray | np.generic), "an array", "arrays"),
    "Node": (lambda value: isinstance(value, Node), "a size", "sizes"),
    "npt.NDArray": (lambda value: isinstance(value, np.ndarray), "an array", "arrays"),
    "os.PathLike": (lambda value: isinstance(value, os.PathLike), "a path", "paths"),
    "Callable": (callable, "a function", "functions"),
    "Mapping": (lambda value: isinstance(value, Mapping), "a dict", "dicts"),
    "Iterable": (lambda value: isinstance(value, Iterable), "several", "several"),
})  # fmt: skip


# What NumPy and PyTorch call arguments that have another name here; a function's first one has
# several names there.
_SYNONYMS = MappingProxyType({
    "axis": "dim", "keepdims": "keepdim", "split_size_or_sections": "sizes", "split_size": "sizes",
    "indices_or_sections": "parts", "a_min": "min", "a_max": "max", "ddof": "correction",
    "end": "stop",
})  # fmt: skip
_SIZES = frozenset({"size", "shape", "sizes", "dims"})
_FIRST = frozenset({"input", "self", "tensors", "x1", "input1", "a", "tensor", "query",
                    "elements", "sorted_sequence", "indices"})

Run = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


_BOUND_OTHERWISE = (classmethod, staticmethod)


def explain_arguments(
    owner: type, run: Run | None = None, is_run: Callable[[Callable[..., Any]], bool] = bool
) -> None:
    """Let the public methods of a class say what they were given that they do not take.

    Nothing is looked at before something has gone wrong, and nothing that a method itself refuses
    with an error of the tree: most arguments are checked where they are used. With `run`,
    functions for which `is_run` holds, operators as well, are called by `run(function, args,
    kwargs)`.
    """
    made: dict[Any, Any] = {}
    for name, member in list(vars(owner).items()):
        if name.startswith("_"):
            if run is not None and isinstance(member, FunctionType) and is_run(member):
                setattr(owner, name, _run_by(run, member))
            continue
        kind = type(member) if isinstance(member, _BOUND_OTHERWISE) else None
        function = member.__func__ if kind else member
        if isinstance(function, FunctionType):
            known = made.get(function)
            if known is None:
                way = run if run is not None and is_run(function) else None
                known = made[function] = explained(function, name, way)
            setattr(owner, name, kind(known) if kind else known)


def explain_constructor(owner: type) -> None:
    """Let the constructor of a class of ours check what a user makes one of, where it has one.

    What it does not refuse itself it keeps, for code that no user calls to fail over.
    """
    made = vars(owner).get("__init__")
    if not isinstance(made, FunctionType) or not is_ours(made.__code__):
        return

    def constructor(*args: Any, **kwargs: Any) -> None:
        if is_ours(sys._getframe(1).f_code):
            made(*args, **kwargs)
            return
        name = type(args[0]).__name__
        try:
            made(*args, **kwargs)
        except BaregradError:
            raise
        except Exception as error:
            blame_arguments(error, made, name, args, kwargs)
            raise
        _check(None, made, name, args, kwargs)

    owner.__init__ = _named_like(made, constructor)  # type: ignore[misc]


F = TypeVar("F", bound=Callable[..., Any])


def _run_by(run: Run, function: F) -> F:
    def method(*args: Any, **kwargs: Any) -> Any:
        return run(function, args, kwargs)

    return _named_like(function, method)


def explained(function: F, name: str = "", run: Run | None = None) -> F:
    """`function`, which says what a user gave it that it does not take where it fails over that.

    name: what they call it, its own by default. run: calls it, if it is not called as it is.
    """
    name = name or function.__name__

    def method(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs) if run is None else run(function, args, kwargs)
        except BaregradError:
            raise
        except Exception as error:
            if kwargs and isinstance(error, TypeError):
                translated = by_our_names(function, args, kwargs)
                if translated is not None:
                    return method(*translated[0], **translated[1])
            # What our own code gives to a method is our mistake.
            if not is_ours(sys._getframe(1).f_code):
                blame_arguments(error, function, name, args, kwargs)
            raise

    return _named_like(function, method)


def by_our_names(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The arguments of a call by the names that a function has for them, where they had others.

    None if it has all of these names, or if what is found does not fit it either: what it raised
    is then to be told.
    """
    signature = inspect.signature(function)
    known = signature.parameters
    first = next(iter(known), "")
    several = [key for key, one in known.items() if one.kind is one.VAR_POSITIONAL]
    renamed: dict[str, Any] = {}
    for name, value in kwargs.items():
        ours = name
        if several and name in (_SIZES if name not in known else several):
            args = (*args, value)
            continue
        if name not in known:
            ours = first if name in _FIRST else _SYNONYMS.get(name, name)
        if ours in renamed:
            return None
        renamed[ours] = value
    if renamed.keys() == kwargs.keys():
        return None
    if first in renamed and first not in kwargs:
        # What stands first may be told alone by position.
        args = (renamed.pop(first), *args)
    try:
        signature.bind(*args, **renamed)
    except TypeError:
        return None
    return args, renamed


def _named_like(function: F, method: Callable[..., Any]) -> F:
    """`method` under the name of `function`, which it calls.

    That is what `functools.wraps` does, which takes five times as long for each of the hundreds of
    methods, and so at every import.
    """
    method.__module__ = function.__module__
    method.__name__ = function.__name__
    method.__qualname__ = function.__qualname__
    method.__doc__ = function.__doc__
    method.__annotations__ = function.__annotations__
    method.__wrapped__ = function  # type: ignore[attr-defined]
    return method  # type: ignore[return-value]


def blame_arguments(
    error: Exception,
    function: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> None:
    """Raise, for what a function failed with, what is wrong with its arguments, if anything is.

    That is the first one that is not as it is annotated: DTypeError where a tensor is wanted, else
    ArgumentError. `name` is what they call the function. Numbers that are too large for a
    machine's, or divide by zero, are wrong however they are annotated.
    """
    _check(error, function, name, args, kwargs)
    given = (*args, *kwargs.values())
    if isinstance(error, TypeError | AttributeError) and any(isinstance(a, Node) for a in given):
        raise ShapeError(
            f"{name} needs sizes that are known now",
            found=", ".join(repr(a) for a in given if isinstance(a, Node)),
        ) from error
    if isinstance(error, MemoryError):
        raise OutOfMemory(f"no room for what {name} makes", found=str(error)) from error
    if isinstance(error, ArithmeticError):
        numbers = [one for one in given if isinstance(plain(one), int | float)]
        raise ArgumentError(
            f"{name} cannot compute with these numbers",
            found=f"{', '.join(f'{one!r:.40}' for one in numbers)}: {error}",
        ) from error


def _check(
    error: Exception | None,
    function: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> None:
    """Raise for the first argument that is not as it is annotated, because of `error` if any."""
    signature = inspect.signature(function)
    try:
        bound = signature.bind(*args, **kwargs).arguments
    except TypeError:
        # Python says how many there are too many, or which is missing.
        return
    for key, given in bound.items():
        parameter = signature.parameters[key]
        wanted = _alternatives(str(parameter.annotation))
        if error is None and wanted == ["bool"]:
            # 0 and 1 do as well.
            wanted = ["bool", "int"]
        values = given if parameter.kind is parameter.VAR_POSITIONAL else (given,)
        for value in () if parameter.kind is parameter.VAR_KEYWORD else values:
            if not any(_fits(value, each, function) for each in wanted):
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
    """What a sequence is annotated to hold, "" for what is no sequence.

    Of a tuple of a fixed length that is what all of its parts are.
    """
    if annotation.startswith("Sequence["):
        return annotation[len("Sequence[") : -1]
    if not annotation.startswith("tuple["):
        return ""
    parts = set(annotation[len("tuple[") : -1].split(", ")) - {"..."}
    return parts.pop() if len(parts) == 1 else ""


def _fits(value: Any, annotation: str, function: Callable[..., Any]) -> bool:
    element = _element(annotation)
    if element:
        several = isinstance(value, Sequence) and not isinstance(value, str | bytes)
        count = annotation.count(", ") + 1 if annotation.startswith("tuple[") else 0
        if count and "..." not in annotation:
            several = several and len(value) == count
        return several and all(
            any(_fits(each, one, function) for one in _alternatives(element)) for each in value
        )
    name = annotation.partition("[")[0]
    if name in _KINDS:
        return _KINDS[name][0](value)
    # A class of ours, named in the function's own module.
    owner = function.__globals__.get(name)
    if not isinstance(owner, type) or not owner.__module__.startswith("baregrad."):
        return True
    return isinstance(value, owner)


def _one(name: str) -> str:
    return f"an {name}" if name[0] in "AEIOU" else f"a {name}"


def _words(annotations: list[str]) -> str:
    """What is wanted, one of which each annotation names or several of which it holds."""
    found = []
    for each in annotations:
        element = _element(each)
        parts = [part for part in _alternatives(element) if part in _KINDS and part != "None"]
        if element:
            found.append("several " + " or ".join([_KINDS[part][2] for part in parts]))
        else:
            name = each.partition("[")[0]
            found.append(_KINDS[name][1] if name in _KINDS else _one(name))
    *most, last = dict.fromkeys(found)
    return f"{', '.join(most)} or {last}" if most else last
