"""Schedules for the kernels of a program: from the file of records, or searched for.

The time that is left is shared out among the kernels, the longest ones first, by the cube root of
what all of their launches take. A kernel keeps its first schedule unless another one gave the same
results and was faster in two races, run in turn with it.
"""

from __future__ import annotations

import hashlib
import math
import os
import statistics
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from baregrad.base.errors import ScheduleError
from baregrad.base.options import options
from baregrad.base.progress import ProgressBar
from baregrad.base.tracing import span
from baregrad.engine.search.crew import Bout, Crew, Losses
from baregrad.engine.search.records import (
    Records,
    SearchRecord,
    records_path,
    row_digest,
    short_digest,
)
from baregrad.engine.search.verdict import (
    LEAST_RATIO,
    LEAST_RATIO_APART,
    is_faster,
    ratio,
)
from baregrad.engine.workers.child import Child, program_of
from baregrad.engine.workers.wire import target_fields
from baregrad.ir.core.digest import digest
from baregrad.ir.core.node import Node
from baregrad.ir.text.dump import dump
from baregrad.kernel import Schedule, facts_of
from baregrad.kernel.planning.common.pool import estimate_ns
from baregrad.kernel.search import (
    FIRST,
    Trial,
    beam_search,
    check_schedule,
    first_ns,
)
from baregrad.runtime.interface import Device

SEARCHED_DEVICES = ("CPU", "NV", "CUDA")
# Races: seconds, and how many rounds at least and at most.
RACE_S = 0.25
RACE_ROUNDS = (3, 60)
FINAL_S = 0.8
FINAL_ROUNDS = (12, 200)
FINALISTS = 3
# How fast a winner is at least, next to the first schedule, on arrays that are in a GPU's cache.
NEAR_RATIO = 0.99
# What is this many times slower than the best is not raced, and no more than RACED are.
HOPELESS = 1.4
RACED = 8
# Of how many schedules a record keeps the times.
KEPT_TRIALS = 12
# Fewer schedules than this are no search, if it was time that ran out.
ENOUGH = 6
# Seconds after the last one in which what was begun is brought to an end.
OVERTIME_S = 5.0
# A kernel without a sum is not searched whose launches take less in all: a program's first steps
# have many, a parameter's cast or momentum each. Dozens that took an H200 10 to 17 us gained
# nothing.
SHORT_NS = 2.5e4
# Seconds that are kept for each kernel that is still to come, half of what is left at most.
KEPT_S = 2.0
# Seconds that a kernel is given at least, with LEAST_RUNS of its runs, and at most.
LEAST_S = 4.0
LEAST_RUNS = 150
MOST_S = 120.0
_Bounds = tuple[int, int]


