"""The seam to the kernel: open, ioctl, mmap, ordered stores. All above is the same on fakes."""

from __future__ import annotations

import ctypes
import fcntl
import importlib
import mmap
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from baregrad.base.errors import ArgumentError, DriverError
from baregrad.base.options import options
from baregrad.runtime.nvidia.abi.layout import Record

# mfence; mov [rdi], esi; ret, and for AArch64 dsb sy; str w1, [x0]; ret.
_STORE_CODE = MappingProxyType({
    "x86_64": bytes.fromhex("0faef0 8937 c3"),
    "aarch64": bytes.fromhex("9f3f03d5 010000b9 c0035fd6"),
})  # fmt: skip
# `ring` of a RingState: mov eax, [rdi+24]; mov rcx, [rdi]; mov [rcx+8*rax], rsi; inc eax;
# and eax, [rdi+28]; mov [rdi+24], eax; mfence; mov rcx, [rdi+8]; mov [rcx], eax; mfence;
# mov rcx, [rdi+16]; mov edx, [rdi+32]; mov [rcx], edx; ret. For AArch64: ldr w8, [x0, 24];
# ldr x9, [x0]; str x1, [x9, x8, lsl 3]; add w8, w8, 1; ldr w9, [x0, 28]; and w8, w8, w9;
# str w8, [x0, 24]; dsb sy; ldr x9, [x0, 8]; str w8, [x9]; dsb sy; ldr x9, [x0, 16];
# ldr w10, [x0, 32]; str w10, [x9]; ret.
_RING_CODE = MappingProxyType({
    "x86_64": bytes.fromhex(
        "8b4718 488b0f 488934c1 ffc0 23471c 894718 0faef0 488b4f08 8901 0faef0"
        "488b4f10 8b5720 8911 c3"
    ),
    "aarch64": bytes.fromhex(
        "081840b9 090040f9 217928f8 08050011 091c40b9 0801090a 081800b9 9f3f03d5 090440f9"
        "280100b9 9f3f03d5 090840f9 0a2040b9 2a0100b9 c0035fd6"
    ),
})  # fmt: skip
_RING_OFFSET = 64
_PAUSE_S = 50e-6
_MAP_FAILED = ctypes.c_void_p(-1).value


class RingState(ctypes.Structure):
    """A ring of 64-bit entries as `Port.ring` uses it.

    Addresses of its first entry, of the pointer that the GPU reads, and of the doorbell; the next
    entry's number; what keeps numbers in the ring, their count less one; the doorbell's token.
    """

    _fields_ = (
        ("ring", ctypes.c_uint64), ("put_address", ctypes.c_uint64),
        ("doorbell_address", ctypes.c_uint64), ("put", ctypes.c_uint32),
        ("mask", ctypes.c_uint32), ("token", ctypes.c_uint32),
    )  # fmt: skip


def ring_by_stores(store: Callable[[int, int], None], state: int, entry: int) -> None:
    """Do what `Port.ring` does, with a port's `store`."""
    found = RingState.from_address(state)
    ctypes.c_uint64.from_address(found.ring + 8 * found.put).value = entry
    found.put = found.put + 1 & found.mask
    store(found.put_address, found.put)
    store(found.doorbell_address, found.token)


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
        self._code = self._store_page()
        place = ctypes.addressof(ctypes.c_char.from_buffer(self._code))
        library.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        if library.mprotect(place, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC):
            raise DriverError(
                f"no page may be made executable: {os.strerror(ctypes.get_errno())}",
                hint="a security policy may forbid programs that make code (SELinux execmem)",
            )
        prototype = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32)
        self._store: Callable[[int, int], None] = prototype(place)
        # Nobody needs the interpreter in the meantime, and keeping it is cheaper.
        ring = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint64)
        self.ring: Callable[[int, int], None] = ring(place + _RING_OFFSET)

    @staticmethod
    def _store_page() -> mmap.mmap:
        code = _STORE_CODE.get(platform.machine())
        if code is None:
            raise DriverError("no doorbell code for this processor", found=platform.machine())
        page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        ring = _RING_CODE[platform.machine()]
        page[: len(code)] = code
        page[_RING_OFFSET : _RING_OFFSET + len(ring)] = ring
        return page

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

    def store(self, address: int, value: int) -> None:
        """Drain combined stores, then store 32 bits."""
        self._store(address, value)

    def pause(self) -> None:
        """Sleep for 50 us."""
        time.sleep(_PAUSE_S)


# What `BAREGRAD_NV_PORT` names: modules are imported when they are asked for, since the virtual one
# lies in a room that knows this one and not the other way round.
PORTS = MappingProxyType({
    "kernel": ("baregrad.runtime.nvidia.port", "KernelPort"),
    "virtual": ("baregrad.testing.virtual_gpu.virtual_port", "default_port"),
})


def open_port(name: str | None = None) -> Port:
    """Return the port of a name, by default the one that the option `nv_port` names.

    Raises ArgumentError for a name that is not in `PORTS`.
    """
    name = options.nv_port if name is None else name
    if name not in PORTS:
        raise ArgumentError("there is no such port", found=name, wanted=", ".join(PORTS))
    module, factory = PORTS[name]
    port: Port = getattr(importlib.import_module(module), factory)()
    return port


def _os_error(call: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{call}: {os.strerror(number)}")
