"""An NVIDIA GPU as a device, by the kernel driver alone."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from baregrad.base.bits import human_bytes
from baregrad.base.errors import BaregradError, CompileError, DeviceError, DriverError
from baregrad.base.options import options
from baregrad.program import CUBIN, Program
from baregrad.runtime.buffers import Buffer, MemoryStats, flat_bytes
from baregrad.runtime.commands import CommandList, Kernel, StartedList, Timeline
from baregrad.runtime.interface import Device
from baregrad.runtime.lifetime import follow_process, leave_process
from baregrad.runtime.nvidia.channel_pair import ChannelPair
from baregrad.runtime.nvidia.code.descriptor_fields import descriptor_layout
from baregrad.runtime.nvidia.copies.host_copies import HostCopies
from baregrad.runtime.nvidia.copies.peers import PeerAccess, copy_between
from baregrad.runtime.nvidia.device_channels import DeviceChannels
from baregrad.runtime.nvidia.driver.device_memory import DeviceAllocator, MemoryBlock
from baregrad.runtime.nvidia.driver.memory import Allocation
from baregrad.runtime.nvidia.driver.objects import Gpu
from baregrad.runtime.nvidia.driver.process_client import CONNECTIONS
from baregrad.runtime.nvidia.fault_report import nearest
from baregrad.runtime.nvidia.lists.command_list import NvBoundList, check_parameters
from baregrad.runtime.nvidia.lists.launch import GpuKernel, GpuModule
from baregrad.runtime.nvidia.lists.list_image import ListImage
from baregrad.runtime.nvidia.lists.list_style import ListStyle, style_of
from baregrad.runtime.nvidia.queue.channel import Channel
from baregrad.runtime.nvidia.queue.pushbuffer import PushBuffer
from baregrad.runtime.teardown import Teardown

if TYPE_CHECKING:
    from baregrad.runtime.buffers import Contiguous
    from baregrad.runtime.nvidia.driver.port import Port

T = TypeVar("T")
_WRITE_NBYTES = 4096
_READ_NBYTES = 64
# Of all buffers of a list in one step of the interpreter: replays wait for it.
_serial_of, _value_of = map(attrgetter, ("serial", "value"))
# So often a list is looked at that is in flight before it is waited for in another way: some 20 us.
_SOON = range(200)


class Returns(deque[T]):
    """What nobody refers to any more, for the device to free; nothing is taken in once it is shut.

    Finalizers hold on to it for as long as what they wait for lives, and that may be in here.
    """

    shut = False

    def append(self, one: T) -> None:
        """Take something in."""
        if not self.shut:
            super().append(one)

    def close(self) -> None:
        """Forget all, now and later: closing the device frees it anyway."""
        self.shut = True
        self.clear()


@dataclass(eq=False, slots=True)
class LoadedKernel:
    """What a kernel of the device refers to: its module, and the kernel in it."""

    module: GpuModule
    kernel: GpuKernel
    local_nbytes: int


class NvDevice(Device):
    """Runs programs of kind "cubin" on one GPU of this machine.

    `index` counts the GPUs that this process may open. Work is submitted without waiting for it;
    `timeout_s` is how long the GPU may take for one kernel (None: the option). `copy_engine` is the
    copy engine to use: a number, None for the best by what the driver says, -1 for the graphics
    engine's.
    """

    allocator: DeviceAllocator
    overlaps = True

    def __init__(
        self,
        name: str = "NV",
        *,
        index: int = 0,
        port: Port | None = None,
        timeout_s: float | None = None,
        style: ListStyle | None = None,
        copy_engine: int | None = None,
    ) -> None:
        self.name = name
        self.index = index
        self.host_visible = False
        self.style = style or style_of(options.nv_style)
        self._lock = threading.RLock()
        self._closed = False
        self._process = os.getpid()
        self._returned: Returns[ListImage | GpuModule | Allocation] = Returns()
        self._retired: list[tuple[int, int, ListImage | GpuModule | Allocation]] = []
        # Something keeps submissions from going on as usual: closed, forked, things to free.
        self._attention = False
        self.client = CONNECTIONS.take(port, index)
        self.peers: dict[bytes, PeerAccess] = {}
        try:
            self.gpu = Gpu(self.client, index)
            version = self.gpu.sm_version
            self.architecture = architecture_name(version)
            timeout_s = options.nv_timeout if timeout_s is None else timeout_s
            self.work = work = DeviceChannels(
                name, self.gpu, copy_engine, timeout_s,
                lambda address: nearest(self.allocator.live_blocks(), address),
            )  # fmt: skip
            self.allocator = DeviceAllocator(
                self.gpu.memory, name, work.wait_quietly,
                lambda: _other_nbytes(self.gpu),
            )
            self.staging = HostCopies(self.gpu, lambda: work.copies, work.wait, work.watch)
        except BaseException as error:
            self._give_back(error)
            raise
        follow_process(self)

    # Memory.

    def allocate(self, nbytes: int) -> Buffer:
        """Return a buffer of `nbytes` bytes, aligned to 256, with any content."""
        if nbytes < 0:
            raise DeviceError("a buffer cannot have a negative size", found=nbytes)
        self._check_open()
        memory = self.allocator.allocate(nbytes)
        buffer, block = Buffer(self, memory, 0, nbytes), memory.block
        # As large as the last buffer there: whoever checked that one knows this one.
        if block.buffer_nbytes == nbytes:
            buffer.serial = block.buffer_serial
        else:
            block.buffer_nbytes, block.buffer_serial = nbytes, buffer.serial
        return buffer

    def memory_stats(self) -> MemoryStats:
        """Return how much memory is in use; code and command lists are not counted."""
        return self.allocator.stats()

    def pinned(self, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return host memory that the GPU copies from and to at its full rate, as bytes.

        It is freed when no array refers to it any more.
        """
        with self._lock:
            self._check_open()
            allocation = self.gpu.memory.host(nbytes)
            array = self.staging.pin(allocation)
        weakref.finalize(array, self._returned.append, allocation).atexit = False
        return array[:nbytes]

    def copy_in(self, buffer: Buffer, data: Contiguous) -> None:
        """Copy host bytes, as many as the buffer has, into it; they may change afterwards."""
        if buffer.readonly:
            raise DeviceError(
                "the buffer is read-only", hint="copy it to a buffer of the device first"
            )
        source = flat_bytes(data)
        self._check_transfer(buffer, source.nbytes)
        if not source.nbytes:
            return
        block: MemoryBlock = buffer.memory.block  # type: ignore[attr-defined]
        with self._lock:
            self._begin()
            compute, used = self.work.compute, self._used(block)
            behind = used > compute.timeline.value
            done = not behind and block.copy_value <= self.work.copies.timeline.value
            if source.nbytes <= _WRITE_NBYTES and block.host is not None and done:
                place = buffer.address - block.address
                block.host[place : place + source.nbytes] = source.data
                return
            after = (compute.timeline.gpu_va, used)
            block.copy_value = self.work.guarded(
                lambda: self.staging.copy_in(buffer.address, source, after if behind else None)
            )

    def copy_out(self, buffer: Buffer, data: bytearray | memoryview | np.ndarray[Any, Any]) -> None:
        """Copy the buffer's bytes to host memory of the same size, after all that writes them."""
        target = flat_bytes(data)
        if not target.flags.writeable:
            raise DeviceError("copy_out needs memory that can be written", found="read-only memory")
        self._check_transfer(buffer, target.nbytes)
        if not target.nbytes:
            return
        block: MemoryBlock = buffer.memory.block  # type: ignore[attr-defined]
        with self._lock:
            self._begin()
            used = self._used(block)
            if target.nbytes <= _READ_NBYTES and block.host is not None:
                self._wait_for(self.work.compute, used)
                self._wait_for(self.work.copies, block.copy_value)
                place = buffer.address - block.address
                target[:] = np.frombuffer(block.host[place : place + target.nbytes], np.uint8)
                return
            after = (self.work.compute.timeline.gpu_va, used)
            behind = used > self.work.compute.timeline.value
            self.work.guarded(
                lambda: self.staging.copy_out(target, buffer.address, after if behind else None)
            )

    def duplicate(self, source: Buffer) -> Buffer:
        """Return a buffer with the same bytes in memory of its own, also from another GPU."""
        if source.device is self and self.copier is not None and self.copier(source.nbytes):
            return super().duplicate(source)
        fresh = self.allocate(source.nbytes)
        if not source.nbytes:
            return fresh
        if source.device is self:
            push = PushBuffer()
            push.copy(fresh.address, source.address, source.nbytes)
            blocks = [one.memory.block for one in (source, fresh)]  # type: ignore[attr-defined]
            self.copy_after(push, *blocks)
        elif isinstance(source.device, NvDevice):
            self.copy_peer(fresh, source)
        else:
            self.copy_in(fresh, source.contents())
        return fresh

    def copy_peer(self, target: Buffer, source: Buffer) -> None:
        """Copy all of `source`, on another GPU, to `target` here; done when this returns."""
        copy_between(self, self._peer_of(target, source), target, source)

    def wait_for_block(self, block: MemoryBlock) -> None:
        """Wait until no work uses a block."""
        with self._lock:
            self._begin()
            self._wait_for(self.work.compute, self._used(block))
            self._wait_for(self.work.copies, block.copy_value)

    def copy_after(self, work: PushBuffer, *blocks: MemoryBlock, nbytes: int = 0) -> None:
        """Have the copying channel do work after all that uses these blocks.

        Waits for it where it is said how many bytes it copies.
        """
        with self._lock:
            self._begin()
            compute, copies = self.work.pair
            used = max(self._used(block) for block in blocks)
            push = PushBuffer()
            if used > compute.timeline.value:
                push.acquire(compute.timeline.gpu_va, used)
            push.words += work.words
            value = self.work.guarded(lambda: copies.submit(push))
            for block in blocks:
                block.copy_value = value
            if nbytes:
                self.staging.look(copies, value, nbytes)
                self._wait_for(copies, value)

    def _used(self, block: MemoryBlock) -> int:
        """Return the value of the computing timeline when work with the block is done."""
        return self.work.compute.last_value if block.fixed else block.compute_value

    @property
    def channels(self) -> ChannelPair:
        """The channel that computes and the one that copies."""
        return self.work.pair

    # Programs.

    def load(self, program: Program) -> Kernel:
        """Return the program in the GPU's memory; raise CompileError if its code is broken."""
        if program.kind != CUBIN or program.launch is None:
            raise CompileError(
                f"the program {program.name!r} is not for {self.name}",
                found=program.kind,
                wanted=f"{CUBIN} with a launch",
                source=program.source,
            )
        with self._lock:
            self._begin()
            module = GpuModule(self.gpu, program.code)
            try:
                kernel = module.kernel(program.entry)
                check_parameters(program, kernel.facts)
                local_nbytes = kernel.local_nbytes
            except BaseException:
                module.close()
                raise
            self.work.code_is_new = True
            self.work.modules.add(module)
        handle = LoadedKernel(module, kernel, local_nbytes)
        made = Kernel(self, program, kernel.address, handle)
        weakref.finalize(made, self._returned.append, module).atexit = False
        return made

    # Work.

    def submit(
        self,
        commands: CommandList,
        buffers: Sequence[Buffer] = (),
        variables: Mapping[str, int] | None = None,
        *,
        timed: bool = False,
    ) -> Timeline | None:
        """Start a command list; with `timed`, wait for it too."""
        with self._lock:
            bound, work = commands.bound, self.work
            images: Sequence[ListImage] = ()
            if (
                bound.__class__ is NvBoundList
                and bound.device is self
                and not (timed or variables or self._attention or self._returned)
                and not (work.code_is_new or work.broken)
            ):
                # For buffers that images are patched for: all that was checked then holds still.
                # This is the way that programs wait for; what is written down comes after it.
                images = bound.quick.get(tuple(map(_serial_of, buffers)), ())
                for image in images:
                    if value := work.go(image.ticket):
                        work.went(image, value)
                        return None
                if len(images) >= bound.most_alike:
                    # All are in flight: the one that was submitted first is done first.
                    image = min(images, key=_value_of)
                    for _ in _SOON:
                        if value := work.go(image.ticket):
                            work.went(image, value)
                            return None
            image, bound = self._start(
                commands, buffers, variables, timed=timed, another=bool(images)
            )
            if not timed:
                return None
            self._wait_for(work.compute, image.value)
            return Timeline(bound.labels, *image.times())

    def start_timed(
        self,
        commands: CommandList,
        buffers: Sequence[Buffer] = (),
        variables: Mapping[str, int] | None = None,
        *,
        whole: bool = False,
    ) -> StartedList:
        """Start a command list that overlaps as ever, and have it note its times.

        Times of each command cost no more than that of the `whole`. GPUs whose launches write no
        wide times (Turing's) run it serially, and it is awaited.
        """
        layout = descriptor_layout(self.gpu.generation.launch_descriptor[0])
        if "release_wide" not in layout.fields:
            return super().start_timed(commands, buffers, variables)
        with self._lock:
            image, bound = self._start(commands, buffers, variables, stamped=True)
            return _StartedImage(self, image, bound.labels)

    def clock_ns(self) -> int:
        """Return the GPU's time in nanoseconds, which its stamps have."""
        return self.gpu.timer_ns()

    def _start(
        self,
        commands: CommandList,
        buffers: Sequence[Buffer],
        variables: Mapping[str, int] | None,
        *,
        timed: bool = False,
        stamped: bool = False,
        another: bool = False,
    ) -> tuple[ListImage, NvBoundList]:
        """Start a command list; return the image that is in flight, `another` one if it may be."""
        if commands.device is not self:
            raise DeviceError("the command list is for another device", found=commands.device.name)
        work = self.work
        if self._attention or self._returned or work.broken or work.alarmed:
            self._begin()
        bound = commands.bound
        if not isinstance(bound, NvBoundList):
            bound = NvBoundList(commands, self.style, self._returned.append)
            for block in bound.fixed:
                block.fixed = True
            work.grow_stacks(bound.local_nbytes)
            work.bound.add(bound)
            commands.bound = bound
        compute, copies = work.pair
        try:
            image, blocks = bound.ready(
                commands, buffers, variables or {}, work.pair, self._wait_for,
                timed=timed, stamped=stamped, another=another,
            )  # fmt: skip
            if work.code_is_new or copies.last_value > copies.words[0]:
                work.settle()
            value = compute.last_value + 1
            if image.copy_entry:
                image.set_values(value, copies.last_value + 1)
                copies.enter(image.copy_entry, ())
            else:
                image.set_values(value, 0)
            compute.enter(image.take_entry(), image)
        except DriverError as error:
            raise self.work.failed(error) from None
        for block in blocks:
            block.compute_value = value
        return image, bound

    def synchronize(self) -> None:
        """Wait until all submitted work is done; raise DriverError for what went wrong in it."""
        with self._lock:
            work = self.work
            if self._attention or work.broken:
                self._begin()
            if not work.spin(work.rings_address):
                for channel in work.pair:
                    self._wait_for(channel, channel.last_value)
            # Nothing is in flight any more, and nothing of it need be held on to.
            for in_flight in work.in_flight:
                in_flight.clear()

    def _wait_for(self, channel: Channel, value: int) -> None:
        """Wait for a timeline; raise a report of the fault if it never gets there."""
        if channel is self.work.copies:
            self.staging.look_for(value)
        self.work.guarded(lambda: self.work.wait(channel, value))

    # Faults.

    def _begin(self) -> None:
        """Check that the device works, and free what nobody needs."""
        self._check_open()
        self.work.begin()
        self._free_retired()

    def _check_open(self) -> None:
        if self._closed:
            raise DeviceError(f"the device {self.name} is closed")
        if os.getpid() != self._process:
            raise DeviceError(
                f"the device {self.name} belongs to the process that this one was forked from",
                hint="open devices after forking, or start processes with spawn",
            )
        self.work.check()

    # The end of things.

    def _free_retired(self) -> None:
        compute, copies = self.work.pair
        while self._returned:
            one = self._returned.popleft()
            self._retired.append((compute.last_value, copies.last_value, one))
        done, copied = compute.timeline.value, copies.timeline.value
        kept = []
        for item in self._retired:
            if item[0] <= done and item[1] <= copied:
                if isinstance(item[2], Allocation):
                    self.staging.unpin(item[2])
                item[2].close()
            else:
                kept.append(item)
        self._retired = kept
        self._attention = bool(kept)

    def close(self) -> None:
        """Wait for the GPU and free all that is held; buffers are gone then."""
        with self._lock:
            if self._closed:
                return
            self._closed = self._attention = True
            leave_process(self)
            self._returned.close()
            if os.getpid() != self._process:
                return
            self._give_back(None)

    def _give_back(self, error: BaseException | None) -> None:
        """Free all that is held, whatever happens at each part."""
        teardown = Teardown()
        teardown.push("the client", lambda: CONNECTIONS.give(self.client, self.index))
        gpu: Gpu | None = self.__dict__.get("gpu")
        if gpu is not None:
            teardown.push("the GPU", gpu.close)
        staging: HostCopies | None = self.__dict__.get("staging")
        if staging is not None:
            teardown.push("pinned memory", staging.close)
            # Copies that were not waited for still read it.
            teardown.push("idleness", self.work.wait_quietly)
        try:
            teardown.close()
        except BaregradError as second:
            if error is None:
                raise
            error.add_note(f"and then, while closing: {second}")

    def after_fork(self) -> None:
        """In a forked child the GPU is its parent's: refuse to be used, and call nothing."""
        self._lock = threading.RLock()
        self._attention = True
        self.allocator.after_fork()
        self.staging.after_fork()


