"""Stands in front of a device's functions, and tells everybody who watches what they did and when.

However many profiles watch a device, it has one such front, so that each sees all of its own time.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from baregrad.base.errors import BaregradError, user_frame
from baregrad.profiling.records import CommandFacts, HostCall, facts_of_list
from baregrad.profiling.shares import CloseTimes, is_timed_closely, lengths_between, placed
from baregrad.runtime.buffers import Buffer, Memory
from baregrad.runtime.commands import CommandList, FinishedList, StartedList, Timeline
from baregrad.runtime.interface import Device

# So many lists may be in flight before the oldest is waited for.
_IN_FLIGHT = 64
_LOOKS = 5
# Whether what the thread does now is work of a profile itself.
_unseen: ContextVar[bool] = ContextVar("_unseen", default=False)
_WATCHED = ("submit", "allocate", "copy_in", "copy_out", "synchronize", "close")


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """For a block, tell no profile of what this thread runs: it is the work of one."""
    token = _unseen.set(True)
    try:
        yield
    finally:
        _unseen.reset(token)


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


class DeviceListener(Protocol):
    """Who is told of a device."""

    def listed(self, run: TimedList) -> None:
        """Take a command list that is done."""

    def called(self, call: HostCall) -> None:
        """Take a call of the device by a thread."""

    def held(self, device: str, memory: Memory) -> None:
        """Take memory that was given out."""

    def closed(self, watch: DeviceWatch) -> None:
        """Take note that a device is closed."""


@dataclass(slots=True)
class KnownList:
    """A list that was submitted: its commands, its runs since somebody came, times of some."""

    facts: tuple[CommandFacts, ...]
    runs: int = 0
    closely: CloseTimes = field(default_factory=CloseTimes)


@dataclass(slots=True)
class TimedList:
    """A submitted list, which is the run of that number since somebody came.

    measured: whether each command was timed, or the list as a whole.
    """

    clock: DeviceClock
    started: StartedList
    known: KnownList
    number: int
    variables: Mapping[str, int]
    where: str
    listeners: tuple[DeviceListener, ...]
    measured: bool = True
    _read: Timeline | None = None
    _placed: tuple[Timeline, Timeline, Timeline] | None = None

    @property
    def facts(self) -> tuple[CommandFacts, ...]:
        """The list's commands."""
        return self.known.facts

    @property
    def times(self) -> Timeline | None:
        """When each command began and ended, by the device's clock; None while that is not known.

        Of a list that was timed as a whole that may change while others are timed.
        """
        whole = self._read
        if self.measured or whole is None:
            return whole
        beside = self.known.closely.beside(self.number)
        if beside is None:
            # The run that was timed closely failed.
            return None
        one, two, nearness = beside
        known = self._placed
        if known is None or known[0] is not one or known[1] is not two:
            begin, end = whole.begin_ns[0], whole.end_ns[0]
            lengths = lengths_between(one, two, nearness, end - begin)
            known = self._placed = one, two, placed(*lengths, begin, end)
        return known[2]

    def read(self) -> None:
        """Ask for the times; wait for them."""
        times = self._read = self.started.timeline()
        self.measured = len(times.begin_ns) == len(self.facts)
        if self.measured:
            self.known.closely.add(self.number, times)


