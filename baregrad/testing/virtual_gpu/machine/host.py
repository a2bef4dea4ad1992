"""The host unit of a channel: ring entries, method headers, semaphores; engines take the rest.

Sources: SDK `class/clc86f.h` (methods, ring entries, USERD), open-gpu-doc `classes/host/clc76f.h`
(method headers).
"""

from __future__ import annotations

import functools
import operator
import struct
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from baregrad.runtime.nvidia.abi import methods as m
from baregrad.testing.virtual_gpu.machine.compute import ComputeUnit
from baregrad.testing.virtual_gpu.machine.copy_engine import CopyUnit
from baregrad.testing.virtual_gpu.machine.engine import (
    Condition,
    Engine,
    EngineChannel,
    EngineGpu,
    EngineWork,
    Steps,
    always,
)
from baregrad.testing.virtual_gpu.machine.faults import BAD_CLASS, BAD_ENTRY, GpuFault
from baregrad.testing.virtual_gpu.machine.memory import AddressSpace, Backing
from baregrad.testing.virtual_gpu.machine.trace import method_line

_HOST_METHODS_END = 0x100
_NOTIFIER = struct.Struct("<QIHH")
_ERROR_STATUS = 0xFFFF
# NVC86F_DMA_SEC_OP.
_INCREASE, _STAY, _IMMEDIATE, _INCREASE_ONCE, _END_SEGMENT = 1, 3, 4, 5, 7
_RELEASE, _REDUCTION = 1, 6
_SIGN_64, _SIGN_32 = 1 << 63, 1 << 31


@dataclass(eq=False)
class HardwareGroup:
    """Channels that are scheduled, and stopped, together."""

    channels: list[HardwareChannel]
    scheduled: bool = False
    dead: int = 0

    def stop(self, code: int, time_ns: int) -> None:
        """Stop all channels and fill in each one's notifier; nothing that is left is done."""
        if self.dead:
            return
        self.dead = code
        for channel in self.channels:
            channel.stop(code, time_ns)


@dataclass(frozen=True, slots=True)
class ChannelPlace:
    """Where a channel keeps its ring (a GPU address), its pointers and its notifier."""

    ring_va: int
    entries: int
    userd: Backing
    userd_offset: int
    notifier: Backing | None


