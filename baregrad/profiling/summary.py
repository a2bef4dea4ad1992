"""What a profile comes to: kernels, devices, threads, and who holds memory at the peak."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from baregrad.base.bits import human_bytes, human_count, human_seconds
from baregrad.profiling.collector import Collector
from baregrad.profiling.limits import Limits
from baregrad.profiling.records import ListRun

_OWNERS_SHOWN, _SPANS_SHOWN = 12, 16


@dataclass(slots=True)
class KernelRow:
    """All runs of a kernel, copy or fill on a device that one line asked for.

    where: the line, if it was noted when the work was planned. asked_at: the lines of the calls.
    """

    device: str
    name: str
    where: str
    calls: int = 0
    total_ns: int = 0
    flops: int = 0
    nbytes: int = 0
    least_ns: float = 0.0
    asked_at: set[str] = field(default_factory=set)

    @property
    def line(self) -> str:
        """The line, in words that say so where only that of the call is known."""
        if self.where or not self.asked_at:
            return self.where
        one, *others = self.asked_at
        return f"asked for at {f'{len(others) + 1} lines' if others else one}"

    @property
    def roofline(self) -> float:
        """The share of the machine's limits that its runs reach, 0 where those are not known."""
        return self.least_ns / max(self.total_ns, 1)


@dataclass(frozen=True, slots=True)
class Utilisation:
    """How long a device worked, of the time from its first command to its last.

    `covered_ns` is the time in which some command ran; those of a queue that follow each other
    without a gap cover all of it. `between_ns` is the time in which none did while a list was under
    way: what a device takes from the end of one command to the beginning of the next. `own_ns` is
    what events of the profile took there beside. In the rest of the span it had no list.
    """

    device: str
    covered_ns: int
    between_ns: int
    span_ns: int
    profile_ns: int
    own_ns: int = 0

    @property
    def idle_ns(self) -> int:
        """The time of the span in which the device had no list."""
        return self.span_ns - self.covered_ns - self.between_ns - self.own_ns

    @property
    def coverage(self) -> float:
        """The share of the span in which some command ran, the profile's own time left out."""
        return self.covered_ns / max(self.span_ns - self.own_ns, 1)


def kernel_rows(runs: Iterable[ListRun], limits: Mapping[str, Limits | None]) -> list[KernelRow]:
    """Return the rows of all kernels, those that took longest in all first."""
    found: dict[tuple[str, str, str], KernelRow] = {}
    for run in runs:
        known = limits.get(run.device)
        for facts, begin, end in zip(run.facts, run.begin_ns, run.end_ns, strict=True):
            if end <= begin:
                continue
            key = (run.device, facts.name, facts.where)
            row = found.get(key)
            if row is None:
                row = found[key] = KernelRow(*key)
            flops, nbytes = facts.work(run.variables)
            row.calls += 1
            row.asked_at.add(run.where)
            row.total_ns += end - begin
            row.flops += flops
            row.nbytes += nbytes
            if known is not None:
                row.least_ns += known.least_ns(facts, run.variables)
    return sorted(found.values(), key=lambda row: -row.total_ns)


def utilisations(runs: Iterable[ListRun], profile_ns: int) -> list[Utilisation]:
    """Return how busy each device was."""
    busy: dict[str, list[tuple[int, int]]] = defaultdict(list)
    lists: dict[str, list[tuple[int, int]]] = defaultdict(list)
    owned: dict[str, int] = defaultdict(int)
    for run in runs:
        if run.begin_ns:
            busy[run.device] += zip(run.begin_ns, run.end_ns, strict=True)
            lists[run.device].append((min(run.begin_ns), max(run.end_ns)))
            owned[run.device] += run.own_ns
    found = []
    for device, pieces in busy.items():
        covered, under_way = _covered(pieces), _covered(lists[device])
        span = max(end for _, end in pieces) - min(begin for begin, _ in pieces)
        between = under_way - covered
        # Where lists overlap, one's events may lie beside another's command.
        own = min(owned[device], between)
        found.append(Utilisation(device, covered, between - own, span, profile_ns, own))
    return found


def _covered(pieces: Iterable[tuple[int, int]]) -> int:
    """Return the length of what some piece, from its begin to its end, covers."""
    covered, reached = 0, None
    for begin, end in sorted(pieces):
        reached = begin if reached is None else reached
        covered += max(end - max(begin, reached), 0)
        reached = max(reached, end)
    return covered


