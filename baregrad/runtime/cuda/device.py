"""An NVIDIA GPU as a device, through the CUDA driver API."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from baregrad.base.errors import BaregradError, CompileError, DeviceError
from baregrad.base.options import options
from baregrad.program import CUBIN, Program
from baregrad.runtime.buffers import Buffer, MemoryStats, flat_bytes
from baregrad.runtime.commands import CommandList, Kernel, StartedList, Timeline, check_buffer
from baregrad.runtime.cuda import abi
from baregrad.runtime.cuda.allocator import CachingAllocator
from baregrad.runtime.cuda.binding import CudaBoundList
from baregrad.runtime.cuda.context import Context
from baregrad.runtime.cuda.driver import Functions
from baregrad.runtime.cuda.list_runner import ListRunner
from baregrad.runtime.cuda.loaded_code import LoadedCode
from baregrad.runtime.cuda.pinned import PinnedMemory
from baregrad.runtime.cuda.staging import SHARED_NBYTES, Staging
from baregrad.runtime.interface import Device
from baregrad.runtime.lifetime import follow_process, leave_process

if TYPE_CHECKING:
    from baregrad.runtime.buffers import Contiguous

class CudaDevice(Device):
    """Runs programs of kind "cubin" on one GPU, by the CUDA driver API.

    All work goes through one stream, in order. `functions` stand in for libcuda's in tests;
    `threads` copy host memory (None: the option, or one for each core). Raises DriverError where
    there is no driver or an old one, UnsupportedDevice where there is no such GPU.
    """

    allocator: CachingAllocator
    # An event between each two kernels takes the GPU 2 to 4 us: 6 to 10 % of GPT-2's training step.
    timed_every = 64

    def __init__(
        self,
        name: str = "CUDA",
        ordinal: int = 0,
        *,
        functions: Functions | None = None,
        threads: int | None = None,
    ) -> None:
        self.name = name
        self.host_visible = False
        self._closed = True
        self.context = Context(name, ordinal, options.gpu_timeout, functions)
        self.driver = self.context.driver
        self.architecture = self.context.architecture
        self._lock = threading.RLock()
        self._code = LoadedCode(self.context)
        self._runner = ListRunner(self.context, self._code)
        self._peers: set[int] = set()
        self.allocator = CachingAllocator(self._take_segment, self._give_segment)
        teardown = self.context.teardown
        teardown.push("device memory", self.allocator.close)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
        self._staging = Staging(self.context, teardown, threads or options.threads or cores)
        self._pinned = PinnedMemory(self.context)
        teardown.push("kernels and graphs", self._code.drop)
        teardown.push("copying threads", self._staging.close)
        self._closed = False
        follow_process(self)

    # Memory.

    def allocate(self, nbytes: int) -> Buffer:
        """Return a buffer of `nbytes` bytes, 512-byte aligned, with any content."""
        with self._lock:
            self._check()
            return Buffer(self, self.allocator.allocate(nbytes), 0, nbytes)

    def _take_segment(self, nbytes: int) -> int:
        with self._current():
            return self.driver.address("cuMemAlloc_v2", nbytes)

    def _give_segment(self, address: int) -> None:
        self.context.release("cuMemFree_v2", address)

    def pinned(self, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return host memory of shape (nbytes,) that copies go to and from at the bus's speed.

        Any content. It is good as long as the device is open.
        """
        with self._current():
            return self._pinned.array(nbytes)

    def memory_stats(self) -> MemoryStats:
        """Return how much of the GPU's memory is in use and held from the driver."""
        return self.allocator.stats()

    def copy_in(self, buffer: Buffer, data: Contiguous) -> None:
        """Copy host bytes, as many as the buffer has, into it, after all submitted work.

        The host's bytes may change as soon as it returns.
        """
        source = flat_bytes(data)
        check_buffer(buffer, self, 0, True, "the target of a copy")
        self._check_transfer(buffer, source.nbytes)
        if not source.nbytes:
            return
        with self._current():
            address = source.ctypes.data
            if self._pinned.holds(address, source.nbytes):
                call = (buffer.address, address, source.nbytes, self.context.stream)
                self.driver.call("cuMemcpyHtoDAsync_v2", *call)
                self.context.synchronize()
            else:
                self._staging.copy_in(buffer.address, address, source.nbytes)
                self.context.progress.mark((("a copy from the host", ""),))

    def copy_out(self, buffer: Buffer, data: bytearray | memoryview | np.ndarray[Any, Any]) -> None:
        """Copy the buffer's bytes to host memory of the same size, after all submitted work."""
        target = flat_bytes(data)
        if not target.flags.writeable:
            raise DeviceError("copy_out needs memory that can be written", found="read-only memory")
        check_buffer(buffer, self, 0, False, "the source of a copy")
        self._check_transfer(buffer, target.nbytes)
        if not target.nbytes:
            self.synchronize()
            return
        with self._current():
            if target.nbytes >= SHARED_NBYTES:
                # A fault of earlier work is met here, and not by the threads that copy.
                self.context.synchronize()
            address = target.ctypes.data
            if self._pinned.holds(address, target.nbytes):
                call = (address, buffer.address, target.nbytes, self.context.stream)
                self.driver.call("cuMemcpyDtoHAsync_v2", *call)
                self.context.synchronize()
            else:
                self._staging.copy_out(address, buffer.address, target.nbytes)
            # The copies came after everything else.
            self.context.progress.clear()

    def duplicate(self, source: Buffer) -> Buffer:
        """Return a buffer with the same bytes in memory of its own, also from another GPU."""
        if source.device is self or not isinstance(source.device, CudaDevice):
            return super().duplicate(source)
        fresh = self.allocate(source.nbytes)
        self.copy_peer(fresh, source)
        return fresh

    def copy_peer(self, target: Buffer, source: Buffer) -> None:
        """Copy all of `source`, on another GPU, to `target` here; both devices keep their order."""
        other = self._peer_of(target, source)
        other._check()
        if not source.nbytes:
            return
        check_buffer(source, other, 0, False, "the source of a copy")
        check_buffer(target, self, 0, True, "the target of a copy")
        first, second = sorted((self, other), key=id)
        with first._lock, second._lock, self._current():
            self._meet(other)
            stream = self.context.stream
            with other._event() as written:
                self.driver.call("cuStreamWaitEvent", stream, written, 0)
            self.driver.call(
                "cuMemcpyPeerAsync", target.address, self.context.handle, source.address,
                other.context.handle, source.nbytes, stream,
            )  # fmt: skip
            self.context.progress.mark((("a copy between GPUs", ""),))
            # The source may be written again only after it was read.
            with self._event() as done:
                other.driver.call("cuStreamWaitEvent", other.context.stream, done, 0)

    def _meet(self, other: CudaDevice) -> None:
        """Let the two GPUs reach each other's memory directly where they can."""
        for one, two in ((self, other), (other, self)):
            number = two.context.device
            if number == one.context.device or number in one._peers:
                continue
            with one._current():
                can = one.driver.integer("cuDeviceCanAccessPeer", one.context.device, number)
                if can:
                    name = "cuCtxEnablePeerAccess"
                    code = one.driver.functions[name](two.context.handle, 0)
                    if code not in (abi.SUCCESS, abi.PEER_ACCESS_ALREADY_ENABLED):
                        raise one.driver.error(name, code)
                one._peers.add(number)

    @contextmanager
    def _event(self) -> Iterator[int]:
        """An event of what the stream has by now, for the block; whoever waits for it goes on."""
        with self._current():
            event = self.driver.handle("cuEventCreate", abi.EVENT_DISABLE_TIMING)
            try:
                self.driver.call("cuEventRecord", event, self.context.stream)
                yield event
            finally:
                self.context.release("cuEventDestroy_v2", event)

    # Programs.

    def load(self, program: Program) -> Kernel:
        """Return the program on the GPU; raise CompileError if its code is broken or not for it."""
        if program.kind != CUBIN or program.launch is None:
            raise CompileError(
                f"the program {program.name!r} is not for {self.name}",
                found=program.kind, wanted=f"{CUBIN} with a launch",
            )  # fmt: skip
        with self._current():
            loaded = self._code.load(program)
        return Kernel(self, program, loaded.function, loaded)

    # Command lists.

    def submit(
        self,
        commands: CommandList,
        buffers: Sequence[Buffer] = (),
        variables: Mapping[str, int] | None = None,
        *,
        timed: bool = False,
    ) -> Timeline | None:
        """Enqueue a command list; does not wait for it unless `timed`."""
        start = self._runner.start_timed if timed else self._runner.start
        started = self._start(start, commands, buffers, variables)
        return None if started is None else started.timeline()

    def start_timed(
        self,
        commands: CommandList,
        buffers: Sequence[Buffer] = (),
        variables: Mapping[str, int] | None = None,
        *,
        whole: bool = False,
    ) -> StartedList:
        """Enqueue a command list with events between its steps.

        With `whole`, between two events alone, once it was timed as a graph.
        """
        start = self._runner.start_timed_whole if whole else self._runner.start_timed
        started = self._start(start, commands, buffers, variables)
        assert started is not None
        return started

    def _start(
        self,
        start: Callable[[CudaBoundList], StartedList | None],
        commands: CommandList,
        buffers: Sequence[Buffer],
        variables: Mapping[str, int] | None,
    ) -> StartedList | None:
        if commands.device is not self:
            raise DeviceError("the command list is for another device", found=commands.device.name)
        with self._lock:
            self._check()
            bound = commands.bound
            if not isinstance(bound, CudaBoundList):
                bound = commands.bound = CudaBoundList(commands, self._code.dead_graphs)
            bound.prepare(buffers, variables or {})
            # What `_current` does, without its cost.
            self.context.entered()
            try:
                return start(bound)
            finally:
                self.context.left()

    def synchronize(self) -> None:
        """Wait until all submitted work is done; raise for its faults."""
        with self._lock:
            self._check()
            if self.context.soon_idle():
                return
            with self._entered():
                self.context.synchronize()

    # The end.

    def close(self) -> None:
        """Wait for the work, then free all; buffers that still live are gone with the device."""
        if self._closed:
            return
        with self._lock:
            self._closed = True
            leave_process(self)
            first: Exception | None = None
            try:
                if not self.context.lost:
                    with self._entered():
                        self.context.synchronize()
            except Exception as error:  # noqa: BLE001  all must be freed all the same
                first = error
            try:
                self.context.close()
            except Exception as error:
                if first is None:
                    raise
                first.add_note(f"and then, while closing: {error}")
            if first is not None:
                raise first

    def __del__(self) -> None:
        # A device that is merely forgotten must not keep the GPU's memory.
        if not self.__dict__.get("_closed", True):
            with contextlib.suppress(BaregradError):
                self.close()

    def _check(self) -> None:
        if self._closed:
            raise DeviceError(f"the device {self.name} is closed")
        self.context.check()

    @contextmanager
    def _current(self) -> Iterator[None]:
        """Hold the device and have its context current; raise if it is closed or lost."""
        with self._lock:
            self._check()
            with self._entered():
                yield

    @contextmanager
    def _entered(self) -> Iterator[None]:
        self.context.entered()
        try:
            yield
        finally:
            self.context.left()

    def after_fork(self) -> None:
        """In a forked child nothing of CUDA works: refuse to be used, and call nothing."""
        self._lock = threading.RLock()
        self.context.abandon()
        self.allocator.abandon()
        self._code.abandon()
