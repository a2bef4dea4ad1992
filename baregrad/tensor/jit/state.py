"""State of a jitted function: what it reads or changes without being given it, call after call."""

from __future__ import annotations

import operator
import sys
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, cast

from baregrad.base.errors import JitError
from baregrad.dtypes import DType, dtypes
from baregrad.engine.session import current_session
from baregrad.ir.core.attrs import BufferRef
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.tensor.array.core import realize_storages
from baregrad.tensor.array.deferred import looks
from baregrad.tensor.array.storage import (
    Storage,
    buffer_node,
    handles_read_by,
    leaf_of,
    live_storages,
    place_of,
)

Look = Callable[[], Storage | None]
_BUFFER = Ops.BUFFER
_OWN_REFERENCES = 3  # the storage's, a name's, and that of the call that counts
_count = sys.getrefcount
# Of a tensor's gradient: whom its storage tells of changes, each storage another one.
_watcher_of = operator.attrgetter("_gradient._storage.watcher")


class Touch:
    """Whether somebody looked at what replays write over, or changed what they read."""

    __slots__ = ("is_touched",)

    def __init__(self) -> None:
        self.is_touched = True


class Left:
    """What a replay left in a storage, and who is told when somebody comes.

    A value that replays write over is left without a node: `ref` says where it lies, and `leaf` is
    made when it is asked for. It is remembered weakly, since its readers are counted.
    """

    __slots__ = ("dtype", "leaf", "ref", "watch")

    def __init__(self, watch: Touch, dtype: DType, ref: BufferRef | None) -> None:
        self.watch = watch
        self.dtype = dtype
        self.ref = ref
        self.leaf: Callable[[], Node | None] = _no_leaf

    def looked_at(self) -> Node | None:
        """Note it; the leaf of what was left without one."""
        self.watch.is_touched = True
        if self.ref is None:
            return None
        # No value of before the memory changed is this one.
        made = buffer_node(self.ref.renewed(), self.dtype)
        self.leaf = weakref.ref(made)
        return made


class State:
    """A storage of a function's state: where its value lies, call after call.

    look: finds the storage, None once it is gone. ref: where its value lay at capture. changes:
    whether replays write over it. history: the expression that its value was at capture, through
    which gradients may pass. handle: where the last replay found it.
    """

    __slots__ = ("_seen", "changes", "handle", "history", "left", "look", "ref")

    def __init__(
        self, look: Look, ref: BufferRef, changes: bool, history: weakref.ref[Node] | None
    ) -> None:
        self.look = look
        self.ref = ref
        self.changes = changes
        self.history = history
        self.handle = ref.handle
        self.left = Left(Touch(), dtypes.token, None)
        self._seen: Callable[[], Storage | None] = _no_storage

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

    def settle(
        self, storage: Storage, group: Sequence[State], watch: Touch, is_read: bool = False
    ) -> None:
        """Put the value where a replay may read it, and write over it; watch the storage.

        Where something else reads what changes (a copy of the state, a lazy expression), that gets
        memory of its own. It is another storage with the same leaf, or one with a leaf of its own
        over the same memory: a view that was computed, an equal expression. is_read: there is such
        a reader, whom nobody can count any more.
        """
        while True:
            node, handle = self.present(storage, group)
            is_own = self.changes and (
                is_read or handle.shared or handle.readonly or _count(node) > _OWN_REFERENCES
            )
            if is_own:
                handle = copied(handle)
            if not self.leave(storage, node, handle, watch):
                continue  # another thread has changed it meanwhile
            if is_own or not self.changes or _count(node) < _OWN_REFERENCES:
                return
            # Another thread came before the node was gone.
            is_read = True

    def leave(self, storage: Storage, node: Node, handle: Any, watch: Touch) -> bool:
        """Let the storage tell who comes: of any change, and of any look at what changes here.

        Memory that changes is read through a leaf of its own, and no value is known to lie there.
        False where the value is no longer the one of this node.
        """
        before = self._seen()
        if before is not None and before is not storage and before.watcher is self.left:
            before.tell_watcher()
        if storage.watcher is not None:
            storage.tell_watcher()
        if self.changes:
            current_session().forget((id(handle),))
        place = self.ref._replace(handle=handle) if self.changes else None
        left, seen = Left(watch, node.dtype, place), weakref.ref(storage)
        # Nothing is called between these, so no Ctrl-C comes: they are of one place at any time.
        self.handle, self.left, self._seen = handle, left, seen
        if self.changes:
            return storage.leave_to(left, node)
        if node.op is not _BUFFER:
            watch.is_touched = True  # an expression, which others compute when they like
            return True
        left.leaf = weakref.ref(node)
        return storage.watch(left, node)

    def present(self, storage: Storage, group: Sequence[State]) -> tuple[Node, Any]:
        """The storage's value, known as a node alone, and where it lies.

        It is computed if need be, together with those of the others.
        """
        node = storage.as_node()
        while node.op is not _BUFFER:
            found = [one.look() for one in group]
            realize_storages(
                s for s in found if s is not None and not s.is_left and s.node.op is not _BUFFER
            )
            node = storage.as_node()
            ref = leaf_of(node) or current_session().realised(node)
            if ref is not None:
                return node, ref.handle
            # Another thread has put a value since that is not computed yet.
        return node, node.arg.handle


