"""The CPU as a device."""

from __future__ import annotations

import sys
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from baregrad.base.errors import CompileError, DeviceError, MissingDependency
from baregrad.base.options import options
from baregrad.program import CPU_OBJECT, Program
from baregrad.runtime.buffers import Buffer, MemoryStats
from baregrad.runtime.commands import CommandList, Kernel, Slot, Timeline
from baregrad.runtime.cpu import executor
from baregrad.runtime.cpu.binding import CpuBoundList, Entries
from baregrad.runtime.cpu.elf import MACHINES
from baregrad.runtime.cpu.fallback import run_in_python
from baregrad.runtime.cpu.host import HostProcessor, detect_host
from baregrad.runtime.cpu.loader import LoadedObject, Loader
from baregrad.runtime.cpu.pool import NativePool
from baregrad.runtime.host_memory import HostAllocator
from baregrad.runtime.interface import Device
from baregrad.runtime.lifetime import follow_process, leave_process
from baregrad.target.cpu import crowding_bytes

# One core does not use all that memory can do: from here on the threads share a copy.
_SHARED_NBYTES = 1 << 20
# Lists for copies of as many sizes are kept.
_COPIES_KEPT = 16


class CpuDevice(Device):
    """Runs programs of kind "cpu-object" on this machine's cores.

    `assemble` turns LLVM IR text into an object; with it, command lists run through the native
    executor on `threads` threads (None: the option, at most one for each core that we may use).
    Without it, or where it raises MissingDependency (which warns), kernels are called from Python,
    one after the other on one thread.
    """

    allocator: HostAllocator

    def __init__(
        self,
        name: str = "CPU",
        *,
        assemble: Callable[[str], bytes] | None = None,
        threads: int | None = None,
    ) -> None:
        self.name = name
        self.host_visible = True
        self.host: HostProcessor = detect_host()
        self.threads = threads or min(options.threads or self.host.cores, self.host.cores)
        self.allocator = HostAllocator()
        self._loader = Loader(MACHINES.get(self.host.machine, 0))
        self._assemble = assemble
        self._lock = threading.Lock()
        self._pool: NativePool | None = None
        self._executor: LoadedObject | None = None
        self._copies: OrderedDict[tuple[int, bool], CommandList] = OrderedDict()
        self._closed = False
        if assemble is None or not sys.platform.startswith("linux"):
            self.threads = 1
            self._assemble = None
        follow_process(self)

    @property
    def native(self) -> bool:
        """Whether command lists run through the native executor."""
        return self._assemble is not None

    def allocate(self, nbytes: int) -> Buffer:
        """Return a buffer of `nbytes` bytes, 64-byte aligned, with any content."""
        if nbytes < 0:
            raise DeviceError("a buffer cannot have a negative size", found=nbytes)
        return Buffer(self, self.allocator.allocate(nbytes), 0, nbytes)

    def allocate_zeroed(self, nbytes: int) -> Buffer:
        """Return a buffer of `nbytes` zeros, which take no time before they are touched."""
        return Buffer(self, self.allocator.allocate_zeroed(nbytes), 0, nbytes)

    def load(self, program: Program) -> Kernel:
        """Return the program in executable memory; raise CompileError if its code is broken."""
        if program.kind != CPU_OBJECT:
            raise CompileError(
                f"the program {program.name!r} is not for {self.name}",
                found=program.kind,
                wanted=CPU_OBJECT,
            )
        loaded = self._loader.load(program.code)
        return Kernel(self, program, loaded.address(program.entry), loaded)

    def submit(
        self,
        commands: CommandList,
        buffers: Sequence[Buffer] = (),
        variables: Mapping[str, int] | None = None,
        *,
        timed: bool = False,
    ) -> Timeline | None:
        """Run a command list; returns when all of it is done."""
        if commands.device is not self:
            raise DeviceError("the command list is for another device", found=commands.device.name)
        # `acquire` before `try` takes half the time, but Ctrl-C between the two left it locked.
        with self._lock:
            bound = commands.bound
            if not isinstance(bound, CpuBoundList):
                bound = self._bind(commands)
            bound.prepare(commands, buffers, variables or {})
            if bound.timed is not timed:
                bound.set_timed(timed)
            pool = self._pool or self._started_pool()
            if pool is None:
                run_in_python(commands, bound, self.allocator, timed)
            else:
                pool.run(bound.address, bound.scratch_nbytes)
            if not timed:
                return None
            times = bound.times.tolist()
            return Timeline(bound.labels, tuple(times[:-1]), tuple(times[1:]))

    def _move(
        self,
        target: np.ndarray[Any, np.dtype[np.uint8]],
        source: np.ndarray[Any, Any],
        *,
        fresh: bool,
    ) -> None:
        """Copy bytes that the host sees to as many others; threads share what is large.

        The system has just written zeros to fresh memory, by way of the caches: 64 MiB of it take
        4.7 ms so, and 11 past them.
        """
        nbytes = target.nbytes
        if (
            nbytes < _SHARED_NBYTES
            or self.threads == 1
            or self._closed
            or abs(target.ctypes.data - source.ctypes.data) < nbytes
        ):
            super()._move(target, source, fresh=fresh)
            return
        commands = self._copies.pop((nbytes, fresh), None)
        if commands is None:
            commands = self.command_list()
            commands.copy(Slot(0), Slot(1), nbytes)
            with self._lock:
                self._bind(commands, streams=not fresh)
        self.submit(commands, (self.wrap(target), self.wrap(source, readonly=True)))
        self._copies[nbytes, fresh] = commands
        if len(self._copies) > _COPIES_KEPT:
            self._copies.popitem(last=False)

    def memory_stats(self) -> MemoryStats:
        """Return how much memory is in use; wrapped host memory is not ours and not counted."""
        return self.allocator.stats()

    def close(self) -> None:
        """Stop the threads and give spare memory back; live buffers stay readable."""
        with self._lock:
            self._closed = True
            leave_process(self)
            if self._pool is not None:
                self._pool.close()
                self._pool = None
            self.allocator.trim()

    def __del__(self) -> None:
        # A device that is merely forgotten must not leave threads in memory that goes away. Where
        # the constructor failed there is no pool.
        pool: NativePool | None = self.__dict__.get("_pool")
        if pool is not None:
            pool.close()

    def _bind(self, commands: CommandList, streams: bool = True) -> CpuBoundList:
        """The list in native form; with `streams` its large copies pass the caches by."""
        copy = fill = 0
        code = self._loaded_executor()
        if code is not None:
            copy, fill = code.address(executor.COPY), code.address(executor.FILL)
        host = self.host
        room = crowding_bytes(host.l2_nbytes, host.l3_nbytes, host.cores) if streams else None
        bound = commands.bound = CpuBoundList(commands, Entries(copy, fill, room))
        return bound

    def _loaded_executor(self) -> LoadedObject | None:
        """Return the native executor, None where it cannot be had."""
        if self._executor is not None or self._assemble is None:
            return self._executor
        source = executor.executor_source(self.host.machine)
        try:
            self._executor = self._loader.load(self._assemble(source))
        except MissingDependency as error:
            warnings.warn(
                f"the native executor cannot be compiled ({error}); kernels run on one thread",
                RuntimeWarning,
                stacklevel=4,
            )
            self._assemble = None
            self.threads = 1
        return self._executor

    def _started_pool(self) -> NativePool | None:
        """Start the pool and return it, None where the native executor cannot be had."""
        if self._closed:
            raise DeviceError(f"the device {self.name} is closed")
        code = self._loaded_executor()
        if code is not None:
            self._pool = NativePool(code, self.threads, self.allocator)
        return self._pool

    def after_fork(self) -> None:
        """Start over in a forked child: it has our memory, but none of our threads."""
        self._lock = threading.Lock()
        self._loader.after_fork()
        self.allocator.after_fork()
        if self._pool is not None:
            self._pool.abandon()
            self._pool = None
