"""The memory of this process as a kernel driver touches it: a bad address is an error, no crash."""

from __future__ import annotations

import ctypes
import os

from baregrad.base.errors import BaregradError


class BadAddress(BaregradError):
    """An address of this process that is not mapped, or not for this access."""


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("nbytes", ctypes.c_size_t))


class UserMemory:
    """Copies from and to addresses that the process gave, as copy_from_user does.

    Works by process_vm_readv on the process itself, which answers EFAULT where a plain load would
    end the process; where the system forbids the call, addresses are trusted.
    """

    def __init__(self) -> None:
        library = ctypes.CDLL(None, use_errno=True)
        self._calls = (
            getattr(library, "process_vm_readv", None), getattr(library, "process_vm_writev", None)
        )  # fmt: skip
        probe = ctypes.c_uint32(0x5A)
        if None not in self._calls:
            try:
                trusted = self.read(ctypes.addressof(probe), 4) != bytes(probe)
            except BadAddress:
                trusted = True
            if trusted:
                self._calls = (None, None)

    def read(self, address: int, nbytes: int) -> bytes:
        """Return bytes of the process; raise BadAddress where it has none."""
        data = ctypes.create_string_buffer(nbytes)
        self._move(0, address, data, nbytes)
        return data.raw

    def write(self, address: int, data: bytes) -> None:
        """Put bytes into the process; raise BadAddress where it cannot take them."""
        self._move(1, address, ctypes.create_string_buffer(data, len(data)), len(data))

    def readable(self, address: int, nbytes: int, grain: int = 4096) -> bool:
        """Return whether every page of a range is mapped."""
        try:
            for place in range(address, address + nbytes, grain):
                self.read(place, 1)
        except BadAddress:
            return False
        return True

    def _move(
        self, which: int, address: int, data: ctypes.Array[ctypes.c_char], nbytes: int
    ) -> None:
        if not nbytes:
            return
        if not 0 < address < 1 << 63:
            raise BadAddress("a bad address of the process", found=hex(address))
        call = self._calls[which]
        if call is None:
            here = ctypes.addressof(data)
            pair = (address, here) if which else (here, address)
            ctypes.memmove(*pair, nbytes)
            return
        local = _Vector(ctypes.addressof(data), nbytes)
        remote = _Vector(address, nbytes)
        moved = call(os.getpid(), ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
        if moved != nbytes:
            raise BadAddress("a bad address of the process", found=f"{nbytes} at {address:#x}")
