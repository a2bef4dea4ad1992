"""Tensors of modules that are functions of others: each read computes them, each write inverts.

A module with such a tensor is of a class of its own, Parametrized and its name, whose properties
these tensors are; what they are made of are parameters below `parametrizations`, with PyTorch's
names, so that its checkpoints load.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from baregrad.base.errors import ArgumentError, DTypeError, ShapeError
from baregrad.base.namespaces import unknown_name
from baregrad.nn.containers import ModuleDict, ModuleList
from baregrad.nn.module import Module
from baregrad.nn.parameter import parameter
from baregrad.tensor import Tensor
from baregrad.tensor.array.arguments import explained

__all__ = [
    "ParametrizationList",
    "cached",
    "is_parametrized",
    "register_parametrization",
    "remove_parametrizations",
    "transfer_parametrizations_and_params",
    "type_before_parametrizations",
]

AnyModule = TypeVar("AnyModule", bound=Module)

# What was computed inside `cached`, by the list's identity: with it, which keeps that its own.
_Kept = dict[int, tuple["ParametrizationList", Tensor]]
_KEPT: ContextVar[_Kept | None] = ContextVar("baregrad_parametrizations_kept", default=None)


@contextmanager
def cached() -> Iterator[None]:
    """Inside the block each tensor that is made of others is made at its first read alone."""
    if _KEPT.get() is not None:
        yield
        return
    token = _KEPT.set({})
    try:
        yield
    finally:
        _KEPT.reset(token)


class ParametrizationList(ModuleList):
    """The functions that make a tensor, one after another, and what the first is given.

    That is `original`, or `original0` and so on where the first one's `right_inverse` gives
    several.
    """

    def __init__(
        self, modules: Sequence[Module], original: Tensor, unsafe: bool = False,
        is_buffer: bool = False,
    ) -> None:
        super().__init__(modules)
        self.unsafe = unsafe
        is_trained = original.requires_grad
        with Tensor.no_grad():
            value = self._inverted(original.detach())
        self.is_tensor = isinstance(value, Tensor)
        self.ntensors = 1 if self.is_tensor else len(value)
        parts = (value,) if self.is_tensor else value
        for name, part in zip(self._names(), parts, strict=True):
            if not isinstance(part, Tensor):
                raise DTypeError(
                    "right_inverse returns a tensor or several", found=f"{type(part).__name__}"
                )
            if is_buffer:
                self.register_buffer(name, part.detach().clone())
            else:
                setattr(self, name, parameter(part, is_trained))

    def _names(self) -> list[str]:
        if self.is_tensor:
            return ["original"]
        return [f"original{place}" for place in range(self.ntensors)]

    def _inverted(self, value: Any) -> Any:
        for module in reversed(list(self.children())):
            inverse = getattr(module, "right_inverse", None)
            if inverse is None:
                continue
            try:
                value = inverse(value)
            except NotImplementedError:
                # It has none for this value: that goes in as it is.
                continue
        return value

    def right_inverse(self, value: Tensor) -> None:
        """Let the tensor be one that makes `value`, as far as the functions can be inverted."""
        with Tensor.no_grad():
            found = self._inverted(value)
            parts = (found,) if self.is_tensor else tuple(found)
            for name, part in zip(self._names(), parts, strict=True):
                held: Tensor = getattr(self, name)
                if held.shape != part.shape:
                    raise ShapeError(
                        "right_inverse returns what the parameter is of",
                        found=list(part.shape), wanted=list(held.shape),
                    )
                held.copy_(part)

    def forward(self) -> Tensor:
        """Return the tensor."""
        first, *rest = self.children()
        made: Tensor = first(*[getattr(self, name) for name in self._names()])
        for module in rest:
            made = module(made)
        return made


def _value(module: Module, name: str) -> Tensor:
    """The tensor that a module's property gives."""
    held: ParametrizationList = vars(module)["parametrizations"][name]
    kept = _KEPT.get()
    if kept is None:
        made: Tensor = held()
        return made
    if id(held) not in kept:
        kept[id(held)] = held, held()
    return kept[id(held)][1]


def _class_with(base: type[Module], names: tuple[str, ...]) -> type[Module]:
    """A subclass of which tensors are properties, made by what `parametrizations` holds."""

    def tensor(name: str) -> property:
        def get(module: Module) -> Tensor:
            return _value(module, name)

        def put(module: Module, value: Tensor) -> None:
            vars(module)["parametrizations"][name].right_inverse(value)

        return property(get, put, doc=f"The tensor {name!r}, made of others.")

    def reduced(module: Module, protocol: Any) -> Any:
        return _blank, (base, names), vars(module)

    members: dict[str, Any] = {name: tensor(name) for name in names}
    members["__reduce_ex__"] = reduced
    members["__module__"] = base.__module__
    members["__doc__"] = base.__doc__
    return type(f"Parametrized{base.__name__}", (base,), members)


def _blank(base: type[Module], names: tuple[str, ...]) -> Module:
    """A module of such a class that holds nothing yet, for copies and pickles."""
    made = _class_with(base, names)
    return made.__new__(made)


def _become(module: Module, kind: type[Module]) -> None:
    module.__class__ = kind


def _held_by(module: Module) -> ModuleDict | None:
    held = vars(module).get("parametrizations")
    return held if isinstance(held, ModuleDict) else None


def is_parametrized(module: Module, tensor_name: str | None = None) -> bool:
    """Return whether a module has a tensor that is made of others, or that of this name is."""
    held = _held_by(module)
    if held is None:
        return False
    return bool(len(held)) if tensor_name is None else tensor_name in held


