"""Results of a replay: where each tensor comes from, and what is used again once nobody has it."""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import RLock
from typing import Any

from baregrad.base.locks import give_lock
from baregrad.dtypes import DType
from baregrad.ir.core.attrs import BufferRef
from baregrad.ir.core.op import Ops
from baregrad.tensor.array.storage import Storage, buffer_node
from baregrad.tensor.array.views import Step, is_symbolic, is_whole
from baregrad.tensor.jit.trees import map_tree
from baregrad.tensor.tensor import Tensor

# Results of up to _REUSED_NBYTES are used again as they are. Of larger ones the last few of all
# functions are, _LARGE_NBYTES together: the rest goes back to its device, where anything else can
# have the memory.
_REUSED_NBYTES = 1 << 20
_LARGE_NBYTES = 64 << 20
# A loop has one result in hand while it asks for the next.
_REUSED = 2


class Fresh:
    """A storage that a replay made. It can be the next replay's, once nobody else has it."""

    __slots__ = ("__weakref__", "handle", "node", "storage")

    def __init__(self, ref: BufferRef, dtype: DType) -> None:
        self.handle = ref.handle
        self.node = buffer_node(ref, dtype)
        self.storage = Storage(self.node, ref.device)

    def is_free(self) -> bool:
        """Whether nothing else can see the storage, its leaf or its memory.

        Each count has the reference of the call that counts. The leaf is held by the storage too,
        and where it lies by its key among all nodes; the buffer by that.
        """
        count = sys.getrefcount
        if count(self.storage) != 2 or self.storage.node is not self.node:
            return False
        # Who else holds the value as it is known to calls holds its node.
        self.storage.deferred = None
        return (
            count(self.node) == 3
            and count(self.node.arg) == 3
            and count(self.handle) == 3
            and count(self.handle._memory) == 2
        )


class _LargeResults:
    """The large results in view of outlets, of all functions; an outlet's end is that of its own.

    `most_nbytes` is how much memory they may have together.
    """

    lock: RLock

    def __init__(self, most_nbytes: int = _LARGE_NBYTES) -> None:
        self.most_nbytes = most_nbytes
        # The oldest first: the outlet's view, and the result there.
        self._kept: list[tuple[weakref.ref[deque[Fresh]], weakref.ref[Fresh]]] = []
        give_lock(self)

    def keep(self, made: deque[Fresh], result: Fresh) -> None:
        """Put a result in its outlet's view, and the oldest ones out of sight for it."""
        if result.handle.nbytes * _REUSED > self.most_nbytes:
            return
        with self.lock:
            made.append(result)
            self._kept.append((weakref.ref(made), weakref.ref(result)))
            known = [(view(), found()) for view, found in self._kept]
            living = [(view, found) for view, found in known if view is not None and found]
            nbytes = sum([found.handle.nbytes for _, found in living])
            while nbytes > self.most_nbytes:
                view, oldest = living.pop(0)
                nbytes -= oldest.handle.nbytes
                # Another thread may be looking at it: then it stays with its outlet.
                with suppress(ValueError):
                    view.remove(oldest)
            self._kept = [(weakref.ref(view), weakref.ref(found)) for view, found in living]


_LARGE = _LargeResults()


class Outlet:
    """One fresh result of a function, call after call: what replays made of it before.

    `slot` is its place among the memory that a replay allocates, -1 for a result that is always
    made anew.
    """

    __slots__ = ("_made", "dtype", "slot")

    def __init__(self, dtype: DType, slot: int) -> None:
        self.dtype = dtype
        self.slot = slot
        self._made: deque[Fresh] = deque(maxlen=_REUSED)

    def take(self) -> Storage | None:
        """The storage that an earlier replay made and nobody has any more, to be filled anew."""
        made = self._made
        # The newest first: most of it is in the caches still.
        for _ in range(len(made)):
            try:
                # Out of sight while it is looked at: another thread may replay as well.
                found = made.pop()
            except IndexError:
                return None
            if found.is_free():
                storage = found.storage
                made.append(found)
                storage.stamp()
                return storage
            made.appendleft(found)
        return None

    def make(self, ref: BufferRef) -> Storage:
        """A storage over fresh memory, kept in view for later replays."""
        made = Fresh(ref, self.dtype)
        if self.slot < 0:
            return made.storage
        if made.handle.nbytes <= _REUSED_NBYTES:
            self._made.append(made)
        else:
            _LARGE.keep(self._made, made)
        return made.storage

    def clear(self) -> None:
        """Forget what was made so far."""
        self._made.clear()


