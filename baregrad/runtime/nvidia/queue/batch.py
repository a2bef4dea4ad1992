"""Batches: launches, and whatever else a channel is to do, handed to the GPU in one piece.

Launches that follow each other directly form a chain: each descriptor names the next, so that the
GPU goes on by itself when one is done. Behind a chain the channel waits for idleness, so that what
follows, the channel's timeline first of all, comes after the whole chain.
"""

from __future__ import annotations

from baregrad.base.errors import ArgumentError
from baregrad.runtime.nvidia.abi import methods as m
from baregrad.runtime.nvidia.code.descriptor_fields import DescriptorLayout
from baregrad.runtime.nvidia.code.launch_descriptor import (
    GridLaunch,
    encode,
    next_flags,
    progress_flags,
    write_local,
)
from baregrad.runtime.nvidia.queue.channel import Channel
from baregrad.runtime.nvidia.queue.launch_memory import LaunchMemory, LaunchPlace
from baregrad.runtime.nvidia.queue.pushbuffer import COMPUTE_SUBCHANNEL, PushBuffer

_BY_ACTION = m.COMPUTE["SEND_SIGNALING_PCAS2_B"].word(PCAS_ACTION=m.PCAS_INVALIDATE_COPY_SCHEDULE)
_BY_FLAGS = m.COMPUTE["SEND_SIGNALING_PCAS_B"].word(INVALIDATE=1, SCHEDULE=1)


def _forgetting(*, descriptors: bool) -> list[int]:
    """Return the words that begin every batch."""
    push = PushBuffer()
    if descriptors:
        push.methods(COMPUTE_SUBCHANNEL, m.COMPUTE["INVALIDATE_SKED_CACHES"], 0)
    push.invalidate_caches()
    return push.words


_FORGET = tuple(_forgetting(descriptors=False))
_FORGET_ALL = tuple(_forgetting(descriptors=True))


class LaunchForm:
    """A launch but for what differs each time: where it lies, its parameters, what comes next.

    The image is the descriptor, and behind it, from `bank_offset` on, constant bank 0.
    `local_nbytes` is what one thread needs of local memory, 0 for nothing.
    """

    def __init__(
        self,
        name: str,
        launch: GridLaunch,
        layout: DescriptorLayout,
        bank: bytes,
        local_nbytes: int,
    ) -> None:
        self.name = name
        self.layout = layout
        self.local_nbytes = local_nbytes
        self.bank_offset = layout.stride_nbytes
        self.nbytes = self.bank_offset + len(bank)
        self._bank = bank
        self.launch = launch
        self._images: dict[int, bytes] = {}
        self.bank_slot = layout.slot("bank_address")
        self.next_slot = layout.slot("next_address")
        self.next_flags = next_flags(layout)
        self.can_release = "release_wide" in layout.fields
        if self.can_release:
            self._progress_flags = progress_flags(layout)
            self._stamp_flags = progress_flags(layout, stamped=True)
            self._progress_address = layout.slot("release_address", 1)
            self._progress_value = layout.slot("release_payload", 1)

    def write_progress(
        self, data: bytearray, begin: int, address: int, value: int, *, stamped: bool = False
    ) -> None:
        """Have the launch at byte `begin` write a value when it is done, for whoever looks.

        With `stamped`, the GPU's time in nanoseconds follows it.
        """
        for offset, bits in self._stamp_flags if stamped else self._progress_flags:
            data[begin + offset] |= bits
        self._progress_address.fill(data, address, begin)
        self._progress_value.fill(data, value, begin)

    def follow(self, data: bytearray, begin: int, address: int) -> None:
        """Name the launch that follows the one at byte `begin`."""
        self.next_slot.fill(data, address, begin)
        for offset, bits in self.next_flags:
            data[begin + offset] |= bits

    def image(self, local_nbytes: int) -> bytearray:
        """Return the image where every thread of the channel has so much local memory."""
        found = self._images.get(local_nbytes)
        if found is None:
            data = encode(self.launch.with_local(local_nbytes), self.layout)
            data.extend(bytes(self.bank_offset - len(data)))
            found = self._images[local_nbytes] = bytes(data + self._bank)
        return bytearray(found)


