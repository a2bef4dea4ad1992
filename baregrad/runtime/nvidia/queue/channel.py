"""Channels: rings of work that a GPU takes when its doorbell is rung, and timelines to wait on."""

from __future__ import annotations

import ctypes
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from baregrad.base.bits import is_power_of_two
from baregrad.base.errors import ArgumentError, DriverError
from baregrad.runtime.nvidia.abi import methods as m
from baregrad.runtime.nvidia.abi import numbers as nv
from baregrad.runtime.nvidia.abi.faults import fault_name
from baregrad.runtime.nvidia.driver.doorbell import RingState
from baregrad.runtime.nvidia.driver.memory import HUGE_PAGE_NBYTES
from baregrad.runtime.nvidia.driver.objects import Gpu
from baregrad.runtime.nvidia.driver.teardown import Teardown
from baregrad.runtime.nvidia.queue.launch_memory import LaunchMemory
from baregrad.runtime.nvidia.queue.pushbuffer import COMPUTE_SUBCHANNEL, COPY_SUBCHANNEL, PushBuffer

# Where shaders see shared and local memory: above all that memory.py hands out, in the 49 bits
# that the windows of every generation have.
SHARED_WINDOW = 0x7294_0000_0000
LOCAL_WINDOW = 0x7293_0000_0000

DEFAULT_TIMEOUT_S = 30.0
_CONTEXT_NBYTES = 64 << 20
_RING_ENTRIES = 1024
_USERD_OFFSET = 64 << 10
_PUSH_OFFSET = 128 << 10
# Of a notifier: the status of the error that it tells of.
_ALARM_OFFSET = 14
_NO_FAULT = "UNRECOGNIZED_FAULT"
_QUICK_LOOKS = range(500)
_SPIN_S = 200e-6
_CHECK_S = 0.005


class Timeline:
    """A number that only grows: the GPU writes it, the host and channels wait for it.

    16 bytes of pinned memory: the value, and the GPU's time in nanoseconds when it was written.
    """

    def __init__(self, gpu: Gpu, *, owner: Teardown | None = None, begin_at: int = 0) -> None:
        self._pause = gpu.client.port.pause
        self._memory = gpu.memory.pinned(16, owner=owner)
        self._words = self._memory.view[:16].cast("Q")
        self._words[0] = begin_at
        # For whoever polls: the value, and the time when it was written.
        self.words = self._words
        keeper = gpu.allocations if owner is None else owner
        keeper.push("the timeline's view", self._words.release)
        self.gpu_va = self._memory.gpu_va
        self.host_address = self._memory.host_address

    @property
    def value(self) -> int:
        """What the GPU wrote last."""
        return self._words[0]

    @property
    def time_ns(self) -> int:
        """When it wrote that, by its own clock."""
        return self._words[1]

    def wait(
        self,
        value: int,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        check: Callable[[], None] | None = None,
    ) -> None:
        """Wait until the value is reached; the time begins anew whenever the value moves.

        `check` is called every 5 ms and may raise what it finds. Raises DriverError.
        """
        words = self._words
        # As tight as it gets: whoever waits for one small kernel waits a few microseconds.
        for _ in _QUICK_LOOKS:
            if words[0] >= value:
                return
        now = time.perf_counter()
        spin_until, check_at, deadline = now + _SPIN_S, now + _CHECK_S, now + timeout_s
        seen = words[0]
        while (current := words[0]) < value:
            now = time.perf_counter()
            if current != seen:
                seen, deadline = current, now + timeout_s
            if now > check_at:
                check_at = now + _CHECK_S
                if check is not None:
                    check()
                if now > deadline:
                    raise DriverError(
                        f"the GPU made no progress for {timeout_s:g} s",
                        found=f"the timeline at {current}",
                        wanted=value,
                    )
            if now > spin_until:
                self._pause()

    def close(self) -> None:
        """Free the memory; no channel may use it any more."""
        self._words.release()
        self._memory.close()