@dataclass(slots=True)
class Tuner:
    """Finds schedules for one compiler and device.

    compiler: its target, `environment` and passes are what records are good for. make_child: gives
    a worker. spent_s: seconds of searching so far in this process. found: what this process
    searched. skipped: kernels there was no time for. losses: candidates that came to nothing.
    """

    compiler: Any
    device: Device
    make_child: Callable[[], Child] | None = None
    spent_s: float = 0.0
    found: list[SearchRecord] = field(default_factory=list)
    skipped: int = 0
    problems: list[str] = field(default_factory=list)
    losses: Losses = field(default_factory=Losses)
    _files: dict[Any, Records] = field(default_factory=dict)

    def schedules(self, kernels: Sequence[Node]) -> dict[Node, Schedule]:
        """The schedules of those kernels whose first one was beaten.

        kernels: as often as they are launched.
        """
        launches = Counter(kernels)
        records = self._records()
        chosen: dict[Node, Schedule] = {}
        missing = []
        for kernel in launches:
            record = None if records is None else records.get(*self._key(kernel))
            if record is None or record.width < options.beam:
                missing.append(kernel)
            found = None if record is None else self._fitting(kernel, record)
            if found is not None:
                chosen[kernel] = found
        if options.beam and missing:
            if self.device.name.partition(":")[0] not in SEARCHED_DEVICES:
                warnings.warn(
                    f"schedules are searched for on {', '.join(SEARCHED_DEVICES)}, not on "
                    f"{self.device.name}: its kernels have their first schedules",
                    RuntimeWarning,
                    stacklevel=4,
                )
                return chosen
            with span("search"):
                self._search({one: launches[one] for one in missing}, records, chosen)
        return chosen

    def _records(self) -> Records | None:
        path = records_path()
        if not path.name or not (options.cache or options.beam_file.name):
            return None
        if path not in self._files and not options.beam and not path.exists():
            # Nothing will make it: somebody has misspelt it.
            warnings.warn(
                f"the file of schedules BEAM_FILE={path} does not exist: kernels have their first "
                "schedules",
                RuntimeWarning,
                stacklevel=5,
            )
        return self._files.setdefault(path, Records(path))

    def _fitting(self, kernel: Node, record: SearchRecord) -> Schedule | None:
        """A record's schedule; None, with a warning, where it does not fit the kernel."""
        found = record.parsed()
        if found is None:
            return None
        try:
            check_schedule(kernel, found, self.compiler.target)
        except ScheduleError as error:
            warnings.warn(
                f"a schedule of the file {records_path()} does not fit {kernel.arg.name}, whose "
                f"first schedule is used: {error}",
                RuntimeWarning,
                stacklevel=5,
            )
            return None
        return found

    def summary(self) -> str:
        """What the searches of this process took, and what they could not do."""
        lines = [f"{len(self.found)} kernels were searched in {self.spent_s:.1f} s"]
        if self.skipped:
            lines.append(
                f"{self.skipped} kernels were not: the time was up (BEAM_SECONDS="
                f"{options.beam_seconds}); run it again to go on"
            )
        lines += [f"not searched: {problem}" for problem in self.problems]
        return "\n".join(lines)

    def _key(self, kernel: Node) -> tuple[str, str, str]:
        row = row_digest(self.compiler.target, getattr(self.device, "threads", 0))
        return digest(kernel), row, short_digest(self.compiler.environment)

    # --- searching --------------------------------------------------------------------------------

    def _search(
        self, launches: Mapping[Node, int], records: Records | None, chosen: dict[Node, Schedule]
    ) -> None:
        """Search for the schedules of kernels with so many launches, as long as there is time."""
        begin = time.monotonic()
        limit = options.beam_seconds or math.inf
        guesses = {kernel: count * self._guess_ns(kernel) for kernel, count in launches.items()}
        guesses = {
            kernel: ns for kernel, ns in guesses.items()
            if ns >= SHORT_NS or facts_of(kernel).reductions
        }
        if not guesses:
            return
        deadline = begin + limit - self.spent_s
        weights = {kernel: weight_of(ns) for kernel, ns in guesses.items()}
        order = sorted(guesses, key=lambda kernel: -weights[kernel])
        # The threads of a CPU's device, or all cores beside a GPU: they compile.
        workers = getattr(self.device, "threads", 0) or os.cpu_count() or 1
        late: list[Node] = []
        try:
            with (
                Crew(self.make_child or self._make_child, workers, options.beam_timeout) as crew,
                ProgressBar(len(order), f"search (BEAM={options.beam})") as bar,
            ):
                crew.losses = self.losses
                crew.until = deadline + OVERTIME_S

                def search_each(some: Sequence[Node], least_s: float) -> None:
                    left = sum(weights[kernel] for kernel in some)
                    for number, kernel in enumerate(some):
                        if deadline - time.monotonic() < least_s:
                            late.extend(some[number:])
                            break
                        left -= weights[kernel]
                        clock = Clock(deadline, left, len(some) - number - 1, launches[kernel])
                        record = self._search_one(crew, kernel, clock, chosen.get(kernel), late)
                        self._keep(kernel, record, records, chosen)
                        bar.advance(kernel not in late, note=_line(kernel, record))

                search_each(order, KEPT_S)
                # What was thought to take less than it does has the time that others left.
                again = late.copy()
                late.clear()
                search_each(again, LEAST_S)
        finally:
            self.skipped += len(late)
            self.spent_s += time.monotonic() - begin

    def _keep(
        self,
        kernel: Node,
        record: SearchRecord | None,
        records: Records | None,
        chosen: dict[Node, Schedule],
    ) -> None:
        """Keep what a search found, if it found anything, and say it."""
        if options.debug >= 1:
            print(f"search: {_line(kernel, record)}", file=sys.stderr)
        if record is None:
            return
        self.found.append(record)
        if records is not None:
            records.put(record)
        winner = record.parsed()
        if winner is None:
            chosen.pop(kernel, None)
        else:
            chosen[kernel] = winner

    def _guess_ns(self, kernel: Node) -> float:
        from baregrad.kernel.loops.sharing import prepare

        target = self.compiler.target
        if target.kind == "gpu":
            return first_ns(kernel, target)
        return float(estimate_ns(facts_of(prepare(kernel)), target))

    def _search_one(
        self,
        crew: Crew,
        kernel: Node,
        clock: Clock,
        earlier: Schedule | None,
        late: list[Node],
    ) -> SearchRecord | None:
        """Search for the schedule of one kernel; None where even the first could not be tried.

        A kernel whose time was too short joins those that are `late`.
        """
        text = dump(kernel).encode()
        wrong = crew.losses.wrong
        least = LEAST_RATIO if self.device.host_visible else LEAST_RATIO_APART
        judge = Judge(crew, text, self._cold_nbytes(), clock, least)
        known = () if earlier is None else (earlier,)
        try:
            trials = beam_search(
                kernel, self.compiler.target, options.beam, judge.measure, judge.has_time, known
            )
        except ScheduleError as error:
            # The first schedule is refused: compiling will say the same where it matters.
            self.problems.append(f"{kernel.arg.name}: {error}")
            return None
        if judge.bout is None:
            reasons = crew.losses.reasons[-1:] or ["it could not be compiled in time"]
            self.problems.append(f"{kernel.arg.name}: {reasons[0]}")
            # A disagreement stays one; what crashed or was late may do better another time.
            return self._record(kernel, None, 1.0, 1.0, 0) if crew.losses.wrong > wrong else None
        winner, first_ns, ns = judge.winner(trials)
        if winner is None and judge.cut_short:
            # Not enough to say that there is nothing to find.
            late.append(kernel)
            return None
        # By the first one's time in the last race: clocks may have been others at the beginning.
        scale = first_ns / judge.bout.first_ns
        kept = [each for each in trials[:KEPT_TRIALS] if each.what != FIRST]
        measured = [(FIRST, first_ns), *[(each.what, each.ns * scale) for each in kept]]
        return self._record(kernel, winner, first_ns, ns, judge.tried, measured)

    def _record(
        self, kernel: Node, winner: Schedule | None, first_ns: float, ns: float, tried: int,
        measured: Sequence[tuple[str, float]] = (),
    ) -> SearchRecord:
        key, target, toolchain = self._key(kernel)
        return SearchRecord(
            key, target, toolchain, str(kernel.arg.name), options.beam,
            "" if winner is None else str(winner), max(first_ns, 1.0), max(ns, 1.0), tried,
            tuple(measured),
        )

    def _cold_nbytes(self) -> int:
        """How much memory a kernel's arrays are rotated through.

        A program's arrays were mostly written a moment before: they are in the third cache, where
        they fit, and no longer in the nearer ones. Those that do not fit are in none. On a GPU they
        come from memory: a training step's arrays are larger than its second cache.
        """
        if self.compiler.target.kind == "gpu":
            return 2 * int(self.compiler.target.cache_bytes)
        host, target = getattr(self.device, "host", None), self.compiler.target
        near = getattr(host, "l2_nbytes", 0) or getattr(target, "l2_bytes", 0)
        shared = getattr(host, "l3_nbytes", 0) or getattr(target, "l3_bytes", 0)
        wanted = 4 * int(near) * max(getattr(self.device, "threads", 1), 1)
        return min(wanted, int(shared) // 2) if shared else wanted

    def _make_child(self) -> Child:
        kept = (
            "cpu_renderer", "gpu_renderer", "cc", "cuda_home", "cache_dir", "cache", "nv_port",
            "nv_timeout",
        )  # fmt: skip
        setting = {name: options.values()[name] for name in kept}
        setting["cache_dir"] = str(setting["cache_dir"])
        setting["threads"] = getattr(self.device, "threads", 0)
        row = target_fields(self.compiler.target)
        given = {"device": self.device.name, "options": setting, "target": row}
        return Child(given, program_of("baregrad.engine.search.worker"))


def weight_of(ns: float) -> float:
    """How much of the time a kernel that takes so long is given, next to others."""
    return float((1e5 + ns) ** (1 / 3))


@dataclass(frozen=True, slots=True)
class Clock:
    """When all has to end, and what others are to have of the time until then.

    others: their weights together. behind: how many they are. launches: of this kernel.
    """

    end: float
    others: float
    behind: int
    launches: int = 1

    def deadline(self, ns: float) -> float:
        """When the search for a kernel that takes so long has to end."""
        now = time.monotonic()
        own = weight_of(self.launches * ns)
        left = self.end - now
        free = left - min(KEPT_S * self.behind, left / 2)
        # A few kernels searched are more than many begun.
        least = LEAST_S + LEAST_RUNS * ns / 1e9
        wanted = max(free * own / (own + self.others), least)
        return min(now + min(wanted, MOST_S, free), self.end)


class Judge:
    """Measures the schedules of one kernel, each distinct program once.

    least_ratio: how much faster than the first one a winner is at least.
    """

    def __init__(
        self, crew: Crew, kernel: bytes, cold_nbytes: int, clock: Clock,
        least_ratio: float = LEAST_RATIO,
    ) -> None:
        self.least_ratio = least_ratio
        self.crew = crew
        self.kernel = kernel
        self.cold_nbytes = cold_nbytes
        self.clock = clock
        self.deadline = clock.end
        self.bout: Bout | None = None
        self.tried = 0
        self.cut_short = False
        self._ns: dict[str, float] = {}
        self._names: dict[Schedule, str] = {}

    def has_time(self) -> bool:
        """Whether there is time for another round, and for the last races."""
        first_s = 0.0 if self.bout is None else self.bout.first_ns / 1e9
        reserve = max(FINAL_S, (FINALISTS + 3) * FINAL_ROUNDS[0] * first_s)
        enough = self.deadline - time.monotonic() > reserve
        self.cut_short = not enough and self.tried < ENOUGH
        return enough

    def measure(self, schedules: Sequence[Schedule]) -> list[float]:
        """Nanoseconds of schedules; infinite where one is wrong, refused, too late or crashes."""
        programs = self.crew.compile_all(self.kernel, schedules, self.deadline)
        if self.bout is None:
            return self._first(schedules[0], programs[0])
        fresh: list[str] = []
        names: list[str | None] = []
        for schedule, program in zip(schedules, programs, strict=True):
            name = None if program is None else self._check(program, fresh)
            names.append(name)
            if name is not None:
                self._names[schedule] = name
        self._race(fresh)
        return [math.inf if name is None else self._ns.get(name, math.inf) for name in names]

    def _first(self, schedule: Schedule, program: bytes | None) -> list[float]:
        if program is not None:
            self.bout = self.crew.open_bench(self.kernel, program, self.cold_nbytes)
        if self.bout is None or program is None:
            return [math.inf]
        self.tried += 1
        self.deadline = self.clock.deadline(self.bout.first_ns)
        # What has the same code has the same time.
        self._ns["first"] = self._ns[_name(program)] = self.bout.first_ns
        self._names[schedule] = "first"
        return [self.bout.first_ns]

    def _check(self, program: bytes, fresh: list[str]) -> str | None:
        """The name of a program that is right."""
        name = _name(program)
        if name in self._ns:
            return name
        if time.monotonic() > self.deadline or self.bout is None:
            return None
        ns = self.bout.check(name, program)
        self.tried += 1
        self._ns[name] = math.inf if ns is None else ns
        if ns is not None:
            fresh.append(name)
        return name

    def _race(self, fresh: Sequence[str]) -> None:
        """Better times for the best of what was just checked."""
        best = min(self._ns.values())
        likely = [name for name in fresh if self._ns[name] < HOPELESS * best]
        likely.sort(key=self._ns.__getitem__)
        likely = likely[:RACED]
        if not likely or self.bout is None or time.monotonic() > self.deadline:
            return
        names = ["first", *likely]
        times = self.bout.race(names, self._rounds(names, RACE_S, RACE_ROUNDS))
        if times is None:
            return
        for name, each in zip(likely, times[1:], strict=True):
            self._ns[name] = self._ns["first"] / ratio(times[0], each)

    def _rounds(self, names: Sequence[str], seconds: float, bounds: _Bounds) -> int:
        total = sum(self._ns[name] for name in names)
        return min(max(int(seconds * 1e9 / max(total, 1.0)), bounds[0]), bounds[1])

    def winner(self, trials: Sequence[Trial]) -> tuple[Schedule | None, float, float]:
        """The schedule that is faster than the first one beyond doubt, and the times of both."""
        first = self._ns["first"]
        finalists = [t for t in trials if t.ns < first and self._names.get(t.schedule) != "first"]
        finalists = finalists[:FINALISTS]
        if not finalists or self.bout is None:
            return None, first, first
        names = ["first", *(self._names[t.schedule] for t in finalists)]
        rounds = self._rounds(names, FINAL_S, FINAL_ROUNDS)
        times = self.bout.race(names, rounds)
        if times is None:
            return None, first, first
        ranked = sorted(range(1, len(names)), key=lambda place: -ratio(times[0], times[place]))
        for best in ranked:
            if not is_faster(times[0], times[best], self.least_ratio):
                break
            again = self._confirmed(names[best], self._rounds(names, FINAL_S, FINAL_ROUNDS))
            if again is not None:
                middle = statistics.median_high(again[0])
                ns = middle / ratio(again[0], again[1])
                return finalists[best - 1].schedule, float(middle), ns
        return None, first, first

    def _confirmed(self, name: str, rounds: int) -> list[list[int]] | None:
        """Times of the first program and of one that is right, faster again, and no slower near.

        A program's arrays may lie in the second cache of a GPU, from which it takes them as well.
        """
        if self.bout is None or not self.bout.confirm(name):
            return None
        again = self.bout.race(["first", name], rounds)
        if again is None or not is_faster(again[0], again[1], self.least_ratio):
            return None
        if self.least_ratio > LEAST_RATIO:
            near = self.bout.race(["first", name], rounds, near=True)
            if near is None or ratio(near[0], near[1]) < NEAR_RATIO:
                return None
        return again


def _line(kernel: Node, record: SearchRecord | None) -> str:
    """What a search found, in a line."""
    if record is None:
        return f"{kernel.arg.name}: not searched"
    times = f"{record.first_ns / 1e3:.1f} -> {record.ns / 1e3:.1f} us"
    return f"{kernel.arg.name}: {times}, {record.gain:.2f}x, {record.tried} tried"


def _name(program: bytes) -> str:
    """A name for what a program does: its machine code and how it is launched."""
    from baregrad.program import Program

    found = Program.from_bytes(program)
    parts = (found.code, repr((found.chunks, found.launch, found.meta)).encode())
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]