def _other_nbytes(gpu: Gpu) -> dict[str, int]:
    """What a GPU's memory holds beside buffers, and how much of it is free."""
    found = {"code and command lists": gpu.pieces.nbytes}
    with contextlib.suppress(DriverError):
        total, free = gpu.memory_nbytes()
        found[f"{human_bytes(total)} free on the GPU"] = free
    return found


class _StartedImage(StartedList):
    """A list in flight whose image writes its times."""

    def __init__(self, device: NvDevice, image: ListImage, labels: tuple[str, ...]) -> None:
        self._device = device
        self._image = image
        self._labels = labels
        self._value, self._copy_value = image.value, image.copy_value
        self._times: Timeline | None = None
        image.asked = self._read

    def _read(self) -> None:
        self._times = Timeline(self._labels, *self._image.times())

    @property
    def is_done(self) -> bool:
        """Whether the GPU is done with the list."""
        compute, copies = self._device.work.pair
        done = compute.timeline.value >= self._value
        return self._times is not None or (done and copies.timeline.value >= self._copy_value)

    def timeline(self) -> Timeline:
        """Return when each command began and ended, by the GPU's clock; wait for that."""
        with self._device._lock:
            if self._times is None:
                compute, copies = self._device.work.pair
                self._device._wait_for(compute, self._value)
                self._device._wait_for(copies, self._copy_value)
                self._image.tell()
        assert self._times is not None
        return self._times


def architecture_name(version: int) -> str:
    """Return what compilers call an architecture: "sm_86", 9.0 and 10.x with its own features."""
    major, minor = version >> 8, version & 0xFF
    if version == 0xA04:
        major, minor = 12, 0
    return f"sm_{major}{minor}" + ("a" if major in (9, 10) else "")
