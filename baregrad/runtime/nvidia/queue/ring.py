"""Rings: what the host writes for a GPU to do, and how far the GPU has got."""

from __future__ import annotations

import ctypes
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from baregrad.base.bits import is_power_of_two
from baregrad.base.errors import ArgumentError, DriverError
from baregrad.runtime.nvidia.abi import methods as m
from baregrad.runtime.nvidia.abi.faults import fault_name
from baregrad.runtime.nvidia.driver.doorbell import RingState
from baregrad.runtime.nvidia.driver.memory import HUGE_PAGE_NBYTES
from baregrad.runtime.nvidia.queue.channel_group import ChannelGroup
from baregrad.runtime.nvidia.queue.pushbuffer import PushBuffer
from baregrad.runtime.nvidia.queue.timeline import DEFAULT_TIMEOUT_S, TimelineSemaphore
from baregrad.runtime.teardown import Teardown

# Where the ring's memory has the GPU's pointers into it.
USERD_OFFSET = 64 << 10
RING_ENTRIES = 1024
_PUSH_OFFSET = 128 << 10
# All that is left of a large page.
PUSH_NBYTES = HUGE_PAGE_NBYTES - _PUSH_OFFSET
# Of a notifier: the status of the error that it reports.
_ALARM_OFFSET = 14


class Named(Protocol):
    """What launches kernels of some names."""

    @property
    def names(self) -> list[str]:
        """The kernels."""
        ...


def _refuse(state: int, entry: int) -> None:
    raise DriverError("the channel is closed")


# What a submission holds until the timeline has its value: that value, the end of the words that
# are kept for it, and the kernels that it launches, or what has them.
_InFlight: TypeAlias = "tuple[int, int, Sequence[str] | Named]"
# Up to so many are left noted that may be done: to look costs the host time for each.
_NOTED = 16


