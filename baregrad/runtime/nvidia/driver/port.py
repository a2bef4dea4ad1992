"""The seam to the kernel: open, ioctl, mmap, ordered stores. All above is the same on fakes."""

from __future__ import annotations

import ctypes
import fcntl
import importlib
import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from baregrad.base.errors import ArgumentError
from baregrad.base.options import options
from baregrad.runtime.nvidia.abi.layout import Record
from baregrad.runtime.nvidia.driver.doorbell import native

_PAUSE_S = 50e-6
_MAP_FAILED = ctypes.c_void_p(-1).value


class Port(Protocol):
    """What the runtime asks of the operating system; raises OSError where that says no."""

    def open(self, path: str) -> int:
        """Open a device node for reading and writing and return its descriptor."""
        ...

    def exists(self, path: str) -> bool:
        """Return whether a device node is there."""
        ...

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        ...

    def ioctl(self, fd: int, request: int, argument: Record, inner: Record | None = None) -> None:
        """Call the driver with `argument`, which holds the address of `inner`, if there is one."""
        ...

    def map_device(self, fd: int, nbytes: int) -> int:
        """Map what the driver attached to `fd` and return its address."""
        ...

    def map_memory(self, nbytes: int) -> int:
        """Map zeroed pages of host memory and return their address."""
        ...

    def unmap(self, address: int, nbytes: int) -> None:
        """Undo one of the two maps."""
        ...

    def view(self, address: int, nbytes: int) -> memoryview:
        """Return the bytes of mapped memory; they are gone once it is unmapped."""
        ...

    def store(self, address: int, value: int) -> None:
        """Order all earlier writes, then store 32 bits."""
        ...

    def ring(self, state: int, entry: int) -> None:
        """Put an entry into the ring of the RingState at an address, and ring its doorbell.

        Stores to a GPU's memory are combined on their way: the pointer must not overtake the entry,
        nor the doorbell the pointer, so each of the two is a `store`.
        """
        ...

    def go(self, ticket: int) -> int:
        """Submit the Ticket at an address, or change nothing.

        Returns the timeline's value when it is done, 0 where something stands in its way.
        """
        ...

    def spin(self, pair: int) -> int:
        """Return whether the timelines of the Pair at an address are at their last values.

        Waits for that, but no longer than it takes to sleep and wake up.
        """
        ...

    def pause(self) -> None:
        """Pass a moment, for who waits for a GPU; a virtual one works meanwhile."""
        ...


class KernelPort:
    """The kernel driver of this machine."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None, use_errno=True)
        self._mmap = library.mmap
        self._mmap.restype = ctypes.c_void_p
        self._mmap.argtypes = (
            ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int,
            ctypes.c_int64,
        )  # fmt: skip
        self._munmap = library.munmap
        self._munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        code = native()
        self.store: Callable[[int, int], None] = code.store
        self.ring: Callable[[int, int], None] = code.ring
        self.go: Callable[[int], int] = code.go
        self.spin: Callable[[int], int] = code.spin

    def open(self, path: str) -> int:
        """Open a device node; the descriptor is not inherited by programs that we start."""
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def exists(self, path: str) -> bool:
        """Return whether a device node is there."""
        return Path(path).exists()

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        os.close(fd)

    def ioctl(self, fd: int, request: int, argument: Record, inner: Record | None = None) -> None:
        """Call the driver; `inner` was written into `argument` by address already."""
        fcntl.ioctl(fd, request, argument.padded())

    def map_device(self, fd: int, nbytes: int) -> int:
        """Map what the driver attached to `fd`."""
        return self._map(nbytes, mmap.MAP_SHARED, fd)

    def map_memory(self, nbytes: int) -> int:
        """Map zeroed, shared pages: a fork does not copy them away from under the GPU."""
        return self._map(nbytes, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS, -1)

    def _map(self, nbytes: int, flags: int, fd: int) -> int:
        access = mmap.PROT_READ | mmap.PROT_WRITE
        address: int | None = self._mmap(None, nbytes, access, flags, fd, 0)
        if address is None or address == _MAP_FAILED:
            raise _os_error("mmap")
        return address

    def unmap(self, address: int, nbytes: int) -> None:
        """Undo a map."""
        if self._munmap(address, nbytes):
            raise _os_error("munmap")

    def view(self, address: int, nbytes: int) -> memoryview:
        """Return the bytes of mapped memory."""
        return memoryview((ctypes.c_ubyte * nbytes).from_address(address)).cast("B")

    def pause(self) -> None:
        """Sleep for 50 us."""
        time.sleep(_PAUSE_S)


# What `BAREGRAD_NV_PORT` names: modules are imported when they are asked for, since the virtual one
# lies in a room that knows this one and not the other way round.
PORTS = MappingProxyType({
    "kernel": ("baregrad.runtime.nvidia.driver.port", "KernelPort"),
    "virtual": ("baregrad.testing.virtual_gpu.virtual_port", "default_port"),
})


def open_port(name: str | None = None, **given: str) -> Port:
    """Return the port of a name, by default the one that the option `nv_port` names.

    given: what the virtual one is to be: its `architecture`. Raises ArgumentError for a name that
    is not in `PORTS`.
    """
    name = options.nv_port if name is None else name
    if name not in PORTS:
        raise ArgumentError("there is no such port", found=name, wanted=", ".join(PORTS))
    module, factory = PORTS[name]
    port: Port = getattr(importlib.import_module(module), factory)(**given)
    return port


def _os_error(call: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{call}: {os.strerror(number)}")
