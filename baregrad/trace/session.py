"""What is made of a program's calls and rings as they come: lines, counts, a summary."""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TextIO

from baregrad.base.bits import human_count, human_text
from baregrad.runtime.nvidia.abi.vendor import VendorTables
from baregrad.trace import export, report
from baregrad.trace.calls import CATEGORIES, RawCall
from baregrad.trace.decode import DriverCall, decode
from baregrad.trace.output import TraceOutput
from baregrad.trace.sentences import explained
from baregrad.trace.submissions import PERIOD_S, Submission, SubmissionReader


@dataclass
class TraceSession:
    """Takes calls as they come, shows those that are asked for, and ends with what was asked."""

    tables: VendorTables
    chosen: argparse.Namespace
    out: TextIO | TraceOutput
    counts: report.CallCounts = field(default_factory=report.CallCounts)
    tree: report.ObjectTree = field(default_factory=report.ObjectTree)
    calls: list[DriverCall] = field(default_factory=list)
    work: Counter[str] = field(default_factory=Counter)
    launches: Counter[str] = field(default_factory=Counter)
    found: list[Submission] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        # Those who ask for other kinds see no launch that would need a name.
        names = not self.chosen.e or "launch" in self.chosen.e or self.chosen.c
        self.rings = SubmissionReader(self.tables, self.take_work, seeks_names=names)

    def take(self, raw: RawCall) -> None:
        """Take one call."""
        call = decode(self.tables, raw)
        self.counts.add(call)
        self.tree.add(call)
        self.rings.learn(call)
        if self.chosen.e and not report.categories(call) & set(self.chosen.e):
            return
        if self.chosen.allowlist or self.chosen.perfetto:
            self.calls.append(call)
        if self.chosen.json:
            print(json.dumps(export.as_row(call)), file=self.out)
        elif self.chosen.explain:
            self._say(f"{raw.time:10.6f} {raw.tid} {explained(call)}")
        elif not (self.chosen.c or self.chosen.tree or self.chosen.allowlist):
            self._say(report.line(call))

    def _say(self, line: str) -> None:
        print(human_text(line), file=self.out)

    def take_work(self, found: Submission) -> None:
        """Take what was found in a ring."""
        work = found.work
        self.work[work.kind] += 1
        if work.kind == "launch":
            values = dict(work.values)
            program = int(str(values.get("program", 0)))
            self.launches[str(values.get("kernel") or f"program at {program:#x}")] += 1
        kind = work.kind if work.kind in CATEGORIES else "channel"
        if self.chosen.e and kind not in self.chosen.e:
            return
        seconds = found.time - self.began
        if self.chosen.perfetto:
            self.found.append(replace(found, time=seconds))
        if self.chosen.c or self.chosen.tree or self.chosen.allowlist:
            return
        if self.chosen.json:
            row = {"work": work.kind, "text": work.text, "time": seconds, "pid": found.pid,
                   "channel": found.channel, **dict(work.values)}  # fmt: skip
            print(json.dumps(row), file=self.out)
        else:
            self._say(f"{seconds:10.6f} {found.pid} channel {found.channel:#x} {work.text}")

    def _footer(self) -> list[str]:
        rows = self.counts.footer()
        when = (
            "rings were read at each store to a doorbell" if self.chosen.exact else
            f"rings were read every {PERIOD_S * 1e3:.0f} ms: what one dropped meanwhile is missing"
        )  # fmt: skip
        if self.work:
            rows.append(
                "in rings: "
                + ", ".join(f"{kind} {count}" for kind, count in self.work.most_common())
                + f"; {self.rings.methods} methods; {when}"
            )
        rows += self._kernels()
        rows += [f"no name: {name}: {count}" for name, count in self.rings.unknown.most_common(20)]
        rows += [f"not readable: {name}: {human_count(count, 'time')}"
                 for name, count in self.rings.unreadable.most_common(20)]  # fmt: skip
        if self.rings.waiting:
            rows.append(f"{len(self.rings.waiting)} pieces of rings were left undecoded")
        return rows

    def _kernels(self) -> Iterator[str]:
        """Say which launched programs have names, and which got theirs late."""
        known = self.rings.kernels
        programs = [sum(map(len, rows)) for rows in (
            [one.names for one in known],
            [one.unnamed.keys() - one.names.keys() for one in known],
            [one.unreadable for one in known],
        )]  # fmt: skip
        if any(programs):
            yield (f"kernels: {programs[0]} by name, from {sum(one.modules for one in known)} "
                   f"modules; {programs[1]} whose module was not found, {programs[2]} whose code "
                   "cannot be read")  # fmt: skip
        for one in known:
            for program, (name, count) in one.late().items():
                times = human_count(count, "time")
                yield f"{program:#x} is {name}, launched {times} before that was known"

    def finish(self) -> None:
        """Print and write what comes at the end."""
        self.rings.tell_held(all_=True)
        if self.chosen.c:
            print(self.counts.table(), file=self.out)
            if self.launches:
                print(f"{'launches':>8} kernel", file=self.out)
            for name, count in self.launches.most_common():
                self._say(f"{count:8d} {name}")
        if self.chosen.tree:
            for line in self.tree.lines():
                self._say(line)
        if self.chosen.allowlist:
            print(json.dumps(export.allowlist(self.calls, self.tables.version), indent=2),
                  file=self.out)  # fmt: skip
        if self.chosen.perfetto:
            made = export.timeline(self.calls, self.found)
            Path(self.chosen.perfetto).write_text(json.dumps(made))
        if self.chosen.json:
            print(json.dumps({"summary": self._footer()}), file=self.out)
        elif not self.chosen.allowlist:
            for row in self._footer():
                self._say(f"# {row}")
        self.out.flush()
