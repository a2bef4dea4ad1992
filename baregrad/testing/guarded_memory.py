"""The CPU with pages around every array that may not be touched: an access outside one is a crash.

An array ends where such a page begins, or begins where one ends, by turns. Temporaries, which
otherwise share one array, lie on a grid of their own in it, each between two such pages.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from baregrad.base.bits import round_up
from baregrad.base.errors import OutOfMemory
from baregrad.engine.backends import CompiledBackend, cpu_backend, host_target
from baregrad.engine.canonical import Canonical
from baregrad.engine.executor import Executable
from baregrad.engine.session import Session
from baregrad.ir.core import index
from baregrad.runtime.buffers import Buffer, Memory, flat_bytes
from baregrad.runtime.cpu.device import CpuDevice
from baregrad.schedule.plan import Plan, PlannedBuffer
from baregrad.target.cpu import CpuTarget

if TYPE_CHECKING:
    from baregrad.runtime.buffers import Contiguous

PAGE = mmap.PAGESIZE
# What fresh memory holds: a NaN in floats, and no small integer.
FILL = 0xFF
# A place for a temporary: this many pages for it, and one that may not be touched.
CELL_PAGES = 16
CELL = (CELL_PAGES + 1) * PAGE
_NONE, _BOTH = 0, mmap.PROT_READ | mmap.PROT_WRITE


class GuardedMemory:
    """Hands out memory between pages that may not be touched, and keeps what comes back.

    An array of n bytes that ends at a page is aligned as n is; elements are, and kernels ask for
    no more.
    """

    def __init__(self) -> None:
        self._system = ctypes.CDLL(None, use_errno=True)
        self._system.mmap.restype = ctypes.c_void_p
        self._system.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3,
                                      ctypes.c_long]  # fmt: skip
        for name in ("mprotect", "munmap"):
            getattr(self._system, name).argtypes = [
                ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int,
            ][: 3 if name == "mprotect" else 2]  # fmt: skip
        self._returned: deque[tuple[int, int]] = deque()
        self._spare: dict[int, list[int]] = {}
        self._all: list[tuple[int, int]] = []
        self._turns = itertools.count()

    def allocate(self, nbytes: int) -> Memory:
        """Memory of `nbytes` bytes with a page at its end, or before it, that is not ours."""
        while self._returned:
            pages, base = self._returned.popleft()
            self._spare.setdefault(pages, []).append(base)
        pages = max(1, round_up(nbytes, PAGE) // PAGE)
        spare = self._spare.get(pages)
        base = spare.pop() if spare else self._map(pages, cells=nbytes > 0 and not nbytes % CELL)
        if not nbytes % CELL and nbytes:
            _fill_cells(base, nbytes)
        else:
            ctypes.memset(base, FILL, pages * PAGE)
        last = next(self._turns) % 2 and nbytes % CELL
        address = base + (pages * PAGE - nbytes if last else 0)
        return Memory(address, nbytes, release=self._returned.append, token=(pages, base))

    def _map(self, pages: int, cells: bool) -> int:
        """Fresh pages between two that may not be touched; of cells, also those between cells."""
        whole = (pages + 2) * PAGE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        address = self._system.mmap(None, whole, _NONE, flags, -1, 0)
        if address in (None, ctypes.c_void_p(-1).value):
            raise OutOfMemory("no pages for a guarded array", found=f"{whole} bytes")
        self._all.append((address, whole))
        base = int(address) + PAGE
        runs = [(base, pages)]
        if cells:
            runs = [(base + at, CELL_PAGES) for at in range(0, pages * PAGE, CELL)]
        for start, count in runs:
            if self._system.mprotect(start, count * PAGE, _BOTH):
                raise OutOfMemory("pages cannot be made writable", found=ctypes.get_errno())
        return base

    def begin(self, turn: int) -> None:
        """Let the next array end at a page for an odd turn, else begin at one."""
        self._turns = itertools.count(turn)

    def close(self) -> None:
        """Give everything back to the system; arrays that still live must not be used."""
        for address, nbytes in self._all:
            self._system.munmap(address, nbytes)
        self._all.clear()
        self._spare.clear()
        self._returned.clear()


def _fill_cells(base: int, nbytes: int) -> None:
    for at in range(0, nbytes, CELL):
        ctypes.memset(base + at, FILL, CELL_PAGES * PAGE)


class GuardedDevice(CpuDevice):
    """The CPU, with every array in guarded memory; what a kernel's threads use is not."""

    def __init__(self, assemble: object = None) -> None:
        super().__init__(assemble=assemble)  # type: ignore[arg-type]
        self.guarded = GuardedMemory()

    def allocate(self, nbytes: int) -> Buffer:
        """Return a buffer with a page at its end, or before it, that may not be touched."""
        if nbytes < 0:
            return super().allocate(nbytes)
        return Buffer(self, self.guarded.allocate(nbytes), 0, nbytes)

    def wrap(self, data: Contiguous, *, readonly: bool | None = None) -> Buffer:
        """Return a buffer with a copy of host memory, since that lies where it lies."""
        source = flat_bytes(data)
        buffer = self.allocate(source.nbytes)
        np.copyto(self._seen(buffer), source)
        return buffer


class GuardedBackend(CompiledBackend):
    """Compiles as usual, and places temporaries on separate pages."""

    def prepare(self, program: Canonical, donated: Mapping[int, int]) -> Executable:
        """Schedule the program and compile its kernels."""
        made = super().prepare(program, donated)
        return Executable(spaced(made.plan), self.device, self.compiler)


def spaced(plan: Plan) -> Plan:
    """The plan with each temporary in a cell of its own; as it was, if one is too large."""
    count = 0
    buffers: list[PlannedBuffer] = []
    for buffer in plan.buffers:
        if buffer.kind != "temp":
            buffers.append(buffer)
            continue
        largest = index.upper(buffer.nbytes)
        if largest > CELL_PAGES * PAGE:
            return plan
        offset = CELL * count + (CELL_PAGES * PAGE - largest if count % 2 == 0 else 0)
        buffers.append(buffer._replace(offset=offset))
        count += 1
    return replace(plan, buffers=tuple(buffers), arena_nbytes=CELL * count)


def use_guarded_memory(session: Session, target: CpuTarget | None = None) -> GuardedDevice:
    """Give a session a device CPU whose arrays are guarded."""
    backend = cpu_backend("CPU", target or host_target())
    plain = backend.device
    assert isinstance(plain, CpuDevice)
    device = GuardedDevice(plain._assemble)
    plain.close()
    session.adopt(GuardedBackend("CPU", device, backend.compiler))
    return device
