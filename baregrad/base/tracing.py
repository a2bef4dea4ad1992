"""Timed spans: what ran when, inside what.

A `Recorder` collects spans while it is active:

    with Recorder() as recorder:
        with span("schedule", kernels=12):
            ...
    print(recorder.table())

Where no recorder is active, `span` returns one shared object that does nothing. A recorder is
active in the thread (or task) that entered it; in a thread started later, use
`recorder.active()` there. `recorder.everywhere()` makes it that of all threads without another.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol

from baregrad.base.bits import human_seconds

_RUNNING = float("nan")
# By the system's clock, about when this process began to use the package.
PROCESS_BEGAN_NS = time.time_ns()
_LOOKED_AT = 64


@dataclass(slots=True)
class Span:
    """One timed stretch of work; times are in seconds of `time.perf_counter`.

    `depth` is the number of spans around it; `end` is NaN while it runs. `thread` is Python's
    number of the thread.
    """

    name: str
    start: float
    depth: int
    end: float = _RUNNING
    facts: dict[str, Any] = field(default_factory=dict)
    thread: int = 0

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.start


class SpanContext(Protocol):
    """What `span` returns: a context manager that takes more facts while it is open."""

    def __enter__(self) -> SpanContext:
        """Start the clock."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop the clock."""

    def note(self, **facts: Any) -> None:
        """Add facts to the span."""


class _Nothing:
    """The span that is handed out while nobody listens."""

    __slots__ = ()

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return None

    def note(self, **facts: Any) -> None:
        """Drop the facts."""


class _Open:
    """A span that is being recorded."""

    __slots__ = ("_recorders", "_span")

    def __init__(
        self, recorders: tuple[Recorder, ...], name: str, facts: dict[str, Any]
    ) -> None:
        self._recorders = recorders
        self._span = Span(name, 0.0, 0, _RUNNING, facts, threading.get_ident())

    def __enter__(self) -> _Open:
        span = self._span
        span.depth = depth = _DEPTH.get()
        _DEPTH.set(depth + 1)
        for recorder in self._recorders:
            recorder.spans.append(span)
        span.start = self._recorders[-1].clock()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        span = self._span
        span.end = self._recorders[-1].clock()
        _DEPTH.set(span.depth)

    def note(self, **facts: Any) -> None:
        """Add facts to the span."""
        self._span.facts.update(facts)


class Recorder:
    """Collects spans, in order of their start.

    clock: seconds since some moment; `time.thread_time` leaves out what else the machine does.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.spans: list[Span] = []
        self._marks: list[Token[tuple[Recorder, ...]]] = []

    def __enter__(self) -> Recorder:
        self._marks.append(_ACTIVE.set((self,)))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _ACTIVE.reset(self._marks.pop())

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Make this recorder the active one of another thread, for a block."""
        mark = _ACTIVE.set((self,))
        try:
            yield
        finally:
            _ACTIVE.reset(mark)

    @contextlib.contextmanager
    def everywhere(self) -> Iterator[None]:
        """Have this recorder take what threads and tasks without one of their own do, for a block.

        Several may do so at a time; the clock is that of the one that began last.
        """
        _process.recorders += (self,)
        try:
            yield
        finally:
            _process.recorders = tuple([one for one in _process.recorders if one is not self])

    def innermost(self) -> str:
        """Return the name of the span that this thread opened last and has not closed, "" if none.

        Of the thread's spans the last ones are looked at: it is asked for often.
        """
        here, depth = threading.get_ident(), _DEPTH.get()
        for one in self.spans[: -_LOOKED_AT - 1 : -1] if depth else ():
            if one.thread == here and one.end != one.end and one.depth == depth - 1:
                return one.name
        return ""

    def totals(self) -> dict[str, tuple[int, float]]:
        """Return how often each name was closed and how many seconds it took in all."""
        found: dict[str, tuple[int, float]] = {}
        for one in self.spans:
            if one.end == one.end:
                count, seconds = found.get(one.name, (0, 0.0))
                found[one.name] = (count + 1, seconds + one.seconds)
        return found

    def table(self) -> str:
        """Return the spans as indented text, one a line."""
        lines = []
        for one in self.spans:
            facts = "".join(f"  {name}={value}" for name, value in one.facts.items())
            lines.append(f"{human_seconds(one.seconds):>10}  {'  ' * one.depth}{one.name}{facts}")
        return "\n".join(lines)


_ACTIVE: ContextVar[tuple[Recorder, ...]] = ContextVar("baregrad_recorder")
_DEPTH: ContextVar[int] = ContextVar("baregrad_span_depth", default=0)
_NOTHING = _Nothing()


class _Process:
    """The recorders of threads and tasks without one of their own."""

    recorders: tuple[Recorder, ...] = ()


_process = _Process()


def active_recorder() -> Recorder | None:
    """Return the recorder of this thread or task, None where nobody listens."""
    recorders = _ACTIVE.get(_process.recorders)
    return recorders[-1] if recorders else None


def span(name: str, **facts: Any) -> SpanContext:
    """Return a context manager that times a block as part of the active recorders, if any."""
    recorders = _ACTIVE.get(_process.recorders)
    return _Open(recorders, name, facts) if recorders else _NOTHING
