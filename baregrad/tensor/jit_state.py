"""State of a jitted function: what it reads or changes without being given it, call after call."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

from baregrad.engine.session import current_session
from baregrad.ir.attrs import BufferRef
from baregrad.ir.node import Node
from baregrad.ir.op import Ops
from baregrad.tensor.core import Storage, buffer_node, realize_storages

Look = Callable[[], Storage | None]
_BUFFER = Ops.BUFFER
_OWN_REFERENCES = 2  # the storage's, and that of the call that counts


class State:
    """A storage of a function's state: where its value lies, call after call.

    look: finds the storage, None once it is gone. ref: where its value lay at capture. changes:
    whether replays write over it. history: the expression that its value was at capture, through
    which gradients may pass.

    Between two replays a storage mostly keeps the leaf that it had, and then there is nothing to
    look into. The leaf is remembered weakly, since its readers are counted.
    """

    __slots__ = ("_leaf", "changes", "history", "look", "ref")

    def __init__(
        self, look: Look, ref: BufferRef, changes: bool, history: weakref.ref[Node] | None
    ) -> None:
        self.look = look
        self.ref = ref
        self.changes = changes
        self.history = history
        self._leaf: Callable[[], Node | None] = _no_leaf

    def is_stale(self) -> bool:
        """Whether the storage holds something that the captured work was not made for."""
        storage = self.look()
        if storage is None or storage.node is self._leaf():
            return False
        node = storage.node
        if node.shape != self.ref.shape or storage.device != self.ref.device:
            return True
        if storage.grad and node.op is not _BUFFER:
            return self.history is None or self.history() is not node
        return False

    def place(self) -> Any:
        """The buffer that a replay reads, and writes over if it changes the state.

        Where something else reads it too (a copy of the state, a lazy expression), what changes
        gets memory of its own first.
        """
        storage = self.look()
        if storage is None:
            return self.ref.handle
        if storage.node is self._leaf() and not (
            self.changes and sys.getrefcount(storage.node) > _OWN_REFERENCES
        ):
            return storage.node.arg.handle
        handle = self._present(storage)
        if not self.changes:
            self._note_leaf(storage)
            return handle
        if sys.getrefcount(storage.node) > _OWN_REFERENCES:
            handle = copied(handle)
        self._renew(storage, handle)
        return handle

    def renew(self) -> None:
        """Tell what is computed from now on from what was computed before the memory changed."""
        storage = self.look()
        if storage is not None:
            self._renew(storage, self._present(storage))

    def _present(self, storage: Storage) -> Any:
        """Where the storage's value lies, computed if need be."""
        if storage.node.op is not _BUFFER:
            realize_storages((storage,))
        held = leaf_of(storage.node) or current_session().realised(storage.node)
        assert held is not None
        return held.handle

    def _renew(self, storage: Storage, handle: Any) -> None:
        """Let the storage read memory that changes through a leaf of its own."""
        storage.node = buffer_node(self.ref.renewed(handle), storage.node.dtype)
        self._note_leaf(storage)

    def _note_leaf(self, storage: Storage) -> None:
        if storage.node.op is _BUFFER:
            self._leaf = weakref.ref(storage.node)


def _no_leaf() -> None:
    """The leaf of a storage that was not looked at yet."""


def leaf_of(node: Node) -> BufferRef | None:
    """Where the value of a leaf lies, be it cut or not; None for an expression."""
    while node.op is Ops.DETACH:
        node = node.src[0]
    return node.arg if node.op is _BUFFER else None


def copied(handle: Any) -> Any:
    """A copy of a buffer, in memory of its own."""
    return handle.device.duplicate(handle)
