"""What a function can reach without its arguments: closed-over tensors, modules and plain values.

A replay runs none of the function's Python, so whatever the function would look up again has to be
the same as at capture. `Surroundings` remembers it, and says whether it still is.
"""

from __future__ import annotations

import dataclasses
import operator
import types
from collections.abc import Callable, Collection, Iterator
from functools import partial
from itertools import chain
from typing import Any

from baregrad.tensor.array.views import Hooks, Leaf, Reviewed, hooks_at
from baregrad.tensor.tensor import Tensor

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_OPAQUE = (type, types.ModuleType, types.BuiltinFunctionType, types.CodeType)
# What is looked into in a way of its own, whatever attributes it has.
_LOOKED_INTO = (types.FunctionType, types.MethodType, dict)
_MISSING = object()
# Rooms whose objects and functions are state and code as a user's are.
_ABOVE = ("baregrad.apps", "baregrad.llm")
# Looks under a key, as `getattr` and `dict.get` do; the second argument is given for what is not
# there. Every place is looked up at every call of a jitted function.
Look = Callable[[Any, Any], Any]
MOST_OBJECTS = 100_000


class Surroundings:
    """The tensors and plain values that a function reaches, and where it finds each."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.tensors: list[Tensor] = []
        self._names: list[str] = []
        self.places: list[tuple[Look, Any, Any, str]] = []
        self._seen: set[int] = set()
        self._kept: list[Any] = []
        # Of those, what is looked at as a whole; and all that the others hold, when last looked at.
        self._wholes: list[tuple[Look, Any, Any, str]] = []
        self._walk()
        wholes = {id(place) for place in self._wholes}
        self._alone = [place for place in self.places if id(place) not in wholes]
        self._direct = [_directly(look, key) for look, key, _, _ in self._alone]
        self._had = [held for _, _, held, _ in self._alone]
        self._views = [_values(holder) for _, holder, _, _ in self._wholes]
        self._held: list[Any] = []
        self._lengths: list[int] = []
        self._reviewed = Reviewed.mark
        self._storages = [tensor._storage for tensor in self.tensors]
        self._steps = [tensor._steps for tensor in self.tensors]
        self._manners = [_manner(tensor) for tensor in self.tensors]
        marks = [hooks for steps in self._steps if (hooks := hooks_at(steps)) is not None]
        self._hooks = [(hooks, hooks.before, hooks.after) for hooks in marks]

    def changed(self) -> str:
        """The name of a place that holds something else now; empty when none does."""
        # Every replay asks: mostly nothing is called but what the interpreter itself calls.
        try:
            same = all(map(operator.is_, [*map(operator.call, self._direct)], self._had))
        except (AttributeError, LookupError, TypeError, ValueError):
            same = False  # something is not there any more
        for look, key, held, name in () if same else self._alone:
            now = look(key, _MISSING)
            if now is not held and _is_change(now, held):
                return _part_that_changed(name, now, held)
        found = self._changed_whole() if self._wholes else ""
        if self._reviewed is Reviewed.mark and not self._hooks:
            return found
        return found or self._changed_manner()

    def _changed_manner(self) -> str:
        """The same of which storages tensors show, and how: their axes, gradients and hooks."""
        reviewed = Reviewed.mark
        for tensor, storage, name in zip(self.tensors, self._storages, self._names, strict=True):
            if tensor._storage is not storage:
                return f"whose memory {name} shows"
        steps = [tensor._steps for tensor in self.tensors]
        if all(map(operator.is_, steps, self._steps)) and all(
            hooks.before is before and hooks.after is after for hooks, before, after in self._hooks
        ):
            self._reviewed = reviewed
            return ""
        for tensor, held, name in zip(self.tensors, self._manners, self._names, strict=True):
            if _manner(tensor) != held:
                return f"how {name} is viewed, or its gradients"
        self._steps, self._reviewed = steps, reviewed
        return ""

    def _changed_whole(self) -> str:
        """The same of what is looked at as a whole: an optimiser has a dict for each parameter."""
        lengths = [*map(len, self._views)]
        if lengths == self._lengths and all(
            map(operator.is_, chain.from_iterable(self._views), self._held)
        ):
            return ""
        values = [*chain.from_iterable(self._views)]
        for look, key, held, name in self._wholes:
            now = look(key, _MISSING)
            if now is not held and _is_change(now, held):
                return _part_that_changed(name, now, held)
        self._held, self._lengths = values, lengths
        return ""

    def _walk(self) -> None:
        pending: list[tuple[Any, str]] = [(self.function, self.function_name)]
        while pending and len(self._seen) < MOST_OBJECTS:
            holder, name = pending.pop()
            if id(holder) in self._seen:
                continue
            self._seen.add(id(holder))
            self._kept.append(holder)
            is_fixed = _is_fixed(holder)
            together = None if is_fixed else _watched_together(holder)
            if together is not None:
                self._wholes.append((*together, name))
                self.places.append(self._wholes[-1])
            for look, key, inner in _parts(holder, name):
                value = look(key, _MISSING)
                if together is None and not is_fixed and _is_watched(value):
                    self.places.append((look, key, value, inner))
                if isinstance(value, Tensor):
                    # What has no values yet, the first call makes.
                    if id(value) not in self._seen and not value.is_unmade:
                        self._seen.add(id(value))
                        self.tensors.append(value)
                        self._names.append(inner)
                elif not isinstance(value, _PLAIN + _OPAQUE):
                    pending.append((value, inner))

    @property
    def function_name(self) -> str:
        """How messages call the function."""
        return getattr(self.function, "__qualname__", type(self.function).__name__)


def _manner(tensor: Tensor) -> tuple[Any, ...]:
    """How a tensor shows its storage, and what happens to gradients there."""
    steps = tensor._steps
    hooks = hooks_at(steps)
    called = ((), ()) if hooks is None else (hooks.before, hooks.after)
    marks = [type(arg) if isinstance(arg, Leaf | Hooks) else arg for _, arg in steps]
    return (tuple([op for op, _ in steps]), tuple(marks), called)


def _values(holder: Any) -> Collection[Any]:
    """What a container holds, at any time."""
    found: Collection[Any] = holder.values() if isinstance(holder, dict) else holder
    return found


def _is_fixed(holder: Any) -> bool:
    """Whether what an object holds is the same as long as it lives, so that nothing need be asked.

    What a tuple or a frozen dataclass holds may itself change.
    """
    if type(holder) is tuple:
        return True
    known = getattr(type(holder), "__dataclass_params__", None)
    return known is not None and bool(known.frozen)


def _differs(now: Any, held: Any) -> bool:
    return type(now) is not type(held) or (now != held and not (now != now and held != held))


def _is_watched(value: Any) -> bool:
    """Whether another object in a value's place is a change."""
    if isinstance(value, (Tensor, *_PLAIN)):
        return True
    return not isinstance(value, _OPAQUE) and _is_container(value)