def summary(seen: Collector, limits: Mapping[str, Limits | None], rows_shown: int = 40) -> str:
    """Return the tables as text."""
    runs = seen.runs()
    rows = kernel_rows(runs, limits)
    profile_ns = seen.end_ns - seen.begin_ns
    whole = sum(row.total_ns for row in rows) or 1
    head = ("kernel", "calls", "total", "share", "GB/s", "TFLOP/s", "roofline", "line")
    cells: list[tuple[str, ...]] = [head]
    for row in rows[:rows_shown]:
        ns = max(row.total_ns, 1)
        cells.append((
            row.name, str(row.calls), human_seconds(ns / 1e9), f"{row.total_ns / whole:.1%}",
            f"{row.nbytes / ns:.1f}", f"{row.flops / ns / 1e3:.3f}",
            f"{row.roofline:.0%}" if row.least_ns else "-", row.line,
        ))  # fmt: skip
    lines = _columns(cells) if rows else ["no device ran anything"]
    if len(rows) > rows_shown:
        rest = rows[rows_shown:]
        share = sum(row.total_ns for row in rest) / whole
        lines.append(f"and {len(rest)} more, {share:.1%} together")
    lines += map(_busy_line, utilisations(runs, profile_ns))
    return "\n".join([*lines, *_sparing_lines(runs), *_host_lines(seen), *_peak_lines(seen)])


def _busy_line(one: Utilisation) -> str:
    span = max(one.span_ns - one.own_ns, 1)
    own = f", events of the profile took {human_seconds(one.own_ns / 1e9)} beside"
    return (
        f"{one.device}: busy for {human_seconds(one.covered_ns / 1e9)}, "
        f"{one.coverage:.1%} of the time from its first command to its last; "
        f"{one.between_ns / span:.1%} between commands of a list, {one.idle_ns / span:.1%} without "
        f"a list; {one.covered_ns / max(one.profile_ns, 1):.1%} of the profile"
        f"{own if one.own_ns else ''}"
    )


def _sparing_lines(runs: Iterable[ListRun]) -> list[str]:
    """Of which devices not every run was timed command by command, and of how many it was."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for run in runs:
        counts[run.device][run.measured] += 1
    return [
        f"{device}: {closely} of {closely + whole} runs of lists timed command by command; in the "
        "others, timed as a whole, each command has its share of the time"
        for device, (whole, closely) in counts.items()
        if whole
    ]


def _columns(cells: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for row in cells:
        first, *numbers, last = row
        shown = [f"{first:<{widths[0]}}"]
        shown += [f"{one:>{width}}" for one, width in zip(numbers, widths[1:-1], strict=True)]
        lines.append("  ".join([*shown, last]).rstrip())
    return lines


def _host_lines(seen: Collector) -> list[str]:
    """What threads of Python did with devices, and the spans, by name."""
    totals: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for call in seen.calls:
        total = totals[f"{call.kind} ({call.device})"]
        total[0] += 1
        total[1] += call.end_ns - call.begin_ns
    for name, (count, seconds) in seen.recorder.totals().items():
        totals[name] = [count, round(seconds * 1e9)]
    ranked = sorted(totals.items(), key=lambda item: -item[1][1])
    shown = [
        f"  {name}: {human_count(count, 'time')}, {human_seconds(ns / 1e9)}"
        for name, (count, ns) in ranked[:_SPANS_SHOWN]
    ]
    rest = ranked[_SPANS_SHOWN:]
    if rest:
        ns = sum(total[1] for _, total in rest)
        shown.append(f"  and {len(rest)} more, {human_seconds(ns / 1e9)} together")
    return ["threads of Python, by the host's clock:", *shown] if shown else []


def _peak_lines(seen: Collector) -> list[str]:
    lines = []
    for peak in seen.memory.peaks():
        at = (peak.at_ns - seen.begin_ns) / 1e9
        lines.append(f"{peak.device}: at most {human_bytes(peak.nbytes)} of memory, at {at:.3f} s:")
        for owner, nbytes, pieces in peak.owners[:_OWNERS_SHOWN]:
            lines.append(f"  {human_bytes(nbytes):>10} in {human_count(pieces, 'piece')}: {owner}")
        rest = peak.owners[_OWNERS_SHOWN:]
        if rest:
            nbytes = sum(size for _, size, _ in rest)
            lines.append(f"  {human_bytes(nbytes):>10} of {human_count(len(rest), 'other owner')}")
        if peak.before:
            lines.append(f"  {human_bytes(peak.before):>10} held before the profile began")
    return lines
