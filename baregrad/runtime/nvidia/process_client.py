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
    """A client, how many devices use it, and the process that opened it."""

    client: Client
    port: Port
    name: str
    process: int
    users: int = 0


_lock = threading.Lock()
_open: list[_Shared] = []


def take_client(port: Port | None) -> Client:
    """Return the client of a port, by default the one that options name; for `give_client`."""
    with _lock:
        process = os.getpid()
        # What a forked child inherited is its parent's.
        _open[:] = [one for one in _open if one.process == process]
        name = options.nv_port if port is None else ""
        for one in _open:
            if one.port is port or (port is None and one.name == name):
                one.users += 1
                return one.client
        found = open_port(name) if port is None else port
        made = _Shared(Client(found), found, name, process, 1)
        _open.append(made)
        return made.client


def give_client(client: Client) -> None:
    """Let go of a client; the last of its devices closes it."""
    with _lock:
        for one in _open:
            if one.client is client:
                one.users -= 1
                if not one.users:
                    _open.remove(one)
                    client.close()
                return


def _after_fork() -> None:
    # Another thread may have held it.
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