def type_before_parametrizations(module: Module) -> type[Module]:
    """Return the class that a module was of before its tensors were made of others."""
    return type(module).__bases__[0] if is_parametrized(module) else type(module)


@explained
def register_parametrization(
    module: AnyModule, tensor_name: str, parametrization: Module, *, unsafe: bool = False
) -> AnyModule:
    """Have a parameter or a buffer computed by a module whenever it is read; return `module`.

    What it computes it of begins as `parametrization.right_inverse` of the present value, where
    there is such a method, which may return several tensors, else as that value. A further one is
    applied to what those before it give. unsafe: whether shape and dtype may change. Raises
    ArgumentError where there is no such tensor, ShapeError and DTypeError for what changes them.
    """
    parametrization.train(module.training)
    if is_parametrized(module, tensor_name):
        held: Any = module.get_submodule(f"parametrizations.{tensor_name}")
        before = getattr(module, tensor_name)
        _check_like(parametrization(before), before, unsafe)
        held.append(parametrization)
        held.unsafe |= unsafe
    else:
        value = vars(module).get(tensor_name)
        if not isinstance(value, Tensor):
            raise ArgumentError(
                f"{type(module).__name__} has no parameter or buffer there",
                found=repr(tensor_name),
                wanted="one of " + ", ".join(n for n, one in vars(module).items()
                                             if isinstance(one, Tensor)),
            )
        buffers = vars(module).get("_buffer_names", {})
        held = ParametrizationList([parametrization], value, unsafe, tensor_name in buffers)
        with Tensor.no_grad():
            _check_like(held(), value, unsafe)
        base = type_before_parametrizations(module)
        names = (*(_held_by(module) or ()), tensor_name)
        del vars(module)[tensor_name]
        buffers.pop(tensor_name, None)
        if _held_by(module) is None:
            vars(module)["parametrizations"] = ModuleDict()
        vars(module)["parametrizations"][tensor_name] = held
        _become(module, _class_with(base, names))
    held.realize()
    module._count_change()
    return module


def _check_like(made: Any, before: Tensor, unsafe: bool) -> None:
    """Refuse what is no tensor, or unless `unsafe` another than the one before."""
    if not isinstance(made, Tensor):
        raise DTypeError("a parametrization returns a tensor", found=type(made).__name__)
    if unsafe:
        return
    if made.dtype is not before.dtype:
        raise DTypeError(
            "a parametrization keeps the dtype", found=made.dtype, wanted=before.dtype,
            hint="unsafe=True lets it change",
        )
    if made.shape != before.shape:
        raise ShapeError(
            "a parametrization keeps the shape", found=list(made.shape),
            wanted=list(before.shape), hint="unsafe=True lets it change",
        )


@explained
def remove_parametrizations(
    module: AnyModule, tensor_name: str, leave_parametrized: bool = True
) -> AnyModule:
    """Make a tensor of a module its own again, of the value that it has; return the module.

    leave_parametrized: False leaves what it was computed of. Raises ArgumentError where the tensor
    is not made of others, or is of several that are to be left.
    """
    if not is_parametrized(module, tensor_name):
        raise ArgumentError(
            f"{type(module).__name__} has no such tensor that is made of others",
            found=repr(tensor_name),
        )
    lists = vars(module)["parametrizations"]
    held: ParametrizationList = lists[tensor_name]
    if not leave_parametrized and not held.is_tensor:
        raise ArgumentError(
            "what a tensor is made of is several tensors", found=f"{held.ntensors} of them",
            hint="leave_parametrized=True leaves the tensor itself",
        )
    original: Tensor = getattr(held, held._names()[0])
    with Tensor.no_grad():
        value = held() if leave_parametrized else original
    base, names = type_before_parametrizations(module), tuple(lists)
    lists.pop(tensor_name)
    rest = tuple(name for name in names if name != tensor_name)
    if not rest:
        del vars(module)["parametrizations"]
    _become(module, _class_with(base, rest) if rest else base)
    if dict(held.named_buffers(recurse=False)):
        module.register_buffer(tensor_name, value.detach().clone())
    else:
        setattr(module, tensor_name, parameter(value, original.requires_grad))
    getattr(module, tensor_name).realize()
    module._count_change()
    return module


@explained
def transfer_parametrizations_and_params(
    from_module: Module, to_module: AnyModule, tensor_name: str | None = None
) -> AnyModule:
    """Have tensors of a module made as those of another are, and of the same values; return it.

    tensor_name: which one, all that are made of others by default. Raises ArgumentError where
    `from_module` has none.
    """
    if not is_parametrized(from_module, tensor_name):
        raise ArgumentError(
            f"{type(from_module).__name__} has no such tensor that is made of others",
            found=repr(tensor_name),
        )
    lists = vars(from_module)["parametrizations"]
    for name in (tensor_name,) if tensor_name else tuple(lists):
        if name not in vars(to_module) and not is_parametrized(to_module, name):
            setattr(to_module, name, parameter(getattr(from_module, name)))
        held: ParametrizationList = lists[name]
        for module in held.children():
            register_parametrization(to_module, name, module, unsafe=held.unsafe)
        there = vars(to_module)["parametrizations"][name]
        with Tensor.no_grad():
            for part in held._names():
                getattr(there, part).copy_(getattr(held, part))
    return to_module


def __getattr__(name: str) -> object:
    raise unknown_name("baregrad.nn.utils.parametrize", name, __all__)
