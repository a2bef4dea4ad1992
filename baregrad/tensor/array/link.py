"""The seam to the engine: what tensors need from a session, and the session in force."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from typing import Any, Protocol

import numpy as np

from baregrad.dtypes import DType
from baregrad.engine.session import current_session
from baregrad.engine.watching import Watching
from baregrad.ir.core.attrs import BufferRef
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Ops


class SessionLike(Protocol):
    """What tensors need from a session; `baregrad.engine.session.Session` is one.

    origins: the user's file:line of nodes, where lines are noted. watching: who watches this
    thread's work; `downloads` is not empty while a function is captured. random_states: by device,
    kept for `baregrad.tensor.ops.random`. seed: of devices that have none yet, if it is not the
    option's. lock: held while anything is computed. overwrites: how often results took the memory
    of old values so far, noted before they are written; replays do not count. templates, forms:
    kept for `baregrad.tensor.array.put_off`.
    """

    templates: dict[Any, Any]
    forms: dict[Any, Any]
    origins: MutableMapping[Node, str]
    watching: Watching
    random_states: dict[str, Any]
    seed: int | None
    lock: threading.RLock
    overwrites: int

    def default_device(self) -> str:
        """The name of the device that tensors are made on."""
        ...

    def known_device(self, name: str) -> str:
        """The name itself. Raises UnsupportedDevice where there is no such device."""
        ...

    def upload(
        self,
        data: np.ndarray[Any, Any],
        dtype: DType,
        shape: tuple[int, ...],
        device: str,
        noted: bool = True,
        over: Any = None,
    ) -> BufferRef:
        """A copy of raw elements (`dtype.storage`, row-major) on a device.

        `noted`: a function that is captured is taken to have made the data. `over`: a buffer as
        large that nobody reads any more, to be written instead of a fresh one.
        """
        ...

    def wrap(self, data: Any, dtype: DType, shape: tuple[int, ...], device: str) -> BufferRef:
        """Host memory as a device array, without a copy where the device can see it."""
        ...

    def download(self, ref: BufferRef, dtype: DType) -> np.ndarray[Any, Any]:
        """A copy of a realised array, owned by the caller, as raw elements."""
        ...

    def realize(
        self,
        nodes: Sequence[Node],
        device: str,
        donate: Mapping[int, Any] = ...,
        free: Collection[int] = ...,
    ) -> list[BufferRef]:
        """Compute nodes on a device, some in memory of old values."""
        ...

    def realize_by_key(
        self,
        key: tuple[Any, ...],
        device: str,
        leaves: Sequence[Any],
        write_out: Callable[[], list[Node]],
    ) -> list[Any] | None:
        """Compute what a key stands for over buffers, and give those of the results.

        None where that is not done by keys. `lock` is held.
        """
        ...

    def realised(self, value: object) -> BufferRef | None:
        """Where a value lies, a node's or another's, if it was realised and is still held."""
        ...

    def note(self, value: object, ref: BufferRef) -> None:
        """Note where a value lies: a node's, and so of what it reshapes, or another's."""
        ...


# The session in force. The function itself: every call of every operation asks.
session: Callable[[], SessionLike] = current_session


def note_line(node: Node, where: str) -> None:
    """Note the user's line as that of a node and of all below that no line is known of."""
    origins = session().origins
    for one in toposort(node, enter=lambda below: below not in origins):
        if one.shape is not None:
            # A mark is no value of its own.
            marked = origins.get(one.src[0], where) if one.op is Ops.DETACH else where
            origins.setdefault(one, marked)