def _watched_together(holder: Any) -> tuple[Look, Any, Any] | None:
    """How to look at all that a container or object holds at once, if each of it is watched."""
    if isinstance(holder, list | tuple):
        if all(map(_is_watched, holder)):
            items = tuple(holder)
            return partial(_same_items, items), holder, items
    elif type(holder) is dict:
        if all(map(_is_watched, holder.values())):
            entries = dict(holder)
            return partial(_same_entries, entries), holder, entries
    elif not isinstance(holder, _LOOKED_INTO) and _is_ours(holder) and not _is_engine(holder):
        now = vars(holder)
        if all(_is_watched(value) and getattr(holder, key) is value for key, value in now.items()):
            held = dict(now)
            return partial(_same_attributes, held), now, held
    return None


def _same_items(held: tuple[Any, ...], holder: Any, missing: Any) -> Any:
    """`held` if a list still holds the same, else what it holds now."""
    if len(holder) == len(held) and (
        all(map(operator.is_, holder, held)) or not any(map(_is_change, holder, held))
    ):
        return held
    return tuple(holder)


def _same_entries(held: dict[Any, Any], holder: dict[Any, Any], missing: Any) -> Any:
    """`held` if a dict still holds the same, else what it holds now."""
    if len(holder) == len(held):
        if all(map(operator.is_, holder.values(), held.values())):
            return held
        return _same_attributes(held, holder, missing)
    return dict(holder)


