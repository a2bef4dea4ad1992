"""What a tensor, a function or a block came to on its devices, and what would make it quicker.

It is run once, as it would be anyway, with lines noted: kernels with their bytes and their share of
the roofline, what had to be compiled, why values were stored, and advice that follows from these.
"""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType
from typing import Any

from baregrad.base.bits import human_bytes, human_count, human_seconds
from baregrad.engine.backends import CompiledBackend
from baregrad.engine.session import current_session
from baregrad.profiling.limits import limits_of
from baregrad.profiling.profile import Profile
from baregrad.profiling.summary import KernelRow, kernel_rows, summary, utilisations

# Advice is given of what takes such a share of the time at least.
_WORTH = 0.05
# A kernel that reaches less of the roofline is worth a search; one of fewer nanoseconds is mostly
# its launch.
_POOR, _TINY_NS = 0.5, 5_000
_MOST_STORED = 5
# The reason of what is stored because it was asked for.
_RESULT = "output"
# The stage that each kernel which is compiled passes once.
_RENDERED = "render"


@dataclass(frozen=True, slots=True)
class StoredValue:
    """A value that lies in memory between two kernels: its size, the reason, the user's line."""

    value: str
    nbytes: int
    reason: str
    where: str


class Explanation:
    """What was computed in a block; `str` tells it.

        with baregrad.explain() as told:
            step(x)
        print(told)

    result: what the function that was explained returned.
    """

    def __init__(self) -> None:
        self.result: Any = None
        self._profile = Profile(lines=True)
        self._open = contextlib.ExitStack()
        self._stored: dict[Any, StoredValue] = {}

    def __enter__(self) -> Explanation:
        self._open.enter_context(self._profile)
        self._open.enter_context(current_session().watching.observing(self._note))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._open.close()

    def _note(self, run: Any) -> None:
        if not isinstance(run.backend, CompiledBackend):
            return
        session = current_session()
        parts = [(one, part.program) for part in run.programs
                 for one in part.executable.plan.decisions]
        for one, program in parts:
            if one.stored and one.value not in self._stored and str(one.reason) != _RESULT:
                shape = session.concrete(one.value.shape, program.variables)
                where = session.line_of(program, one.value)
                self._stored[one.value] = StoredValue(
                    str(one).split(":", 1)[0].removeprefix("store").strip(),
                    math.prod(shape) * max(one.value.dtype.bits, 8) // 8, str(one.reason), where,
                )

    @property
    def kernels(self) -> list[KernelRow]:
        """What each kernel came to, those that took longest first."""
        return kernel_rows(self._profile._seen.runs(), self._limits)

    @property
    def launched(self) -> int:
        """How many different kernels ran."""
        return len({(run.device, one.name, one.program and one.program.code)
                    for run in self._profile._seen.runs() for one in run.facts
                    if one.program is not None})  # fmt: skip

    @property
    def compiled(self) -> int:
        """How many kernels were in no cache, neither in memory nor on disk, and were compiled."""
        return self._profile._seen.recorder.totals().get(_RENDERED, (0, 0.0))[0]

    @property
    def stored(self) -> list[StoredValue]:
        """The values that were stored between kernels, the largest first."""
        return sorted(self._stored.values(), key=lambda one: -one.nbytes)

    @cached_property
    def _limits(self) -> dict[str, Any]:
        seen = self._profile._seen
        return {device: limits_of(device, architecture)
                for device, architecture in seen.architectures.items()}  # fmt: skip

    def advice(self) -> list[str]:
        """Return what would help, what saves most first."""
        rows = self.kernels
        found = [*self._of_compiling(), *self._of_launching(), *self._of_waiting()]
        found += _of_kernels(rows)
        return [text for _, text in sorted(found, key=lambda one: -one[0])]

    def _whole_ns(self) -> int:
        seen = self._profile._seen
        return max(seen.end_ns - seen.begin_ns, 1)

    def _compiling_s(self) -> float:
        totals = self._profile._seen.recorder.totals()
        return sum(totals.get(name, (0, 0.0))[1] for name in ("schedule", "compile"))

    def _in_no_cache(self) -> str:
        if not self.compiled:
            return "every kernel was in a cache"
        were = "was" if self.compiled == 1 else "were"
        return f"{human_count(self.compiled, 'kernel')} {were} in no cache, on disk or in memory"

    def _of_compiling(self) -> list[tuple[float, str]]:
        seconds = self._compiling_s()
        if seconds * 1e9 < _WORTH * self._whole_ns():
            return []
        again = "the next run finds them" if self.compiled else "programs came from the disk"
        return [(seconds * 1e9, (
            f"planning and compiling took {human_seconds(seconds)}: {self._in_no_cache()}; "
            f"{again}. Shapes that change from call to call compile anew: make their sizes "
            "symbolic (`variable`, `bind`), or pad"
        ))]  # fmt: skip

    def _of_launching(self) -> list[tuple[float, str]]:
        found = []
        calls = self._profile._seen.calls
        runs = [one for one in calls if one.kind == "run"]
        idle = 0
        for one in utilisations(self._profile._seen.runs(), self._whole_ns()):
            idle = max(idle, one.idle_ns)
        idle -= round(1e9 * self._compiling_s())
        if len(runs) > 1 and idle > _WORTH * self._whole_ns():
            found.append((float(idle), (
                f"the device had nothing to do for {human_seconds(idle / 1e9)} between kernels: "
                f"{len(runs)} times work was submitted by itself. `jit` replays a whole step"
            )))  # fmt: skip
        return found

    def _of_waiting(self) -> list[tuple[float, str]]:
        by_line: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        for one in self._profile._seen.calls:
            if one.kind in ("copy out", "copy in"):
                total = by_line[f"{one.where}, {one.kind}"]
                total[0] += one.end_ns - one.begin_ns
                total[1] += 1
        return [
            (float(ns), f"{human_seconds(ns / 1e9)} in {human_count(count, 'wait')} of the host "
             f"({line}): read or write values less often, or more at a time")
            for line, (ns, count) in by_line.items() if ns > _WORTH * self._whole_ns()
        ]  # fmt: skip

    def __str__(self) -> str:
        lines = [summary(self._profile._seen, self._limits)]
        lines.append(
            f"{human_count(self.launched, 'different kernel')} ran; {self._in_no_cache()}"
        )
        if self.stored:
            lines.append("stored between kernels:")
            for one in self.stored[:_MOST_STORED]:
                size = human_bytes(one.nbytes)
                lines.append(f"  {size:>10} {one.value}: {one.reason}  {one.where}".rstrip())
            if len(self.stored) > _MOST_STORED:
                rest = len(self.stored) - _MOST_STORED
                lines.append(f"  and {human_count(rest, 'smaller value')}")
        advice = self.advice()
        lines += ["what would help:", *(f"  - {text}" for text in advice)] if advice else [
            "nothing stands out that would help"
        ]
        return "\n".join(lines)


def _of_kernels(rows: list[KernelRow]) -> list[tuple[float, str]]:
    whole = sum(row.total_ns for row in rows) or 1
    found = []
    for row in rows:
        lost = row.total_ns * (1 - row.roofline)
        each = row.total_ns / max(row.calls, 1)
        if row.least_ns and row.roofline < _POOR and lost > _WORTH * whole and each > _TINY_NS:
            found.append((lost, (
                f"{row.name} reaches {row.roofline:.0%} of the roofline "
                f"({row.line or row.device}): `BEAM=4`, or `baregrad search`, looks for a better "
                "schedule of it"
            )))  # fmt: skip
    tiny = [row for row in rows if row.total_ns / max(row.calls, 1) <= _TINY_NS]
    total = sum(row.total_ns for row in tiny)
    if len(tiny) > 1 and total > _WORTH * whole:
        calls = sum(row.calls for row in tiny)
        found.append((float(total) / 2, (
            f"{calls} launches of {human_count(len(tiny), 'kernel')} took less than "
            f"{human_seconds(_TINY_NS / 1e9)} each, {total / whole:.0%} together: larger batches, "
            "or fewer values that are stored in between, make them fewer"
        )))  # fmt: skip
    return found
