"""A traced graph for one set of numbers: captured by `jit`, then replayed over PyTorch's memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from baregrad.bridges.torch_memory import dtype_of, give, lend
from baregrad.engine.session import current_session
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.runtime.buffers import Buffer, Memory, MemoryDevice
from baregrad.tensor import Tensor
from baregrad.tensor.jit.jit import jit
from baregrad.tensor.jit.over_memory import OverMemory

# What shows all elements of its operand in their order, and what shows some or in another order.
_SAME_ORDER = frozenset({Ops.RESHAPE, Ops.DETACH})
_VIEWS = frozenset({Ops.PERMUTE, Ops.EXPAND, Ops.SHRINK, Ops.FLIP, Ops.WINDOW})


@dataclass(frozen=True, slots=True)
class _Source:
    """Where a result is found: in an array that the program made, or in an argument.

    shape: the result's. is_copied: another result is that array, or it is an argument's.
    """

    place: int
    shape: tuple[int, ...]
    is_argument: bool
    is_copied: bool


# The shapes and dtypes of a call's arguments.
_Kind = tuple[tuple[tuple[int, ...], Any], ...]


@dataclass(frozen=True, slots=True)
class _Replays:
    """What calls of one kind are replayed with.

    arguments: their shapes and PyTorch's dtypes. made: those, and bytes, of arrays that are made.
    results: what the function returns: where a tensor is found, or a value as it is. known: of each
    argument the buffer of the call before: parameters lie where they lay.
    """

    over: OverMemory
    arguments: list[tuple[Any, Any]]
    made: list[tuple[Any, Any, int]]
    results: list[Any]
    known: list[Buffer | None]

    def fit(self, arguments: Sequence[Any]) -> bool:
        """Whether tensors are of this kind."""
        if len(arguments) != len(self.arguments):
            return False
        for one, (shape, dtype) in zip(arguments, self.arguments, strict=True):
            if one.dtype is not dtype or one.shape != shape:
                return False
        return True

    def run(self, device: MemoryDevice, arguments: Sequence[Any]) -> list[Any] | None:
        """The arrays that a call makes, None where it is to be looked at in full."""
        import torch

        known, held = self.known, []
        buffers: list[Buffer] = []
        for place, one in enumerate(arguments):
            whole = one
            if not one.is_contiguous():
                whole = one.detach().contiguous()
                held.append(whole)
            address, buffer = whole.data_ptr(), known[place]
            if buffer is None or buffer.address != address:
                memory = Memory(address, whole.nbytes, readonly=True)
                buffer = known[place] = Buffer(device, memory, 0, memory.nbytes)
            buffers.append(buffer)
        made = [torch.empty(shape, dtype=dtype) for shape, dtype, _ in self.made]
        results = [
            Buffer(device, Memory(one.data_ptr(), nbytes), 0, nbytes)
            for one, (_, _, nbytes) in zip(made, self.made, strict=True)
        ]
        return made if self.over.run(buffers, results) else None


class TorchProgram:
    """A function of our tensors that runs over PyTorch's.

    function: takes as many of our tensors as a call has of PyTorch's and returns a list of tensors
    and of values that go by the arguments' shapes and dtypes. Each tensor becomes one of PyTorch's
    in memory of its own: who writes to one changes no other.
    """

    def __init__(self, function: Callable[..., list[Any]], device: str) -> None:
        self.device = device
        self._function = function
        self._jitted = jit(self._traced)
        self._results: dict[_Kind, list[Any]] = {}
        self._replays: dict[_Kind, _Replays] = {}
        self._last: _Replays | None = None

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """The results over these tensors, which lie on the CPU."""
        last = self._last
        if last is None or not last.fit(arguments):
            kind = tuple([(tuple(one.shape), dtype_of(one.dtype)) for one in arguments])
            last = self._last = self._replays.get(kind)
        if last is not None:
            made = last.run(current_session().backend(self.device).device, arguments)
            if made is not None:
                return _given(last.results, arguments, made)
        return self._in_full(arguments)

    def _traced(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The arrays that the function makes, each once and in row-major order."""
        arguments = {_array_of(one._value()): place for place, one in enumerate(tensors)}
        places: dict[Node, int] = {}
        self._results[_kind_of(tensors)] = [
            _source(one, arguments, places) if isinstance(one, Tensor) else one
            for one in self._function(*tensors)
        ]
        return tuple([Tensor._make(array, self.device) for array in places])

    def _in_full(self, arguments: Sequence[Any]) -> list[Any]:
        """The results by way of our tensors; later calls are replayed where that is known."""
        lent = [lend(one, self.device) for one in arguments]
        kind = _kind_of(lent)
        made: list[Any] = []
        lying: set[int] = set()
        for one in map(give, self._jitted(*lent)):
            place = one.data_ptr()
            made.append(one.clone() if place in lying and one.numel() else one)
            lying.add(place)
        results = self._results[kind]
        over = OverMemory.of(self._jitted)
        if over is not None and current_session().backend(self.device).device.host_visible:
            self._replays[kind] = _Replays(
                over,
                [(one.shape, one.dtype) for one in arguments],
                [(one.shape, one.dtype, one.nbytes) for one in made],
                results,
                [None] * len(arguments),
            )
        return _given(results, arguments, made)


def _kind_of(tensors: Sequence[Tensor]) -> _Kind:
    return tuple([(tuple(one.shape), one.dtype) for one in tensors])


def _array_of(value: Node) -> Node:
    """What a value shows in its order."""
    while value.op in _SAME_ORDER:
        value = value.src[0]
    return value


def _source(one: Tensor, arguments: dict[Node, int], places: dict[Node, int]) -> _Source:
    """Where a result is found; an array that is none of `arguments` gets its place in `places`."""
    value, shape = one._value(), tuple(one.shape)
    array = _array_of(value)
    if array in arguments:
        return _Source(arguments[array], shape, True, True)
    if array.op in _VIEWS:
        array = Node(Ops.CONTIGUOUS, value.dtype, (array,))
    is_copied = array in places
    return _Source(places.setdefault(array, len(places)), shape, False, is_copied)


def _given(
    results: Sequence[Any], arguments: Sequence[Any], made: Sequence[Any]
) -> list[Any]:
    """A call's results, from its arguments and the arrays that it made."""
    return [
        _found(one, arguments, made) if isinstance(one, _Source) else one for one in results
    ]


def _found(source: _Source, arguments: Sequence[Any], made: Sequence[Any]) -> Any:
    """A result among a call's arguments and the arrays that it made."""
    import torch

    array = (arguments if source.is_argument else made)[source.place]
    if source.is_copied:
        array = array.detach().clone(memory_format=torch.contiguous_format)
    return array if tuple(array.shape) == source.shape else array.view(source.shape)