class States:
    """All state of a function. The first `changing` of them are written over by replays.

    Between two replays mostly nobody looks at what replays write over, nor changes any other: then
    all of it is known to be where it was, however much it is.
    """

    def __init__(self, every: Sequence[State], changing: int) -> None:
        self.every = every
        self.changing = changing
        self._watch = Touch()
        self._handles: list[Any] = []
        # The gradient of a tensor may be another one from call to call.
        self._elsewhere = [one for one in every if type(one.look) is not weakref.ref]
        self._tensors = [cast(Any, one.look).tensor for one in self._elsewhere]
        self._left: list[Left] = []
        # What `are_untouched` found since `places` was called last.
        self._is_known = False

    def renew(self) -> None:
        """Tell what is computed from now on from what was computed before the memory changed."""
        for one in self.every[: self.changing]:
            storage = one.look()
            if storage is not None:
                node, handle = one.present(storage, self.every)
                current_session().forget((id(handle),))
                storage.hold(buffer_node(one.ref.renewed(handle), node.dtype), node)

    def is_stale(self) -> bool:
        """Whether one of the storages holds something that the captured work was not made for."""
        if self.are_untouched():
            return False
        for one in self.every:
            storage = one.look()
            if storage is None or storage.watcher is one.left or storage.node is one.left.leaf():
                continue
            if one.is_other(storage):
                return True
        return False

    def places(self, tensors: Iterable[Any]) -> list[Any]:
        """The buffers that a replay reads, and writes over where it changes the state.

        tensors: those that may show the state, and hold its leaves.
        """
        known, self._is_known = self._is_known, False
        if not self._watch.is_touched and (known or self.are_untouched()):
            return self._handles
        self._left = []
        for tensor in tensors:
            # It would count as a reader of the state.
            tensor._cached = None
        # Whoever comes meanwhile is noted.
        self._watch.is_touched = False
        try:
            self._settle()
        except BaseException:
            # Not all of it is where the next replay would take it to be.
            self._watch.is_touched = True
            raise
        return self._handles

    def _settle(self) -> None:
        """Have all state where replays read it and write over it, and left to be watched."""
        read = []
        for one in self.every:
            storage, left = one.look(), one.left
            if storage is None or storage.watcher is left:
                continue
            node = storage.node if storage.deferred is None else storage.as_node()
            if node is not left.leaf() or (
                one.changes and (_count(node) > _OWN_REFERENCES or one.handle.shared)
            ):
                del node
                one.settle(storage, self.every, self._watch)
                continue
            # It was looked at, and nobody has kept what he saw.
            with looks.lock:
                # What `leave_to` and `watch` do, without a call for each of many.
                is_left = storage.deferred is None and storage.node is node
                if is_left:
                    if storage.watcher is not None:
                        storage.tell_watcher()
                    storage.watcher = left
                    if one.changes:
                        del storage.node
            # Another thread may have come before the node was gone.
            is_read = one.changes and _count(node) >= _OWN_REFERENCES
            if not is_left or is_read:
                del node
                one.settle(storage, self.every, self._watch, is_read)
            elif one.changes:
                read.append(id(one.handle))
        current_session().forget(read)
        self._handles = [one.handle for one in self.every]
        self._left = [one.left for one in self._elsewhere]

    @property
    def changes_gradients(self) -> bool:
        """Whether replays write over the gradient of a tensor."""
        return any(one.changes for one in self._elsewhere)

    def gradients_now(self) -> dict[int, bool]:
        """The ids of storages of gradients that replays read: whether they write over them."""
        found = [(one.look(), one.changes) for one in self._elsewhere]
        return {id(storage): changes for storage, changes in found if storage is not None}

    def is_at_rest(self) -> bool:
        """The same, where no tensor got another gradient since `are_untouched` said so last."""
        if self._watch.is_touched:
            return False
        self._is_known = True
        return True

    def are_untouched(self) -> bool:
        """Whether nobody came since `places` was called, and all state is where it was."""
        # Every replay asks: nothing is called but what the interpreter itself calls.
        if self._watch.is_touched:
            return False
        if not self._tensors:
            return True
        try:
            self._is_known = len(self._left) == len(self._tensors) and all(
                map(operator.is_, map(_watcher_of, self._tensors), self._left)
            )
        except AttributeError:
            self._is_known = False  # one has no gradient
        return self._is_known


def _no_leaf() -> None:
    """The leaf of what nobody has asked for yet."""


def _no_storage() -> None:
    """The storage of a state that was not looked at yet."""


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
        kept, node = leaf_of(old), storage.node
        made = leaf_of(node)
        if kept is None:
            raise JitError(
                "the function changes a tensor that was not computed yet, and that it does not "
                "reach by its closure or globals",
                hint="realize() the tensor before the call",
            )
        if made is None:
            raise JitError(
                "another thread changes a tensor that the function changes, while it is captured",
                hint="call the function twice before other threads change what it changes",
            )
        look = looks.get(id(storage)) or weakref.ref(storage)
        state[id(kept.handle)] = (look, kept)
        if made.handle is not kept.handle:
            updates.append((made, kept.handle))
            storage.hold(buffer_node(kept, node.dtype), node)
    return updates, state


def read_by_others(written: Mapping[Storage, Node]) -> set[int]:
    """The ids of the handles that values of other storages than these are made of."""
    return handles_read_by([s for s in live_storages() if s not in written])


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
        node = storage.node
        if node.op is not _BUFFER or id(node.arg.handle) not in made:
            continue
        handle = made[id(node.arg.handle)]
        if id(handle) not in in_place or id(handle) in taken:
            handle = copied(handle)
        taken.add(id(handle))
        storage.hold(buffer_node(node.arg._replace(handle=handle), node.dtype), node)


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
    # reaches comes first, where others hold the same: its tensors, and what is looked for by them.
    everything = every_storage()
    reached = [everything[place] for place in looks if place in everything]
    for candidate in (*closed, *reached, *everything.values()):
        ref = place_of(cut[candidate] if candidate in cut else candidate.held())
        if ref is not None and rest.pop(id(ref.handle), None) is not None:
            look = looks.get(id(candidate)) or weakref.ref(candidate)
            found.append(made(look, ref, False))
    return found
