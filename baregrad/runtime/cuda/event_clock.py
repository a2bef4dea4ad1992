"""Times of work in a stream, by events: one between each two commands says when it passed."""

from __future__ import annotations

import ctypes
import itertools
import threading
import time
from collections import deque

from baregrad.runtime.commands import StartedList, Timeline
from baregrad.runtime.cuda import abi
from baregrad.runtime.cuda.context import Context

# What lies between two events beside the work between them: the wait for all before, the launch.
# A kernel's times by the vendor's own profiler are shorter by about that: set so that the median
# difference of 33 kernels of one training step is none (one run, H200, driver 580.159.04). Single
# kernels differ by up to 0.7 us then, one by 1.7 us.
_BESIDE_NS = 7300


class EventClock:
    """The stream's clock: nanoseconds of the host's `perf_counter`, counted on from event to event.

    CUDA says how long it was from one event to another, in float32, so that long times are coarse:
    each event is placed by one that passed shortly before.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._driver = context.driver
        self._free: list[int] = []
        self._lock = threading.RLock()
        self.waiting: deque[TimedEvents] = deque()
        self.last = self.record()
        context.synchronize()
        self.last_ns = time.perf_counter_ns()

    def record(self) -> int:
        """Put an event into the stream of the context, which is current."""
        try:
            event = self._free.pop()
        except IndexError:
            event = self._driver.handle("cuEventCreate", abi.EVENT_DEFAULT)
            self._context.teardown.push(
                "an event", lambda: self._context.release("cuEventDestroy_v2", event)
            )
        self._driver.call("cuEventRecord", event, self._context.stream)
        return event

    def is_past(self, event: int) -> bool:
        """Whether an event has passed."""
        self._context.entered()
        try:
            return self._driver.functions["cuEventQuery"](event) != abi.NOT_READY
        finally:
            self._context.left()

    def between(self, before: int, after: int) -> int:
        """Return nanoseconds from one event to another; both have passed."""
        passed = ctypes.c_float()
        self._driver.call("cuEventElapsedTime", ctypes.byref(passed), before, after)
        return round(passed.value * 1e6)

    def read_until(self, wanted: TimedEvents) -> None:
        """Read lists in the order in which they were started, up to one; wait for them."""
        context = self._context
        with self._lock:
            context.entered()
            try:
                if wanted.events and not self.is_past(wanted.events[-1]):
                    context.synchronize()
                while wanted.times is None:
                    self._read(self.waiting.popleft())
            finally:
                context.left()

    def _read(self, one: TimedEvents) -> None:
        events = one.events
        now = self.last_ns + self.between(self.last, events[0])
        begins, ends = [], []
        for pair in itertools.pairwise(events):
            passed = self.between(*pair)
            # Of the shortest kernels an eighth is left: how much more they take is not known.
            begins.append(now + min(_BESIDE_NS, passed - passed // 8))
            now += passed
            ends.append(now)
        one.times = Timeline(one.labels, tuple(begins), tuple(ends))
        self._free += [self.last, *events[:-1]]
        self.last, self.last_ns = events[-1], now
        one.events = []


class TimedEvents(StartedList):
    """A list in the stream with events around its commands."""

    def __init__(self, clock: EventClock, events: list[int], labels: tuple[str, ...]) -> None:
        self._clock = clock
        self.events = events
        self.labels = labels
        self.times: Timeline | None = None
        clock.waiting.append(self)

    @property
    def is_done(self) -> bool:
        """Whether the stream is past the list."""
        events = self.events
        return self.times is not None or not events or self._clock.is_past(events[-1])

    def timeline(self) -> Timeline:
        """Return when each command began and ended, by `perf_counter`; wait for that."""
        if self.times is None:
            self._clock.read_until(self)
        assert self.times is not None
        return self.times
