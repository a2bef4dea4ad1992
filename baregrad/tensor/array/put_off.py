"""The call of an operation: put off where one of its description was seen before.

The description is all that the operation's Python can see without looking at numbers: the
function, whether gradients are recorded, dtype, shape, device, gradient wish and view of each
operand, what is known of its numbers, and every other argument with its type. What is not described
so (a lazy graph, a symbolic extent, an array of NumPy) makes the call an ordinary one, as do
watchers. Two things that the operation may compare, as an operand with an operand or an array with
an array, are two things in a key as well.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ClassVar

import numpy as np

from baregrad.base.options import options
from baregrad.dtypes import Defaults, DType
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import MOVEMENT, Ops, mask_of
from baregrad.tensor.array.casting import cast_operands
from baregrad.tensor.array.core import Array
from baregrad.tensor.array.deferred import (
    MOST_WRITTEN_OUT,
    CallTemplate,
    DeferredCall,
    DeferredValue,
    Form,
    OperandPlace,
    Shown,
)
from baregrad.tensor.array.grad_mode import grad_enabled
from baregrad.tensor.array.link import SessionLike, session
from baregrad.tensor.array.storage import Storage
from baregrad.tensor.array.views import Step, is_symbolic, is_whole

TEMPLATES_KEPT = 4096
_BUFFER = Ops.BUFFER
_DETACH = Ops.DETACH
_VAR = Ops.VAR.bit
# What reads no array: made of numbers and places alone.
_UNREAD = mask_of((*MOVEMENT, Ops.CONST, Ops.IOTA, Ops.CAST))
_INTEGERS, _ENDS = frozenset((int,)), frozenset((int, type(None)))
_PLAIN = frozenset((int, bool, str, type(None), type(...), DType))
_REAL = frozenset((int, bool, float, type(None), type(...), slice))
_MOST_RESULTS = 1 << 8
_MOST_PARTS = 64

Operands = list[tuple[Node | DeferredValue, tuple[Step, ...]]]


def put_off(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`function(*args, **kwargs)`, whose result is deferred where a call like it is known."""
    owner = session()
    watching = owner.watching
    mode: Any = grad_enabled()
    if mode.__class__ is not bool:
        args, kwargs = cast_operands(function, args, kwargs)
    if watching.at_once or watching.observers or watching.downloads:
        return function_for(function, args, kwargs)(*args, **kwargs)
    key: list[Any] = [function, mode, Defaults.float]
    operands: Operands = []
    if not _describe(owner, args, key, operands) or (
        kwargs and not _named(owner, kwargs, key, operands)
    ):
        return function_for(function, args, kwargs)(*args, **kwargs)
    known = owner.templates.get(kind := tuple(key))
    if known is None:
        function = function_for(function, args, kwargs)
        return _learn(owner, kind, function, args, kwargs, operands)
    # What `options.notes_lines` says, without a call more.
    settings = options.values()
    if known is _NOTHING:
        return function_for(function, args, kwargs)(*args, **kwargs)
    if known.written_out > MOST_WRITTEN_OUT or settings["debug"] or settings["lines"]:
        return known.function(*args, **kwargs)
    form = known.only
    if form is None:
        return _shown(known, operands, args, kwargs)
    value = DeferredValue(DeferredCall(known, tuple(operands)), 0, form)
    return form.kind._on(Storage(value, form.device, form.grad))


