"""Memory of devices, and buffers in it.

Memory is counted by Python's references: a Buffer and each view of it hold one Memory, which goes
back to its device when the last of them is gone.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from baregrad.base.errors import DeviceError, UnsupportedDevice

if TYPE_CHECKING:
    Contiguous = bytes | bytearray | memoryview | np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """Bytes of a device: held by live buffers now, at most so far, and taken from the system."""

    in_use_nbytes: int
    peak_nbytes: int
    reserved_nbytes: int


class Memory:
    """One piece of a device's memory, given back when nothing refers to it any more.

    `release` is called with `token` then, from any thread and at any time, so it may only do
    what is safe inside a garbage collection (append to a deque). `owner` is kept alive.
    """

    __slots__ = ("_release", "_token", "address", "nbytes", "owner", "readonly")

    def __init__(
        self,
        address: int,
        nbytes: int,
        release: Callable[[Any], None] | None = None,
        token: Any = None,
        *,
        readonly: bool = False,
        owner: object = None,
    ) -> None:
        self.address = address
        self.nbytes = nbytes
        self.readonly = readonly
        self.owner = owner
        self._release = release
        self._token = token

    def __del__(self) -> None:
        # One whose making was interrupted owns nothing yet.
        release = getattr(self, "_release", None)
        if release is not None:
            release(self._token)


class _HostWindow:
    """Shows host memory to NumPy and keeps it alive as long as an array looks at it."""

    __slots__ = ("__array_interface__", "memory")

    def __init__(self, memory: Memory, address: int, nbytes: int) -> None:
        self.memory = memory
        self.__array_interface__ = {
            "data": (address, memory.readonly),
            "shape": (nbytes,),
            "typestr": "|u1",
            "version": 3,
        }


def host_array(
    memory: Memory, address: int, nbytes: int
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return host memory as bytes of shape (nbytes,), which keep `memory` alive."""
    return np.asarray(_HostWindow(memory, address, nbytes))


