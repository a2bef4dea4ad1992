"""Where sequences of random numbers are: keys and counters in memory, a device's and others.

A state is an array, so that a captured function reads and advances it and each replay draws fresh
numbers.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from sys import getrefcount
from typing import Any

import numpy as np

from baregrad.base.errors import ArgumentError, ShapeError
from baregrad.base.options import options
from baregrad.dtypes import dtypes
from baregrad.ir.core.requirements import value_of
from baregrad.tensor.array import nodes
from baregrad.tensor.array.axes import plain
from baregrad.tensor.array.core import Array, realize_storages
from baregrad.tensor.array.deferred import DeferredValue
from baregrad.tensor.array.link import SessionLike, session
from baregrad.tensor.array.put_off import form_of_fields, put_off
from baregrad.tensor.array.storage import Storage
from baregrad.tensor.array.tensor_like import Tensor

_LAST = (1 << 64) - 1
# States whose memory is held on to: what is written next lies where no draw that waits reads.
_HELD = 64
# States that are uploaded together, and the bytes from one to the next: as arrays are aligned. They
# lie in one of so many pieces of memory in turn, so that a loop's draws read the same places again:
# a GPU's list of one launch is kept for sixteen, and need not be changed then.
_AHEAD, _ROW_NBYTES, _PIECES = 8, 256, 2


def _references(parts: list[Any]) -> int:
    """The most references to any of them, with the list's and, perhaps, a call's."""
    return max(map(getrefcount, parts))


# References to what nobody else has, as this Python counts them.
_OWN = _references([object()])


class RandomState:
    """A sequence's (key, counter): `storage` holds it, `counter` is known while the host counts.

    That is as long as the storage holds the array that the host gave it, known as such: replays
    count on the device and leave one of their own.
    """

    def __init__(self, owner: SessionLike, device: str, seed: int) -> None:
        self.owner = owner
        self.key = seed & _LAST
        self.counter: int | None = 0
        self._recent: deque[Any] = deque(maxlen=_HELD)
        # The states that follow if more draws take as many values as the last one, the next last.
        self._step = -1
        self._following: list[DeferredValue] = []
        self._pieces: deque[tuple[Any, list[Any]]] = deque(maxlen=_PIECES)
        self._form = form_of_fields(owner, Array, dtypes.uint64, (2,), device, False)
        # The state is the session's, also where a jitted function's first run is the first to draw.
        first = self._upload(device, noted=False)
        self.storage = Storage(first, device)
        # Weakly: what replays write over has no readers that are not counted.
        self._leaf = weakref.ref(first)
        self._shown: Any = None

    def _is_known(self) -> bool:
        """Whether the host knows what the storage holds."""
        held = self.storage.deferred
        return self.counter is not None and held is not None and held is self._leaf()

    def restart(self, seed: int, counter: int = 0) -> None:
        """Start anew from a seed, behind so many of its numbers."""
        with self.owner.lock:
            self.key, self.counter, self._step = seed & _LAST, counter & _LAST, -1
            leaf = self._upload(self.storage.device, noted=False)
            self.storage.put(leaf)
            self._leaf = weakref.ref(leaf)

    def read(self) -> tuple[int, int]:
        """The key and the counter, which are awaited where replays counted."""
        with self.owner.lock:
            if not self._is_known():
                self._read()
            assert self.counter is not None
            return self.key, self.counter

    def _upload(self, device: str, noted: bool = True) -> DeferredValue:
        data = np.array([self.key, self.counter], np.uint64)
        ref = self.owner.upload(data, dtypes.uint64, (2,), device, noted)
        self._recent.append(ref.handle)
        return DeferredValue.of_array(ref.handle, self._form)

    def _next(self, count: int, device: str) -> DeferredValue:
        """The state that the counter is at now, `count` values after the one before.

        A loop draws as much again and again: then some states are uploaded together.
        """
        if count != self._step:
            self._step = count
            self._following.clear()
            return self._upload(device)
        if not self._following:
            self._following = self._upload_ahead(count, device)
        return self._following.pop()

    def _upload_ahead(self, count: int, device: str) -> list[DeferredValue]:
        assert self.counter is not None
        rows = np.zeros((_AHEAD, _ROW_NBYTES // 8), np.uint64)
        rows[:, 0] = self.key
        rows[:, 1] = [(self.counter + row * count) & _LAST for row in range(_AHEAD)]
        whole, parts = self._piece(device)
        ref = self.owner.upload(rows, dtypes.uint64, rows.shape, device, over=whole)
        if whole is None:
            whole = ref.handle
            parts = [whole.view(row * _ROW_NBYTES, 16) for row in range(_AHEAD)]
        self._pieces.append((whole, parts))
        # Nobody has a value of what lay there before.
        return [DeferredValue.of_array(part, self._form) for part in reversed(parts)]

    def _piece(self, device: str) -> tuple[Any, list[Any]]:
        """The piece of memory whose turn it is, and its parts, if nobody has a state there."""
        if len(self._pieces) < _PIECES:
            return None, []
        whole, parts = self._pieces.popleft()
        is_free = whole.device.name == device and not whole.closed
        if is_free and _references(parts) <= _OWN:
            return whole, parts
        return None, []

    def draw(
        self, cls: type[Tensor], count: Any, drawing: Callable[..., Tensor], *others: Any
    ) -> Tensor:
        """`drawing` of the state, before `count` fresh values of its counter are taken, and others.

        The state is a tensor, (2,) of uint64; the call is put off. Threads draw one after the
        other.
        """
        with self.owner.lock:
            storage, watching = self.storage, self.owner.watching
            leaf = storage.deferred
            if (
                leaf is None or leaf is not self._leaf() or count.__class__ is not int
                or count >> 63 or watching.observers or watching.downloads or watching.writes
            ):
                made: Tensor = put_off(drawing, (self.take(cls, count), *others), {})
                return made
            # What shows the state now is enough: nobody sees it but the call.
            if self._shown.__class__ is not cls:
                self._shown = cls._on(storage)
            made = put_off(drawing, (self._shown, *others), {})
            self._go_on(count)
            return made

    def _go_on(self, count: int) -> None:
        assert self.counter is not None
        self.counter = (self.counter + count) & _LAST
        following = self._following
        if following and count == self._step:
            leaf = following.pop()
        else:
            leaf = self._next(count, self.storage.device)
        self.storage.put(leaf)
        self._leaf = weakref.ref(leaf)
        # Whoever remembers calls sees that this one is not like any other.
        self.owner.watching.touched += 1

    def take(self, cls: type[Tensor], count: Any) -> Tensor:
        """The state before `count` fresh values of its counter are taken: (2,) of uint64.

        A captured function takes it in its graph, and where the host does not know the counter, it
        asks for it.
        """
        storage = self.storage
        is_captured = bool(self.owner.watching.downloads)
        if not is_captured and not isinstance(count, int):
            # What is drawn next may be of another size: the state depends on no variable.
            count = count if (known := value_of(count)) is None else known
        if is_captured or not isinstance(count, int):
            # state + (0, count), in the graph.
            step = nodes.mul(nodes.iota(2, dtypes.uint64), nodes.size_as(count, dtypes.uint64))
            now = storage.node
            storage.put(nodes.add(now, step))
            self.counter = None
            return cls._make(now, storage.device)
        if count >> 63:
            raise ShapeError(
                "more random numbers than can be counted", found=count, wanted="fewer than 2**63"
            )
        if not self._is_known():
            self._read()
        held = storage.deferred
        assert held is not None
        before = cls._on(Storage(held, storage.device))
        self._go_on(int(count))
        return before

    def _read(self) -> None:
        realize_storages((self.storage,))
        self._step = -1
        node = self.storage.node
        raw = self.owner.download(node.arg, dtypes.uint64)
        self.key, self.counter = (int(value) for value in raw.view(np.uint64))
        self.storage.defer(node, DeferredValue.of_leaf(node, self._form))
        leaf = self.storage.deferred
        assert leaf is not None
        self._leaf = weakref.ref(leaf)


class RandomSource:
    """A sequence of random numbers of its own on a device, which starts from a seed.

    device: by default the session's. In another session it starts anew.
    """

    # What sequences start from that nobody gave a seed: PyTorch's default.
    _FIRST = 67280421310721

    def __init__(self, device: str | None = None) -> None:
        owner = session()
        if device is not None and not isinstance(device, str):
            raise ArgumentError(
                "a device is named", found=f"{type(device).__name__} {device!r:.40}",
                wanted="a string, for example 'CPU'",
            )  # fmt: skip
        self._device = owner.default_device() if device is None else owner.known_device(
            device.upper()
        )  # fmt: skip
        self._seed = self._FIRST

    @property
    def device(self) -> str:
        """The device that numbers are drawn on."""
        return self._device

    def state(self, device: str) -> RandomState:
        """The state in the session in force. Raises ArgumentError for draws on another device."""
        if device != self._device:
            raise ArgumentError(
                "a generator draws on its own device", found=f"one of {self._device}",
                wanted=f"one of {device}", hint=f"make it with Generator({device!r})",
            )  # fmt: skip
        states = session().random_states
        # A text that is no device's name.
        key = f"{self._device} {id(self)}"
        found = states.get(key)
        if found is None:
            found = states[key] = RandomState(session(), device, self._seed)
            weakref.finalize(self, states.pop, key, None)
        assert isinstance(found, RandomState)
        return found

    def restart(self, seed: int, counter: int = 0) -> None:
        """Start anew from a seed, taken modulo 2**64, perhaps behind some of its numbers."""
        self._seed = _checked(seed)
        self.state(self._device).restart(self._seed, counter)


def state(device: str, source: RandomSource | None = None) -> RandomState:
    """The state of a source, or the device's of the session in force, begun by the seed option."""
    if source is not None:
        return source.state(device)
    owner = session()
    found = owner.random_states.get(device)
    if found is None:
        found = RandomState(owner, device, options.seed if owner.seed is None else owner.seed)
        owner.random_states[device] = found
    assert isinstance(found, RandomState)
    return found