class SubmissionRing:
    """Entries that the GPU reads, each of which names words for it to execute.

    Every submission ends with the next value of `timeline`, whether or not anybody waits for it:
    it says when the ring's entry and the words may be written over. `map` takes the memory, `open`
    begins; both are the channel's to call.
    """

    def __init__(
        self,
        group: ChannelGroup,
        *,
        entries: int = RING_ENTRIES,
        push_nbytes: int = PUSH_NBYTES,
        begin_at: int = 0,
    ) -> None:
        if not is_power_of_two(entries) or not 2 <= entries <= USERD_OFFSET // m.GP_ENTRY_NBYTES:
            raise ArgumentError("a ring has a power of two of entries", found=entries)
        if not 64 <= push_nbytes <= PUSH_NBYTES or push_nbytes % 4:
            raise ArgumentError("a pushbuffer of this size does not fit", found=push_nbytes)
        self.group = group
        self.gpu = group.gpu
        self.entries = entries
        self._push_nbytes = push_nbytes
        # What of the submissions may not be done yet; empty, if all are.
        self.in_flight: deque[_InFlight] = deque()
        self._head = self._tail = 0
        self.rung_again = 0
        self._most = entries - 1
        # The ring and the timeline as the port knows them.
        self.ring_state = RingState(mask=entries - 1, last=begin_at)
        self.teardown = Teardown()

    def map(self) -> None:
        """Take the memory; it is freed with `teardown`."""
        gpu, teardown = self.gpu, self.teardown
        self.memory = memory = gpu.memory.visible(HUGE_PAGE_NBYTES, owner=teardown)
        self.timeline = TimelineSemaphore(gpu, owner=teardown, begin_at=self.last_value)
        self.words = self.timeline.words
        self.notifier = page = gpu.memory.driver_page(owner=teardown)
        self._notifier = page.view
        # Not zero once the driver has reported an error.
        self.alarm = page.view[_ALARM_OFFSET : _ALARM_OFFSET + 2].cast("H")
        release = PushBuffer()
        release.release(self.timeline.gpu_va, 0)
        self._release = release.words
        view = memory.view
        self._userd = view[USERD_OFFSET : USERD_OFFSET + m.USERD_NBYTES].cast("I")
        self._push = view[_PUSH_OFFSET : _PUSH_OFFSET + self._push_nbytes].cast("I")
        state = self.ring_state
        state.ring = memory.host_address
        state.put_address = memory.host_address + USERD_OFFSET + m.USERD_GP_PUT
        state.doorbell_address = gpu.doorbell_address
        state.timeline_address = self.timeline.host_address
        state.alarm_address = page.host_address + _ALARM_OFFSET
        self._ring_state = ctypes.addressof(state)
        self._push_va = memory.gpu_va + _PUSH_OFFSET
        view[USERD_OFFSET : USERD_OFFSET + m.USERD_NBYTES] = bytes(m.USERD_NBYTES)
        teardown.push("views of the ring", self._release_views)

    def open(self, token: int) -> None:
        """Take submissions from now on, with the token that rings the doorbell."""
        self.ring_state.token = token
        self.ring: Callable[[int, int], None] = self.gpu.client.port.ring
        self.ring_state.open = 1

    def _release_views(self) -> None:
        # All of this is used by its address: nobody may do so any more.
        self.ring = _refuse
        self.ring_state.open = 0
        for view in (self._userd, self._push, self._notifier, self.alarm):
            view.release()

    @property
    def last_value(self) -> int:
        """What the timeline has when all submissions so far are done."""
        return int(self.ring_state.last)

    @last_value.setter
    def last_value(self, value: int) -> None:
        self.ring_state.last = value

    def submit(self, push: PushBuffer) -> int:
        """Hand words to the GPU and return the value that the timeline has when they are done.

        Waits where the ring or the buffer of words is full.
        """
        if self.group.dead is not None:
            raise DriverError("the channel is dead", found=self.group.dead)
        value = self.last_value + 1
        words = push.words + self._release
        words[-3:-1] = value & 0xFFFFFFFF, value >> 32
        place = self._reserve(4 * len(words))
        self._push[place // 4 : place // 4 + len(words)] = memoryview(array("I", words))
        while len(self.in_flight) >= self.entries - 1:
            self._retire()
        entry = self._push_va + place | len(words) << m.GP_ENTRY_LENGTH_SHIFT
        self.last_value = value
        self.in_flight.append((value, self._head, push.names))
        self.ring(self._ring_state, entry | m.GP_ENTRY_SUBROUTINE)
        return value

    def enter(self, entry: int, names: Sequence[str] | Named) -> None:
        """Submit words that lie in memory already and end with the release of the next value.

        `entry` is that of the ring; `names` are the kernels that the words launch.
        """
        in_flight = self.in_flight
        if len(in_flight) >= self._most:
            self.forget_done()
            while len(in_flight) >= self._most:
                self._retire()
        self.ring(self._ring_state, entry)
        # The GPU is at work while we write down what it does.
        self.last_value = value = self.last_value + 1
        self.note(value, names)

    def enter_part(self, entry: int) -> None:
        """Submit words that have no end of their own: `make_room` was called for them.

        What is submitted next ends them too.
        """
        self.ring(self._ring_state, entry)

    def make_room(self, entries: int) -> None:
        """Wait until `entries` entries of the ring are free beside those of all submissions."""
        while len(self.in_flight) + entries > self._most:
            self._retire()

    def note(self, value: int, names: Sequence[str] | Named) -> None:
        """Write down what was submitted by `enter`, or by the port's `go`."""
        in_flight = self.in_flight
        if len(in_flight) > _NOTED and in_flight[0][0] <= self.words[0]:
            self.forget_done()
        in_flight.append((value, self._head, names))

    def _reserve(self, nbytes: int) -> int:
        """Return where in the buffer of words `nbytes` bytes in one piece are free."""
        if nbytes > self._push_nbytes:
            raise ArgumentError(
                "the work does not fit into the pushbuffer",
                found=f"{nbytes} bytes",
                wanted=f"at most {self._push_nbytes}",
            )
        while True:
            if not self.in_flight:
                self._head = self._tail = 0
            place = self._head % self._push_nbytes
            skipped = self._push_nbytes - place if place + nbytes > self._push_nbytes else 0
            if self._head + skipped + nbytes - self._tail <= self._push_nbytes:
                self._head += skipped + nbytes
                return (place + skipped) % self._push_nbytes
            self._retire()

    def _retire(self) -> None:
        """Wait for the oldest submission and let go of what it held, and of others done by then."""
        self.wait(self.in_flight[0][0])
        self.forget_done()

    def forget_done(self) -> None:
        """Let go of what submissions hold that are done."""
        in_flight, done = self.in_flight, self.words[0]
        while in_flight and in_flight[0][0] <= done:
            self._tail = in_flight.popleft()[1]

    def wait(self, value: int | None = None, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Wait for a submission, the last one by default; raise DriverError if it never comes."""
        try:
            self.timeline.wait(self.last_value if value is None else value, timeout_s, self.check)
        except DriverError as error:
            if self.group.dead is None:
                error.message += self._blame()
                self.group.dead = str(error)
            raise

    @property
    def error_code(self) -> int:
        """The code of the error that the driver has reported, 0 for none."""
        if int.from_bytes(self._notifier[14:16], "little") != 0xFFFF:
            return 0
        return int.from_bytes(self._notifier[8:12], "little")

    def unfinished(self) -> Sequence[str] | Named:
        """Return what the first submission launches that is not done and launches anything."""
        done = self.timeline.value
        return next((names for value, _, names in self.in_flight if value > done and names), [])

    def check(self) -> None:
        """Raise DriverError if the driver has reported an error of this channel."""
        code = self.error_code
        if code:
            self.group.dead = f"{fault_name(code)}{self._blame()}"
            raise DriverError(
                f"the GPU stopped the channel{self._blame()}",
                found=fault_name(code),
                hint="the kernel log has the detail, as a line that begins with NVRM: Xid",
            )

    def _blame(self) -> str:
        """Say which kernels the first submission launched that is not done."""
        done = self.timeline.value
        running = next((names for value, _, names in self.in_flight if value > done), ())
        found = running if isinstance(running, Sequence) else running.names
        names = [repr(name) for name in dict.fromkeys(found)]
        if not names:
            return ""
        if len(names) == 1:
            return f" while it ran the kernel {names[0]}"
        more = ", ..." if len(names) > 4 else ""
        return f" while it ran one of the kernels {', '.join(names[:4])}{more}"

    def ring_again(self) -> None:
        """Ring the doorbell for what was submitted already, in case the GPU missed it."""
        if self.words[0] < self.last_value:
            self.rung_again += 1
            state = self.ring_state
            self.gpu.client.port.store(state.doorbell_address, state.token)

    @property
    def pointers(self) -> tuple[int, int]:
        """How far the GPU has read the ring, and how far it was written; the first may lag."""
        return self._userd[m.USERD_GP_GET // 4], self._userd[m.USERD_GP_PUT // 4]
