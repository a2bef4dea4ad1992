"""PyTorch's streams and events: here a GPU has one queue, in whose order all work is done."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from baregrad.base.errors import ArgumentError
from baregrad.cuda.devices import synchronize


class Event:
    """A moment in the work of all GPUs: what was submitted before `record()` is done by then.

    With `enable_timing` the milliseconds between two of them can be told. Values that nobody has
    asked for are not computed yet, and so are not part of that time.
    """

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> None:
        if interprocess:
            raise ArgumentError("an event is of one process", found="interprocess=True")
        self._timed, self._time = enable_timing, -1.0

    def record(self, stream: object = None) -> None:
        """Wait for all GPUs, and note the time."""
        self.synchronize()
        self._time = time.perf_counter()

    def synchronize(self) -> None:
        """Wait until all that was submitted is done."""
        synchronize()

    def wait(self, stream: object = None) -> None:
        """Do nothing: work is done in order."""

    def query(self) -> bool:
        """Return true: recording waits."""
        return True

    def elapsed_time(self, end_event: Event) -> float:
        """Return the milliseconds from this event to a later one.

        Raises ArgumentError unless both are timed and were recorded.
        """
        for one in (self, end_event):
            if not one._timed or one._time < 0:
                raise ArgumentError(
                    "times are told between recorded events",
                    found="one without enable_timing=True" if not one._timed
                    else "one whose record() was not called",
                )  # fmt: skip
        return (end_event._time - self._time) * 1e3


class _Stream:
    """The one queue of a GPU, under whatever name: as a `with` block it changes nothing."""

    def __init__(self, device: object = None, priority: int = 0) -> None:
        self.device, self.priority = device, priority

    def synchronize(self) -> None:
        """Wait until all that was submitted is done."""
        Event().synchronize()

    def wait_stream(self, stream: object) -> None:
        """Do nothing: work is done in order."""

    wait_event = wait_stream

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event, a new one unless given; return it."""
        made = event or Event()
        made.record()
        return made

    def query(self) -> bool:
        """Return whether all is done, after having waited for it."""
        self.synchronize()
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Go on in the same order."""


Stream = _Stream


@contextmanager
def stream(stream: Stream | None) -> Iterator[None]:
    """A block whose work is done in order with all other."""
    yield


def current_stream(device: object = None) -> Stream:
    """Return the queue of a GPU."""
    return Stream(device)


default_stream = current_stream