def _checked(seed: object) -> int:
    """A seed, modulo 2**64."""
    found = plain(seed)
    if not isinstance(found, int):
        raise ArgumentError("a seed is an integer", found=f"{type(seed).__name__} {seed!r:.40}")
    return found & _LAST


def _own_states(owner: SessionLike) -> dict[str, RandomState]:
    """The session's own states, by devices, without those of sources."""
    # A copy first: a source that is gone takes its state away at any time.
    states = dict(owner.random_states)
    return {key: one for key, one in states.items() if key == one.storage.device}


def manual_seed(seed: int) -> None:
    """Start every device's random numbers anew from a seed; any integer, taken modulo 2**64.

    Generators go on as they are.
    """
    owner = session()
    # Devices that nobody drew on yet begin with it, too.
    owner.seed = seed = _checked(seed)
    for one in _own_states(owner).values():
        one.restart(seed)
    state(owner.default_device())


def place_now() -> Callable[[], None]:
    """Note where the session's random numbers are; what it returns brings them back there."""
    owner = session()
    with owner.lock:
        seed, states = owner.seed, _own_states(owner)
        before = [
            (one, one.storage.deferred or one.storage.node, one.key, one.counter, one._leaf)
            for one in states.values()
        ]

    def back() -> None:
        with owner.lock:
            owner.seed = seed
            for device in _own_states(owner).keys() - states.keys():
                del owner.random_states[device]
            for one, value, key, counter, leaf in before:
                if (one.storage.deferred or one.storage.node) is not value:
                    one.storage.put(value)
                    one.key, one.counter, one._leaf, one._step = key, counter, leaf, -1

    return back


@contextmanager
def unmoved() -> Iterator[None]:
    """Draws inside the block, meanwhile no other thread's, take no values of the session's."""
    with session().lock:
        back = place_now()
        try:
            yield
        finally:
            back()
