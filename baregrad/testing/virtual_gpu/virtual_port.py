"""The seam to the kernel with virtual GPUs behind it: `runtime/nvidia` runs on it as on hardware.

    with Client(VirtualPort("580.159.04")) as client, Gpu(client) as gpu:
        ...

Kernels come as virtual cubins (`assemble/virtual_cubin.py`). Work that a doorbell announced is done
bit by bit: some at once, some while the host waits (`pause`), the rest a little later by itself, so
that reading a result too early shows. A kernel's fault stops its channel group as on hardware, and
is kept in `faults` with its cause.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from baregrad.runtime.nvidia.abi import numbers as nv
from baregrad.runtime.nvidia.abi.layout import Record
from baregrad.runtime.nvidia.driver.doorbell import ByStores
from baregrad.testing.virtual_gpu.driver.objects import MemoryObject
from baregrad.testing.virtual_gpu.driver.virtual_driver import VirtualDriver, os_error
from baregrad.testing.virtual_gpu.machine.faults import FaultReport
from baregrad.testing.virtual_gpu.machine.gpu_model import GpuModel
from baregrad.testing.virtual_gpu.machine.machine import HardwareGpu, HardwareMachine
from baregrad.testing.virtual_gpu.machine.memory import address_of, fresh_pages, pages_at
from baregrad.testing.virtual_gpu.machine.trace import call_line

DEFAULT_RELEASE = "580.159.04"
_FIRST_FD = 1 << 20
_LATER_S = 0.002
_LAST_LOOKS = 100
_STATUS_FIELDS = ("status", "params.status", "rmStatus")
# How many steps are done at a doorbell, and while the host waits; None is all there are.
_AT_DOORBELL = (0, 0, 1, 3, 20)
_AT_PAUSE = (1, 8, None, None)


def default_port(architecture: str = "sm_90") -> VirtualPort:
    """Return the port of `BAREGRAD_NV_PORT=virtual`: two GPUs, like Hopper's unless asked."""
    return VirtualPort(models=(GpuModel(architecture), GpuModel(architecture)))


@dataclass(frozen=True, slots=True)
class Failure:
    """What the call number `at` (from 1; open, ioctl and the two maps count) is answered with.

    An ioctl whose struct has a status gets `status`, if that is not 0; any other call, and an
    ioctl otherwise, fails with `error`.
    """

    at: int
    error: int = errno.EIO
    status: int = 0


@dataclass(eq=False)
class _Mapping:
    """Memory that the host sees: its bytes, and the driver's object, None for plain pages."""

    nbytes: int
    pages: npt.NDArray[Any]
    memory: MemoryObject | None