@dataclass(slots=True)
class Place:
    """Where a result is found at each call.

    It shows an argument (`argument`), a storage that outlives the calls (`kept`) or one that each
    call makes (`fresh`), through `steps`; or it is always the same tensor (`same`).
    """

    steps: tuple[Step, ...] = ()
    argument: int = -1
    fresh: int = -1
    kept: Storage | None = None
    same: Tensor | None = None

    def find(self, tensors: Sequence[Tensor], storages: Sequence[Storage]) -> Tensor:
        """The result, from a call's arguments and the storages that it made."""
        if self.fresh >= 0:
            return Tensor._on(storages[self.fresh], self.steps)
        if self.same is not None:
            return self.same
        if self.argument >= 0:
            tensor = tensors[self.argument]
            if not self.steps:
                return tensor
            return Tensor._on(tensor._storage, (*tensor._steps, *self.steps)).detach()
        assert self.kept is not None
        shown = Tensor._on(self.kept, self.steps)
        return shown.detach() if self.kept.grad else shown


@dataclass(slots=True)
class Results:
    """The tensors in a function's result: the places of all, and the storages that are fresh.

    `is_plain`: the result is a tuple of tensors and nothing else.
    """

    template: Any
    places: list[Place]
    fresh: list[Storage]
    is_plain: bool

    @property
    def are_fresh_alone(self) -> bool:
        """Whether the result is one fresh tensor after the other, each by itself, or None."""
        plain = self.is_plain or self.template.__class__ is Hole or self.template is None
        return plain and self.places == [Place(fresh=i) for i in range(len(self.fresh))]

    def give(self, tensors: Sequence[Tensor], storages: Sequence[Storage]) -> Any:
        """The result of a call with these arguments that made these storages."""
        found = [place.find(tensors, storages) for place in self.places]
        if self.template.__class__ is Hole:
            return found[0]
        if self.is_plain:
            return tuple(found)
        rest = iter(found)
        return map_tree(self.template, lambda leaf: next(rest) if isinstance(leaf, Hole) else leaf)


class Hole:
    """The place of a tensor in a result."""


def settled_view(tensor: Tensor) -> Tensor:
    """The tensor, or where its view has symbolic extents or places, one that holds what it shows.

    A step with a symbolic extent holds the value that the extent has now.
    """
    extents = (*tensor.shape, *tensor._storage.node.shape)
    plain = all(isinstance(extent, int) for extent in extents) and not is_symbolic(tensor._steps)
    if plain or is_whole(tensor._steps):
        return tensor
    return Tensor._make(tensor._value(), tensor.device)


def sort_results(
    result: Any,
    shown: Sequence[Tensor],
    clones: Sequence[Tensor],
    older: Mapping[int, Storage],
    closed: Sequence[Tensor],
) -> Results:
    """Where each tensor of a result comes from. `shown`: those tensors, views settled."""
    arguments = {clone._storage: i for i, clone in reversed(list(enumerate(clones)))}
    itself = {id(clone): i for i, clone in enumerate(clones)}
    known = {id(tensor) for tensor in closed}
    fresh: dict[Storage, int] = {}
    places = []
    for tensor in shown:
        storage = tensor._storage
        steps = tuple(step for step in tensor._steps if step[0] is not Ops.DETACH)
        if id(tensor) in itself:
            place = Place(argument=itself[id(tensor)])
        elif storage in arguments:
            place = Place(steps or ((Ops.DETACH, None),), argument=arguments[storage])
        elif id(tensor) in known:
            place = Place(same=tensor)
        elif id(storage) in older:
            place = Place(steps, kept=storage)
        else:
            place = Place(steps, fresh=fresh.setdefault(storage, len(fresh)))
        places.append(place)
    template = map_tree(result, lambda leaf: Hole() if isinstance(leaf, Tensor) else leaf)
    is_plain = type(template) is tuple and all(isinstance(leaf, Hole) for leaf in template)
    return Results(template, places, list(fresh), is_plain)