class DeviceWatch:
    """The front of one device, from its first listener to its last."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.clock = DeviceClock(device)
        self._listeners: tuple[DeviceListener, ...] = ()
        self._pending: deque[TimedList] = deque()
        self._known: weakref.WeakKeyDictionary[CommandList, KnownList] = (
            weakref.WeakKeyDictionary()
        )
        self._lock = threading.RLock()
        front: dict[str, Callable[..., Any]] = {
            "submit": partial(self._submit, device.submit),
            "allocate": partial(self._allocate, device.allocate),
            "copy_in": partial(self._copy, "copy in", device.copy_in),
            "copy_out": partial(self._copy, "copy out", device.copy_out),
            "synchronize": partial(self._synchronize, device.synchronize),
            "close": partial(self._close, device.close),
        }
        for name, function in front.items():
            setattr(device, name, function)

    @classmethod
    def of(cls, device: Device) -> DeviceWatch:
        """Return what stands in front of a device, which may be there already."""
        front = vars(device).get("submit")
        known = getattr(getattr(front, "func", None), "__self__", None)
        return known if isinstance(known, cls) else cls(device)

    def add(self, listener: DeviceListener) -> None:
        """Tell a listener from now on."""
        with self._lock:
            self._listeners += (listener,)
            # Whoever comes sees each list timed command by command once.
            self._known.clear()

    def forget(self) -> None:
        """In a forked child: what was in flight is the parent's, and so was who held the lock."""
        self._pending.clear()
        self._lock = threading.RLock()

    def remove(self, listener: DeviceListener) -> None:
        """Tell a listener what is in flight, and no more; the last one's end is that of the front.

        A list that fails is not told of.
        """
        with contextlib.suppress(BaregradError):
            self._drain(0, wait=True)
            self.clock.look_again(self.device)
        with self._lock:
            self._listeners = tuple([one for one in self._listeners if one is not listener])
            if not self._listeners:
                for name in _WATCHED:
                    vars(self.device).pop(name, None)

    # What stands in front of the device's own functions.

    def _submit(
        self,
        original: Callable[..., Timeline | None],
        commands: CommandList,
        buffers: Sequence[Buffer] = (),
        variables: Mapping[str, int] | None = None,
        *,
        timed: bool = False,
    ) -> Timeline | None:
        if _unseen.get():
            return original(commands, buffers, variables, timed=timed)
        begin = time.perf_counter_ns()
        where = str(user_frame())
        known = self._known.get(commands)
        if known is None:
            known = self._known[commands] = KnownList(facts_of_list(commands))
        times = None
        started: StartedList
        if timed:
            times = original(commands, buffers, variables, timed=True)
            assert times is not None
            started = FinishedList(times)
        else:
            whole = not is_timed_closely(known.runs, self.device.timed_every)
            started = self.device.start_timed(commands, buffers, variables, whole=whole)
        number, bound = known.runs, dict(variables or {})
        known.runs += 1
        self._pending.append(
            TimedList(self.clock, started, known, number, bound, where, self._listeners)
        )
        caller = sys._getframe(1).f_code.co_filename
        self._call("replay" if caller.endswith("capture.py") else "run", begin, where)
        self._drain(_IN_FLIGHT)
        return times

    def _allocate(self, original: Callable[[int], Buffer], nbytes: int) -> Buffer:
        buffer = original(nbytes)
        for one in () if _unseen.get() else self._listeners:
            one.held(self.device.name, buffer.memory)
        return buffer

    def _copy(self, kind: Any, original: Callable[..., None], buffer: Buffer, data: Any) -> None:
        begin = time.perf_counter_ns()
        try:
            original(buffer, data)
        finally:
            self._call(kind, begin, str(user_frame()), buffer.nbytes)

    def _synchronize(self, original: Callable[[], None]) -> None:
        begin = time.perf_counter_ns()
        try:
            original()
        finally:
            self._call("wait", begin, str(user_frame()))

    def _close(self, original: Callable[[], None]) -> None:
        for one in self._listeners:
            one.closed(self)
        original()

    def _call(self, kind: Any, begin: int, where: str, nbytes: int = 0) -> None:
        thread, end = threading.get_ident(), time.perf_counter_ns()
        call = HostCall(kind, self.device.name, thread, begin, end, where, nbytes)
        for one in self._listeners:
            one.called(call)

    def _drain(self, kept: int, *, wait: bool = False) -> None:
        """Read the times of lists that are done, and wait where more than `kept` are in flight."""
        with self._lock:
            pending = self._pending
            while pending and (wait or len(pending) > kept or pending[0].started.is_done):
                run = pending.popleft()
                run.read()
                for one in run.listeners:
                    one.listed(run)
