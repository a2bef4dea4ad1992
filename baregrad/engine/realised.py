"""Where the values of nodes lie, for as long as the nodes live."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from baregrad.ir.core.attrs import BufferRef
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Ops


class Realised:
    """A weak table from nodes, and what else stands for values, to the arrays that hold them.

    It is asked about every node of every graph, so it goes by the identity of nodes, which is their
    equality; a key goes with its node, before anything else can have that identity.

    Values are noted and forgotten by one thread at a time; nodes die in any, in the middle of
    anything, which takes one step on one table.
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[Any], BufferRef]] = {}
        # By the identity of a buffer: keys of values that lie there, or lay there once.
        self._there: dict[int, set[int]] = {}
        self._most = 64

    def get(self, node: object) -> BufferRef | None:
        """Where the value of a node lies, if that is known."""
        found = self._entries.get(id(node))
        return None if found is None else found[1]

    def on(self, device: str) -> Callable[[Node], BufferRef | None]:
        """The same question, about one device alone."""
        known = self._entries.get

        def get(node: Node) -> BufferRef | None:
            found = known(id(node))
            return found[1] if found is not None and found[1].device == device else None

        return get

    def home(self, root: Node) -> str | None:
        """The device on which a graph's leaves lie; None for one without leaves."""

        def enter(node: Node) -> bool:
            return node.op is not Ops.COPY and self.get(node) is None

        for node in toposort(root, enter=enter):
            ref = self.get(node)
            if ref is not None:
                return ref.device
            if node.op is Ops.BUFFER:
                found: str = node.arg.device
                return found
            if node.op is Ops.COPY:
                there: str = node.arg
                return there
        return None

    def set(self, node: object, ref: BufferRef) -> None:
        """Note where the value of a node lies."""
        key = id(node)
        # The callback's argument, the reference that died, is the default where nothing is popped.
        self._entries[key] = (weakref.ref(node, partial(self._entries.pop, key)), ref)
        self._there.setdefault(id(ref.handle), set()).add(key)
        if len(self._there) > self._most:
            self._sweep()

    def forget(self, handles: Sequence[int]) -> None:
        """Forget every value that lies in a buffer of these identities."""
        if self._there.keys().isdisjoint(handles):
            return
        for handle in handles:
            for key in self._there.pop(handle, ()):
                found = self._entries.get(key)
                if found is not None and id(found[1].handle) == handle:
                    self._entries.pop(key, None)

    def _sweep(self) -> None:
        """Drop what is said of buffers in which no value lies any more."""
        living: dict[int, set[int]] = {}
        for key, (_, ref) in list(self._entries.items()):
            living.setdefault(id(ref.handle), set()).add(key)
        self._there = living
        self._most = 64 + 2 * len(living)

    def items(self) -> Iterator[tuple[object, BufferRef]]:
        """Every node that lives, and where its value lies."""
        for weak, ref in list(self._entries.values()):
            node = weak()
            if node is not None:
                yield node, ref

    def update(self, other: Realised) -> None:
        """Note all that another table knows."""
        for node, ref in other.items():
            self.set(node, ref)