class Item:
    """One launch of a batch: its image, and where that is going to lie."""

    __slots__ = ("bank_va", "data", "form", "local_nbytes", "place")

    def __init__(self, form: LaunchForm, place: LaunchPlace, local_nbytes: int) -> None:
        self.form = form
        self.place = place
        self.local_nbytes = local_nbytes
        self.data = form.image(local_nbytes)
        self.bank_va = place.gpu_va + form.bank_offset
        form.bank_slot.fill(self.data, self.bank_va)

    def follow(self, gpu_va: int) -> None:
        """Name the launch that follows this one."""
        self.form.follow(self.data, 0, gpu_va)

    def write(self, local_nbytes: int) -> None:
        """Put the image where the GPU reads it."""
        if self.local_nbytes != local_nbytes:
            write_local(self.data, local_nbytes, self.form.layout)
        self.place.write(self.data)


class Batch(PushBuffer):
    """Work for one computing channel, done in the order in which it is written down.

    With `chained` False, every launch goes through the channel, which waits between them.
    """

    def __init__(self, channel: Channel, *, chained: bool = True) -> None:
        super().__init__()
        if channel.launches is None:
            raise ArgumentError("the channel copies and does not compute")
        self.channel = channel
        self._memory: LaunchMemory = channel.launches
        self._chained = chained
        self._items: list[Item] = []
        self._open: list[Item] = []
        self._running = False
        self._submitted = False

    def methods(self, subchannel: int, first: m.Method, *data: int) -> None:
        """Write `data` to methods that follow each other, after all launches so far began."""
        self._end_chain()
        super().methods(subchannel, first, *data)

    def item(self, form: LaunchForm) -> Item:
        """Return a launch whose parameters are to be filled in, for `launch`."""
        return Item(form, self._memory.take(form.nbytes, self), self._memory.thread_nbytes)

    def launch(self, item: Item) -> None:
        """Launch a kernel after all that was written down before is done."""
        address = item.place.gpu_va
        if self._open and self._chained:
            self._open[-1].follow(address)
        else:
            self._end_chain()
            if self._running:
                self.wait_idle()
            self._send(address)
        self._open.append(item)
        self._items.append(item)
        self.names.append(item.form.name)

    def _send(self, address: int) -> None:
        """Hand the head of a chain to the GPU."""
        super().methods(COMPUTE_SUBCHANNEL, m.COMPUTE["SEND_PCAS_A"], address >> 8)
        if self.channel.gpu.generation.launch_by_action:
            super().methods(COMPUTE_SUBCHANNEL, m.COMPUTE["SEND_SIGNALING_PCAS2_B"], _BY_ACTION)
        else:
            super().methods(COMPUTE_SUBCHANNEL, m.COMPUTE["SEND_SIGNALING_PCAS_B"], _BY_FLAGS)

    def _end_chain(self) -> None:
        """Hold the channel until the open chain is done, if it is one of several."""
        chain, self._open = self._open, []
        if chain:
            self._running = len(chain) == 1
            if not self._running:
                self.wait_idle()

    def submit(self) -> int:
        """Hand the batch to the GPU, once; return the timeline's value when it is done."""
        if self._submitted:
            raise ArgumentError("a batch is submitted once")
        self._submitted = True
        self._end_chain()
        blocks = {item.place.block for item in self._items}
        if self._items:
            self._memory.grow(max(item.form.local_nbytes for item in self._items))
            local_nbytes = self._memory.thread_nbytes
            for item in self._items:
                item.write(local_nbytes)
            # Of recycled places, the unit that schedules may still have the old descriptors.
            recycled = any(block.recycled for block in blocks)
            self.words[:0] = _FORGET_ALL if recycled else _FORGET
        value = self.channel.submit(self)
        for block in blocks:
            block.value = value
            block.recycled = False
            block.holders.discard(self)
        return value