def _same_attributes(held: dict[Any, Any], holder: dict[Any, Any], missing: Any) -> Any:
    """`held` if an object's attributes still are the same, whatever was added, else all of them."""
    if len(holder) >= len(held) and all(map(operator.is_, holder.values(), held.values())):
        return held
    now = [holder.get(key, missing) for key in held]
    return dict(holder) if any(map(_is_change, now, held.values())) else held


def _part_that_changed(name: str, now: Any, held: Any) -> str:
    """The name of what changed among things that are looked at together."""
    if isinstance(held, dict) and isinstance(now, dict):
        changed = (k for k, v in held.items() if _is_change(now.get(k, _MISSING), v))
        return next((f"{name}: {key}" for key in changed), name)
    if isinstance(held, tuple) and isinstance(now, tuple) and len(now) == len(held):
        return next((f"{name}[{i}]" for i, v in enumerate(held) if _is_change(now[i], v)), name)
    return name


def _is_change(now: Any, held: Any) -> bool:
    """Whether what a place holds now is another thing, or another plain value, than it held."""
    return now is not held and (not isinstance(held, _PLAIN) or _differs(now, held))


def _is_container(value: Any) -> bool:
    return isinstance(value, list | tuple | dict | set) or _is_ours(value)


def _is_ours(value: Any) -> bool:
    """Whether attributes of a value are looked into: plain Python objects, not libraries' own."""
    module = type(value).__module__
    return hasattr(value, "__dict__") and not module.startswith(("numpy", "torch", "builtins"))


def _parts(holder: Any, name: str) -> Iterator[tuple[Look, Any, str]]:
    """Every place that a holder can be looked up in: how, under which key, and its name."""
    if isinstance(holder, types.MethodType):
        yield partial(getattr, holder), "__self__", f"{name}.__self__"
        yield partial(getattr, holder), "__func__", name
    elif isinstance(holder, types.FunctionType):
        yield from _function_parts(holder, name)
    elif isinstance(holder, list | tuple):
        yield _length, holder, f"len({name})"
        for position in range(len(holder)):
            yield partial(_item, holder), position, f"{name}[{position}]"
    elif isinstance(holder, dict):
        yield _length, holder, f"len({name})"
        # What is held, whatever a class of its own makes of it, or of what is not there.
        look = partial(dict.get, holder)
        for key in list(holder):
            yield look, key, f"{name}[{key!r}]"
    elif dataclasses.is_dataclass(holder) and not hasattr(holder, "__dict__"):
        for field in dataclasses.fields(holder):
            yield partial(getattr, holder), field.name, f"{name}.{field.name}"
    elif _is_ours(holder) and not _is_engine(holder):
        for key in list(vars(holder)):
            yield partial(getattr, holder), key, f"{name}.{key}"


def _is_engine(holder: Any) -> bool:
    """Whether an object is of the stack's own machinery, which is no state of the user's."""
    module = type(holder).__module__
    return module.startswith("baregrad.") and not module.startswith(
        ("baregrad.nn", "baregrad.optim", *_ABOVE)
    )


def _function_parts(function: types.FunctionType, name: str) -> Iterator[tuple[Look, Any, str]]:
    module = function.__module__ or ""
    if module.startswith("baregrad.") and not module.startswith(_ABOVE):
        return
    for free, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield _contents, cell, free
    for free in function.__code__.co_names:
        if free in function.__globals__:
            yield function.__globals__.get, free, free
    for position in range(len(function.__defaults__ or ())):
        yield partial(_item, function.__defaults__), position, f"default {position} of {name}"
    for key in function.__kwdefaults__ or {}:
        yield partial(_item, function.__kwdefaults__), key, f"default {key} of {name}"


def _directly(look: Look, key: Any) -> Callable[[], Any]:
    """What looks at a place without running Python code; it may raise where nothing is there."""
    if look is _contents:
        return partial(getattr, key, "cell_contents")
    if look is _length:
        return partial(len, key)
    if isinstance(look, partial) and look.func in (_item, getattr):
        found = operator.getitem if look.func is _item else getattr
        return partial(found, *look.args, key)
    return partial(look, key, _MISSING)


def _length(holder: Any, missing: Any) -> int:
    return len(holder)


def _item(holder: Any, key: Any, missing: Any) -> Any:
    try:
        return holder[key]
    except (KeyError, IndexError):
        return missing


def _contents(cell: types.CellType, missing: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return missing
