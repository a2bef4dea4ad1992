"""Storages: the mutable cells that tensors show, and the leaves that read what was computed."""

from __future__ import annotations

import itertools
import threading
import weakref
from contextlib import suppress
from typing import Any, ClassVar, Protocol

from baregrad.base.locks import give_lock
from baregrad.dtypes import DType
from baregrad.ir.core.attrs import BufferRef
from baregrad.ir.core.node import Node, make_node
from baregrad.ir.core.op import Ops
from baregrad.tensor.array.deferred import DeferredValue
from baregrad.tensor.array.link import session

_BUFFER = Ops.BUFFER
_clock = itertools.count()


class _Alive:
    """Weak references to every storage; each goes when its storage does, without running Python."""

    entries: ClassVar[set[weakref.ref[Storage]]] = set()


_enter = _Alive.entries.add
_weakly = weakref.ref
_leave = _Alive.entries.discard


class Looks:
    """Of several threads that come to a storage without a node, one has it made for all of them."""

    lock: threading.RLock

    def __init__(self) -> None:
        give_lock(self)


looks = Looks()


class StorageWatcher(Protocol):
    """Who wants to know when a storage is looked at, or changed.

    has_value: the storage has no node, until somebody asks for it.
    """

    has_value: bool

    def looked_at(self) -> Node | None:
        """Note it, once; the value where the storage has not even that as a node."""


class Storage:
    """A mutable cell: the node of its present value, its device, and whether gradients pass it.

    `grad` is False exactly when no gradient can reach a leaf through `node`. `known` is the lowest
    and highest of integers that came from the host, so that indices are checked without a read.
    `previous` is the array that was there before it was changed, whose memory the new one may take.
    `since` counts up from value to value: it orders storages by when each got its present one.
    `settled`: its extents were symbolic before it was computed, and those of views of it are.
    `deferred`: the value as a call's result or as an array, None where it is known as a node alone.
    `node` is made of it when it is first asked for.
    `watcher`: told once of a change, and where it left no `node` of who looks at the value.
    """

    __slots__ = (
        "__weakref__", "deferred", "device", "grad", "known", "node", "previous", "settled",
        "since", "watcher",
    )  # fmt: skip

    node: Node
    deferred: DeferredValue | None

    def __init__(self, value: Node | DeferredValue, device: str, grad: bool = False) -> None:
        if isinstance(value, DeferredValue):
            self.deferred = value
        else:
            self.deferred = None
            self.node = value
        self.device = device
        self.grad = grad
        self.known: tuple[int, int] | None = None
        self.previous: BufferRef | DeferredValue | None = None
        self.settled = False
        self.since = next(_clock)
        self.watcher: StorageWatcher | None = None
        _enter(_weakly(self, _leave))

    def __getattr__(self, name: str) -> Any:
        # Only what was never set, or is left to a watcher, comes here.
        if name == "node":
            deferred = self.deferred
            if deferred is not None:
                node = self.node = deferred.node
                return node
            with looks.lock:
                self.tell_watcher()
                # Asked without this method, which would ask itself for ever where there is none.
                return object.__getattribute__(self, name)
        raise AttributeError(f"a storage has no {name}")

    def tell_watcher(self) -> None:
        """Tell the watcher that somebody looks, and watch no more."""
        with looks.lock:
            watcher = self.watcher
            left = None if watcher is None else watcher.looked_at()
            if left is not None:
                self.node = left
            self.watcher = None

    @property
    def is_left(self) -> bool:
        """Whether a watcher alone knows the value."""
        return self.watcher is not None and self.watcher.has_value

    def leave_to(self, watcher: StorageWatcher) -> None:
        """Have no node until somebody asks for it, and let the watcher know then."""
        with looks.lock:
            self.watcher = watcher
            self.deferred = None
            del self.node

    @property
    def is_pending(self) -> bool:
        """Whether the value is no array yet."""
        deferred = self.deferred
        return self.node.op is not _BUFFER if deferred is None else deferred.call is not None

    def hold(self, node: Node) -> None:
        """Let the same value be known as another node."""
        if self.watcher is not None:
            self.tell_watcher()
        self.node = node
        self.deferred = None

    def stamp(self) -> None:
        """Note that what the storage holds is new, where its memory has changed."""
        self.since = next(_clock)

    def put(self, value: Node | DeferredValue, grad: bool = False) -> None:
        """Change the value; watchers of the session's writes get the storage and the old node."""
        watching = session().watching
        if self.watcher is not None:
            self.tell_watcher()
        old = self.node if watching.writes or self.deferred is None else None
        if not self.is_pending:
            self.previous = self.deferred if old is None else old.arg
        if isinstance(value, Node):
            self.hold(value)
        else:
            value.is_read = True
            self.deferred = value
            with suppress(AttributeError):  # nobody may have asked for it
                del self.node
        self.grad = grad
        self.known = None
        self.settled = False
        self.since = next(_clock)
        watching.touched += 1
        if old is not None:
            for observer in watching.writes:
                observer(self, old)


def live_storages() -> list[Storage]:
    """Every storage that anything still holds, in no order."""
    # Copied in one step: entries go at any time.
    return [storage for entry in list(_Alive.entries) if (storage := entry()) is not None]


def live_values() -> set[Node]:
    """The values of live storages, as far as they have nodes."""
    found: set[Node] = set()
    for storage in live_storages():
        deferred = storage.deferred
        if storage.is_left:
            continue  # to a watcher: nobody has its node
        if deferred is None:
            found.add(storage.node)
        elif deferred.call is not None and deferred.call.nodes is not None:
            found.add(deferred.call.nodes[deferred.position])
    return found


def buffer_node(ref: BufferRef, dtype: DType) -> Node:
    """The leaf that reads a realised array, whose extents are numbers."""
    return make_node(Ops.BUFFER, dtype, (), ref, ref.shape)


def handle_of(storage: Storage) -> Any:
    """The buffer of a storage whose value is an array, None for one that is to be computed."""
    deferred = storage.deferred
    if deferred is not None:
        return deferred.handle if deferred.call is None else None
    node = storage.node
    return node.arg.handle if node.op is _BUFFER else None
