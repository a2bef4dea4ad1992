"""From a filter that hardly stops a program to the whole one, once the program turns to the driver.

Most of a start-up has nothing to do with the driver: PyTorch opens and closes some thousand files
before. So a program begins with a filter that lets those pass. At its first call of the driver,
and before it installs a filter of its own, the thread that is stopped is made to call `seccomp`
instead, for all threads of its process, and then makes its own call once more.
"""

from __future__ import annotations

import errno
import platform
import struct
from dataclasses import dataclass

from baregrad.trace import ptrace as px
from baregrad.trace.memory import Read

_SET_FILTER, _ALL_THREADS = 1, 1
# Below the stack's end functions may keep so much.
_RED_ZONE = 128


@dataclass(frozen=True, slots=True)
class SetAside:
    """What a thread had where it was made to call something else: registers, and memory."""

    registers: list[int]
    address: int
    memory: bytes


class FilterWidener:
    """Has threads install a filter. `works` says whether this can be done on this processor."""

    def __init__(self, ptrace: px.Ptrace, names: tuple[str, ...]) -> None:
        self._ptrace = ptrace
        self._filter = px.SyscallFilter(names)
        self._nbytes = len(self._filter.as_bytes(0))

    @staticmethod
    def works() -> bool:
        """Whether registers of this processor's threads are known here."""
        return platform.machine() == "x86_64"

    def begin(self, tid: int, read: Read) -> SetAside | None:
        """Put the installation in place of the call before which a thread stands.

        `read` reads its memory. Returns None, and leaves it as it is, where its stack has no room
        or cannot be written.
        """
        kept = self._ptrace.registers(tid)
        address = (kept[px.RSP] - _RED_ZONE - self._nbytes) & ~15
        before = read(address, self._nbytes)
        if len(before) < self._nbytes:
            return None
        if not self._write(tid, address, self._filter.as_bytes(address)):
            self._write(tid, address, before)
            return None
        changed = list(kept)
        changed[px.ORIGINAL_RAX] = px.machine().numbers["seccomp"]
        changed[px.RDI], changed[px.RSI], changed[px.RDX] = _SET_FILTER, _ALL_THREADS, address
        self._ptrace.set_registers(tid, changed)
        return SetAside(kept, address, before)

    def end(self, tid: int, aside: SetAside) -> None:
        """Put a thread, behind the installation, before its own call again."""
        self._write(tid, aside.address, aside.memory)
        registers = list(aside.registers)
        registers[px.RAX] = registers[px.ORIGINAL_RAX]
        registers[px.RIP] -= px.SYSCALL_NBYTES
        # So that the kernel does not take this for a call to begin again.
        registers[px.ORIGINAL_RAX] = (1 << 64) - 1
        self._ptrace.set_registers(tid, registers)

    def _write(self, tid: int, address: int, data: bytes) -> bool:
        """Write to a thread's memory; return whether all of it may be written."""
        try:
            for at, (word,) in enumerate(struct.iter_unpack("<Q", data)):
                self._ptrace(px.POKE, tid, address + 8 * at, word)
        except OSError as error:
            if error.errno not in (errno.EIO, errno.EFAULT):
                raise
            return False
        return True
