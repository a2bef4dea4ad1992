"""Layers that learn their channels from the first input, and are plain ones from then on."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, ClassVar, Self, cast

from baregrad.base.errors import ArgumentError, ShapeError
from baregrad.base.options import options
from baregrad.dtypes import DType, as_dtype, default_float
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
from baregrad.tensor.array.random_state import unmoved
from baregrad.tensor.array.storage import Storage


class _Nothing:
    """The storage of a tensor without values: whoever looks into it gets an error."""

    def __init__(self, dtype: DType, device: str, grad: bool) -> None:
        self.dtype, self.device, self.grad = dtype, device, grad

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ArgumentError(
            "a tensor of a lazy layer has no shape and no values before the layer's first call",
            hint="call the model with an input first",
        )


class UninitializedParameter(Tensor):
    """What stands for a parameter of a lazy layer until the first call makes it the parameter.

    It has a dtype, a device and a wish for gradients; whatever needs a shape or values raises
    ArgumentError. Optimisers take it, and go on with the parameter that it becomes.
    """

    __slots__ = ()
    is_unmade = True

    def __init__(
        self, requires_grad: bool = True, device: str | None = None, dtype: object = None
    ) -> None:
        kind = default_float() if dtype is None else as_dtype(dtype)
        self._storage = cast(Storage, _Nothing(kind, device or options.device, requires_grad))
        self._steps = ()
        self._cached = self._layout = self._look = self._gradient = None

    @property
    def dtype(self) -> DType:
        """The dtype that the elements are to have."""
        return self._there.dtype

    @property
    def _there(self) -> _Nothing:
        return cast(_Nothing, self._storage)

    @property
    def requires_grad(self) -> bool:
        """Whether gradients are to be accumulated; settable."""
        return self._there.grad

    @requires_grad.setter
    def requires_grad(self, wanted: bool) -> None:
        self._there.grad = wanted

    @property
    def is_leaf(self) -> bool:
        """True: it is no result of operations."""
        return True

    def requires_grad_(self, wanted: bool = True) -> Self:
        """Note whether gradients are to be accumulated; return it."""
        self._there.grad = wanted
        return self

    def detach(self) -> Self:
        """Return itself: there are no values that gradients could stop at."""
        return self

    def materialize(
        self, shape: Sequence[int], device: str | None = None, dtype: object = None
    ) -> None:
        """Become a tensor of a shape, of zeros until other values are written into it."""
        kind = self.dtype if dtype is None else as_dtype(dtype)
        self.become(Tensor.zeros(*shape, dtype=kind, device=device or self.device))

    def become(self, made: Tensor) -> None:
        """Be a tensor that nobody else has from now on."""
        wanted = self.requires_grad
        made.requires_grad_(False)
        self.__class__ = Tensor  # type: ignore[assignment]
        self._storage, self._steps = made._storage, made._steps
        if wanted and self.dtype.is_float:
            self.requires_grad_()

    def send(self, dtype: DType | None, device: str | None) -> None:
        """Note another dtype or device."""
        self._there.dtype, self._there.device = dtype or self.dtype, device or self.device

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        made = type(self)(self.requires_grad, self.device, self.dtype)
        memo[id(self)] = made
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.requires_grad, self.device, self.dtype.name)


class UninitializedBuffer(UninitializedParameter):
    """What stands for a buffer of a lazy layer until the first call makes it the buffer."""

    __slots__ = ()

    def __init__(
        self, requires_grad: bool = False, device: str | None = None, dtype: object = None
    ) -> None:
        super().__init__(requires_grad, device, dtype)


class _Lazy(Module):
    """A layer of `_KIND` without its first argument, which is an extent of the first input.

    `_AXIS` counts from the end for what may have no batch, and from the front else. Parameters get
    their values from the first call, on the input's device, or from `load_state_dict`; until then
    they are instances of `UninitializedParameter`. `_SIDE` is the weight's axis of that extent.
    """

    _KIND: ClassVar[type[Module]]
    _AXIS: ClassVar[int]
    _SIDE: ClassVar[int]
    is_unmade = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        try:
            inspect.signature(self._KIND).bind(1, *args, **kwargs)
        except TypeError as error:
            raise self._refused(error) from error
        self._given = args, kwargs
        # Parameters and buffers without values, made where somebody asks for them.
        self._waiting: dict[str, Tensor] | None = None

    @property
    def cls_to_become(self) -> type[Module]:
        """The class that it is of after the first call."""
        return self._KIND

    def has_uninitialized_params(self) -> bool:
        """Whether there are parameters that have no values yet."""
        return any(one.is_unmade for one in self._unmade().values())

    def initialize_parameters(self, *args: Any, **kwargs: Any) -> None:
        """Become a plain layer for an input, without calling it."""
        self._become(args[0] if args else next(iter(kwargs.values()), None))

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
        try:
            made: Module = kind(extent, *given, **({"device": device} | named))
        except TypeError as error:
            raise self._refused(error) from error
        return made

    def _fitting(self, state: Mapping[str, Tensor], prefix: str, strict: bool) -> Module | None:
        groups, least = self._groups(), self._least()
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

    def _refused(self, error: TypeError) -> ArgumentError:
        return ArgumentError(
            f"{type(self).__name__} takes the arguments of {self._KIND.__name__} but the first",
            found=str(error),
        )

    def _least(self) -> Module:
        """The plain layer of fewest channels; nothing is drawn for it."""
        with unmoved():
            return self._plain(self._groups())

    def _groups(self) -> int:
        given, named = self._given
        told = inspect.signature(self._KIND).bind(1, *given, **named).arguments
        groups: int = told.get("groups", 1)
        return groups

    def _unmade(self) -> dict[str, Tensor]:
        """What stands for parameters and buffers, by their names; those of no axis are there."""
        if self._waiting is None:
            least = self._least()
            self._buffer_names = dict(vars(least).get("_buffer_names", {}))
            self._waiting = {
                name: kind(device=own.device, dtype=own.dtype) if own.ndim else own
                for buffers, kind in ((False, UninitializedParameter), (True, UninitializedBuffer))
                for name, own in least._own(buffers)
            }
        return self._waiting

    def _turn_into(self, plain: Module) -> None:
        own, waiting = vars(self), self._waiting or {}
        held = dict([*plain._own(False), *plain._own(True)])
        for name, one in waiting.items():
            made = held[name]
            if isinstance(one, UninitializedParameter):
                one.become(made)
            elif one.shape != made.shape:
                raise ShapeError(
                    f"{name} of {type(self).__name__} was made for another input",
                    found=list(made.shape), wanted=list(one.shape),
                )
            elif one.device != made.device:
                waiting[name] = one.to(made.device)
        # What parents have noted of a module whose parameters are computed is not so yet.
        for name in ("_given", "_is_ready", "_waiting"):
            own.pop(name, None)
        own.update(vars(plain))
        own.update(waiting)
        kind: Any = self._KIND
        self.__class__ = kind

    def _make_later(self, dtype: DType | None, device: str | None) -> None:
        given, named = self._given
        told = {"dtype": dtype, "device": device}
        # Made anew: a shallow copy has the same ones.
        self._given = given, named | {k: v for k, v in told.items() if v is not None}
        for one in (self._waiting or {}).values():
            if isinstance(one, UninitializedParameter):
                one.send(dtype, device)

    def _own(self, buffers: bool) -> Named:
        for name, one in self._unmade().items():
            if (name in self._buffer_names) == buffers:
                yield name, one

    def __getattr__(self, name: str) -> Any:
        """Return what stands for a parameter. Raises AttributeError for what is none."""
        if "_given" in vars(self) and not name.startswith("_"):
            found = self._unmade().get(name)
            if found is not None:
                return found
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
