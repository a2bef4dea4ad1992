"""Running a bound command list from Python, for machines where the native executor cannot be had.

One thread, one foreign call for each command: right, and slow for small kernels.
"""

from __future__ import annotations

import ctypes
import time

from baregrad.runtime.commands import CommandList, Copy, Fill
from baregrad.runtime.cpu.binding import CpuBoundList
from baregrad.runtime.host_memory import HostAllocator

_KERNEL = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
)


def run_in_python(
    commands: CommandList, bound: CpuBoundList, allocator: HostAllocator, timed: bool
) -> None:
    """Run the list, its commands one by one."""
    bound.apply_patches()
    scratch = allocator.allocate(bound.scratch_nbytes)
    times = [time.monotonic_ns()]
    for command, row in zip(commands.commands, bound.rows().tolist(), strict=True):
        entry, buffers, variables, chunks = row[:4]
        pointers = ctypes.cast(buffers, ctypes.POINTER(ctypes.c_void_p))
        if isinstance(command, Copy):
            ctypes.memmove(pointers[0] or 0, pointers[1] or 0, command.nbytes)
        elif isinstance(command, Fill):
            ctypes.memset(pointers[0] or 0, command.byte, command.nbytes)
        elif chunks > 0:
            _KERNEL(entry)(buffers, variables, 0, chunks, scratch.address)
        if timed:
            times.append(time.monotonic_ns())
    if timed:
        bound.times[:] = times
