"""What a captured call is made of: stand-ins for arguments, cut histories, places of results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from baregrad.base.errors import JitError
from baregrad.dtypes import DType
from baregrad.engine.session import current_session
from baregrad.ir.attrs import BufferRef
from baregrad.ir.node import Node
from baregrad.ir.op import Ops
from baregrad.tensor.core import Storage, buffer_node, live_storages, realize_storages
from baregrad.tensor.jit_state import copied
from baregrad.tensor.tensor import Tensor
from baregrad.tensor.trees import describe, map_tree
from baregrad.tensor.views import Cut, Step

# --- arguments ------------------------------------------------------------------------------------


class Call:
    """One call's arguments: their tensors, and the tree they stand in.

    `tensors` has the arguments first, then the gradients that some of them hold: `grads` says whose
    each is.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.tree = (args, kwargs)
        self.tensors: list[Tensor] = []
        self.variables: dict[str, int] = {}
        key: list[Any] = [len(args)]
        for argument in args:
            describe(argument, self.tensors, self.variables, key)
        if kwargs:
            describe(kwargs, self.tensors, self.variables, key)
        self.given = len(self.tensors)
        self.grads: dict[int, int] = {}
        for position in range(self.given):
            gradient = self.tensors[position].grad
            if gradient is not None:
                self.grads[position] = len(self.tensors)
                self.tensors.append(gradient)
        storages = [tensor._storage for tensor in self.tensors]
        if len(set(storages)) < len(storages):
            key.append(tuple(map(storages.index, storages)))
        key.extend(self.grads)
        # What tells this call from calls of other kinds.
        self.key = tuple(key)

    def handles(self) -> list[Any]:
        """The buffer of each tensor's value, as a contiguous array."""
        found = []
        for tensor in self.tensors:
            node = tensor._storage.node
            if node.op is not Ops.BUFFER or (tensor._steps and not is_whole(tensor)):
                return [ref.handle for ref in self._computed()]
            found.append(node.arg.handle)
        return found

    def _computed(self) -> list[BufferRef]:
        """Where each tensor's value lies, computed if need be, those that need it together."""
        realize_storages(t._storage for t in self.tensors)
        owner = current_session()
        return [
            t._ref() if is_whole(t) else owner.realize([t._value()], t.device)[0]
            for t in self.tensors
        ]

    def references(self) -> list[BufferRef]:
        """Where each tensor's value lies, as a contiguous array of its own handle.

        A view has an identity of its own, so that an argument that is also closed over is told
        apart. Others may read the same memory, so nothing is written there.
        """
        refs = []
        for ref in self._computed():
            handle = ref.handle.view(0, ref.handle.nbytes)
            handle.readonly = True
            refs.append(BufferRef(handle, ref.shape, ref.device))
        return refs

    def stand_ins(self, refs: Sequence[BufferRef]) -> list[Tensor]:
        """A tensor over each array, with storages of their own that are shared as the call's are.

        A view is a whole array here, which shows no later change of what it was a view of.
        """
        shared: dict[Storage, Storage] = {}
        made = []
        for tensor, ref in zip(self.tensors, refs, strict=True):
            storage = Storage(buffer_node(ref, tensor.dtype), tensor.device)
            if is_whole(tensor):
                storage = shared.setdefault(tensor._storage, storage)
            clone = Tensor._on(storage)
            made.append(clone.requires_grad_() if tensor.requires_grad else clone)
        for position, place in self.grads.items():
            made[position].grad = made[place]
        return made

    def refuse_views_of(self, position: int) -> None:
        """Raise JitError if a changed argument is a view of another tensor, or shown by a view."""
        storage = self.tensors[position]._storage
        if all(is_whole(tensor) for tensor in self.tensors if tensor._storage is storage):
            return
        raise JitError(
            "a jitted function changes an argument that is a view of another tensor, or has a view "
            "among the other arguments",
            hint="pass the whole tensor, or return the new value",
        )


def is_whole(tensor: Tensor) -> bool:
    """Whether a tensor shows its storage as it is, not a part or in another order."""
    return all(op is Ops.DETACH for op, _ in tensor._steps)


# --- what is closed over --------------------------------------------------------------------------


class Histories:
    """Closed-over values that remember how they were computed, cut from that during a capture.

    Their values are read like any others; a gradient that would go on into a history is refused.
    """

    def __init__(self, storages: Iterable[Storage]) -> None:
        self.nodes: dict[Storage, Node] = {}
        self.cut: dict[Storage, Node] = {}
        for storage in storages:
            node = storage.node
            ref = None if node.op is Ops.BUFFER else current_session().realised(node)
            if ref is None:
                continue
            leaf = buffer_node(ref._replace(handle=copied(ref.handle)), node.dtype)
            self.nodes[storage] = node
            storage.node = Node(Ops.DETACH, node.dtype, (leaf,), Cut(node))
            self.cut[storage] = storage.node

    def restore(self) -> None:
        """Give storages that nobody wrote their histories back."""
        for storage, node in self.nodes.items():
            if storage.node is self.cut[storage]:
                storage.node = node


def part_shared(storages: Iterable[Storage]) -> None:
    """Give memory of its own to what lies where another of these storages does."""
    seen: set[int] = set()
    for storage in storages:
        node = storage.node
        if node.op is not Ops.BUFFER:
            continue
        if id(node.arg.handle) in seen:
            own = node.arg._replace(handle=copied(node.arg.handle))
            storage.node = buffer_node(own, node.dtype)
        seen.add(id(storage.node.arg.handle))


def every_storage() -> dict[int, Storage]:
    """Every storage there is, held so that no later one takes its address."""
    return {id(storage): storage for storage in live_storages()}


# --- results --------------------------------------------------------------------------------------


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

    `dtypes` are those of the fresh ones.
    """

    template: Any
    places: list[Place]
    fresh: list[Storage]
    dtypes: list[DType]

    def give(self, tensors: Sequence[Tensor], storages: Sequence[Storage]) -> Any:
        """The result of a call with these arguments that made these storages."""
        places = iter(self.places)
        if isinstance(self.template, Hole):
            return next(places).find(tensors, storages)

        def fill(leaf: Any) -> Any:
            return next(places).find(tensors, storages) if isinstance(leaf, Hole) else leaf

        return map_tree(self.template, fill)


class Hole:
    """The place of a tensor in a result."""


def shown_apart(tensor: Tensor) -> Tensor:
    """The tensor, or where its view has symbolic extents, one that holds what it shows.

    A step with a symbolic extent holds the value that the extent has now.
    """
    extents = (*tensor.shape, *tensor._storage.node.shape)
    if is_whole(tensor) or all(isinstance(extent, int) for extent in extents):
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
    return Results(template, places, list(fresh), [storage.node.dtype for storage in fresh])
