"""The REF device: plain host memory for the reference evaluator, which is not run from here.

The engine evaluates graphs over these buffers with NumPy; programs do not load here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from baregrad.base.errors import OutOfMemory, UnsupportedDevice
from baregrad.program import Program
from baregrad.runtime.buffers import Buffer, Memory, MemoryStats
from baregrad.runtime.commands import CommandList, Kernel, Timeline
from baregrad.runtime.host_memory import available_nbytes
from baregrad.runtime.interface import Device


class RefDevice(Device):
    """Hands out NumPy's memory, zeroed and 64-byte aligned, and counts it."""

    def __init__(self, name: str = "REF") -> None:
        self.name = name
        self.host_visible = True
        self._in_use_nbytes = 0
        self._peak_nbytes = 0

    def allocate(self, nbytes: int) -> Buffer:
        """Return a buffer of zeros; raise OutOfMemory."""
        try:
            array = np.zeros(nbytes + 64, np.uint8)
        except (MemoryError, ValueError) as error:
            raise OutOfMemory(
                f"the host has no room for {nbytes} bytes",
                found=f"{available_nbytes()} bytes available",
            ) from error
        start = -array.ctypes.data % 64
        self._in_use_nbytes += nbytes
        self._peak_nbytes = max(self._peak_nbytes, self._in_use_nbytes)
        address = array.ctypes.data + start
        memory = Memory(address, nbytes, owner=array, release=self._release, token=nbytes)
        return Buffer(self, memory, 0, nbytes)

    def load(self, program: Program) -> Kernel:
        """Raise UnsupportedDevice: this device evaluates graphs."""
        raise UnsupportedDevice(f"{self.name} evaluates graphs and loads no programs")

    def submit(
        self,
        commands: CommandList,
        buffers: Sequence[Buffer] = (),
        variables: Mapping[str, int] | None = None,
        *,
        timed: bool = False,
    ) -> Timeline | None:
        """Raise UnsupportedDevice: this device evaluates graphs."""
        raise UnsupportedDevice(f"{self.name} evaluates graphs and takes no command lists")

    def memory_stats(self) -> MemoryStats:
        """Return the bytes in use and at most; nothing is kept in reserve."""
        return MemoryStats(self._in_use_nbytes, self._peak_nbytes, self._in_use_nbytes)

    def forget_peak(self) -> None:
        """Let the most bytes at once be those that are in use now."""
        self._peak_nbytes = self._in_use_nbytes

    def close(self) -> None:
        """Do nothing: buffers free their own memory."""
        return

    def _release(self, nbytes: int) -> None:
        self._in_use_nbytes -= nbytes
