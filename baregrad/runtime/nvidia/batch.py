"""Batches: launches, and whatever else a channel is to do, handed to the GPU in one piece.

Launches that follow each other directly form a chain: each descriptor names the next, so that the
GPU goes on by itself when one is done. The last of a chain opens a gate at which the channel waits,
so that what follows, the channel's timeline first of all, comes after the whole chain.
"""

from __future__ import annotations

from dataclasses import dataclass

from baregrad.base.errors import ArgumentError
from baregrad.runtime.nvidia.abi import methods as m
from baregrad.runtime.nvidia.channel import Channel
from baregrad.runtime.nvidia.descriptor_fields import DescriptorLayout
from baregrad.runtime.nvidia.launch_descriptor import Launch, Release, encode, patch
from baregrad.runtime.nvidia.launch_memory import LaunchMemory, Place
from baregrad.runtime.nvidia.pushbuffer import COMPUTE_SUBCHANNEL, PushBuffer


class LaunchForm:
    """A launch but for what differs each time: where it lies, its parameters, what comes next.

    `local_nbytes` is what one thread needs of local memory, 0 for nothing.
    """

    def __init__(
        self, name: str, launch: Launch, layout: DescriptorLayout, bank: bytes, local_nbytes: int
    ) -> None:
        self.name = name
        self.layout = layout
        self.bank = bank
        self.local_nbytes = local_nbytes
        self._launch = launch
        self._encoded: dict[int, bytes] = {}

    def descriptor(self, local_nbytes: int) -> bytearray:
        """Return the descriptor, where every thread of the channel has so much local memory."""
        found = self._encoded.get(local_nbytes)
        if found is None:
            launch = self._launch.with_local(local_nbytes)
            found = self._encoded[local_nbytes] = bytes(encode(launch, self.layout))
        return bytearray(found)


@dataclass(slots=True)
class _Item:
    """One launch of a batch."""

    form: LaunchForm
    place: Place
    next_address: int = 0
    releases: tuple[Release, ...] = ()


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
        self._items: list[_Item] = []
        self._open: list[_Item] = []
        self._running = False
        self._submitted = False

    def methods(self, subchannel: int, first: m.Method, *data: int) -> None:
        """Write `data` to methods that follow each other, after all launches so far began."""
        self._end_chain()
        super().methods(subchannel, first, *data)

    def place(self, form: LaunchForm) -> tuple[Place, int]:
        """Return a place for a launch, and the address that its bank is going to have."""
        place = self._memory.take(form.layout.nbytes_apart + len(form.bank), self)
        return place, place.gpu_va + form.layout.nbytes_apart

    def launch(self, form: LaunchForm, place: Place, bank: bytearray) -> None:
        """Launch a kernel after all that was written down before is done."""
        place.write(bank, form.layout.nbytes_apart)
        item = _Item(form, place)
        if self._open and self._chained:
            self._open[-1].next_address = place.gpu_va
        else:
            self._end_chain()
            if self._running:
                super().methods(COMPUTE_SUBCHANNEL, m.COMPUTE["WAIT_FOR_IDLE"], 0)
            self._send(place.gpu_va)
        self._open.append(item)
        self._items.append(item)
        self.names.append(form.name)

    def _send(self, address: int) -> None:
        """Hand the head of a chain to the GPU."""
        super().methods(COMPUTE_SUBCHANNEL, m.COMPUTE["SEND_PCAS_A"], address >> 8)
        if self.channel.gpu.generation.launch_by_action:
            method = m.COMPUTE["SEND_SIGNALING_PCAS2_B"]
            word = method.word(PCAS_ACTION=m.PCAS_INVALIDATE_COPY_SCHEDULE)
        else:
            method = m.COMPUTE["SEND_SIGNALING_PCAS_B"]
            word = method.word(INVALIDATE=1, SCHEDULE=1)
        super().methods(COMPUTE_SUBCHANNEL, method, word)

    def _end_chain(self) -> None:
        """Hold the channel until the open chain is done, if it is one of several."""
        chain, self._open = self._open, []
        if len(chain) == 1:
            self._running = True
        elif chain:
            address, value = self._memory.gate()
            chain[-1].releases = (Release(address, value),)
            self.acquire(address, value)
            self._running = False

    def submit(self) -> int:
        """Hand the batch to the GPU, once; return the timeline's value when it is done."""
        if self._submitted:
            raise ArgumentError("a batch is submitted once")
        self._submitted = True
        self._end_chain()
        blocks = {item.place.block for item in self._items}
        if self._items:
            self._memory.grow(max(item.form.local_nbytes for item in self._items))
            self._write()
            head = PushBuffer()
            if any(block.recycled for block in blocks):
                head.methods(COMPUTE_SUBCHANNEL, m.COMPUTE["INVALIDATE_SKED_CACHES"], 0)
            head.invalidate_caches()
            self.words[:0] = head.words
        value = self.channel.submit(self)
        for block in blocks:
            block.value = value
            block.holders.discard(self)
        return value

    def _write(self) -> None:
        local_nbytes = self._memory.thread_nbytes
        for item in self._items:
            form = item.form
            data = form.descriptor(local_nbytes)
            patch(
                data, form.layout,
                bank_address=item.place.gpu_va + form.layout.nbytes_apart,
                next_address=item.next_address,
                releases=item.releases,
            )  # fmt: skip
            item.place.write(data)
