"""Who held how much of a device's memory when."""

from __future__ import annotations

import itertools
import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from baregrad.profiling.records import Held
from baregrad.runtime.buffers import Memory


@dataclass(frozen=True, slots=True)
class Peak:
    """The moment at which a device held most: when, how much in all, and how much each owner.

    `before` is what it held already when the profile began, of which no owner is known.
    """

    device: str
    at_ns: int
    nbytes: int
    before: int
    owners: tuple[tuple[str, int, int], ...]


class MemoryLog:
    """Takes note of memory that comes and goes.

    Memory goes at any time, in the midst of a garbage collection as well: all that is done then
    is to append to a queue.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._events: deque[tuple[int, int, Held | None]] = deque()
        self.before: dict[str, int] = {}

    def take(self, memory: Memory, held: Held) -> None:
        """Note that memory was given out, and have its return noted."""
        number = next(self._numbers)
        release, events = memory._release, self._events
        events.append((time.perf_counter_ns(), number, held))

        def released(token: Any) -> None:
            events.append((time.perf_counter_ns(), number, None))
            if release is not None:
                release(token)

        memory._release = released

    def begin_in_child(self) -> None:
        """In a forked child: forget what had come and gone; what is held, the child holds too."""
        gone = {number for _, number, held in self._events if held is None}
        kept = [one for one in self._events if one[1] not in gone]
        self._events.clear()
        self._events.extend(kept)

    def changes(self) -> Iterable[tuple[int, Held, int]]:
        """Yield each change: when, of what, and by how many bytes."""
        live: dict[int, Held] = {}
        for at, number, held in sorted(self._events, key=lambda event: event[0]):
            if held is not None:
                live[number] = held
                yield at, held, held.nbytes
            elif number in live:
                gone = live.pop(number)
                yield at, gone, -gone.nbytes

    def peaks(self) -> list[Peak]:
        """Return the peak of each device, its owners by size, largest first."""
        now = dict(self.before)
        most: dict[str, tuple[int, int]] = {}
        for at, held, change in self.changes():
            now[held.device] = now.get(held.device, 0) + change
            if now[held.device] > most.get(held.device, (0, -1))[1]:
                most[held.device] = (at, now[held.device])
        return [
            Peak(device, at, nbytes, self.before.get(device, 0), self._owners(device, at))
            for device, (at, nbytes) in most.items()
        ]

    def _owners(self, device: str, at_ns: int) -> tuple[tuple[str, int, int], ...]:
        """Return owner, bytes and pieces of what a device held at a time."""
        nbytes: Counter[str] = Counter()
        pieces: Counter[str] = Counter()
        for at, held, change in self.changes():
            if at > at_ns:
                break
            if held.device == device:
                nbytes[held.owner] += change
                pieces[held.owner] += 1 if change >= 0 else -1
        return tuple((who, size, pieces[who]) for who, size in nbytes.most_common() if size)