class ChannelGroup:
    """Channels that the GPU schedules together, on one engine.

    `copy_engine` None is the graphics engine, which computes and copies; a number is that copy
    engine by itself, whose channels run beside the others. `why` says why it was chosen.
    """

    def __init__(self, gpu: Gpu, *, copy_engine: int | None = None, why: str = "") -> None:
        self.gpu = gpu
        self.why = why
        self.teardown = Teardown()
        self.channels: list[Channel] = []
        client = gpu.client
        self.engine = nv.NV2080_ENGINE_TYPE_GRAPHICS
        if copy_engine is not None:
            if not 0 <= copy_engine <= 9:
                raise ArgumentError("there is no such copy engine", found=copy_engine)
            self.engine = nv.NV2080_ENGINE_TYPE_COPY0 + copy_engine
        self.is_copy = copy_engine is not None
        # Why the GPU stopped the group: what stops one channel stops all.
        self.dead: str | None = None
        with self.teardown:
            params = client.struct("channel_group").record(
                engineType=self.engine, hVASpace=gpu.va_space if self.is_copy else 0
            )
            self.handle = client.make(
                self.teardown, "the channel group", gpu.device, nv.KEPLER_CHANNEL_GROUP_A, params
            )
            self.context_share = 0
            if not self.is_copy:
                params = client.struct("context_share").record(
                    hVASpace=gpu.va_space, flags=nv.CONTEXT_SHARE_ASYNC
                )
                self.context_share = client.make(
                    self.teardown, "the context share", self.handle,
                    nv.FERMI_CONTEXT_SHARE_A, params,
                )  # fmt: skip
        self._token = gpu.channels.push("a channel group", self.teardown.close)

    def schedule(self) -> None:
        """Let the GPU run the group's channels, all of which exist by now; sets them up."""
        client = self.gpu.client
        record = client.struct("schedule").record(bEnable=1)
        client.control(self.handle, nv.NVA06C_CTRL_CMD_GPFIFO_SCHEDULE, record)
        for channel in self.channels:
            channel.begin()

    def close(self) -> None:
        """Free the group and its channels."""
        self.gpu.channels.run(self._token)


class Named(Protocol):
    """What launches kernels of some names."""

    @property
    def names(self) -> list[str]:
        """The kernels."""
        ...


class MmuFault(NamedTuple):
    """A bad address, what is bad about it, and where the code begins that used it.

    None and 0 where the driver does not tell.
    """

    address: int | None
    kind: str
    program: int


def _refuse(state: int, entry: int) -> None:
    raise DriverError("the channel is closed")


# What a submission holds until the timeline has its value: that value, the end of the words that
# are kept for it, and the kernels that it launches, or what has them.
_InFlight: TypeAlias = "tuple[int, int, Sequence[str] | Named]"


