"""Layers that learn their channels from the first input, and are plain ones from then on."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, ClassVar

from baregrad.base.errors import ArgumentError, ShapeError
from baregrad.dtypes import DType
from baregrad.nn.convolution import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
)
from baregrad.nn.layers import Linear
from baregrad.nn.module import Module, Named
from baregrad.nn.normalisation import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
)
from baregrad.tensor import Tensor
from baregrad.tensor.ops.random import unmoved


class _Lazy(Module):
    """A layer of `_KIND` without its first argument, which is an extent of the first input.

    `_AXIS` counts from the end for what may have no batch, and from the front else. Parameters are
    made by the first call, on the input's device, or by `load_state_dict`. Until then asking for
    them, as an optimiser does, raises ArgumentError. `_SIDE` is the weight's axis of that extent.
    """

    _KIND: ClassVar[type[Module]]
    _AXIS: ClassVar[int]
    _SIDE: ClassVar[int]
    is_unmade = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._given = args, kwargs

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Become a plain layer, and return what it makes of the input."""
        self._become(args[0] if args else next(iter(kwargs.values()), None))
        return self(*args, **kwargs)

    def _become(self, x: Any) -> None:
        if not isinstance(x, Tensor) or x.ndim < (-self._AXIS if self._AXIS < 0 else 2):
            raise ShapeError(
                f"{type(self).__name__} takes its channels from its input",
                found=f"shape {list(x.shape)}" if isinstance(x, Tensor) else type(x).__name__,
            )
        self._turn_into(self._plain(x.shape[self._AXIS], x.device))

    def _plain(self, extent: int, device: str | None = None) -> Module:
        given, named = self._given
        kind: Any = self._KIND
        made: Module = kind(extent, *given, **({"device": device} | named))
        return made

    def _fitting(self, state: Mapping[str, Tensor], prefix: str, strict: bool) -> Module | None:
        given, named = self._given
        told = inspect.signature(self._KIND).bind(1, *given, **named).arguments
        groups = told.get("groups", 1)
        with unmoved():
            least = self._plain(groups)
        tensors = least._state()
        if not tensors:
            return None
        whole = all(prefix + name in state for name in tensors)
        for name, own in tensors.items():
            found = state.get(prefix + name)
            # The weight, or what a layer without one notes of each channel.
            if name != "bias" and isinstance(found, Tensor) and found.ndim == own.ndim > self._SIDE:
                extent = found.shape[self._SIDE]
                # Initial values that the state takes the place of are not drawn.
                with unmoved() if strict or whole else nullcontext():
                    return self._plain(extent * groups if self._SIDE else extent)
        return least if strict else None

    def _turn_into(self, plain: Module) -> None:
        own = vars(self)
        # What parents have noted of a module whose parameters are computed is not so yet.
        for name in ("_given", "_is_ready"):
            own.pop(name, None)
        own.update(vars(plain))
        kind: Any = self._KIND
        self.__class__ = kind

    def _make_later(self, dtype: DType | None, device: str | None) -> None:
        given, named = self._given
        told = {"dtype": dtype, "device": device}
        # Made anew: a shallow copy has the same ones.
        self._given = given, named | {k: v for k, v in told.items() if v is not None}

    def _own(self, buffers: bool) -> Named:
        raise ArgumentError(
            "a lazy layer has parameters from its first call on", found=type(self).__name__,
            hint="call the model with an input before you ask for its parameters",
        )

    def __getattr__(self, name: str) -> Any:
        """Raise AttributeError, that of a layer's parameters with what makes them."""
        raise AttributeError(
            f"{type(self).__name__!r} object has no attribute {name!r} before its first call",
            name=name, obj=self,
        )

    def extra_repr(self) -> str:
        """Return the settings that are known."""
        args, kwargs = self._given
        return ", ".join([*map(repr, args), *[f"{k}={v!r}" for k, v in kwargs.items()]])


def _lazy(kind: type[Module], axis: int, side: int) -> type[_Lazy]:
    """The lazy form of a class of layers."""
    name = f"Lazy{kind.__name__}"
    return type(name, (_Lazy,), {
        "_KIND": kind, "_AXIS": axis, "_SIDE": side, "__module__": __name__, "__qualname__": name,
        "__doc__": f"{kind.__name__} whose first argument is an extent of its first input.",
    })  # fmt: skip


LazyLinear = _lazy(Linear, -1, 1)
LazyConv1d, LazyConv2d, LazyConv3d = (
    _lazy(Conv1d, -2, 1), _lazy(Conv2d, -3, 1), _lazy(Conv3d, -4, 1),
)
LazyConvTranspose1d, LazyConvTranspose2d, LazyConvTranspose3d = (
    _lazy(ConvTranspose1d, -2, 0), _lazy(ConvTranspose2d, -3, 0), _lazy(ConvTranspose3d, -4, 0),
)
LazyBatchNorm1d, LazyBatchNorm2d, LazyBatchNorm3d = (
    _lazy(BatchNorm1d, 1, 0), _lazy(BatchNorm2d, 1, 0), _lazy(BatchNorm3d, 1, 0),
)
LazyInstanceNorm1d, LazyInstanceNorm2d, LazyInstanceNorm3d = (
    _lazy(InstanceNorm1d, 1, 0), _lazy(InstanceNorm2d, 1, 0), _lazy(InstanceNorm3d, 1, 0),
)