class VirtualPort(ByStores):
    """One machine with virtual GPUs behind a driver of one release.

    `models` are its GPUs. `seed` draws the order of work; with `lag` False all of it is done at
    the doorbell. `failure` makes one call fail. `trace` is called with a line for every call and
    every method. For `step_limit` and `stall` see `Machine`; with `check_unwritten` False, kernels
    may read memory of the GPU that nobody wrote; with `nvlink` False peers must be made so.
    """

    def __init__(
        self,
        release: str = DEFAULT_RELEASE,
        models: Sequence[GpuModel] = (GpuModel(),),
        *,
        seed: int = 0,
        lag: bool = True,
        failure: Failure | None = None,
        trace: Callable[[str], None] | None = None,
        step_limit: int = 5_000_000,
        stall: bool = False,
        check_unwritten: bool = True,
        nvlink: bool = True,
    ) -> None:
        self.machine = HardwareMachine(
            tuple(models), seed, step_limit=step_limit, stall=stall,
            check_unwritten=check_unwritten,
        )  # fmt: skip
        self.machine.note = trace
        self._mappings: dict[int, list[_Mapping]] = {}
        self.driver = VirtualDriver(self.machine, release, self._pages_of, nvlink=nvlink)
        self.failure = failure
        self.calls = 0
        self.trace = trace
        self._lag = lag
        self._lock = threading.RLock()
        self._fds = itertools.count(_FIRST_FD)
        self._doorbells: dict[int, HardwareGpu] = {}
        self._worker: threading.Thread | None = None
        self._visits = 0

    # What tests ask.

    @property
    def faults(self) -> list[FaultReport]:
        """What stopped channel groups so far, first first."""
        return self.machine.faults

    @property
    def launched(self) -> list[str]:
        """The names of the last few thousand kernels that ran, in order."""
        return list(self.machine.launched)

    def held(self) -> list[str]:
        """Say what is open, mapped or allocated: nothing, once the runtime has closed."""
        with self._lock:
            found = self.driver.held()
            for address, mappings in self._mappings.items():
                found += [f"mapping of {one.nbytes} bytes at {address:#x}" for one in mappings]
            return found

    # The protocol.

    def open(self, path: str) -> int:
        """Open a device node."""
        with self._lock:
            self._count(f"open {path}")
            fd = next(self._fds)
            self.driver.open(fd, path)
            self._tell(lambda: f"open {path} = {fd}")
            return fd

    def exists(self, path: str) -> bool:
        """Return whether a device node is there."""
        return path in self.driver.nodes()

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        with self._lock:
            self._tell(lambda: f"close {fd}")
            if fd not in self.driver.files:
                raise os_error(errno.EBADF)
            self.driver.close(fd)

    def ioctl(self, fd: int, request: int, argument: Record, inner: Record | None = None) -> None:
        """Call the driver, which finds `inner` by its address."""
        with self._lock:
            memory = argument.padded()
            name = f"ioctl {argument.struct.name}"
            if not self._count(name, argument):
                self.driver.ioctl(fd, request, memory)
            self._tell(lambda: call_line(request, argument, inner, self.driver.why))

    def map_device(self, fd: int, nbytes: int) -> int:
        """Map what the driver attached to a descriptor."""
        with self._lock:
            self._count("mmap of a device")
            memory, offset = self.driver.attached(fd, nbytes)
            pages = memory.backing.data[offset : offset + nbytes]
            address = self._enter(pages, memory)
            if memory.is_registers:
                self._doorbells[address] = memory.gpu
            self._tell(lambda: f"mmap {nbytes} bytes of {fd} = {address:#x}")
            return address

    def map_memory(self, nbytes: int) -> int:
        """Map zeroed pages of host memory."""
        with self._lock:
            self._count("mmap of pages")
            address = self._enter(fresh_pages(nbytes), None)
            self._tell(lambda: f"mmap {nbytes} bytes of pages = {address:#x}")
            return address

    def _enter(self, pages: npt.NDArray[np.uint8], memory: MemoryObject | None) -> int:
        address = address_of(pages)
        self._mappings.setdefault(address, []).append(_Mapping(len(pages), pages, memory))
        return address

    def unmap(self, address: int, nbytes: int) -> None:
        """Undo a map; memory that is pinned stays until it is let go."""
        with self._lock:
            self._tell(lambda: f"munmap {nbytes} bytes at {address:#x}")
            mappings = self._mappings.get(address, [])
            found = next((one for one in mappings if one.nbytes == nbytes), None)
            if found is None:
                raise os_error(errno.EINVAL)
            mappings.remove(found)
            if not mappings:
                del self._mappings[address]
                self._doorbells.pop(address, None)

    def view(self, address: int, nbytes: int) -> memoryview:
        """Return the bytes of mapped memory."""
        with self._lock:
            self._tick()
            return memoryview((ctypes.c_ubyte * nbytes).from_address(address)).cast("B")

    def store(self, address: int, value: int) -> None:
        """Store 32 bits; into a doorbell, tell the GPU."""
        with self._lock:
            self._tick()
            ctypes.c_uint32.from_address(address).value = value
            gpu = self._doorbells.get(address - nv.NVC361_NOTIFY_CHANNEL_PENDING)
            if gpu is None:
                return
            self._tell(lambda: f"doorbell of {gpu.node}: {value:#x}")
            channel = gpu.channels.get(value)
            if channel is not None:
                channel.doorbell()
            self.machine.run(self.machine.random.choice(_AT_DOORBELL) if self._lag else None)
            self._later()

    def pause(self) -> None:
        """Let the GPUs work while the host waits for them."""
        with self._lock:
            self._tick()
            worked = self.machine.run(self.machine.random.choice(_AT_PAUSE))
        if not worked:
            time.sleep(50e-6)

    # Inside.

    def _pages_of(self, address: int, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return memory of the process; what was mapped here stays while somebody has it pinned."""
        for base, mappings in self._mappings.items():
            for one in mappings:
                if base <= address and address + nbytes <= base + one.nbytes:
                    return one.pages[address - base : address - base + nbytes]
        return pages_at(address, nbytes)

    def _count(self, what: str, argument: Record | None = None) -> bool:
        """Count a call; fail the one that is to fail. Return whether it is answered already."""
        self.calls += 1
        failure = self.failure
        if failure is None or self.calls != failure.at:
            return False
        self._tell(lambda: f"injected failure of call {failure.at}, {what}")
        if argument is not None and failure.status:
            for name in _STATUS_FIELDS:
                if name in argument.struct.fields:
                    argument[name] = failure.status
                    return True
        raise os_error(failure.error)

    def _tick(self) -> None:
        """Let the GPUs' clocks be read from their pages of registers."""
        self._visits += 1
        for address in self._doorbells:
            now = ctypes.c_uint64.from_address(address + nv.NVC361_TIME_0)
            now.value = self.machine.time_ns()

    def _later(self) -> None:
        """See to it that what is left is done even if nobody waits for it."""
        if self._worker is not None and self._worker.is_alive():
            return
        if self.machine.pending():
            self._worker = threading.Thread(
                target=self._work_later, name="virtual GPU", daemon=True
            )
            self._worker.start()

    def _work_later(self) -> None:
        idle, seen = 0, -1
        while idle < _LAST_LOOKS:
            time.sleep(_LATER_S)
            idle += 1
            # While the host asks for things, it is the host that has work done.
            if self.machine.pending() and seen == self._visits:
                idle = 0
                with self._lock:
                    self.machine.run()
            seen = self._visits

    # The trace.

    def _tell(self, line: Callable[[], str]) -> None:
        if self.trace is not None:
            self.trace(line())
