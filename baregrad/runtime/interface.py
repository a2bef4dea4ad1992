"""What every device offers: memory, programs, and command lists that run them.

A Device owns everything that it hands out. Work is recorded in a CommandList and submitted; each
command sees all that earlier ones wrote.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Self

from baregrad.base.errors import DeviceError
from baregrad.program import Program
from baregrad.runtime.buffers import Buffer
from baregrad.runtime.commands import CommandDevice, CommandList, Kernel

# At most so many zeros come from the host.
_ZEROS_NBYTES = 1 << 16


class Device(CommandDevice):
    """A place with memory that runs programs."""

    @abstractmethod
    def load(self, program: Program) -> Kernel:
        """Return the program, ready to run; raise CompileError if its code is broken."""

    @abstractmethod
    def close(self) -> None:
        """Free what the device holds; buffers that still live stay readable by the host."""

    def command_list(self) -> CommandList:
        """Return an empty command list for this device."""
        return CommandList(self)

    def run(
        self,
        kernel: Kernel,
        buffers: Sequence[Buffer],
        variables: Mapping[str, int] | None = None,
    ) -> None:
        """Run one kernel once."""
        commands = self.command_list()
        commands.exec(kernel, buffers)
        self.submit(commands, (), variables)

    def duplicate(self, source: Buffer) -> Buffer:
        """Return a buffer with the same bytes in memory of its own on this device."""
        if source.device is not self or self.host_visible or not source.nbytes:
            return super().duplicate(source)
        fresh = self.allocate(source.nbytes)
        commands = self.command_list()
        commands.copy(fresh, source, source.nbytes)
        self.submit(commands)
        return fresh

    def allocate_zeroed(self, nbytes: int) -> Buffer:
        """Return a buffer of `nbytes` zeros, with which the device itself fills a large one."""
        if self.host_visible or nbytes <= _ZEROS_NBYTES:
            return super().allocate_zeroed(nbytes)
        buffer = self.allocate(nbytes)
        commands = self.command_list()
        commands.fill(buffer, nbytes, 0)
        self.submit(commands)
        return buffer

    def _peer_of(self, target: Buffer, source: Buffer) -> Self:
        """The device of `source`, whose bytes `target` here is to get from it.

        Raises DeviceError for a device of another kind, a target elsewhere, or other sizes.
        """
        other = source.device
        if not isinstance(other, type(self)) or target.device is not self:
            raise DeviceError(
                f"a copy between GPUs needs two devices of {self.name.partition(':')[0]}",
                found=f"{other.name} to {target.device.name}", wanted=f"to {self.name}",
            )  # fmt: skip
        self._check_transfer(target, source.nbytes)
        return other
