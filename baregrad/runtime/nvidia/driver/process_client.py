"""One connection to the driver for all devices of a process that use the same port.

GPUs of one connection share their addresses, so that they can be peers.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass

from baregrad.base.options import options
from baregrad.runtime.nvidia.driver.client import Client
from baregrad.runtime.nvidia.driver.port import Port, open_port


@dataclass(eq=False)
class _Shared:
    """A client, its port, what that is called if it is called anything, the GPUs opened on it."""

    client: Client
    port: Port
    name: str
    gpus: set[int]


class Connections:
    """The clients of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: list[_Shared] = []
        os.register_at_fork(after_in_child=self._after_fork)

    def take(self, port: Port | None, index: int) -> Client:
        """Return a client of a port, by default the one that options name, for a GPU; for `give`.

        A client takes a GPU once: whoever opens it again gets another connection.
        """
        with self._lock:
            name = options.nv_port if port is None else ""
            for one in self._open:
                meant = one.port is port or (port is None and one.name == name)
                if meant and index not in one.gpus:
                    one.gpus.add(index)
                    return one.client
            found = open_port(name) if port is None else port
            made = _Shared(Client(found), found, name, {index})
            self._open.append(made)
            return made.client

    def give(self, client: Client, index: int) -> None:
        """Let go of a client for a GPU; the last of its devices closes it."""
        with self._lock:
            for one in self._open:
                if one.client is client:
                    one.gpus.discard(index)
                    if not one.gpus:
                        self._open.remove(one)
                        client.close()
                    return

    def _after_fork(self) -> None:
        # What a forked child inherited is its parent's, and another thread may have held the lock.
        self._lock = threading.Lock()
        self._open = []


CONNECTIONS = Connections()
