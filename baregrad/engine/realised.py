"""Where the values of nodes lie, for as long as the nodes live."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator

from baregrad.ir.attrs import BufferRef
from baregrad.ir.node import Node


class Realised:
    """A weak table from nodes to the arrays that hold their values.

    It is asked about every node of every graph, so it goes by the identity of nodes, which is their
    equality; a key goes with its node, before anything else can have that identity.
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[Node], BufferRef]] = {}

    def get(self, node: Node) -> BufferRef | None:
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

    def set(self, node: Node, ref: BufferRef) -> None:
        """Note where the value of a node lies."""
        entries, key = self._entries, id(node)
        entries[key] = (weakref.ref(node, lambda _: entries.pop(key, None)), ref)

    def remove(self, node: Node) -> None:
        """Forget a node that is known."""
        del self._entries[id(node)]

    def items(self) -> Iterator[tuple[Node, BufferRef]]:
        """Every node that lives, and where its value lies."""
        for weak, ref in list(self._entries.values()):
            node = weak()
            if node is not None:
                yield node, ref

    def update(self, other: Realised) -> None:
        """Note all that another table knows."""
        for node, ref in other.items():
            self.set(node, ref)
