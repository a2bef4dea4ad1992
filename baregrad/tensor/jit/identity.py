"""What a function of this package is, the same in every process that has the same package.

What such a function computes hangs on its code, on what it reaches by its closure, and on the forms
of the arrays among that; on nothing that it looks up by names of a module, which are the code's.
"""

from __future__ import annotations

import enum
import hashlib
import sys
import types
from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np

from baregrad.dtypes import DType
from baregrad.ir.core.digest import stable_repr
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.tensor.array.storage import Storage
from baregrad.tensor.array.views import is_whole
from baregrad.tensor.jit.parts import Call
from baregrad.tensor.jit.trees import PLAIN, is_variable
from baregrad.tensor.tensor import Tensor

# The rooms, and what lies beside them, whose text decides what a function of theirs builds.
ROOMS = ("base", "dtypes.py", "engine", "func", "io", "llm", "nn", "tensor")
_OURS = tuple([f"baregrad.{room.removesuffix('.py')}." for room in ROOMS])
# Packages whose names mean the same in every process, beside our own.
OTHERS = sys.stdlib_module_names | {"numpy"}
_NAMED = (type, types.BuiltinFunctionType, np.ufunc)
# Their objects belong to this process.
_MACHINERY = ("baregrad.engine.", "baregrad.runtime.", "baregrad.assemble.", "baregrad.tensor.")
_DEEPEST = 100


class Unnamed(Exception):
    """Something has no name that another process would know it by."""


class FunctionIdentity:
    """A function with a call's arguments: `text`, equal for what computes the same.

    storages: those that the function reaches, each once, in the order in which it is met. Raises
    Unnamed for what has none: a function or an object of somebody else's, an array that is not
    computed yet, views, and whatever needs gradients.
    """

    def __init__(self, function: Any, call: Call) -> None:
        self.storages: dict[Storage, int] = {}
        self._words: list[str] = []
        self._numbers: dict[int, int] = {}
        # Held, so that nothing later takes the address of one of them.
        self._met: list[Any] = []
        self._places: dict[int, int] = {}
        self._add(function, 0)
        given = self._given(call)
        self.text = "\n".join((*self._words, *given))

    def _given(self, call: Call) -> list[str]:
        """The forms of a call's arguments, whatever their values are."""
        seen = dict(self.storages)
        if call.grads:
            raise Unnamed("gradients")
        for number, tensor in enumerate(call.tensors):
            storage = tensor._storage
            if storage in seen or tensor.requires_grad or tensor.is_paired:
                raise Unnamed("an argument that is there twice, or that gradients pass")
            seen[storage] = number
        return [repr(_form(call.tree))]

    def _add(self, value: Any, depth: int) -> None:
        kind = type(value)
        if kind in PLAIN:
            self._words.append(f"{kind.__name__} {value!r}")
            return
        number = self._numbers.get(id(value))
        if number is not None:
            self._words.append(f"again {number}")
            return
        if depth > _DEEPEST:
            raise Unnamed("something endless")
        self._numbers[id(value)] = len(self._met)
        self._met.append(value)
        if isinstance(value, Tensor):
            self._add_tensor(value)
        elif isinstance(value, np.ndarray):
            self._add_array(value)
        else:
            head, parts = _parts(value)
            self._words.append(f"{head} {len(parts)}")
            for part in parts:
                self._add(part, depth + 1)

    def _add_tensor(self, tensor: Tensor) -> None:
        storage = tensor._storage
        number = self.storages.get(storage)
        if type(tensor) is not Tensor or not is_whole(tensor._steps) or tensor.requires_grad:
            raise Unnamed("a view, or a tensor that gradients pass")
        if number is None:
            node = storage.node
            if node.op is not Ops.BUFFER:
                raise Unnamed("an array that is not computed yet")
            number = self.storages[storage] = len(self.storages)
            place = self._places.setdefault(id(node.arg.handle), number)
            form = (node.dtype.name, _plain(node.shape), storage.device, storage.known)
            self._words.append(f"array {place} {form}")
        steps = [op.name for op, _ in tensor._steps]
        self._words.append(f"tensor {number} {steps}")

    def _add_array(self, array: np.ndarray[Any, Any]) -> None:
        if array.dtype.hasobject:
            raise Unnamed("an array of objects")
        told = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
        self._words.append(f"numbers {array.dtype!r} {array.shape} {told}")


