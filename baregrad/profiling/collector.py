"""Watches devices: what is submitted, copied, awaited and allocated, by whom, and when it ran.

While a device is watched, functions of ours stand in front of its own; at other times there is
nothing that could cost anything.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from baregrad.base.errors import BaregradError, user_frame
from baregrad.base.tracing import Recorder
from baregrad.profiling.memory_log import MemoryLog, watched_allocate
from baregrad.profiling.records import CommandFacts, Held, HostCall, ListRun, facts_of_list
from baregrad.runtime.buffers import Buffer
from baregrad.runtime.commands import CommandList, FinishedList, StartedList, Timeline
from baregrad.runtime.interface import Device
from baregrad.runtime.lifetime import Follower, watching_devices

# So many lists may be in flight before the oldest is waited for.
_IN_FLIGHT = 64
_LOOKS = 5
_WATCHED = ("submit", "allocate", "copy_in", "copy_out", "synchronize", "close")


@dataclass(slots=True)
class _Started:
    """A list whose times are not read yet."""

    clock: DeviceClock
    started: StartedList
    facts: tuple[CommandFacts, ...]
    variables: Mapping[str, int]
    where: str


class DeviceClock:
    """A device's clock beside the host's, looked at when watching begins and when it ends."""

    def __init__(self, device: Device) -> None:
        self.name = device.name
        self._looks = [self._look(device)]

    def _look(self, device: Device) -> tuple[int, int]:
        """Return a time of the device, and what is to be added to it; the quickest look counts."""
        found = []
        for _ in range(_LOOKS):
            before = time.perf_counter_ns()
            there = device.clock_ns()
            after = time.perf_counter_ns()
            found.append((after - before, there, (before + after) // 2 - there))
        _, there, offset = min(found)
        return there, offset

    def look_again(self, device: Device) -> None:
        """Look at both clocks once more."""
        self._looks = [self._looks[0], self._look(device)]

    def host_ns(self, times: Sequence[int]) -> tuple[int, ...]:
        """Return times of the device by the host's clock."""
        (first, offset), (last, moved) = self._looks[0], self._looks[-1]
        if last <= first or moved == offset:
            return tuple([at + offset for at in times])
        slope = (moved - offset) / (last - first)
        return tuple([at + offset + round(slope * (at - first)) for at in times])


class Collector:
    """What happens while it watches: `runs`, `calls`, `memory`, and spans in `recorder`."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        self.memory = MemoryLog()
        self.calls: list[HostCall] = []
        self.architectures: dict[str, str] = {}
        self.threads: dict[int, str] = {}
        self.begin_ns = self.end_ns = 0
        self._raw: list[tuple[_Started, Timeline]] = []
        self._pending: deque[_Started] = deque()
        self._facts: weakref.WeakKeyDictionary[CommandList, tuple[CommandFacts, ...]] = (
            weakref.WeakKeyDictionary()
        )
        self._devices: list[tuple[Device, DeviceClock]] = []
        self._lock = threading.RLock()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watch every device of the process, and those that open later, for a block."""
        self.begin_ns = time.perf_counter_ns()
        with watching_devices(self._watch), self.recorder.everywhere():
            try:
                yield
            finally:
                for device, clock in list(self._devices):
                    self._finish(device, clock)
                self.end_ns = time.perf_counter_ns()
                self.threads |= {
                    one.ident: one.name for one in threading.enumerate() if one.ident is not None
                }

    def _watch(self, follower: Follower) -> None:
        # What runs nothing has no times.
        if not isinstance(follower, Device) or follower.name in ("NULL", "REF"):
            return
        device = follower
        clock = DeviceClock(device)
        self._devices.append((device, clock))
        self.memory.before[device.name] = device.memory_stats().in_use_nbytes
        self.architectures[device.name] = getattr(device, "architecture", "")
        front: dict[str, Callable[..., Any]] = {
            "submit": partial(self._submit, device, device.submit, clock),
            "allocate": watched_allocate(
                self.memory, device.allocate, partial(self._held, device.name)
            ),
            "copy_in": partial(self._copy, "copy in", device, device.copy_in),
            "copy_out": partial(self._copy, "copy out", device, device.copy_out),
            "synchronize": partial(self._synchronize, device, device.synchronize),
            "close": partial(self._close, device, device.close, clock),
        }
        for name, function in front.items():
            setattr(device, name, function)

    def _finish(self, device: Device, clock: DeviceClock) -> None:
        """Read what is in flight, and let a device go."""
        with contextlib.suppress(BaregradError):
            self._drain(0, wait=True)
            clock.look_again(device)
        for name in _WATCHED:
            with contextlib.suppress(AttributeError):
                delattr(device, name)
        self._devices.remove((device, clock))

    # What stands in front of a device's own functions.

    def _submit(
        self,
        device: Device,
        original: Callable[..., Timeline | None],
        clock: DeviceClock,
        commands: CommandList,
        buffers: Sequence[Buffer] = (),
        variables: Mapping[str, int] | None = None,
        *,
        timed: bool = False,
    ) -> Timeline | None:
        begin = time.perf_counter_ns()
        where = str(user_frame())
        times = None
        started: StartedList
        if timed:
            times = original(commands, buffers, variables, timed=True)
            assert times is not None
            started = FinishedList(times)
        else:
            started = device.start_timed(commands, buffers, variables)
        facts = self._facts.get(commands)
        if facts is None:
            facts = self._facts[commands] = facts_of_list(commands)
        self._pending.append(_Started(clock, started, facts, dict(variables or {}), where))
        caller = sys._getframe(1).f_code.co_filename
        self._call("replay" if caller.endswith("capture.py") else "run", device, begin, where)
        self._drain(_IN_FLIGHT)
        return times

    def _copy(
        self, kind: Any, device: Device, original: Callable[..., None], buffer: Buffer, data: Any
    ) -> None:
        begin = time.perf_counter_ns()
        try:
            original(buffer, data)
        finally:
            self._call(kind, device, begin, str(user_frame()), buffer.nbytes)

    def _synchronize(self, device: Device, original: Callable[[], None]) -> None:
        begin = time.perf_counter_ns()
        try:
            original()
        finally:
            self._call("wait", device, begin, str(user_frame()))

    def _close(self, device: Device, original: Callable[[], None], clock: DeviceClock) -> None:
        self._finish(device, clock)
        original()

    def _call(self, kind: Any, device: Device, begin: int, where: str, nbytes: int = 0) -> None:
        thread, end = threading.get_ident(), time.perf_counter_ns()
        if thread not in self.threads:
            self.threads[thread] = threading.current_thread().name
        self.calls.append(HostCall(kind, device.name, thread, begin, end, where, nbytes))

    def _held(self, device: str, nbytes: int) -> Held:
        open_span = self.recorder.innermost()
        return Held(device, nbytes, str(user_frame()), open_span)

    # Times.

    def _drain(self, kept: int, *, wait: bool = False) -> None:
        """Read the times of lists that are done, and wait where more than `kept` are in flight."""
        with self._lock:
            pending = self._pending
            while pending and (wait or len(pending) > kept or pending[0].started.is_done):
                one = pending.popleft()
                self._raw.append((one, one.started.timeline()))

    def runs(self) -> list[ListRun]:
        """Return the runs of command lists, by the host's clock."""
        return [
            ListRun(
                one.clock.name, one.facts, one.variables, one.clock.host_ns(times.begin_ns),
                one.clock.host_ns(times.end_ns), one.where,
            )
            for one, times in self._raw
        ]  # fmt: skip
