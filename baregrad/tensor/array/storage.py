"""Storages: the mutable cells that tensors show, and the leaves that read what was computed."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Protocol

from baregrad.dtypes import DType
from baregrad.ir.core.attrs import BufferRef
from baregrad.ir.core.node import Node, make_node, toposort
from baregrad.ir.core.op import Ops
from baregrad.tensor.array.deferred import DeferredCall, DeferredValue, looks
from baregrad.tensor.array.link import session

_BUFFER = Ops.BUFFER
_clock = itertools.count()


class _Alive:
    """Weak references to every storage; each goes when its storage does, without running Python."""

    entries: ClassVar[set[weakref.ref[Storage]]] = set()


_enter = _Alive.entries.add
_weakly = weakref.ref
_leave = _Alive.entries.discard


class Overtaken(Exception):
    """Another thread has changed a storage since what is to be put there was computed of it."""


class StorageWatcher(Protocol):
    """Who wants to know when a storage is looked at, or changed.

    ref: where the value lies that was left to the watcher alone, None where a storage has it.
    """

    ref: BufferRef | None

    def looked_at(self) -> Node | None:
        """Note it, once; the leaf of what was left without a node. It takes no lock."""


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

    The value is known as `deferred`, as `node`, as both, which are one value then, or to the
    watcher alone. That holds at any moment, for threads share storages and look at each other's:

    - Who changes one of the three does so by a method, in one step under `looks.lock`. In it
      nothing is called that takes another lock, runs the Python of a call or computes.
    - Whoever replaces a value by the same one in another form says by which he means it (`hold`,
      `leave_to`, `watch`, `defer`): where another thread has put a new value meanwhile, that stays.
    - Who computes the new value of the old one notes `since` first, and puts it with that: where
      another thread was first it is computed again (`update`), so that no change is lost.
    - One of the three may be read without the lock. Who reads `deferred` and, where that is None,
      `node` has a value that was there. Reading `node` may write calls out, and tell a watcher
      once no replay runs: the session's lock is asked for, so that is not done under `looks.lock`.
      Who goes through all storages asks `held`, which does neither.
    - A reader keeps the node, or the deferred value, in hand for as long as it reads the memory.
      A replay that writes over memory takes the node out of the storage first and counts then who
      else has it.
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
        if name != "node":
            raise AttributeError(f"a storage has no {name}")
        while True:
            deferred = self.deferred
            if deferred is not None:
                # It may run the Python of calls, for which nobody else waits.
                node = deferred.node
                with looks.lock:
                    if self.deferred is deferred:
                        self.node = node
                return node
            # What a replay has left is whole once it has run, which the session's lock says.
            with session().lock, looks.lock:
                self.tell_watcher()
                known = self.known_node
                if known is not None:
                    return known
                if self.deferred is None:
                    raise AttributeError("a storage has no value yet")
            # Another thread has put one meanwhile.

    @property
    def known_node(self) -> Node | None:
        """The node where there is one: none is made, and nobody is told."""
        try:
            # Asked without `__getattr__`, which would make one.
            found: Node = object.__getattribute__(self, "node")
        except AttributeError:
            return None
        return found

    def held(self) -> Node | DeferredValue | BufferRef:
        """What it holds, in the form that it has: the place of what a watcher alone knows.

        It changes nothing about the storage, which may be another thread's.
        """
        with looks.lock:
            found = self.deferred or self.known_node
            if found is not None:
                return found
            assert self.watcher is not None
            assert self.watcher.ref is not None
            return self.watcher.ref

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
        return self.deferred is None and self.known_node is None

    def leave_to(self, watcher: StorageWatcher, node: Node) -> bool:
        """Have no node until somebody asks for it, and let the watcher know then.

        False, and nothing is done, where the value is no longer the one of this node.
        """
        with looks.lock:
            if self.known_node is not node:
                return False
            if self.watcher is not None:
                self.tell_watcher()
            before = self.deferred
            # Nothing runs between these three, since what they drop is held: no Ctrl-C comes.
            self.watcher = watcher
            self.deferred = None
            del self.node
            del before
            return True

    def watch(self, watcher: StorageWatcher, node: Node) -> bool:
        """Let a watcher know of the next change; False where the value is not this node's now."""
        with looks.lock:
            if self.known_node is not node:
                return False
            if self.watcher is not None:
                self.tell_watcher()
            self.watcher = watcher
            return True

    @property
    def is_pending(self) -> bool:
        """Whether the value is no array yet."""
        deferred = self.deferred
        return self.node.op is not _BUFFER if deferred is None else deferred.call is not None

    def hold(self, node: Node, value: Node | DeferredValue) -> None:
        """Let a value be known as another node, where it is the present one still."""
        with looks.lock:
            if value is not self.deferred and value is not self.known_node:
                return
            if self.watcher is not None:
                self.tell_watcher()
            self.node = node
            self.deferred = None

    def defer(self, node: Node, value: DeferredValue) -> None:
        """Let the value that is known as a node alone be known to calls as well."""
        with looks.lock:
            if self.deferred is None and self.known_node is node:
                self.deferred = value

    def as_node(self) -> Node:
        """The node, as which alone the value is known from now on.

        Who else holds the value as it is known to calls holds its node, and so is counted.
        """
        while True:
            node = self.node
            if self.deferred is None:
                return node
            with looks.lock:
                if self.known_node is node:
                    self.deferred = None
                    return node

    def stamp(self) -> None:
        """Note that what the storage holds is new, where its memory has changed."""
        self.since = next(_clock)

    def put(
        self, value: Node | DeferredValue, grad: bool = False, since: int | None = None
    ) -> None:
        """Change the value; watchers of the session's writes get the storage and the old node.

        since: that of the value it was computed of. Raises Overtaken, and changes nothing, where
        there is another one by now.
        """
        watching = session().watching
        # Before the step: the Python of a call may run.
        old = self.node if watching.writes else None
        with looks.lock:
            if since is not None and since != self.since:
                raise Overtaken
            if self.watcher is not None:
                self.tell_watcher()
            before = self.deferred
            last: Node | None = None
            if before is None:
                last = self.known_node
                if last is not None and last.op is _BUFFER:
                    self.previous = last.arg
            elif before.call is None:
                self.previous = before if old is None else before.node.arg
            # Nothing runs between the two, since what they drop is held: no Ctrl-C comes. A value
            # that was deferred holds the node it has.
            if isinstance(value, DeferredValue):
                value.is_read = True
                self.deferred = value
                try:  # noqa: SIM105 - nor may a call come between them
                    del self.node
                except AttributeError:
                    pass
            else:
                self.node = value
                self.deferred = None
            self.grad = grad
            self.known = None
            self.settled = False
            self.since = next(_clock)
        watching.touched += 1
        if old is not None:
            for observer in watching.writes:
                observer(self, old)

    def update(self, change: Callable[[int], object]) -> None:
        """Call change(since), which puts what it computes of the value, until none overtakes it."""
        while True:
            try:
                change(self.since)
                return
            except Overtaken:
                continue


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


