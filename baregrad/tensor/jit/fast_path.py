"""Calls of a jitted function that are like the one before, recognised at a glance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from baregrad.dtypes import Defaults
from baregrad.engine.session import Session
from baregrad.ir.core.op import Ops
from baregrad.tensor.array.core import realize_storages
from baregrad.tensor.array.grad_mode import grad_enabled
from baregrad.tensor.array.storage import Storage, handle_of
from baregrad.tensor.jit.entry import Entry
from baregrad.tensor.jit.parts import Call
from baregrad.tensor.tensor import Tensor

_BUFFER = Ops.BUFFER
# Each argument is looked for among those before it.
_MOST_ARGUMENTS = 8


class Alike:
    """What a call that was replayed was like: tensors of its own alone, none changed.

    A kernel of a few hundred microseconds leaves none of our code in the processor's caches, so
    what a call touches counts. Most calls are like the one before them: for those no key is made.
    """

    __slots__ = ("_changing", "_float", "_grad", "_kinds", "_session", "_settings", "entry")

    def __init__(
        self, entry: Entry, call: Call, session: Session, settings: Mapping[str, Any]
    ) -> None:
        self.entry = entry
        self._session = session
        self._settings = settings
        self._grad = grad_enabled()
        self._float = Defaults.float
        self._changing = entry.closed_and_written
        self._kinds = tuple([
            (tensor.shape, tensor.dtype, tensor._storage.device, tensor._storage.grad)
            for tensor in call.tensors
        ])

    @staticmethod
    def to(
        entry: Entry, call: Call, session: Session, settings: Mapping[str, Any]
    ) -> Alike | None:
        """What later calls may be like, None where they are to be looked at in full."""
        args, kwargs = call.tree
        tensors = call.tensors
        if kwargs or len(args) > _MOST_ARGUMENTS or entry.changes_what_is_given:
            return None
        if call.variables:
            return None
        if tensors and entry.state.changes_gradients:
            return None  # any of them may be the gradient's storage by then
        if len(tensors) != len(args) or any(a is not t for a, t in zip(args, tensors, strict=True)):
            return None
        if len({id(tensor._storage) for tensor in tensors}) < len(tensors):
            return None
        found = Alike(entry, call, session, settings)
        return None if found.handles(args, session, settings) is None else found

    def handles(
        self, args: tuple[Any, ...], session: Session, settings: Mapping[str, Any]
    ) -> list[Any] | None:
        """The arguments' buffers, None for a call that may be of another kind."""
        if (
            session is not self._session
            or settings is not self._settings
            or len(args) != len(self._kinds)
            or grad_enabled() is not self._grad
            or Defaults.float is not self._float
        ):
            return None
        found: list[Any] = []
        storages: list[Storage] = []
        waiting: list[Storage] = []
        for tensor, (shape, dtype, device, grad) in zip(args, self._kinds, strict=True):
            if tensor.__class__ is not Tensor or tensor._steps or tensor._gradient is not None:
                return None
            storage = tensor._storage
            deferred = storage.deferred
            like = storage.node if deferred is None else deferred.form
            if (
                like.dtype is not dtype
                or like.shape != shape
                or storage.grad is not grad
                or storage.device != device
                or storage in storages
                or id(storage) in self._changing
            ):
                return None
            storages.append(storage)
            if deferred is None:
                node = storage.node
                found.append(node.arg.handle if node.op is _BUFFER else None)
            elif deferred.call is None:
                found.append(deferred.handle)
            else:
                waiting.append(storage)
        if waiting:
            realize_storages(waiting)
            found = [handle_of(storage) for storage in storages]
        return None if None in found else found