def _parts(value: Any) -> tuple[str, list[Any]]:
    """What a thing is called, and what it is made of."""
    kind = type(value)
    if kind is types.FunctionType:
        return _of_function(value)
    if kind is types.MethodType:
        return "method", [value.__func__, value.__self__]
    if kind is partial:
        return "partial", [value.func, value.args, value.keywords]
    if kind in (tuple, list):
        return kind.__name__, list(value)
    if kind in (dict, types.MappingProxyType):
        return kind.__name__, [each for item in value.items() for each in item]
    if kind in (set, frozenset) and all(type(each) in PLAIN for each in value):
        return kind.__name__, sorted(value, key=lambda each: (type(each).__name__, repr(each)))
    # What a builtin is bound to has no part in its name.
    if isinstance(value, _NAMED) and _is_free(value):
        return f"named {_name_of(value)}", []
    if isinstance(value, DType):
        return f"dtype {value.name}", []
    if isinstance(value, Node):
        if value.mask & Ops.BUFFER.bit:
            raise Unnamed("a graph over arrays")
        return f"node {stable_repr(value)}", []
    return _of_object(value, kind)


def _is_free(function: Any) -> bool:
    return isinstance(getattr(function, "__self__", None), types.ModuleType | None)


def _name_of(value: Any) -> str:
    """The name of a class or builtin that stands in a module of ours, of Python's or of NumPy's.

    Others say nothing of what they do: somebody else's, and those that a function made.
    """
    module = getattr(value, "__module__", None) or "numpy"
    name = getattr(value, "__qualname__", value.__name__)
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not value or not (_is_ours(module) or module.partition(".")[0] in OTHERS):
        raise Unnamed(f"{module}.{name}")
    return f"{module}.{name}"


def _of_function(function: types.FunctionType) -> tuple[str, list[Any]]:
    # Not by its `__module__`, which a wrapper takes over from what it wraps.
    if not _is_ours(function.__globals__.get("__name__", "")):
        raise Unnamed(f"the function {function.__qualname__}")
    code = function.__code__
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    parts = [*cells, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    own = [code.co_firstlineno, code.co_names, [c for c in code.co_consts if type(c) in PLAIN]]
    told = hashlib.sha256(code.co_code + repr(own).encode()).hexdigest()
    return f"function {function.__module__}.{function.__qualname__} {told}", parts


def _of_object(value: Any, kind: type[Any]) -> tuple[str, list[Any]]:
    if not _is_ours(kind.__module__) or kind.__module__.startswith(_MACHINERY):
        raise Unnamed(f"an object of {kind.__module__}.{kind.__qualname__}")
    name = _name_of(kind)
    if isinstance(value, enum.Enum):
        return f"member {name}.{value.name}", []
    if isinstance(value, tuple | list | dict | set):
        if not isinstance(value, tuple):
            raise Unnamed(f"an object of {name}")
        return f"object {name}", list(value)
    names = [slot for base in kind.__mro__ for slot in _slots(base) if hasattr(value, slot)]
    held = {slot: getattr(value, slot) for slot in names} | getattr(value, "__dict__", {})
    return f"object {name} {list(held)}", list(held.values())


def _slots(kind: type[Any]) -> tuple[str, ...]:
    found = kind.__dict__.get("__slots__", ())
    names = (found,) if isinstance(found, str) else tuple(found)
    private = f"_{kind.__name__.lstrip('_')}__"
    return tuple([
        f"{private[:-2]}{name}" if name.startswith("__") and not name.endswith("__") else name
        for name in names if name not in ("__weakref__", "__dict__")
    ])  # fmt: skip


def _is_ours(module: str | None) -> bool:
    return module is not None and f"{module}.".startswith(_OURS)


def _plain(shape: Iterable[Any]) -> tuple[int, ...]:
    if not all(isinstance(extent, int) for extent in shape):
        raise Unnamed("an array of a size that varies")
    return tuple(shape)


def _form(leaf: Any) -> Any:
    """The form of arguments: symbolic integers without their values, tensors without theirs."""
    kind = type(leaf)
    if isinstance(leaf, Tensor):
        return ("array", leaf.dtype.name, _plain(leaf.shape), leaf.device)
    if kind in PLAIN:
        return (kind.__name__, repr(leaf))
    if kind in (tuple, list):
        return (kind.__name__, *map(_form, leaf))
    if isinstance(leaf, dict):
        return ("dict", *((_form(key), _form(held)) for key, held in leaf.items()))
    if is_variable(leaf):
        return ("variable", leaf.arg.name, leaf.arg.lo, leaf.arg.hi)
    raise Unnamed(f"an argument of {kind.__qualname__}")
