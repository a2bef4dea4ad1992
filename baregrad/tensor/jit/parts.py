"""What a captured call is made of: stand-ins for arguments, cut histories, places of results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from baregrad.base.errors import JitError
from baregrad.engine.session import current_session
from baregrad.ir.core.attrs import BufferRef
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.tensor.array.core import realize_storages
from baregrad.tensor.array.storage import Storage, buffer_node, handle_of
from baregrad.tensor.array.views import Cut, hooks_at, is_whole
from baregrad.tensor.autograd.hooks import hooks_of
from baregrad.tensor.jit.state import copied
from baregrad.tensor.jit.trees import describe
from baregrad.tensor.tensor import Tensor

_NO_NAMES: Mapping[str, Any] = MappingProxyType({})

# --- arguments ------------------------------------------------------------------------------------


class Call:
    """One call's arguments: their tensors, and the tree they stand in.

    `tensors` has the arguments first, then the gradients that some of them hold: `grads` says whose
    each is. `read`: what they are of, held so that no other thread's replay writes over it.
    """

    read: list[Node]

    def __init__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.tree = (args, kwargs)
        self.tensors: list[Tensor] = []
        self.variables: dict[str, int] = {}
        key: list[Any] = [len(args)]
        tensors = self.tensors
        describe(args, tensors, self.variables, key)
        if kwargs:
            describe((kwargs,), tensors, self.variables, key)
        self.given = len(tensors)
        self.grads: dict[int, int] = {}
        for position in range(self.given):
            gradient = tensors[position]._gradient
            if gradient is not None:
                self.grads[position] = len(tensors)
                tensors.append(gradient)
        if len(tensors) > 1:
            storages = [tensor._storage for tensor in tensors]
            if len(set(storages)) < len(storages):
                key.append(tuple(map(storages.index, storages)))
            key.extend(self.grads)
        # What distinguishes this call from calls of other kinds.
        self.key = tuple(key)

    @classmethod
    def alike(cls, args: tuple[Any, ...]) -> Call:
        """A call of tensors whose kind is known, so that it needs no key and is not looked into."""
        self = object.__new__(cls)
        self.tree = (args, _NO_NAMES)
        self.tensors = list(args)
        self.variables = {}
        self.given = len(args)
        self.grads = {}
        self.key = ()
        return self

    def handles(self) -> list[Any]:
        """The buffer of each tensor's value, as a contiguous array."""
        found = []
        for tensor in self.tensors:
            handle = handle_of(tensor._storage)
            if handle is None or not is_whole(tensor._steps):
                return self._computed_handles()
            found.append(handle)
        return found

    def _computed_handles(self) -> list[Any]:
        """The same where some are to be computed: together, by a key where that is known."""
        tensors = [
            tensor if is_whole(tensor._steps) else tensor.detach().contiguous()
            for tensor in self.tensors
        ]
        realize_storages([tensor._storage for tensor in tensors])
        return [tensor._ref().handle for tensor in tensors]

    def _computed(self) -> list[BufferRef]:
        """Where each tensor's value lies, computed if need be, those that need it together."""
        realize_storages(t._storage for t in self.tensors)
        owner = current_session()
        return [
            t._ref() if is_whole(t._steps) else owner.realize([t._value()], t.device)[0]
            for t in self.tensors
        ]

    def references(self) -> list[BufferRef]:
        """Where each tensor's value lies, as a contiguous array of its own handle.

        A view has an identity of its own, so that it differs from the same array closed
        over. Others may read the same memory, so nothing is written there. Symbolic extents stay
        so, for calls with other values.
        """
        refs = []
        shapes = [tensor.shape for tensor in self.tensors]
        computed = self._computed()
        self.read = [tensor._storage.node for tensor in self.tensors]
        for ref, shape in zip(computed, shapes, strict=True):
            handle = ref.handle.view(0, ref.handle.nbytes)
            handle.readonly = True
            refs.append(BufferRef(handle, shape, ref.device))
        return refs

    def stand_ins(self, refs: Sequence[BufferRef]) -> list[Tensor]:
        """A tensor over each array, with storages of their own that are shared as the call's are.

        A view is a whole array here, which shows no later change of what it was a view of.
        """
        shared: dict[Storage, Storage] = {}
        made = []
        for tensor, ref in zip(self.tensors, refs, strict=True):
            # Its shape is looked at: extents may be symbolic.
            storage = Storage(Node(Ops.BUFFER, tensor.dtype, (), ref), tensor.device)
            if is_whole(tensor._steps):
                storage = shared.setdefault(tensor._storage, storage)
            clone = Tensor._on(storage)
            made.append(clone)
            if not tensor.requires_grad:
                continue
            clone.requires_grad_()
            hooks = hooks_at(tensor._steps)
            if hooks is None or not tensor.is_leaf:
                continue
            if hooks.after:
                raise JitError(
                    "an argument has a hook that is called once its gradient was added up",
                    hint="close over the tensor, whose gradient then is where the hook looks",
                )
            hooks_of(clone).before = hooks.before
        for position, place in self.grads.items():
            made[position].grad = made[place]
        return made

    def refuse_views_of(self, position: int) -> None:
        """Raise JitError if a changed argument is a view of another tensor, or shown by a view."""
        storage = self.tensors[position]._storage
        if all(is_whole(tensor._steps) for tensor in self.tensors if tensor._storage is storage):
            return
        raise JitError(
            "a jitted function changes an argument that is a view of another tensor, or has a view "
            "among the other arguments",
            hint="pass the whole tensor, or return the new value",
        )


# --- what is closed over --------------------------------------------------------------------------


class Histories:
    """Closed-over values that remember how they were computed, cut from that inside the context.

    Their values are read like any others; a gradient that would go on into a history is refused.
    """

    def __init__(self, storages: Iterable[Storage]) -> None:
        self.nodes: dict[Storage, Node] = {}
        self.cut: dict[Storage, Node] = {}
        try:
            self._cut(storages)
        except BaseException:
            self.__exit__()
            raise

    def _cut(self, storages: Iterable[Storage]) -> None:
        for storage in storages:
            node = storage.node
            ref = None if node.op is Ops.BUFFER else current_session().realised(node)
            if ref is None:
                continue
            leaf = buffer_node(ref._replace(handle=copied(ref.handle)), node.dtype)
            self.cut[storage] = Node(Ops.DETACH, node.dtype, (leaf,), Cut(node))
            self.nodes[storage] = node
            storage.hold(self.cut[storage], node)

    def __enter__(self) -> Histories:
        """Histories are cut from the start."""
        return self

    def __exit__(self, *error: object) -> None:
        """Give storages that nobody wrote their histories back."""
        for storage, node in self.nodes.items():
            storage.hold(node, self.cut[storage])


def part_shared(storages: Iterable[Storage], taken: Iterable[int] = ()) -> None:
    """Give memory of its own to what lies where another of these storages does.

    taken: ids of handles that none of them is to have.
    """
    seen = set(taken)
    for storage in storages:
        node = storage.node
        if node.op is not Ops.BUFFER:
            continue
        handle = node.arg.handle
        if id(handle) in seen:
            handle = copied(handle)
            storage.hold(buffer_node(node.arg._replace(handle=handle), node.dtype), node)
        seen.add(id(handle))
