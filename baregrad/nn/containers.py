"""Modules that hold others, or tensors, in a list or by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self, overload

import numpy as np

from baregrad.base.errors import (
    ArgumentError,
    DTypeError,
    IndexOutOfRange,
    ShapeError,
    UnsupportedError,
)
from baregrad.nn.module import Module
from baregrad.nn.parameter import parameter
from baregrad.tensor import Tensor


class ModuleList(Module):
    """A list of modules, named by their positions."""

    # Whether a part of it has the names that they have in the whole.
    _KEEPS_NAMES = False

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        if isinstance(modules, np.ndarray | Tensor):
            raise DTypeError("a list of modules holds modules", found=type(modules).__name__)
        for module in modules or ():
            self.append(module)

    def append(self, module: Module) -> Self:
        """Add a module at the end; return the list."""
        setattr(self, str(len(self)), module)
        return self

    def extend(self, modules: Iterable[Module]) -> Self:
        """Add modules at the end; return the list."""
        for module in modules:
            self.append(module)
        return self

    def insert(self, index: int, module: Module) -> None:
        """Put a module before the one at a position."""
        held = list(self.children())
        held.insert(index, module)
        for place, one in enumerate(held):
            setattr(self, str(place), one)

    def __len__(self) -> int:
        return sum(1 for _ in self.children())

    def __iter__(self) -> Iterator[Module]:
        return self.children()

    def __setitem__(self, index: int, module: Module) -> None:
        setattr(self, self._name(index), module)

    def _name(self, index: int) -> str:
        """The attribute that the module at a position is. Raises IndexOutOfRange."""
        names = [name for name, _ in self.named_children()]
        if not -len(names) <= index < len(names):
            raise IndexOutOfRange(
                f"module {index} of {type(self).__name__}", found=f"{len(names)} modules"
            )
        return names[index]

    @overload
    def __getitem__(self, index: int) -> Module: ...

    @overload
    def __getitem__(self, index: slice) -> Self: ...

    def __getitem__(self, index: int | slice) -> Module | Self:
        if isinstance(index, slice):
            part = object.__new__(type(self))
            for name, module in list(self.named_children())[index]:
                setattr(part, name if self._KEEPS_NAMES else str(len(part)), module)
            return part
        found: Module = vars(self)[self._name(index)]
        return found


class Sequential(ModuleList):
    """Modules (or functions of tensors) applied one after another; a dict's by its names."""

    _KEEPS_NAMES = True

    def __init__(self, *modules: Callable[..., Any] | Mapping[str, Module]) -> None:
        if len(modules) == 1 and isinstance(modules[0], Mapping):
            for name, module in modules[0].items():
                setattr(self, name, module)
            return
        for one in modules:
            if isinstance(one, Mapping):
                raise ArgumentError("a dict of modules stands alone", found=len(modules))
            self.append(one if isinstance(one, Module) else FunctionModule(one))

    def forward(self, x: Any) -> Any:
        """Return what the last module makes of what the one before it made, and so on."""
        for module in self.children():
            x = module(x)
        return x


class FunctionModule(Module):
    """A function of tensors as a module without state."""

    def __init__(self, function: Callable[..., Any]) -> None:
        if not callable(function):
            raise ArgumentError(
                "a module or a function is wanted",
                found=f"{type(function).__name__} {function!r:.40}",
            )
        self.function = function

    def forward(self, *args: Any) -> Any:
        """Return what the function returns."""
        return self.function(*args)

    def extra_repr(self) -> str:
        """Return the function's name."""
        return getattr(self.function, "__name__", repr(self.function))


class ModuleDict(Module):
    """Modules by name."""

    def __init__(
        self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]] | None = None
    ) -> None:
        if modules is not None:
            self.update(modules)

    def update(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]]) -> None:
        """Hold the modules of a dict, or of pairs, as well. Raises ArgumentError for others."""
        try:
            named = dict(modules)
        except (TypeError, ValueError) as error:
            raise ArgumentError(
                "a dict of modules is not made of these",
                found=f"{type(modules).__name__} {modules!r:.40}",
                wanted="a dict, or pairs of a name and a module",
            ) from error
        for name, module in named.items():
            self[name] = module

    def __setitem__(self, name: str, module: Module) -> None:
        if not isinstance(name, str) or not isinstance(module, Module | None):
            raise DTypeError(
                "a dict of modules holds modules by name",
                found=f"{type(name).__name__} {name!r:.40}: {type(module).__name__}",
            )
        if hasattr(type(self), name):
            raise ShapeError("a module's name hides a method", found=repr(name))
        setattr(self, name, module)

    def __getitem__(self, name: str) -> Module:
        found = vars(self).get(name)
        if not isinstance(found, Module):
            raise IndexOutOfRange(
                "no module of this name", found=repr(name), wanted=f"one of {list(self.keys())}"
            )
        return found

    def pop(self, name: str) -> Module:
        """Return a module, and hold it no longer. Raises IndexOutOfRange."""
        found = self[name]
        delattr(self, name)
        return found

    def __len__(self) -> int:
        return sum(1 for _ in self.children())

    def __iter__(self) -> Iterator[str]:
        return self.keys()

    def __contains__(self, name: object) -> bool:
        return name in list(self.keys())

    def keys(self) -> Iterator[str]:
        """Yield the names."""
        return (name for name, _ in self.named_children())

    def values(self) -> Iterator[Module]:
        """Yield the modules."""
        return self.children()

    def items(self) -> Iterator[tuple[str, Module]]:
        """Yield names and modules."""
        return self.named_children()


