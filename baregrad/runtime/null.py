"""The NULL device: takes programs and command lists, holds no memory and runs nothing.

It is for compiling without a machine to run on, and for measuring what the compiler costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from baregrad.base.errors import CompileError
from baregrad.base.options import options
from baregrad.program import Program, evaluate
from baregrad.runtime.buffers import Buffer, Memory, MemoryStats, flat_bytes
from baregrad.runtime.commands import CommandList, Exec, Kernel, Timeline
from baregrad.runtime.host_memory import size_class
from baregrad.runtime.interface import Device

if TYPE_CHECKING:
    from baregrad.runtime.buffers import Contiguous


class NullDevice(Device):
    """Accepts everything that a device does; what is read back from it is zeros."""

    def __init__(self, name: str = "NULL") -> None:
        self.name = name
        self.host_visible = False
        self._in_use_nbytes = 0
        self._peak_nbytes = 0
        self._scratch: list[Buffer] = []
        self._scratch_nbytes = 0

    def allocate(self, nbytes: int) -> Buffer:
        """Return a buffer of a size, with no memory behind it."""
        size = size_class(nbytes)
        self._in_use_nbytes += size
        self._peak_nbytes = max(self._peak_nbytes, self._in_use_nbytes)
        return Buffer(self, Memory(0, nbytes, self._release, size), 0, nbytes)

    def load(self, program: Program) -> Kernel:
        """Return the program as a kernel; raise CompileError if it is empty."""
        if not program.code or not program.entry:
            raise CompileError(f"the program {program.name!r} has no code", source=program.source)
        return Kernel(self, program, 0, None)

    def submit(
        self,
        commands: CommandList,
        buffers: Sequence[Buffer] = (),
        variables: Mapping[str, int] | None = None,
        *,
        timed: bool = False,
    ) -> Timeline | None:
        """Check the list and its operands; run nothing."""
        commands.check_slots(buffers)
        commands.check_variables(variables or {})
        if commands.bound is None:
            commands.bound = {
                (one.kernel.program.meta.scratch_nbytes, *one.variables.items()): None
                for one in commands.commands if isinstance(one, Exec)
            }
        self._grow_scratch(commands, variables or {})
        if not timed:
            return None
        labels = tuple(command.label for command in commands.commands)
        return Timeline(labels, (0,) * len(labels), (0,) * len(labels))

    def _grow_scratch(self, commands: CommandList, variables: Mapping[str, int]) -> None:
        """Count what the host's threads need beside the arrays, the most that any list did."""
        asked: Any = commands.bound
        needed = max(
            (evaluate(nbytes, {**variables, **dict(fixed)}) for nbytes, *fixed in asked), default=0
        )
        if needed > self._scratch_nbytes:
            # There is no machine here: as many as the host uses.
            from baregrad.runtime.cpu.host import detect_host

            cores = detect_host().cores
            count = min(options.threads or cores, cores)
            self._scratch = [self.allocate(needed) for _ in range(count)]
            self._scratch_nbytes = needed

    def copy_in(self, buffer: Buffer, data: Contiguous) -> None:
        """Check the sizes; copy nothing."""
        self._check_transfer(buffer, flat_bytes(data).nbytes)

    def copy_out(self, buffer: Buffer, data: bytearray | memoryview | np.ndarray[Any, Any]) -> None:
        """Set the host memory to zeros."""
        target = flat_bytes(data)
        self._check_transfer(buffer, target.nbytes)
        target[:] = 0

    def forget_peak(self) -> None:
        """Let the most bytes at once be those that are in use now."""
        self._peak_nbytes = self._in_use_nbytes

    def memory_stats(self) -> MemoryStats:
        """Return the bytes that the host would have in use, and at most; none are held."""
        return MemoryStats(self._in_use_nbytes, self._peak_nbytes, 0)

    def close(self) -> None:
        """Do nothing: there is nothing to free."""
        return

    def _release(self, nbytes: int) -> None:
        self._in_use_nbytes -= nbytes