class HardwareChannel(EngineChannel):
    """One channel: its place in the ring, what its engine still has to do, what it waits for."""

    def __init__(
        self, gpu: EngineGpu, group: HardwareGroup, space: AddressSpace, place: ChannelPlace
    ) -> None:
        super().__init__(gpu, space)
        self.group = group
        self.place = place
        # Whether UVM gave its context addresses, and which classes it has objects of.
        self.registered = False
        self.objects: set[int] = set()
        self.bound: dict[int, Engine] = {}
        self.get = self.put = 0
        # What stopped it, until the driver is asked.
        self.fault: GpuFault | None = None
        self._state: dict[int, int] = {}
        self._waits_for_work: Condition = lambda: self.get != self.put
        self._program: Steps | None = self._run()
        self._condition = self._waits_for_work
        group.channels.append(self)

    # Pointers.

    def _userd(self, offset: int) -> memoryview:
        begin = self.place.userd_offset + offset
        return self.place.userd.data[begin : begin + 4].data.cast("B")

    def doorbell(self) -> None:
        """Look how far the ring was written."""
        put = int.from_bytes(self._userd(m.USERD_GP_PUT), "little")
        self.put = put
        if self._program is not None and put >= self.place.entries:
            # Reported when the channel runs next, like any fault of it.
            self._program, self._condition = self._bad_pointer(put), always

    def _bad_pointer(self, put: int) -> Steps:
        yield always
        raise GpuFault(BAD_ENTRY, f"GPPut {put} is outside a ring of {self.place.entries} entries")

    def stop(self, code: int, time_ns: int) -> None:
        """Forget all work and fill in the notifier."""
        self._program = None
        self.outstanding.clear()
        notifier = self.place.notifier
        if notifier is not None:
            record = _NOTIFIER.pack(time_ns, code, 1, _ERROR_STATUS)
            notifier.data[: len(record)] = np.frombuffer(record, np.uint8)

    def forget(self) -> None:
        """Do no more work; nobody is notified."""
        self._program = None
        self.outstanding.clear()

    # Scheduling.

    def busy(self) -> bool:
        """Return whether there is anything left to do."""
        if self._program is None or not self.group.scheduled:
            return False
        waits = self._condition is not self._waits_for_work
        return bool(self.outstanding) or self.get != self.put or waits

    def ready(self) -> list[Callable[[], None]]:
        """Return the steps that the channel could do now."""
        if self._program is None or not self.group.scheduled:
            return []
        found: list[Callable[[], None]] = []
        if self._condition():
            found.append(self._advance)
        for number, work in enumerate(self.outstanding):
            if work.ordered and number:
                break
            if not work.stuck:
                found.append(functools.partial(self._work_on, work))
            if work.ordered:
                break
        return found

    def _advance(self) -> None:
        assert self._program is not None
        self._condition = next(self._program)

    def _work_on(self, work: EngineWork) -> None:
        if work.run():
            self.outstanding.remove(work)

    # The program.

    def _run(self) -> Steps:
        while True:
            while self.get == self.put:
                yield self._waits_for_work
            words = self._fetch()
            yield always
            yield from self._execute(words)

    def _fetch(self) -> tuple[int, ...]:
        """Return the words of the next entry of the ring, which is free again then."""
        place = self.place
        where = place.ring_va + m.GP_ENTRY_NBYTES * self.get
        (entry,) = struct.unpack("<Q", self.space.read(where, 8, "HUBCLIENT_HOST ring"))
        count = entry >> m.GP_ENTRY_LENGTH_SHIFT & 0x1FFFFF
        if entry & 3:
            raise GpuFault(BAD_ENTRY, f"a ring entry with unknown bits, {entry:#018x}")
        address = entry & ((1 << m.GP_ENTRY_ADDRESS_BITS) - 1) & ~3
        data = self.space.read(address, 4 * count, "HUBCLIENT_HOST pushbuffer")
        self.get = (self.get + 1) % place.entries
        self._userd(m.USERD_GP_GET)[:] = self.get.to_bytes(4, "little")
        note = self.gpu.machine.note
        words = struct.unpack(f"<{count}I", data)
        if note is not None:
            note(f"fetch of {count} words at {address:#x}")
        return words

    def _execute(self, words: tuple[int, ...]) -> Steps:
        at = 0
        while at < len(words):
            header = words[at]
            kind, count = header >> 29, header >> 16 & 0x1FFF
            subchannel, method = header >> 13 & 7, (header & 0xFFF) * 4
            at += 1
            if kind == _IMMEDIATE:
                yield from self._method(subchannel, method, count)
                continue
            if kind == _END_SEGMENT:
                return
            if kind not in (_INCREASE, _STAY, _INCREASE_ONCE) or at + count > len(words):
                raise GpuFault(BAD_ENTRY, f"a bad method header, {header:#010x}")
            for number in range(count):
                step = {_INCREASE: number, _STAY: 0, _INCREASE_ONCE: min(number, 1)}[kind]
                yield from self._method(subchannel, method + 4 * step, words[at + number])
            at += count

    def _method(self, subchannel: int, method: int, data: int) -> Steps:
        note = self.gpu.machine.note
        if note is not None:
            is_compute = isinstance(self.bound.get(subchannel), ComputeUnit)
            note(method_line(subchannel, method, data, is_compute))
        if method >= _HOST_METHODS_END:
            unit = self.bound.get(subchannel)
            if unit is None:
                raise GpuFault(BAD_CLASS, f"subchannel {subchannel} has no object for {method:#x}")
            yield from unit.method(method, data)
        elif method == m.HOST["SET_OBJECT"].address:
            self._bind(subchannel, data & 0xFFFF)
        elif method == m.HOST["SEM_EXECUTE"].address:
            yield from self._semaphore(data)
        elif method == m.HOST["WFI"].address:
            yield self.idle
        elif method in _KNOWN_HOST:
            self._state[method] = data
        else:
            raise GpuFault(BAD_ENTRY, f"the host unit has no method {method:#x}")

    def _bind(self, subchannel: int, kind: int) -> None:
        if kind not in self.objects:
            raise GpuFault(BAD_CLASS, f"the channel has no object of class {kind:#06x}")
        row = self.gpu.row
        unit = ComputeUnit(self) if kind == row.compute_class else CopyUnit(self)
        self.bound[subchannel] = unit

    # Semaphores.

    def _semaphore(self, execute: int) -> Steps:
        part = m.HOST["SEM_EXECUTE"].read
        state = self._state
        wide = part(execute, "PAYLOAD_SIZE")
        high = state.get(m.HOST["SEM_ADDR_HI"].address, 0)
        address = high << 32 | state.get(m.HOST["SEM_ADDR_LO"].address, 0)
        value = state.get(m.HOST["SEM_PAYLOAD_LO"].address, 0)
        if wide:
            value |= state.get(m.HOST["SEM_PAYLOAD_HI"].address, 0) << 32
        stamped = part(execute, "RELEASE_TIMESTAMP")
        kind = part(execute, "OPERATION")
        grain = 16 if kind == _RELEASE and stamped else 8 if wide else 4
        if address % grain or address >> self.gpu.row.host_address_bits:
            raise GpuFault(BAD_ENTRY, f"a semaphore at {address:#x}: not on {grain} bytes, or high")
        if kind == _RELEASE:
            if part(execute, "RELEASE_WFI"):
                yield self.idle
            self.release(address, value, wide=bool(wide), stamped=bool(stamped))
            yield always
        elif kind == _REDUCTION:
            raise GpuFault(BAD_ENTRY, "the virtual GPU has no semaphore reductions")
        else:
            compare = _COMPARE.get(kind)
            if compare is None:
                raise GpuFault(BAD_ENTRY, f"a semaphore operation of no kind, {kind}")
            nbytes, sign = (8, _SIGN_64) if wide else (4, _SIGN_32)

            def reached() -> bool:
                region = self.space.find(address)
                if region is None:
                    return True
                begin = address - region.base
                now = int.from_bytes(region.data[begin : begin + nbytes].tobytes(), "little")
                return compare(now, value, sign)

            yield reached
            # Where the memory went away, this is the fault.
            self.space.read(address, nbytes, "HUBCLIENT_HOST semaphore")

def _circular(now: int, value: int, sign: int) -> bool:
    return (now - value) & (2 * sign - 1) < sign


_COMPARE: MappingProxyType[int, Callable[[int, int, int], bool]] = MappingProxyType({
    0: lambda now, value, sign: now == value,
    2: lambda now, value, sign: now >= value,
    3: _circular,
    4: lambda now, value, sign: bool(operator.and_(now, value)),
})
_KNOWN_HOST = frozenset(one.address for one in m.HOST.values())