class Buffer:
    """A range of bytes on a device: `nbytes` from `address` (a host or a GPU virtual address).

    Made by `Device.allocate`, `Device.wrap` and `view`. A view shares the bytes and keeps them
    alive. After `close` any use raises DeviceError. `serial` is a number, -1 once it is closed, by
    which whoever has checked a buffer knows it again: another buffer has it only where that one is
    gone, and lies where it lay, as large and as free to be written. `shared`: it was once given out
    as the value of several things, so that nobody may write over it for himself.
    """

    __slots__ = (
        "__weakref__", "_memory", "address", "device", "nbytes", "readonly", "serial", "shared",
    )
    _serials = itertools.count(1)

    def __init__(self, device: MemoryDevice, memory: Memory, offset: int, nbytes: int) -> None:
        self.device = device
        self._memory: Memory | None = memory
        self.address = memory.address + offset
        self.nbytes = nbytes
        self.readonly = memory.readonly
        self.shared = False
        self.serial = next(self._serials)

    @property
    def memory(self) -> Memory:
        """The piece of memory that the buffer lies in."""
        if self._memory is None:
            raise DeviceError("the buffer is closed", hint="keep it open as long as it is used")
        return self._memory

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._memory is None

    def view(self, offset: int, nbytes: int) -> Buffer:
        """Return the buffer of `nbytes` bytes from `offset`, sharing this one's memory."""
        memory = self.memory
        if offset < 0 or nbytes < 0 or offset + nbytes > self.nbytes:
            raise DeviceError(
                "a view reaches outside its buffer",
                found=f"bytes {offset} to {offset + nbytes}",
                wanted=f"a range within 0 to {self.nbytes}",
            )
        return Buffer(self.device, memory, self.address - memory.address + offset, nbytes)

    def as_memoryview(self) -> memoryview:
        """Return the bytes themselves, without a copy; they live as long as the result does.

        Raises UnsupportedDevice where the host cannot see the device's memory.
        """
        return self.device._seen(self).data

    def contents(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return a copy of the bytes in host memory, as all submitted work leaves them."""
        data = np.empty(self.nbytes, np.uint8)
        if self.nbytes:
            self.device.copy_out(self, data)
        return data

    def close(self) -> None:
        """Let go of the memory; views and memoryviews of it stay good."""
        self._memory = None
        self.serial = -1

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self.nbytes} bytes at {self.address:#x}"
        return f"<Buffer on {self.device.name}: {state}>"


class Trimmed(Protocol):
    """An allocator that keeps memory for later buffers."""

    def trim(self) -> object:
        """Give what is not used back."""

    def forget_peak(self) -> object:
        """Let the most bytes at once be those in use now."""


class MemoryDevice(ABC):
    """A place with memory: what a device is to its buffers.

    `host_visible` says whether buffers can be read and written by the host in place.
    """

    name: str
    host_visible: bool
    allocator: Trimmed | None = None

    @abstractmethod
    def allocate(self, nbytes: int) -> Buffer:
        """Return a buffer of `nbytes` bytes, 64-byte aligned, with any content.

        Raises OutOfMemory.
        """

    def allocate_zeroed(self, nbytes: int) -> Buffer:
        """Return a buffer of `nbytes` zeros. Raises OutOfMemory."""
        buffer = self.allocate(nbytes)
        if nbytes:
            self.copy_in(buffer, np.zeros(nbytes, np.uint8))
        return buffer

    @abstractmethod
    def memory_stats(self) -> MemoryStats:
        """Return how much memory is in use."""

    def forget_peak(self) -> None:
        """Let the most bytes at once, as `memory_stats` tells them, be those in use now."""
        if self.allocator is not None:
            self.allocator.forget_peak()

    def trim(self) -> None:
        """Give memory that no buffer uses back to the system; nothing where none is kept.

        Waits for submitted work where that may still use it.
        """
        if self.allocator is not None:
            self.allocator.trim()

    def synchronize(self) -> None:
        """Wait until all submitted work is done; at once on devices that finish in `submit`."""
        return

    def wrap(self, data: Contiguous, *, readonly: bool | None = None) -> Buffer:
        """Return a buffer over host memory that exists already, without a copy.

        `data` is kept alive. It is read-only if it says so itself (a file mapped for reading) or
        `readonly` is true. Its alignment is whatever it is. Raises UnsupportedDevice on devices
        that cannot see host memory.
        """
        if not self.host_visible:
            raise UnsupportedDevice(
                f"{self.name} cannot use host memory in place", hint="allocate, then copy_in"
            )
        array = flat_bytes(data)
        locked = not array.flags.writeable or bool(readonly)
        memory = Memory(array.ctypes.data, array.nbytes, readonly=locked, owner=array)
        return Buffer(self, memory, 0, array.nbytes)

    def copy_in(self, buffer: Buffer, data: Contiguous) -> None:
        """Copy host bytes, as many as the buffer has, into it."""
        if buffer.readonly:
            raise DeviceError(
                "the buffer is read-only", hint="copy it to a buffer of the device first"
            )
        source = flat_bytes(data)
        self._check_transfer(buffer, source.nbytes)
        self._move(self._seen(buffer), source, fresh=False)

    def copy_out(self, buffer: Buffer, data: bytearray | memoryview | np.ndarray[Any, Any]) -> None:
        """Copy the buffer's bytes to host memory of the same size, after all submitted work."""
        target = flat_bytes(data)
        if not target.flags.writeable:
            raise DeviceError("copy_out needs memory that can be written", found="read-only memory")
        self._check_transfer(buffer, target.nbytes)
        self.synchronize()
        self._move(target, self._seen(buffer), fresh=True)

    def duplicate(self, source: Buffer) -> Buffer:
        """Return a buffer with the same bytes in memory of its own on this device."""
        fresh = self.allocate(source.nbytes)
        if source.nbytes and source.device is self and self.host_visible:
            self.synchronize()
            self.copy_in(fresh, source.as_memoryview())
        elif source.nbytes:
            self.copy_in(fresh, source.contents())
        return fresh

    def _seen(self, buffer: Buffer) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return a buffer's bytes as the host sees them; raise UnsupportedDevice if it does not."""
        memory = buffer.memory
        if not self.host_visible:
            raise UnsupportedDevice(
                f"the host cannot see the memory of {self.name}", hint="use copy_out"
            )
        return host_array(memory, buffer.address, buffer.nbytes)

    def _move(
        self,
        target: np.ndarray[Any, np.dtype[np.uint8]],
        source: np.ndarray[Any, Any],
        *,
        fresh: bool,
    ) -> None:
        """Copy bytes that the host sees to as many others, which may be fresh memory."""
        target[:] = source

    def _check_transfer(self, buffer: Buffer, nbytes: int) -> None:
        if buffer.device is not self:
            raise DeviceError("the buffer is on another device", found=buffer, wanted=self.name)
        if nbytes != buffer.nbytes:
            raise DeviceError(
                "a copy needs as many bytes as the buffer has",
                found=f"{nbytes} bytes",
                wanted=f"{buffer.nbytes}",
                hint="take a view of the buffer for a part of it",
            )


def flat_bytes(data: Contiguous) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return C-contiguous host memory as a flat array of bytes that shares and keeps it."""
    if isinstance(data, np.ndarray):
        if not data.flags.c_contiguous:
            raise DeviceError("host memory must be contiguous", hint="use np.ascontiguousarray")
        return data.reshape(-1).view(np.uint8)
    view = memoryview(data)
    if not view.c_contiguous:
        raise DeviceError("host memory must be contiguous", hint="copy it with bytes() first")
    return np.frombuffer(view, np.uint8)
