"""The processes of a search: some that compile, and one that has the machine to itself to time.

Compiling and timing take turns, so that nothing runs beside what is timed.
"""

from __future__ import annotations

import contextlib
import math
import select
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from baregrad.engine.search.verdict import ratio
from baregrad.engine.workers.child import START_S, Child, ChildLost
from baregrad.kernel import Schedule

# A check takes about as long as the first one did, whatever is slow about the machine.
PATIENCE = 4.0


@dataclass(slots=True)
class Losses:
    """What went wrong with candidates: crashes, deadlines missed, refusals, wrong results."""

    crashed: int = 0
    late: int = 0
    refused: int = 0
    wrong: int = 0
    reasons: list[str] = field(default_factory=list)

    def lost(self, error: ChildLost) -> None:
        """Count a worker that was lost."""
        if error.late:
            self.late += 1
        else:
            self.crashed += 1
        self.reasons.append(str(error))


class Crew:
    """Workers, started as they are needed; `close` ends them.

    make: gives a worker. count: of those that compile. limit_s: for any one candidate. `until` is
    when everything ends, on the monotonic clock.
    """

    def __init__(self, make: Callable[[], Child], count: int, limit_s: float) -> None:
        self.compilers = [make() for _ in range(max(count, 1))]
        self.bench = make()
        self.limit_s = limit_s
        self.until = math.inf
        self.losses = Losses()

    def close(self) -> None:
        """End every worker."""
        for child in (*self.compilers, self.bench):
            child.kill()

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def compile_all(
        self, kernel: bytes, schedules: Sequence[Schedule], deadline: float
    ) -> list[bytes | None]:
        """Programs of a kernel's text under schedules; None where there is none in time."""
        results: list[bytes | None] = [None] * len(schedules)
        waiting = list(enumerate(schedules))[::-1]
        busy: dict[int, tuple[int, float]] = {}
        while waiting or busy:
            for place, child in enumerate(self.compilers):
                if place not in busy and waiting and time.monotonic() < deadline:
                    number, schedule = waiting.pop()
                    fresh = START_S if not child.alive else 0.0
                    question = {"ask": "compile", "schedule": str(schedule)}
                    try:
                        child.send(question, [kernel])
                    except ChildLost as error:
                        self.losses.lost(error)
                        continue
                    limit = time.monotonic() + fresh + self.limit_s
                    busy[place] = (number, min(limit, self.until))
            if not busy:
                break
            self._collect(busy, results)
        return results

    def _collect(self, busy: dict[int, tuple[int, float]], results: list[bytes | None]) -> None:
        """Wait for one compiler at least, and take what has come."""
        soonest = min(until for _, until in busy.values()) - time.monotonic()
        waited = [self.compilers[place].fileno() for place in busy]
        ready, _, _ = select.select(waited, [], [], max(soonest, 0.0))
        for place in list(busy):
            number, until = busy[place]
            child = self.compilers[place]
            if child.fileno() not in ready and time.monotonic() < until:
                continue
            del busy[place]
            try:
                header, blobs = child.answer(until)
            except ChildLost as error:
                self.losses.lost(error)
                continue
            if "error" in header or not blobs:
                self.losses.refused += 1
                self.losses.reasons.append(str(header.get("error", "no program")))
            else:
                results[number] = blobs[0]

    def open_bench(self, kernel: bytes, program: bytes, cold_nbytes: int) -> Bout | None:
        """Have a kernel's arguments and first program ready; None where it cannot be checked."""
        bout = Bout(self, kernel, program, cold_nbytes)
        return bout if bout.open() else None

    def ask(
        self, header: dict[str, Any], blobs: Sequence[bytes] = (), seconds: float = 0.0
    ) -> dict[str, Any] | None:
        """Ask the process that times; None where it was lost or had an error."""
        left = max(self.until - time.monotonic(), 0.1)
        try:
            answer, _ = self.bench.ask(header, blobs, min(seconds or self.limit_s, left))
        except ChildLost as error:
            self.losses.lost(error)
            return None
        if "error" in answer:
            if answer.get("faulted"):
                self.bench.kill()
                self.losses.crashed += 1
            else:
                self.losses.refused += 1
            self.losses.reasons.append(str(answer["error"]))
            return None
        if "wrong" in answer:
            self.losses.wrong += 1
            self.losses.reasons.append(str(answer["wrong"]))
            return None
        return answer


class Bout:
    """Programs of one kernel against its first one."""

    def __init__(self, crew: Crew, kernel: bytes, program: bytes, cold_nbytes: int) -> None:
        self.crew = crew
        self.kernel = kernel
        self.programs: dict[str, bytes] = {"first": program}
        self.cold_nbytes = cold_nbytes
        self.first_ns = 0.0
        self.patience_s = crew.limit_s
        self._held: set[str] = set()
        self._process = 0

    def open(self) -> bool:
        """Send the kernel and its first program, again after the process was lost."""
        begin = time.monotonic()
        question = {"ask": "open", "cold_nbytes": self.cold_nbytes}
        with contextlib.suppress(ChildLost):
            self.crew.bench.start()
        limit = START_S + self.crew.limit_s
        answer = self.crew.ask(question, [self.kernel, self.programs["first"]], limit)
        ns = None if answer is None else answer.get("ns")
        if not isinstance(ns, int | float) or not ns > 0:
            return False
        took = time.monotonic() - begin
        self.patience_s = min(self.crew.limit_s, 1.0 + PATIENCE * took)
        self.first_ns = self.first_ns or float(ns)
        self._held = {"first"}
        self._process = self.crew.bench.started
        return True

    def check(self, name: str, program: bytes) -> float | None:
        """Nanoseconds of a program whose results are right; None of any other."""
        if not self._ready():
            return None
        question = {"ask": "check", "name": name}
        answer = self.crew.ask(question, [program], self.patience_s)
        times = _times(answer, 2)
        if times is None or not all(map(min, times)):
            return None
        self.programs[name] = program
        self._held.add(name)
        # By the first one's time in the same rounds: the machine is not always as fast.
        return self.first_ns / ratio(*times)

    def confirm(self, name: str) -> bool:
        """Whether all that a program computes is right, where its check looked at some of it."""
        if not self._ready():
            return False
        if name not in self._held and self.check(name, self.programs[name]) is None:
            return False
        question = {"ask": "confirm", "name": name}
        return self.crew.ask(question, (), self.crew.limit_s + START_S) is not None

    def race(
        self, names: Sequence[str], rounds: int, near: bool = False
    ) -> list[list[int]] | None:
        """Times of programs that were checked, run in turn; None where the process was lost.

        near: all on the same arrays, which are in the caches, if they fit there.
        """
        for name in names:
            if not self._ready():
                return None
            if name not in self._held and self.check(name, self.programs[name]) is None:
                return None
        question = {"ask": "race", "names": list(names), "rounds": rounds, "near": near}
        answer = self.crew.ask(question, (), 2 * self.crew.limit_s + START_S)
        times = _times(answer, len(names))
        return times if times and len(times[0]) == rounds else None

    def _ready(self) -> bool:
        bench = self.crew.bench
        if bench.alive and bench.started == self._process:
            return True
        return self.open()


def _times(answer: dict[str, Any] | None, count: int) -> list[list[int]] | None:
    """The times of `count` programs in equally many rounds, one at least; None for others."""
    found = None if answer is None else answer.get("times")
    if not isinstance(found, list) or len(found) != count:
        return None
    rows = [row for row in found if isinstance(row, list) and row]
    if len(rows) != count or len({len(row) for row in rows}) != 1:
        return None
    return rows if all(type(ns) is int for row in rows for ns in row) else None
