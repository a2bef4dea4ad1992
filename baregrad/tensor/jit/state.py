"""State of a jitted function: what it reads or changes without being given it, call after call."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from baregrad.base.errors import JitError
from baregrad.engine.session import current_session
from baregrad.ir.core.attrs import BufferRef
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.tensor.array.core import handles_below, realize_storages
from baregrad.tensor.array.storage import Storage, buffer_node, live_storages

Look = Callable[[], Storage | None]
_BUFFER = Ops.BUFFER
_OWN_REFERENCES = 3  # the storage's, a name's, and that of the call that counts
_count = sys.getrefcount


class State:
    """A storage of a function's state: where its value lies, call after call.

    look: finds the storage, None once it is gone. ref: where its value lay at capture. changes:
    whether replays write over it. history: the expression that its value was at capture, through
    which gradients may pass. group: all state of the function, which is computed together.

    Between two replays a storage mostly keeps the leaf that it had, and then there is nothing to
    look into. The leaf is remembered weakly, since its readers are counted.
    """

    __slots__ = ("_leaf", "changes", "group", "history", "look", "ref")

    def __init__(
        self, look: Look, ref: BufferRef, changes: bool, history: weakref.ref[Node] | None
    ) -> None:
        self.look = look
        self.ref = ref
        self.changes = changes
        self.history = history
        self.group: Sequence[State] = (self,)
        self._leaf: Callable[[], Node | None] = _no_leaf

    def is_other(self, storage: Storage) -> bool:
        """Whether the storage holds something that the captured work was not made for.

        That is not asked where it holds the leaf that it had.
        """
        node = storage.node
        if node.shape != self.ref.shape or storage.device != self.ref.device:
            return True
        if storage.grad and node.op is not _BUFFER:
            return self.history is None or self.history() is not node
        return False

    def settle(self, storage: Storage) -> Any:
        """Where a replay is to find the state, which may not lie where the last one left it."""
        handle = self._present(storage)
        if not self.changes:
            self._note_leaf(storage)
            return handle
        # One reference less than above, where a name holds it.
        shared = handle.shared or handle.readonly
        if shared or _count(storage.node) >= _OWN_REFERENCES:
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
            found = [one.look() for one in self.group]
            realize_storages(s for s in found if s is not None and s.node.op is not _BUFFER)
        held = leaf_of(storage.node) or current_session().realised(storage.node)
        assert held is not None
        return held.handle

    def _renew(self, storage: Storage, handle: Any) -> None:
        """Let the storage read memory that changes through a leaf of its own.

        No value lies there any more for those who come later.
        """
        current_session().forget((id(handle),))
        storage.hold(buffer_node(self.ref.renewed(handle), storage.node.dtype))
        self._note_leaf(storage)

    def _note_leaf(self, storage: Storage) -> None:
        if storage.node.op is _BUFFER:
            self._leaf = weakref.ref(storage.node)


def is_stale(states: Iterable[State]) -> bool:
    """Whether one of the storages holds something that the captured work was not made for."""
    # Every replay asks: mostly nothing is called but what the interpreter itself calls.
    for one in states:
        storage = one.look()
        if storage is None or storage.node is one._leaf():
            continue
        if one.is_other(storage):
            return True
    return False


def places(states: Iterable[State]) -> list[Any]:
    """The buffers that a replay reads, and writes over where it changes the state.

    Where something else reads one too (a copy of the state, a lazy expression), what changes gets
    memory of its own first. That is another storage with the same leaf, or one with a leaf of its
    own over the same memory: a view that was computed, an equal expression.
    """
    found = []
    for one in states:
        storage = one.look()
        if storage is None:
            found.append(one.ref.handle)
            continue
        node = storage.node
        # Who else holds the value as it is known to calls holds its node.
        storage.deferred = None
        if node is one._leaf():
            handle = node.arg.handle
            if not one.changes or (_count(node) <= _OWN_REFERENCES and not handle.shared):
                found.append(handle)
                continue
        del node
        found.append(one.settle(storage))
    return found


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


def every_storage() -> dict[int, Storage]:
    """Every storage there is, held so that no later one takes its address."""
    return {id(storage): storage for storage in live_storages()}


# --- at capture ----------------------------------------------------------------------------------


def changed_state(
    written: Mapping[Storage, Node], own: set[Storage], looks: Mapping[int, Look]
) -> tuple[list[tuple[BufferRef, Any]], dict[int, tuple[Look, BufferRef]]]:
    """State that is to be updated after a replay, and all state by the id of its handle.

    written: what the captured call changed, and what each held before. own: of the call's own
    arguments. looks: where a storage is found, by its id, if not by itself. Raises JitError for
    state that has no memory.
    """
    updates: list[tuple[BufferRef, Any]] = []
    state: dict[int, tuple[Look, BufferRef]] = {}
    for storage, old in written.items():
        if storage in own:
            continue
        kept, made = leaf_of(old), storage.node.arg
        if kept is None:
            raise JitError(
                "the function changes a tensor that was not computed yet, and that it does not "
                "reach by its closure or globals",
                hint="realize() the tensor before the call",
            )
        look = looks.get(id(storage)) or weakref.ref(storage)
        state[id(kept.handle)] = (look, kept)
        if made.handle is not kept.handle:
            updates.append((made, kept.handle))
            storage.hold(buffer_node(kept, storage.node.dtype))
    return updates, state


def read_by_others(written: Mapping[Storage, Node]) -> set[int]:
    """The ids of the handles that values of other storages than these are made of."""
    return handles_below([s.node for s in every_storage().values() if s not in written])


def settle_state(
    updates: list[tuple[Any, Any]], written: Mapping[Storage, Node], in_place: Collection[int]
) -> None:
    """Bring the captured call's own new state into memory that replays may overwrite.

    That is where the call computed it, if replays write it where the state lies (`in_place`: the
    ids of the handles of such new values); otherwise memory of its own, since they compute there.
    """
    made = {id(kept): new for new, kept in updates}
    taken: set[int] = set()
    for storage in written:
        if storage.node.op is not Ops.BUFFER or id(storage.node.arg.handle) not in made:
            continue
        handle = made[id(storage.node.arg.handle)]
        if id(handle) not in in_place or id(handle) in taken:
            handle = copied(handle)
        taken.add(id(handle))
        storage.hold(buffer_node(storage.node.arg._replace(handle=handle), storage.node.dtype))


def holders_of(
    outside: Sequence[BufferRef],
    state: Mapping[int, tuple[Look, BufferRef]],
    closed: Sequence[Storage],
    looks: Mapping[int, Look],
    nodes: Mapping[Storage, Node],
    cut: Mapping[Storage, Node],
) -> list[State]:
    """The storages whose values the function read without being given them.

    Those that it changes (`state`) come first. outside: the arrays that it read. closed: what it
    reaches. nodes, cut: the histories of storages, and what stood in for them.
    """
    pasts = {id(s): weakref.ref(n) for s, n in nodes.items()}

    def made(look: Look, ref: BufferRef, changes: bool) -> State:
        return State(look, ref, changes, pasts.get(id(look())))

    found = [made(look, ref, True) for look, ref in state.values()]
    rest = {id(ref.handle): ref for ref in outside if id(ref.handle) not in state}
    if not rest:
        return found
    # One pass over the heap: who holds a leaf that reads one of these arrays? What the function
    # reaches comes first, where others hold the same.
    for candidate in (*closed, *every_storage().values()):
        ref = leaf_of(cut.get(candidate, candidate.node))
        if ref is not None and rest.pop(id(ref.handle), None) is not None:
            look = looks.get(id(candidate)) or weakref.ref(candidate)
            found.append(made(look, ref, False))
    return found