def _shown(
    template: CallTemplate, operands: Operands, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """What a call of a template returns, its own values deferred."""
    storages: list[Storage] = []
    if template.results:
        call = DeferredCall(template, tuple(operands))
        storages = [
            Storage(DeferredValue(call, position, form), form.device, form.grad)
            for position, form in enumerate(template.results)
        ]
    found: list[Array] = []
    for one in template.shown:
        if one.source >= 0:
            assert one.steps is not None
            made = one.kind._on(storages[one.source], one.steps)
        else:
            number = one.argument
            given = _given(args, kwargs)[~one.source] if number is None else args[number]
            if one.steps is None:
                found.append(given)
                continue
            made = one.kind._on(given._storage, given._steps + one.steps)
        made._look = one.look
        found.append(made)
    return found[0] if template.build is None else template.build(found)


class _Known:
    """Classes whose objects are not complex: those of arrays are added when a call is seen."""

    real: ClassVar[set[Any]] = set(_REAL)


class _Nothing:
    """What is known of calls that are not to be put off."""


_NOTHING = _Nothing()


def put_off_property(function: Callable[[Any], Any]) -> Any:
    """A function of a tensor alone as a property, whose calls are put off where they are known."""

    @wraps(function)
    def found(x: Any) -> Any:
        return put_off(function, (x,), {})

    return property(found)


def function_for(
    function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> Callable[..., Any]:
    """What computes `function` of these arguments: that itself, unless some are complex."""
    kinds = _Known.real
    if kinds.issuperset(map(type, args)) and kinds.issuperset(map(type, kwargs.values())):
        return function
    if not any(map(is_complex, args)) and not any(map(is_complex, kwargs.values())):
        return function
    # By name: that room is made of tensors, and asked of complex ones alone.
    rules = importlib.import_module("baregrad.tensor.complex.rules")
    found: Callable[..., Any] = rules.rule_of(function)
    return found


def is_complex(value: Any) -> bool:
    """Whether an argument is complex, has a part that is, or names such a dtype."""
    kind = value.__class__
    if isinstance(value, Array):
        if not value.is_paired:
            _Known.real.add(kind)
        return value.is_paired
    if kind is tuple or kind is list:
        return not _Known.real.issuperset(map(type, value)) and any(map(is_complex, value))
    if kind in _REAL:
        return False
    if isinstance(value, DType):
        return value.is_complex
    if kind is str:
        return value in ("complex64", "complex128")
    if isinstance(value, np.ndarray | np.dtype):
        return (value if isinstance(value, np.dtype) else value.dtype).kind == "c"
    if isinstance(value, type):
        return issubclass(value, complex | np.complexfloating)
    return isinstance(value, complex | np.complexfloating)


def _named(
    owner: SessionLike, kwargs: dict[str, Any], key: list[Any], operands: Operands
) -> bool:
    """Add arguments that are given by name to a key; False where one has no description."""
    for name, value in kwargs.items():
        key.append(name)
        if not _describe(owner, (value,), key, operands):
            return False
    return True


def _describe(
    owner: SessionLike, values: Sequence[Any], key: list[Any], operands: Operands,
    is_part: bool = False,
) -> bool:
    """Add arguments to a key, and operands to `operands`; False where one has no description.

    Each begins with a type, which says how many entries follow. is_part: they are parts of one,
    which have no parts themselves.
    """
    for value in values:
        kind = value.__class__
        if kind in _PLAIN:
            key += (kind, value)
        elif isinstance(value, Array):
            storage = value._storage
            held = storage.deferred
            if held is None or value._steps or storage.known is not None:
                if not _describe_operand(owner, value, key, operands):
                    return False
                continue
            held.is_read = True
            # A form is one object.
            key += (kind, held.form)
            operands.append((held, ()))
        elif kind is float:
            # -0.0 equals 0.0.
            key += (kind, value if value else str(value))
        elif kind is complex:
            key += (kind, repr(value))
        elif kind is tuple or kind is list:
            if len(value) > _MOST_PARTS:
                return False
            if _INTEGERS.issuperset(map(type, value)):
                key += (kind, tuple(value))
                continue
            key += (kind, len(value))
            if is_part or not _describe(owner, value, key, operands, is_part=True):
                return False
        elif kind is slice:
            ends = (value.start, value.stop, value.step)
            if not _ENDS.issuperset(map(type, ends)):
                return False
            key += (kind, *ends)
        else:
            return False
    return True


def _describe_operand(
    owner: SessionLike, value: Array, key: list[Any], operands: Operands
) -> bool:
    """Add an array, or a view of one, to a key and to operands; False where that cannot be."""
    storage = value._storage
    steps = value._steps
    held: Node | DeferredValue | None = storage.deferred
    if held is None:
        held = storage.node
        if held.op is _BUFFER:
            form = _form_of(owner, value.__class__, storage)
            leaf, held = held, DeferredValue.of_leaf(held, form)
            storage.defer(leaf, held)
    if isinstance(held, DeferredValue):
        held.is_read = True
        key += (value.__class__, held.form)
    elif held.mask & ~_UNREAD:
        return False
    else:
        key += (value.__class__, held, storage.device, storage.grad)
    if storage.known is not None:
        key.append(storage.known)
    if steps:
        if value._look is None and not is_whole(steps) and value._value().mask & _VAR:
            return False
        key += [step if step[0] is not _DETACH else _mark(step[1]) for step in steps]
        if storage.settled:
            steps = value._present_steps()
        key.append(len(steps))
    operands.append((held, steps))
    return True


def _mark(mark: Any) -> str:
    return "stop" if mark is None else "leaf"


def _learn(
    owner: SessionLike, key: tuple[Any, ...], function: Callable[..., Any],
    args: tuple[Any, ...], kwargs: dict[str, Any], operands: Operands,
) -> Any:
    """Call an operation on operands that it was not called on before, and note what it gives."""
    watching = owner.watching
    touched = watching.touched
    watching.at_once += 1
    try:
        found = function(*args, **kwargs)
    finally:
        watching.at_once -= 1
    template: Any = _NOTHING
    if watching.touched == touched:
        template = _template(owner, function, args, kwargs, found) or _NOTHING
    keep_template(owner, key, template)
    if template is not _NOTHING and template.results:
        results = (found,) if template.build is None else found
        made = {
            one.source: tensor._storage
            for one, tensor in zip(template.shown, results, strict=True)
            if one.source >= 0
        }
        nodes = tuple([made[number].node for number in range(len(made))])
        call = DeferredCall(template, tuple(operands), nodes)
        for position, form in enumerate(template.results):
            made[position].deferred = DeferredValue(call, position, form)
    return found


def _template(
    owner: SessionLike, function: Callable[..., Any],
    args: tuple[Any, ...], kwargs: dict[str, Any], found: Any,
) -> CallTemplate | None:
    """The template of a call; None where its results are no new tensors, nor views of operands."""
    build: Callable[[list[Any]], Any] | None = None
    results: tuple[Any, ...] = (found,)
    if not isinstance(found, Array):
        if not isinstance(found, tuple) or not 0 < len(found) < _MOST_RESULTS:
            return None
        results, build = found, getattr(found.__class__, "_make", found.__class__)
    given = _given(args, kwargs)
    fresh: dict[Storage, int] = {}
    shown = []
    for tensor in results:
        one = _how_shown(tensor, args, given, fresh)
        if one is None:
            return None
        shown.append(one)
    forms = [_form_of(owner, results[0].__class__, storage) for storage in fresh]
    places = iter(range(len(given)))

    def outlined(value: Any) -> Any:
        if isinstance(value, Array):
            return OperandPlace(next(places))
        if value.__class__ is tuple or value.__class__ is list:
            return value.__class__([outlined(part) for part in value])
        return value

    return CallTemplate(
        function, tuple([outlined(value) for value in args]),
        {name: outlined(value) for name, value in kwargs.items()},
        tuple([_form_of(owner, one.__class__, one._storage) for one in given]), tuple(forms),
        tuple(shown), build,
    )


def _how_shown(
    tensor: Any, args: Sequence[Any], given: Sequence[Array], fresh: dict[Storage, int]
) -> Shown | None:
    """How a call shows a result; None where a later call may not show it so.

    args: what it was given by place. given: its operands. fresh: the storages that the call made,
    in order, to which that of the result is added.
    """
    if not isinstance(tensor, Array):
        return None
    kind, storage, steps = tensor.__class__, tensor._storage, tensor._steps
    viewed = [number for number, one in enumerate(given) if one._storage is storage]
    if len(viewed) > 1:
        # Keys do not tell operands that are one from such as look alike: of which is it a view?
        return None
    argument = None
    if viewed:
        at = [number for number, one in enumerate(args) if one is given[viewed[0]]]
        argument = at[0] if at else None
    if viewed and given[viewed[0]] is tensor:
        return Shown(kind, ~viewed[0], None, None, argument)
    if tensor._value().mask & (_VAR | Ops.COPY.bit):
        return None
    if viewed:
        before = given[viewed[0]]._steps
        if steps[: len(before)] != before:
            return None
        source, steps = ~viewed[0], steps[len(before) :]
    else:
        if storage.known is not None or storage.node.op is _BUFFER or storage in fresh:
            return None
        source = fresh[storage] = len(fresh)
    if any(op is _DETACH and mark is not None for op, mark in steps):
        return None
    if is_symbolic(tensor._steps):
        # What it shows is of a known extent as long as the storage is settled.
        return None
    shown = tensor._value()
    look = (shown.shape, shown.dtype) if tensor._steps else None
    return Shown(kind, source, steps, look, argument)


def _given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Array]:
    """The operands among arguments, in the order of their description."""
    found: list[Array] = []
    for value in (*args, *kwargs.values()):
        if isinstance(value, Array):
            found.append(value)
        elif value.__class__ is tuple or value.__class__ is list:
            found += [part for part in value if isinstance(part, Array)]
    return found


def keep_template(owner: SessionLike, key: tuple[Any, ...], template: Any) -> None:
    """Note the template of a key; the oldest goes where they are too many."""
    with owner.lock:
        owner.templates[key] = template
        if len(owner.templates) > TEMPLATES_KEPT:
            del owner.templates[next(iter(owner.templates))]


def _form_of(owner: SessionLike, kind: type[Array], storage: Storage) -> Form:
    """The form of a storage that tensors of a class show."""
    deferred = storage.deferred
    like = storage.node if deferred is None else deferred.form
    return form_of_fields(owner, kind, like.dtype, like.shape, storage.device, storage.grad)


def form_of_fields(owner: SessionLike, *fields: Any) -> Form:
    """The one form with these fields."""
    found = owner.forms.get(fields)
    if found is None:
        with owner.lock:
            found = owner.forms.setdefault(fields, Form(*fields))
            if len(owner.forms) > TEMPLATES_KEPT:
                del owner.forms[next(iter(owner.forms))]
    return found  # type: ignore[no-any-return]
