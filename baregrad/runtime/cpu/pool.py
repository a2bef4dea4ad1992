"""The thread pool of the native executor: threads that never hold Python's lock.

The workers are threads of the system, made with pthread_create, that enter native code and stay
there until they are stopped; Python does not know them. They spin for a moment after each
command, then sleep until there is work, so an idle pool costs nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import signal
import struct
import time
from collections.abc import Iterator
from typing import ClassVar

from baregrad.base.errors import DriverError
from baregrad.runtime.buffers import Memory
from baregrad.runtime.cpu import executor
from baregrad.runtime.cpu.host import usable_cores
from baregrad.runtime.cpu.loader import LoadedObject
from baregrad.runtime.cpu.worker_affinity import POOL_KEPT_OFF
from baregrad.runtime.host_memory import HostAllocator, address_of

# Long enough to bridge the gap between two kernels and most gaps between two submits, short
# enough that a program that waits for data does not burn a core.
_SPIN_S = 50e-6
_PAUSES = 2000


class NativePool:
    """Runs bound command lists on `threads` threads, of which the caller is one.

    `code` is the loaded executor. `run` must not be called from two threads at once. `close` stops
    and joins the workers; it must be called before the pool is let go of.
    """

    # The code that workers run in, for as long as they do. A device may be found in a cycle of
    # garbage, whose parts are finalised in any order: its workers must not lose their code first.
    _in_use: ClassVar[set[LoadedObject]] = set()

    def __init__(self, code: LoadedObject, threads: int, allocator: HostAllocator) -> None:
        self.threads = threads
        self._code = code
        self._allocator = allocator
        self._scratch: list[Memory] = []
        self._scratch_nbytes = 0
        self._handles: list[int] = []
        size = executor.PARTICIPANT_AT + threads * executor.PARTICIPANT_NBYTES
        self._shared = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._address = address_of(self._shared)
        self._submit = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(
            code.address(executor.SUBMIT)
        )
        self._set(executor.POOL_SPINS, self._spins())
        self._set(executor.POOL_PARTICIPANTS, threads)
        # More threads than processors have to share some of them, the submitter's as well.
        keeps_off = 1 < threads <= usable_cores()
        struct.pack_into("<ii", self._shared, POOL_KEPT_OFF, -1, int(keeps_off))
        for index, place in enumerate(self._places()):
            struct.pack_into("<QQQQ", self._shared, place, 0, 0, self._address, index)
        self._in_use.add(code)
        try:
            self._start_workers()
        except BaseException:
            self.close()
            raise

    def run(self, list_address: int, scratch_nbytes: int) -> None:
        """Run the bound list at `list_address`; returns when all of it is done."""
        if scratch_nbytes > self._scratch_nbytes:
            self._grow_scratch(scratch_nbytes)
        self._submit(self._address, list_address)

    def close(self) -> None:
        """Stop the workers and wait for their end."""
        if not self._handles:
            self._in_use.discard(self._code)
            return
        stop = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._code.address(executor.STOP))
        stop(self._address)
        libc = ctypes.CDLL(None)
        while self._handles:
            libc.pthread_join(ctypes.c_ulong(self._handles.pop()), None)
        self._in_use.discard(self._code)

    def abandon(self) -> None:
        """Forget the workers, which a forked child does not have."""
        self._handles = []
        self._in_use.discard(self._code)

    def _set(self, offset: int, value: int) -> None:
        struct.pack_into("<Q", self._shared, offset, value)

    def _spins(self) -> int:
        """Return how many turns of a spin loop take _SPIN_S here."""
        pause = ctypes.CFUNCTYPE(None, ctypes.c_int64)(self._code.address(executor.PAUSE))
        best = float("inf")
        # The shortest of a few: the system may have stopped us in the others.
        for _ in range(3):
            begin = time.perf_counter()
            pause(_PAUSES)
            best = min(best, time.perf_counter() - begin)
        return max(100, int(_SPIN_S / best * _PAUSES))

    def _start_workers(self) -> None:
        libc = ctypes.CDLL(None)
        entry = ctypes.c_void_p(self._code.address(executor.WORKER))
        with _signals_blocked():
            for index, place in enumerate(self._places()[1:], start=1):
                handle = ctypes.c_ulong()
                result = libc.pthread_create(
                    ctypes.byref(handle), None, entry, ctypes.c_void_p(self._address + place)
                )
                if result != 0:
                    raise DriverError(
                        f"the system refused to start a thread (error {result})",
                        found=f"{index} of {self.threads} threads",
                        hint="set BAREGRAD_THREADS to fewer",
                    )
                self._handles.append(handle.value)
        # Each writes its number first; the submitter reads these.
        for place in self._places()[1:]:
            while not struct.unpack_from("<i", self._shared, place + executor.THREAD_AT)[0]:
                time.sleep(0)

    def _places(self) -> list[int]:
        """Where the participants' blocks begin, the submitter's first."""
        size = executor.PARTICIPANT_NBYTES
        return [executor.PARTICIPANT_AT + index * size for index in range(self.threads)]

    def _grow_scratch(self, nbytes: int) -> None:
        """Give each participant `nbytes` bytes of its own; nobody uses them between two runs."""
        scratch = [self._allocator.allocate(nbytes) for _ in range(self.threads)]
        for place, memory in zip(self._places(), scratch, strict=True):
            self._set(place + 8, memory.address)
        self._scratch = scratch
        self._scratch_nbytes = nbytes


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block signals for the length of a block; threads made in it keep them blocked.

    Signals are for Python's threads: a worker would only be disturbed.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
