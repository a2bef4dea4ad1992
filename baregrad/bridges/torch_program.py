"""A traced graph for one set of numbers: captured by `jit`, then replayed over PyTorch's memory."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from baregrad.base.locks import give_lock
from baregrad.bridges.torch_memory import dtype_of, give, lend
from baregrad.engine.session import current_session
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.runtime.buffers import Buffer, Memory, MemoryDevice
from baregrad.tensor import Tensor
from baregrad.tensor.jit.jit import CAPTURES_KEPT, jit
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


# Results from here on lie in memory of our device, which keeps what is given back. PyTorch's goes
# back to the system and comes again page by page: 1,400 in a step of a small transformer, 1.6 us
# each.
_LARGE_NBYTES = 128 << 10
# The memory that PyTorch's tensors lie in, which they keep: a buffer there begins at its address.
_READ, _WRITTEN = Memory(0, 0, readonly=True), Memory(0, 0)
# Kinds of arguments that are known at once, as many as `jit` captures: one more, and all are
# forgotten.
KINDS_KEPT = CAPTURES_KEPT
# The shapes and dtypes of a call's arguments.
_Kind = tuple[tuple[tuple[int, ...], Any], ...]


class _Replays:
    """What calls of one kind are replayed with.

    arguments: tensors of such a call. made: arrays that it made. results: what the function
    returns: where a tensor is found, or a value as it is.
    """

    __slots__ = (
        "_device", "_dtypes", "_found", "_known", "_large", "_over", "_shapes", "_small",
        "_written",
    )  # fmt: skip

    def __init__(
        self, over: OverMemory, device: MemoryDevice, arguments: Sequence[Any],
        made: Sequence[Any], results: Sequence[Any],
    ) -> None:
        self._over = over
        self._device = device
        self._shapes = [one.shape for one in arguments]
        self._dtypes = [one.dtype for one in arguments]
        # The place of an array that is a result as it is, else -1 and what else is to be done.
        self._found = [
            (one.place if isinstance(one, _Source) and not one.is_copied else -1, one)
            for one in results
        ]
        # An array is made in the shape of the result that it is: the order is the same. What is
        # asked for by an example, which has no memory, comes in a fifth of the time.
        shapes = {place: one.shape for place, one in self._found if place >= 0}
        self._small: list[Any] = []
        self._large: list[tuple[int, Any, Any]] = []
        for place, one in enumerate(made):
            shape = shapes[place]
            # One element's strides would be 0 as they are here.
            example = one.new_empty(()).expand(shape) if one.numel() > 1 else one.new_empty(shape)
            is_large = one.nbytes >= _LARGE_NBYTES
            self._small.append(None if is_large else example)
            if is_large:
                self._large.append((place, example, ctypes.c_char * one.nbytes))
        # The buffers of the call before: most tensors lie where others lay then.
        self._known: list[Buffer | None] = [None] * len(arguments)
        self._written: list[Buffer | None] = [None] * len(made)

    def fit(self, arguments: Sequence[Any]) -> bool:
        """Whether tensors are of this kind."""
        dtypes = [one.dtype for one in arguments]
        return dtypes == self._dtypes and [one.shape for one in arguments] == self._shapes

    def run(self, arguments: Sequence[Any]) -> list[Any] | None:
        """A call's results, None where it is to be looked at in full."""
        import torch

        empty_like = torch.empty_like
        whole = [
            one if one.is_contiguous() else one.detach().contiguous() for one in arguments
        ]
        read = self._buffers(self._known, whole, _READ)
        made = [None if one is None else empty_like(one) for one in self._small]
        for place, example, kind in self._large:
            memory = self._device.allocate(ctypes.sizeof(kind)).memory
            seen = kind.from_address(memory.address)
            seen.memory = memory
            made[place] = torch.frombuffer(seen, dtype=example.dtype).view_as(example).data
        written = self._buffers(self._written, made, _WRITTEN)
        if not self._over.run(read, written):
            return None
        return [
            made[place] if place >= 0 else _found(one, arguments, made)
            for place, one in self._found
        ]

    def _buffers(
        self, known: list[Buffer | None], tensors: Sequence[Any], memory: Memory
    ) -> list[Buffer]:
        """Where tensors lie in `memory`; what is `known` by its address is as large as before."""
        found: list[Buffer] = []
        device, place = self._device, 0
        for one in tensors:
            address, buffer = one.data_ptr(), known[place]
            if buffer is None or buffer.address != address:
                buffer = known[place] = Buffer(device, memory, address, one.nbytes)
            found.append(buffer)
            place += 1  # noqa: SIM113 - one of these loops runs at each call
        return found


class TorchProgram:
    """A function of our tensors that runs over PyTorch's.

    function: takes as many of our tensors as a call has of PyTorch's and returns a list of tensors
    and of values that go by the arguments' shapes and dtypes. Each tensor becomes one of PyTorch's
    in memory of its own: who writes to one changes no other. None is a view to PyTorch, which
    refuses to have views changed in place where gradients are recorded: `data` is none.
    """

    lock: threading.RLock

    def __init__(self, function: Callable[..., list[Any]], device: str) -> None:
        self.device = device
        self._function = function
        give_lock(self)
        self._forget()

    def _forget(self) -> None:
        """Know of no call."""
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
        found = None if last is None else last.run(arguments)
        return self._in_full(arguments) if found is None else found

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
        with self.lock:
            return self._learnt(arguments)

    def _learnt(self, arguments: Sequence[Any]) -> list[Any]:
        lent = [lend(one, self.device) for one in arguments]
        kind = _kind_of(lent)
        if kind not in self._results and len(self._results) >= KINDS_KEPT:
            self._forget()
        made: list[Any] = []
        lying: set[int] = set()
        for one in map(give, self._jitted(*lent)):
            place = one.data_ptr()
            made.append(one.clone() if place in lying and one.numel() else one)
            lying.add(place)
        results = self._results[kind]
        over = OverMemory.of(self._jitted, *lent)
        device = current_session().backend(self.device).device
        if over is not None and device.host_visible:
            self._replays[kind] = _Replays(over, device, arguments, made, results)
        return [_found(one, arguments, made) for one in results]


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


def _found(one: Any, arguments: Sequence[Any], made: Sequence[Any]) -> Any:
    """A result among a call's arguments and the arrays that it made, or a value as it is."""
    import torch

    if not isinstance(one, _Source):
        return one
    array = (arguments if one.is_argument else made)[one.place]
    if one.is_copied:
        array = array.detach().clone(memory_format=torch.contiguous_format)
    return array if tuple(array.shape) == one.shape else array.view(one.shape).data
