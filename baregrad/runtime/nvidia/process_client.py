"""One connection to the driver for all devices of a process that use the same port.

GPUs of one connection share their addresses, so that they can be peers.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass

from baregrad.base.options import options
from baregrad.runtime.nvidia.client import Client
from baregrad.runtime.nvidia.port import Port, open_port


@dataclass(eq=False)
class _Shared:
    """A client, its port, what that is called if it is called anything, how many devices use it."""

    client: Client
    port: Port
    name: str
    users: int


class Connections:
    """The clients of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: list[_Shared] = []
        os.register_at_fork(after_in_child=self._after_fork)

    def take(self, port: Port | None) -> Client:
        """Return the client of a port, by default the one that options name; for `give`."""
        with self._lock:
            name = options.nv_port if port is None else ""
            for one in self._open:
                if one.port is port or (port is None and one.name == name):
                    one.users += 1
                    return one.client
            found = open_port(name) if port is None else port
            made = _Shared(Client(found), found, name, 1)
            self._open.append(made)
            return made.client

    def give(self, client: Client) -> None:
        """Let go of a client; the last of its devices closes it."""
        with self._lock:
            for one in self._open:
                if one.client is client:
                    one.users -= 1
                    if not one.users:
                        self._open.remove(one)
                        client.close()
                    return

    def _after_fork(self) -> None:
        # What a forked child inherited is its parent's, and another thread may have held the lock.
        self._lock = threading.Lock()
        self._open = []


CONNECTIONS = Connections()
