"""No submission missed: each store to a doorbell stops its thread.

The doorbell's page is made inaccessible in the traced program, by calls that its own thread is made
to do. A store then faults; the fault is not delivered: the rings are read, the page is opened, the
one instruction is stepped over, and the page is closed again. Another thread's store in that moment
passes unseen, but what it submits is in its ring, which is read once more after the step. Each
store costs about a millisecond.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import signal
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from baregrad.base.errors import UnsupportedError
from baregrad.trace import ptrace as px
from baregrad.trace.engine import TracedThread

_SINGLE_STEP, _GET_SIGINFO = 9, 0x4202
# x86-64: the number of mprotect.
_MPROTECT = 10
_CLOSED, _OPEN = 0, 1 | 2
_FAULT_ADDRESS = 16  # of `siginfo_t`
_MOST_STEPS = 64


@dataclass
class DoorbellTrap:
    """Doorbells of the traced processes; `rung` is called before and after each store to one."""

    rung: Callable[[int], None]
    pages: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    stores: int = 0

    def __post_init__(self) -> None:
        if platform.machine() != "x86_64":
            raise UnsupportedError(
                "doorbells are caught on x86-64 alone", found=platform.machine(),
                hint="trace without --exact: rings are read every few milliseconds",
            )  # fmt: skip
        self._ptrace = px.Ptrace()
        self._info = ctypes.create_string_buffer(128)

    def arm(self, thread: TracedThread, address: int, nbytes: int, pointer: int) -> None:
        """Close a mapping; the thread is stopped behind a system call, at `pointer`."""
        code = pointer - px.SYSCALL_NBYTES
        if self._protect(thread.tid, code, address, nbytes, _CLOSED) == 0:
            self.pages.setdefault(thread.process.pid, []).append((address, nbytes, code))

    def inherit(self, pid: int, parent: int) -> None:
        """Take over the closed pages of a process that forked."""
        if parent in self.pages:
            self.pages[pid] = list(self.pages[parent])

    def forget(self, pid: int, begin: int = 0, end: int = 1 << 64) -> None:
        """Forget the pages of a process, or those in a range."""
        kept = [row for row in self.pages.get(pid, []) if not begin <= row[0] < end]
        self.pages[pid] = kept

    def caught(self, thread: TracedThread) -> bool:
        """Whether a fault is a store to a doorbell; if so, it is done when this returns."""
        pid = thread.process.pid
        if not self.pages.get(pid):
            return False
        self._ptrace(_GET_SIGINFO, thread.tid, 0, ctypes.addressof(self._info))
        (address,) = struct.unpack_from("<Q", self._info.raw, _FAULT_ADDRESS)
        row = next((row for row in self.pages[pid] if row[0] <= address < row[0] + row[1]), None)
        if row is None:
            return False
        begin, nbytes, code = row
        self.stores += 1
        self.rung(pid)
        self._protect(thread.tid, code, begin, nbytes, _OPEN)
        self._step(thread.tid)
        self._protect(thread.tid, code, begin, nbytes, _CLOSED)
        self.rung(pid)
        return True

    def _protect(self, tid: int, code: int, address: int, nbytes: int, access: int) -> int:
        """Have a thread call mprotect, and be as it was before; return what that returned."""
        kept = self._ptrace.registers(tid)
        changed = list(kept)
        changed[px.RAX], changed[px.RDI], changed[px.RSI] = _MPROTECT, address, nbytes
        changed[px.RDX], changed[px.RIP] = access, code
        # So that the kernel does not take this for a call to begin again.
        changed[px.ORIGINAL_RAX] = (1 << 64) - 1
        self._ptrace.set_registers(tid, changed)
        self._step(tid)
        value = self._ptrace.registers(tid)[px.RAX]
        self._ptrace.set_registers(tid, kept)
        return value

    def _step(self, tid: int) -> None:
        """Have a thread do one instruction; signals that come meanwhile are sent again."""
        for _ in range(_MOST_STEPS):
            self._ptrace(_SINGLE_STEP, tid)
            _, status = os.waitpid(tid, px.WAIT_ALL)
            if not os.WIFSTOPPED(status):
                raise ProcessLookupError(f"thread {tid} ended")
            number, event = os.WSTOPSIG(status), status >> 16
            if number == signal.SIGTRAP and not event:
                return
            if not event:
                with contextlib.suppress(OSError):
                    os.kill(tid, number)