# --- what all threads have: it is read as it is, and never changed -------------------------------


def live_storages() -> list[Storage]:
    """Every storage that anything still holds, in no order."""
    # Copied in one step: entries go at any time.
    return [storage for entry in list(_Alive.entries) if (storage := entry()) is not None]


def live_values() -> set[Node]:
    """The values of live storages, as far as they are calls' results that have nodes."""
    found: set[Node] = set()
    for storage in live_storages():
        value = storage.held()
        if isinstance(value, DeferredValue):
            call = value.call
            if call is not None and call.nodes is not None:
                found.add(call.nodes[value.position])
        elif isinstance(value, Node):
            found.add(value)
    return found


def place_of(value: Node | DeferredValue | BufferRef) -> BufferRef | None:
    """Where a value lies that is an array, cut from its history or not; None for any other."""
    if isinstance(value, DeferredValue):
        call = value.call
        if call is None:
            return BufferRef(value.handle, value.form.shape, value.form.device)
        return None if call.nodes is None else leaf_of(call.nodes[value.position])
    return leaf_of(value) if isinstance(value, Node) else value


def leaf_of(node: Node) -> BufferRef | None:
    """Where the value of a leaf lies, be it cut or not; None for an expression."""
    while node.op is Ops.DETACH:
        node = node.src[0]
    return node.arg if node.op is _BUFFER else None


def handles_read_by(storages: Iterable[Storage]) -> set[int]:
    """The identities of the buffers that computing the values of storages would read.

    Those of calls that were not written out are all that they are given.
    """
    owner = session()
    found: set[int] = set()
    roots: dict[Node, None] = {}
    calls: dict[DeferredCall, None] = {}
    waiting: list[Node | DeferredValue | BufferRef] = [storage.held() for storage in storages]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Node):
            roots[value] = None
            continue
        if isinstance(value, BufferRef):
            found.add(id(value.handle))
            continue
        call = value.call
        if call is None:
            found.add(id(value.handle))
            continue
        ref = owner.realised(value)
        if ref is not None:
            found.add(id(ref.handle))
        if call.nodes is not None:
            roots[call.nodes[value.position]] = None
        elif call not in calls:
            calls[call] = None
            waiting += [operand for operand, _ in call.operands]
    for node in toposort(*roots):
        ref = node.arg if node.op is _BUFFER else owner.realised(node)
        if ref is not None:
            found.add(id(ref.handle))
    return found