class Channel:
    """A ring of work for one engine object, either compute or copies.

    The graphics engine has a context only once a channel of the group computes: that one is made
    first, those that copy after it.

    Every submission ends with the next value of the channel's `timeline`, whether or not anybody
    waits for it: it says when the ring's entry and the words may be written over.
    """

    def __init__(
        self,
        group: ChannelGroup,
        *,
        copies: bool = False,
        entries: int = _RING_ENTRIES,
        push_nbytes: int = HUGE_PAGE_NBYTES - _PUSH_OFFSET,
        begin_at: int = 0,
    ) -> None:
        if not is_power_of_two(entries) or not 2 <= entries <= _USERD_OFFSET // m.GP_ENTRY_NBYTES:
            raise ArgumentError("a ring has a power of two of entries", found=entries)
        if not 64 <= push_nbytes <= HUGE_PAGE_NBYTES - _PUSH_OFFSET or push_nbytes % 4:
            raise ArgumentError("a pushbuffer of this size does not fit", found=push_nbytes)
        self.group = group
        self.gpu = group.gpu
        self.copies = copies or group.is_copy
        if copies and not group.is_copy and all(one.copies for one in group.channels):
            raise ArgumentError(
                "a channel that copies on the graphics engine has no context yet",
                hint="make a channel that computes in its group first, or take a copy engine's "
                "group",
            )
        self.entries = entries
        self._push_nbytes = push_nbytes
        # What of the submissions may not be done yet; empty, if all are.
        self.in_flight: deque[_InFlight] = deque()
        self._head = self._tail = 0
        self.rung_again = 0
        self._most = entries - 1
        # What the port is told of the ring and the timeline.
        self.ring_state = RingState(mask=entries - 1, last=begin_at)
        self.teardown = Teardown()
        with self.teardown:
            self._open()
        self._closing = group.teardown.push("a channel", self.teardown.close)
        group.channels.append(self)

    def _open(self) -> None:
        gpu, client, teardown = self.gpu, self.gpu.client, self.teardown
        self.launches = None if self.copies else LaunchMemory(self)
        if self.launches is not None:
            teardown.push("memory of launches", self.launches.teardown.close)
        memory = gpu.memory.visible(HUGE_PAGE_NBYTES, owner=teardown)
        self.timeline = Timeline(gpu, owner=teardown, begin_at=self.last_value)
        self.words = self.timeline.words
        page = gpu.memory.driver_page(owner=teardown)
        self._notifier = page.view
        # Not zero once the driver has reported an error.
        self.alarm = page.view[_ALARM_OFFSET : _ALARM_OFFSET + 2].cast("H")
        release = PushBuffer()
        release.release(self.timeline.gpu_va, 0)
        self._release = release.words
        view = memory.view
        self._userd = view[_USERD_OFFSET : _USERD_OFFSET + m.USERD_NBYTES].cast("I")
        self._push = view[_PUSH_OFFSET : _PUSH_OFFSET + self._push_nbytes].cast("I")
        state = self.ring_state
        state.ring = memory.host_address
        state.put_address = memory.host_address + _USERD_OFFSET + m.USERD_GP_PUT
        state.doorbell_address = gpu.doorbell_address
        state.timeline_address = self.timeline.host_address
        state.alarm_address = page.host_address + _ALARM_OFFSET
        self._ring_state = ctypes.addressof(state)
        self._push_va = memory.gpu_va + _PUSH_OFFSET
        view[_USERD_OFFSET : _USERD_OFFSET + m.USERD_NBYTES] = bytes(m.USERD_NBYTES)
        teardown.push("views of the ring", self._release_views)
        params = client.struct("channel").record(
            hObjectError=page.handle,
            gpFifoOffset=memory.gpu_va,
            gpFifoEntries=self.entries,
            hContextShare=self.group.context_share,
        )
        params["hUserdMemory[0]"] = memory.handle
        params["userdOffset[0]"] = _USERD_OFFSET
        row = gpu.generation
        self.handle = client.make(
            teardown, "the channel", self.group.handle, row.channel_class, params
        )
        engine = None
        if self.group.is_copy:
            engine = client.struct("copy_engine").record(
                version=nv.COPY_ENGINE_VERSION, engineType=self.group.engine
            )
        self.kind = row.copy_class if self.copies else row.compute_class
        self.object = client.make(teardown, "the engine object", self.handle, self.kind, engine)
        token = client.struct("work_submit_token").record()
        client.control(self.handle, nv.NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN, token)
        self.ring_state.token = token["workSubmitToken"]
        self.ring: Callable[[int, int], None] = client.port.ring
        self.ring_state.open = 1
        self._register()
        teardown.push("idleness", self._drain)

    def _release_views(self) -> None:
        # All of this is used by its address: nobody may do so any more.
        self.ring = _refuse
        self.ring_state.open = 0
        for view in (self._userd, self._push, self._notifier, self.alarm):
            view.release()

    def _register(self) -> None:
        """Give the driver a range of addresses for the channel's own context."""
        gpu, client = self.gpu, self.gpu.client
        base = client.low_addresses.take(_CONTEXT_NBYTES, HUGE_PAGE_NBYTES)
        self.teardown.push("context addresses", lambda: client.low_addresses.give(base))
        record = client.struct("uvm_register_channel").record(
            gpuUuid=gpu.uuid,
            rmCtrlFd=client.control_fd,
            hClient=client.root,
            hChannel=self.handle,
            base=base,
            length=_CONTEXT_NBYTES,
        )
        client.uvm(nv.UVM_REGISTER_CHANNEL, record, "to register a channel")
        self.teardown.push("the channel's registration", self._unregister)

    def _unregister(self) -> None:
        client = self.gpu.client
        record = client.struct("uvm_unregister_channel").record(
            hClient=client.root, hChannel=self.handle
        )
        if "gpuUuid" in record.struct.fields:
            record["gpuUuid"] = self.gpu.uuid
        client.uvm(nv.UVM_UNREGISTER_CHANNEL, record, "to unregister a channel")

    def begin(self) -> None:
        """Submit what a channel needs once: its object, and where shaders see their memory."""
        push = PushBuffer()
        if self.copies:
            push.set_object(COPY_SUBCHANNEL, self.kind)
        else:
            push.set_object(COMPUTE_SUBCHANNEL, self.kind)
            push.set_windows(SHARED_WINDOW, LOCAL_WINDOW)
        self.submit(push)

    # Work.

    @property
    def last_value(self) -> int:
        """What the timeline has when all submissions so far are done."""
        return int(self.ring_state.last)

    @last_value.setter
    def last_value(self, value: int) -> None:
        self.ring_state.last = value

    @property
    def hold(self) -> int:
        """The timeline's value that the next words have to wait for, 0 where there is none.

        Submissions that do not hold are waited for by what follows them in the ring.
        """
        value = int(self.ring_state.hold)
        return value if value > self.words[0] else 0

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
        """Wait until so many entries of the ring are free beside those of all submissions."""
        while len(self.in_flight) + entries > self._most:
            self._retire()

    def note(self, value: int, names: Sequence[str] | Named) -> None:
        """Write down what was submitted by `enter`, or by the port's `go`."""
        in_flight = self.in_flight
        if in_flight and in_flight[0][0] <= self.words[0]:
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

    def mmu_fault(self) -> MmuFault | None:
        """Return what the driver tells of a bad address, once for each fault; None for nothing."""
        client = self.gpu.client
        record = client.struct("mmu_fault").record()
        try:
            client.control(self.handle, nv.NV906F_CTRL_CMD_GET_MMU_FAULT_INFO, record)
        except DriverError:
            return None
        kind = record.data("faultString").split(b"\0")[0].decode("ascii", "replace")
        address = record["addrHi"] << 32 | record["addrLo"]
        if not address and not kind:
            return None
        # Of traps there is none: 580 then tells address 0 and no kind that it knows.
        known = address or kind != _NO_FAULT
        return MmuFault(address if known else None, kind, record["shaderProgramVA[6]"])

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

    def state(self) -> str:
        """Say how far the channel is."""
        read, written = self.pointers
        status = int.from_bytes(self._notifier[14:16], "little")
        code = int.from_bytes(self._notifier[8:12], "little")
        why = f" ({self.group.why})" if self.group.why else ""
        return (
            f"timeline at {self.words[0]} of {self.last_value}, ring read up to {read} and written "
            f"up to {written} of {self.entries}, notifier {status:#x} with code {code}, engine "
            f"{self.group.engine}{why}, doorbell rung again {self.rung_again} times"
        )

    @property
    def pointers(self) -> tuple[int, int]:
        """How far the GPU has read the ring, and how far it was written; the first may lag."""
        return self._userd[m.USERD_GP_GET // 4], self._userd[m.USERD_GP_PUT // 4]

    def _drain(self) -> None:
        if self.group.dead is None:
            self.wait(timeout_s=5)

    def close(self) -> None:
        """Wait for the channel to be idle and free it."""
        self.group.teardown.run(self._closing)
        if self in self.group.channels:
            self.group.channels.remove(self)
