"""Times of work in a stream, by events: one between each two commands says when it passed."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import threading
import time
from collections import deque
from collections.abc import Iterable
from enum import Enum, auto

from baregrad.runtime.commands import StartedList, Timeline
from baregrad.runtime.cuda import abi
from baregrad.runtime.cuda.context import Context

# What lies between two events beside the work between them is what an event takes
# (`event_cost.py`), and what lies between two kernels of a graph anyway. That is 1.0 us by the
# vendor's own profiler: beside it kernels of a training step of 423 commands were off alike with
# 1.3, half of them by 0.32 to 0.36 us, and are with 1.0 by 0.02 to 0.07 us (H200, driver
# 580.159.04, where an event takes 2.85 to 3.0 us), 99.8 % of the time in kernels within 3 %. One
# by one a mark of how far the stream came lies between as well, and it depends on how soon the host
# launches the next: most lie within 0.7 us. The first of a list that an idle GPU is given takes
# longer.
_EDGE_NS, _MARK_NS = 1000, 2130
# How often it is looked whether an event has passed, and from when on for all of the stream.
_LOOK_S, _PATIENCE_S = 0.0001, 2.0


class EventsOf(Enum):
    """Between what the events of a run lie: steps one by one, nodes of a graph, the whole list."""

    STEPS = auto()
    GRAPH = auto()
    WHOLE = auto()


class EventClock:
    """The stream's clock: nanoseconds of the host's `perf_counter`, counted on from event to event.

    CUDA says how long it was from one event to another, in float32, so that long times are coarse:
    each event is placed by one that passed shortly before. event_ns: what an event takes.
    """

    def __init__(self, context: Context, event_ns: float) -> None:
        self._event_ns = round(event_ns)
        self._beside_ns = self._event_ns + _EDGE_NS
        self._context = context
        self._driver = context.driver
        # Events that nobody uses.
        self.free: list[int] = []
        self._lock = threading.RLock()
        self.waiting: deque[TimedEvents] = deque()
        self.last = self.record()
        context.synchronize()
        self.last_ns = time.perf_counter_ns()

    def event(self) -> int:
        """Return an event that nobody uses."""
        try:
            return self.free.pop()
        except IndexError:
            event = self._driver.handle("cuEventCreate", abi.EVENT_DEFAULT)
            self._context.teardown.push(
                "an event", lambda: self._context.release("cuEventDestroy_v2", event)
            )
            return event

    def record(self) -> int:
        """Put an event into the stream of the context, which is current."""
        event = self.event()
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
                if wanted.events:
                    self._wait(wanted.events[-1])
                while wanted.times is None:
                    # One that cannot be read, as after a fault, is what is said again if asked.
                    self._read(self.waiting[0])
                    self.waiting.popleft()
            finally:
                context.left()

    def _wait(self, event: int) -> None:
        """Wait until an event has passed; work behind it goes on. Raises for a fault of the GPU."""
        query, end = self._driver.functions["cuEventQuery"], time.monotonic() + _PATIENCE_S
        while (code := query(event)) != abi.SUCCESS:
            # A query that fails says nothing of the event: the stream tells of a fault.
            if code != abi.NOT_READY or time.monotonic() > end:
                self._context.synchronize()
                return
            time.sleep(_LOOK_S)

    def _read(self, one: TimedEvents) -> None:
        events = one.events
        now = self.last_ns + self.between(self.last, events[0])
        self.free.append(self.last)
        if one.kind is EventsOf.GRAPH:
            # The graph's own events are recorded anew when it runs again.
            begin, *events, end = events
            self.last, self.last_ns = end, now + self.between(begin, end)
            self.free.append(begin)
            now += self.between(begin, events[0])
        beside = self._beside_ns + _MARK_NS * (one.kind is EventsOf.STEPS)
        # What lies between two commands anyway is not what the event takes.
        anyway = beside - self._event_ns
        begins, ends, own = [], [], 0
        for pair in itertools.pairwise(events):
            passed = self.between(*pair)
            # Of the shortest kernels an eighth is left: how much more they take is not known.
            before = min(beside, passed - passed // 8)
            own += max(before - anyway, 0)
            begins.append(now + before)
            now += passed
            ends.append(now)
        # Around a whole list there are two events, which nothing waits for.
        own = 0 if one.kind is EventsOf.WHOLE else own
        one.times = Timeline(one.labels, tuple(begins), tuple(ends), own)
        if one.kind is not EventsOf.GRAPH:
            self.free += events[:-1]
            self.last, self.last_ns = events[-1], now
        one.events = []
        one.release()


class TimedEvents(StartedList):
    """A list in the stream with events around its commands, or around all of it.

    Of a graph the events but the first and the last are nodes, and are the graph's own.
    """

    def __init__(
        self, clock: EventClock, events: list[int], labels: tuple[str, ...], kind: EventsOf
    ) -> None:
        self._clock = clock
        self.kind = kind
        self.events = events
        self.labels = labels
        self.times: Timeline | None = None
        self._given: list[int] = []
        clock.waiting.append(self)

    def give_back(self, events: Iterable[int]) -> None:
        """Let others use events of a graph, whose last run this is, as soon as they were read."""
        self._given.extend(events)
        if self.times is not None:
            self.release()

    def release(self) -> None:
        """Let others use what was given back; the times were read."""
        # Another thread may do so as well: each event is taken by one of them.
        with contextlib.suppress(IndexError):
            while True:
                self._clock.free.append(self._given.pop())

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
