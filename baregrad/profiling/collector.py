"""What a profile keeps: command lists, calls of threads, memory and spans, of every device.

While a device is watched, functions of ours stand in front of its own; at other times there is
nothing that could cost anything.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from baregrad.base.errors import user_frame
from baregrad.base.tracing import Recorder
from baregrad.profiling.device_watch import DeviceWatch, TimedList
from baregrad.profiling.memory_log import MemoryLog
from baregrad.profiling.records import Held, HostCall, ListRun
from baregrad.runtime.buffers import Memory
from baregrad.runtime.interface import Device
from baregrad.runtime.lifetime import Follower, watching_devices


class Collector:
    """What happens while it watches: `runs`, `calls`, `memory`, and spans in `recorder`."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        self.memory = MemoryLog()
        self.calls: list[HostCall] = []
        self.architectures: dict[str, str] = {}
        self.threads: dict[int, str] = {}
        self.begin_ns = self.end_ns = 0
        self._lists: list[TimedList] = []
        self._watches: list[DeviceWatch] = []

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watch every device of the process, and those that open later, for a block."""
        self.begin_ns = time.perf_counter_ns()
        with watching_devices(self._watch), self.recorder.everywhere():
            try:
                yield
            finally:
                for watch in list(self._watches):
                    self.closed(watch)
                self.end_ns = time.perf_counter_ns()
                self.threads |= {
                    one.ident: one.name for one in threading.enumerate() if one.ident is not None
                }

    def _watch(self, follower: Follower) -> None:
        # What runs nothing has no times.
        if not isinstance(follower, Device) or follower.name in ("NULL", "REF"):
            return
        watch = DeviceWatch.of(follower)
        self._watches.append(watch)
        self.memory.before[follower.name] = follower.memory_stats().in_use_nbytes
        self.architectures[follower.name] = getattr(follower, "architecture", "")
        watch.add(self)

    def begin_in_child(self) -> None:
        """In a forked child: what was seen so far is the parent's, but for blocks still open."""
        self.forget()
        self._lists.clear()
        self.calls.clear()
        self.threads.clear()
        self.memory.begin_in_child()
        self.recorder.spans[:] = [one for one in self.recorder.spans if one.end != one.end]

    def forget(self) -> list[Device]:
        """Begin to let go of all, in a forked child; return the devices that were watched."""
        for watch in self._watches:
            watch.forget()
        return [watch.device for watch in self._watches]

    # What a device's watch tells.

    def closed(self, watch: DeviceWatch) -> None:
        """Let a device go, with the times of what is in flight."""
        watch.remove(self)
        self._watches.remove(watch)

    def listed(self, run: TimedList) -> None:
        """Keep a command list that is done."""
        self._lists.append(run)

    def called(self, call: HostCall) -> None:
        """Keep a call of a device by the thread that is running."""
        if call.thread not in self.threads:
            self.threads[call.thread] = threading.current_thread().name
        self.calls.append(call)

    def held(self, device: str, memory: Memory) -> None:
        """Keep who asked for memory, and when it goes."""
        owner = Held(device, memory.nbytes, str(user_frame()), self.recorder.innermost())
        self.memory.take(memory, owner)

    def runs(self) -> list[ListRun]:
        """Return the runs of command lists, by the host's clock."""
        return [
            ListRun(
                one.clock.name, one.facts, one.variables, one.clock.host_ns(one.times.begin_ns),
                one.clock.host_ns(one.times.end_ns), one.where, one.measured, one.times.own_ns,
            )
            for one in self._lists
            if one.times is not None
        ]  # fmt: skip