class ParameterList(Module):
    """A list of parameters, named by their positions."""

    def __init__(self, values: Iterable[Tensor] = ()) -> None:
        for value in values or ():
            self.append(value)

    def append(self, value: Tensor) -> Self:
        """Add a parameter at the end; return the list."""
        setattr(self, str(len(self)), _held(value))
        return self

    def extend(self, values: Iterable[Tensor]) -> Self:
        """Add parameters at the end; return the list."""
        for value in values:
            self.append(value)
        return self

    def __len__(self) -> int:
        return sum(1 for _ in self._own(buffers=False))

    def __iter__(self) -> Iterator[Tensor]:
        return (value for _, value in self._own(buffers=False))

    def __getitem__(self, index: int) -> Tensor:
        held = list(self)
        if not -len(held) <= index < len(held):
            raise IndexOutOfRange(f"parameter {index} of a list", found=f"{len(held)} of them")
        return held[index]

    def __setitem__(self, index: int, value: Tensor) -> None:
        setattr(self, str(range(len(self))[index]), _held(value))


class ParameterDict(Module):
    """Parameters by name."""

    def __init__(self, values: Mapping[str, Tensor] | None = None) -> None:
        for name, value in (values or {}).items():
            self[name] = value

    def __setitem__(self, name: str, value: Tensor) -> None:
        if hasattr(type(self), name):
            raise ShapeError("a parameter's name hides a method", found=repr(name))
        setattr(self, name, _held(value))

    def __getitem__(self, name: str) -> Tensor:
        found = vars(self).get(name)
        if not isinstance(found, Tensor):
            raise IndexOutOfRange(
                "no parameter of this name", found=repr(name), wanted=f"one of {list(self.keys())}"
            )
        return found

    def __len__(self) -> int:
        return sum(1 for _ in self.keys())

    def __iter__(self) -> Iterator[str]:
        return self.keys()

    def __contains__(self, name: object) -> bool:
        return name in list(self.keys())

    def keys(self) -> Iterator[str]:
        """Yield the names."""
        return (name for name, _ in self._own(buffers=False))

    def values(self) -> Iterator[Tensor]:
        """Yield the parameters."""
        return (value for _, value in self._own(buffers=False))

    def items(self) -> Iterator[tuple[str, Tensor]]:
        """Yield names and parameters."""
        return self._own(buffers=False)


def _held(value: Tensor) -> Tensor:
    """What a list of parameters holds of a tensor: itself, or a parameter of its values."""
    if not isinstance(value, Tensor):
        raise DTypeError("a parameter is a tensor", found=f"{type(value).__name__} {value!r:.40}")
    return value if value.is_leaf and value.requires_grad else parameter(value)


class DistributedDataParallel(Module):
    """PyTorch's module that several processes train, a name alone: a program is one process.

    Making one raises UnsupportedError.
    """

    def __init__(self, module: Module, *args: Any, **kwargs: Any) -> None:
        raise UnsupportedError(
            "a program is one process here", found="DistributedDataParallel(...)",
            hint="train the module itself; nn.DataParallel takes it as it is, on one device",
        )


class DataParallel(Module):
    """A module that is called as it is: one device computes each batch as a whole.

    Its parameters' names begin with "module", as PyTorch's do. Raises UnsupportedError for several
    devices.
    """

    def __init__(
        self, module: Module, device_ids: Sequence[object] | None = None,
        output_device: object = None, dim: int = 0,
    ) -> None:
        if device_ids is not None and len(device_ids) > 1:
            raise UnsupportedError("one device computes a batch", found=len(device_ids),
                                   hint="leave device_ids out")  # fmt: skip
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the module returns."""
        return self.module(*args, **kwargs)
