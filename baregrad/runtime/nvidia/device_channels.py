"""The channels of a device, replaced after a fault, and the lists that are bound to them."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from baregrad.base.errors import BaregradError, DeviceError, DriverError
from baregrad.runtime.nvidia.channel_pair import open_channels
from baregrad.runtime.nvidia.driver.doorbell import RingPair
from baregrad.runtime.nvidia.fault_report import report
from baregrad.runtime.nvidia.lists.command_list import NvBoundList
from baregrad.runtime.nvidia.queue.channel import Channel
from baregrad.runtime.nvidia.queue.pushbuffer import PushBuffer

if TYPE_CHECKING:
    from baregrad.runtime.nvidia.driver.objects import Gpu
    from baregrad.runtime.nvidia.lists.launch import GpuModule
    from baregrad.runtime.nvidia.lists.list_image import ListImage


class DeviceChannels:
    """The channels of the device `name`; new ones are made by whoever needs them after a fault.

    `engine` is the copy engine, as for `open_channels`; `timeout_s` is how long the GPU may take
    for one kernel; `nearest_to` says which buffer lies at an address, for reports of faults.
    """

    def __init__(
        self,
        name: str,
        gpu: Gpu,
        engine: int | None,
        timeout_s: float,
        nearest_to: Callable[[int], str],
    ) -> None:
        self._name = name
        self._gpu = gpu
        self._engine = engine
        self.timeout_s = timeout_s
        self._nearest_to = nearest_to
        # The report of a fault after which there are no new channels yet.
        self.broken = ""
        # Why there cannot be new ones.
        self.lost: str | None = None
        # New code was loaded, of which the GPU may have something else in its caches.
        self.code_is_new = False
        self.bound: weakref.WeakSet[NvBoundList] = weakref.WeakSet()
        # What was loaded.
        self.modules: weakref.WeakSet[GpuModule] = weakref.WeakSet()
        self._open(0, 0)

    def _open(self, value: int, copy_value: int) -> None:
        """Make the channels, whose timelines begin at values."""
        self.pair, self._engine = open_channels(self._gpu, self._engine, value, copy_value)
        self.compute, self.copies = self.pair
        self._alarms = tuple(channel.alarm for channel in self.pair)
        self.in_flight = tuple(channel.in_flight for channel in self.pair)
        self._rings = RingPair(*(ctypes.addressof(channel.ring_state) for channel in self.pair))
        # For the port's `spin`.
        self.rings_address = ctypes.addressof(self._rings)
        port = self._gpu.client.port
        self.go, self.spin = port.go, port.spin

    # Work.

    @property
    def alarmed(self) -> bool:
        """Whether the driver has reported an error."""
        return bool(self._alarms[0][0] or self._alarms[1][0])

    def went(self, image: ListImage, value: int) -> None:
        """Write down that an image was submitted by its ticket."""
        image.value = value
        self.compute.note(value, image)
        for block in image.blocks:
            block.compute_value = value

    def settle(self) -> None:
        """Have the channel drop old code, and wait for copies and for kernels that it left."""
        compute, copies = self.pair
        push = PushBuffer()
        # Of a list that copies too: its kernels may come before its first copy.
        if copies.last_value > copies.timeline.value:
            push.acquire(copies.timeline.gpu_va, copies.last_value)
        if self.code_is_new:
            push.wait_idle()
            push.invalidate_caches()
        self.code_is_new = False
        if push.words:
            compute.submit(push)

    def grow_stacks(self, nbytes: int) -> None:
        """Have at least so much local memory for each thread: all lists are written anew."""
        launches = self.compute.launches
        assert launches is not None
        if nbytes > launches.thread_nbytes:
            self.guarded(lambda: launches.grow(nbytes))
            self._forget_images()

    def _forget_images(self) -> None:
        for bound in self.bound:
            bound.forget()

    # Waiting.

    def wait(self, channel: Channel, value: int) -> None:
        """Wait for a timeline, or raise DriverError and leave the channel for dead."""
        self.pair.wait_for(channel, value, self.timeout_s)

    def watch(self, channel: Channel, progress: Callable[[], int]) -> Callable[[], None]:
        """Return what looks for faults while a channel is waited for, and leaves it for dead."""
        return self.pair.watcher(channel, self.timeout_s, progress)

    def wait_quietly(self) -> None:
        """Wait until nothing runs; what went wrong is raised to whoever asks next."""
        self.pair.wait_quietly(self.timeout_s)

    # Faults.

    def guarded(self, action: Callable[[], Any]) -> Any:
        """Do what may meet a dead channel."""
        try:
            return action()
        except DriverError as error:
            raise self.failed(error) from None

    def failed(self, error: DriverError) -> DriverError:
        """Return what to raise for a fault; new channels are made by whoever needs them next.

        For the driver may take seconds to get rid of a kernel that does not end.
        """
        if not self.pair.is_dead or self.broken:
            return error
        found = report(self._name, self.pair, self.timeout_s, self._nearest_to)
        self.broken = found.message
        return found

    def begin(self) -> None:
        """Replace broken channels; raise what the driver has reported of those that there are."""
        if self.broken:
            self._mend()
        if self.alarmed:
            self.guarded(self.pair.look)

    def check(self) -> None:
        """Raise DeviceError if there are no channels and will be none."""
        if self.lost is not None:
            raise DeviceError(f"the device {self._name} is lost", found=self.lost)

    def _mend(self) -> None:
        """Go on with new channels after a fault; raise DeviceError if that cannot be."""
        fault, self.broken = self.broken, ""
        try:
            self._recover()
        except BaregradError as error:
            self.broken = fault
            self.lost = f"{fault}; and then no new channels: {error}"
            self.check()

    def _recover(self) -> None:
        """Replace the channels; memory and code stay, with variables of kernels as they began."""
        values = self.compute.last_value, self.copies.last_value
        for channel in self.pair:
            channel.group.dead = channel.group.dead or "another channel of the device failed"
        # A dead group is not waited for.
        for group in {id(channel.group): channel.group for channel in self.pair}.values():
            group.close()
        for module in self.modules:
            module.reset_variables()
        launches = self.compute.launches
        stacks = 0 if launches is None else launches.thread_nbytes
        self._forget_images()
        self.code_is_new = True
        self._open(*values)
        launches = self.compute.launches
        assert launches is not None
        launches.grow(stacks)
