"""`baregrad trace`: what a program asks of the NVIDIA driver, by name."""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TextIO

from baregrad.base.bits import human_text
from baregrad.base.errors import ArgumentError
from baregrad.base.places import check_writable
from baregrad.runtime.nvidia.abi.releases import parse_version
from baregrad.runtime.nvidia.abi.vendor import VendorTables, load_tables
from baregrad.trace import export, report
from baregrad.trace.calls import RawCall
from baregrad.trace.decode import DriverCall, decode
from baregrad.trace.engine import ProgramFollower
from baregrad.trace.exact import DoorbellTrap
from baregrad.trace.output import TraceOutput, open_output
from baregrad.trace.ptrace import RECORDED, WATCHED
from baregrad.trace.submissions import PERIOD_S, Submission, SubmissionReader
from baregrad.trace.watch import DriverWatch

_VERSION_FILE = Path("/proc/driver/nvidia/version")
# The newest release whose headers are published, where there is no driver to ask.
_NEWEST = "595.45.04"
# How often it is said how much is left to decode.
_TOLD_S = 2.0


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
            self._say(f"{raw.time:10.6f} {raw.tid} {report.explained(call)}")
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
        kind = work.kind if work.kind in report.CATEGORIES else "channel"
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
                ", ".join(f"{count} of kind {kind}" for kind, count in self.work.most_common())
                + f" in rings, {self.rings.methods} methods; {when}"
            )
        rows += self._kernels()
        rows += [f"no name: {name}: {count}" for name, count in self.rings.unknown.most_common(20)]
        rows += [f"not readable: {name}: {count} times"
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
                yield f"{program:#x} is {name}, launched {count} times before that was known"

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
        if not (self.chosen.json or self.chosen.allowlist):
            for row in self._footer():
                self._say(f"# {row}")
        self.out.flush()


def driver_version() -> str:
    """Return the kernel driver's release, or an empty text where there is no driver."""
    try:
        text = _VERSION_FILE.read_text()
    except OSError:
        return ""
    found = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", text)
    return found[1] if found else ""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="baregrad trace", usage="baregrad trace [options] -- CMD... | --pid N | diff A B",
        description="Show what a program asks of the NVIDIA driver: each call by name, with the "
        "fields that say something, before -> after. Work that passes no call is read from the "
        "rings that the program has mapped.",
    )  # fmt: skip
    parser.add_argument("-e", action="append", choices=report.CATEGORIES, metavar="KIND",
                        help="only calls of a kind: " + ", ".join(report.CATEGORIES))
    parser.add_argument("-c", action="store_true", help="counts and times alone")
    parser.add_argument("--tree", action="store_true", help="the objects, as they lived")
    parser.add_argument("--explain", action="store_true", help="one sentence a call")
    parser.add_argument("--allowlist", action="store_true", help="what a sandbox must allow")
    parser.add_argument("--json", action="store_true", help="a JSON object a line")
    parser.add_argument("--perfetto", metavar="F", default="", help="write a timeline")
    parser.add_argument("--record", metavar="F", default="", help="write the calls as a file that "
                        "the runtime's port replays, up to the first submission")
    parser.add_argument("-o", metavar="F", default="", help="write there, not to standard error")
    parser.add_argument("--pid", type=int, help="follow a process that runs; each of its system "
                        "calls stops it, and Ctrl-C leaves it")
    parser.add_argument("--exact", action="store_true", help="stop at each store to a doorbell, so "
                        "that no submission is missed; about a millisecond each")
    parser.add_argument("--driver", default="", metavar="RELEASE",
                        help="read structs as of this release, not as of the driver here")
    parser.add_argument("--node", action="append", default=[], metavar="PATH=NODE",
                        help="take a file for a node, as /tmp/x=/dev/nvidiactl")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- CMD...")
    return parser


def main(argv: list[str]) -> int:
    """Trace a command or a process; return its exit status."""
    if argv[:1] == ["diff"]:
        return _diff(argv[1:])
    parser = _parser()
    chosen = parser.parse_args(argv)
    words = chosen.command[1:] if chosen.command[:1] == ["--"] else chosen.command
    if bool(words) == (chosen.pid is not None):
        parser.error("give a command or --pid")
    if chosen.exact and chosen.pid is not None:
        parser.error("--exact closes doorbells as they are mapped, which a running process did")
    if platform.system() != "Linux":
        raise ArgumentError("programs are traced on Linux alone", found=platform.system())
    version = chosen.driver or driver_version()
    tables = load_tables(version or _NEWEST)
    for row in chosen.node:
        if "=" not in row:
            raise ArgumentError("--node has no node", found=row, wanted="PATH=NODE")
    nodes = dict(row.split("=", 1) for row in chosen.node)
    for place in (chosen.perfetto, chosen.record):
        if place:
            check_writable(Path(place), "the file cannot be written there")
    with open_output(chosen.o) as out:
        session = TraceSession(tables, chosen, out)
        if not (chosen.json or chosen.allowlist):
            found = f"driver {version}" if version else "no driver here"
            if not version or parse_version(version) > parse_version(_NEWEST):
                found += f", structs as of {_NEWEST}"
            print(f"# {found}", file=out)
        recorder = None
        if chosen.record:
            from baregrad.trace.recording import TraceRecorder

            recorder = TraceRecorder(chosen.record, tables)
        trap = DoorbellTrap(session.rings.read_all) if chosen.exact else None
        watch = DriverWatch(tables, session.take, nodes, session.rings, recorder, trap)
        follower = ProgramFollower(watch)
        try:
            if chosen.pid is not None:
                return follower.attach(chosen.pid)
            # What reads files alone matters to a sandbox and to a replay, from the beginning.
            early = recorder is not None or chosen.allowlist
            names = RECORDED if recorder is not None else WATCHED
            return follower.start(words, names, early=early)
        finally:
            _finish(watch)
            if recorder is not None:
                recorder.close()
            session.finish()
            for path in watch.unseen:
                _tell(f"{path} is a 32-bit program, whose calls are not seen")
            if recorder is not None and recorder.left_out:
                _tell(f"{recorder.left_out} calls, of other processes than the one recorded "
                      f"or by unknown descriptors, are not in {chosen.record}")  # fmt: skip


def _tell(text: str) -> None:
    """Say something beside the trace, to whoever still listens."""
    with contextlib.suppress(BrokenPipeError):
        print(f"# {text}", file=sys.stderr, flush=True)


def _finish(watch: DriverWatch) -> None:
    """Decode what is left, saying how much that is; an interrupt ends it."""
    with contextlib.suppress(KeyboardInterrupt):
        while watch.finish_some(_TOLD_S):
            _tell(f"{watch.left} calls and pieces of rings are left to decode")


def _diff(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="baregrad trace diff", description="In what two files of --json differ; 1 if they do."
    )
    parser.add_argument("one")
    parser.add_argument("two")
    chosen = parser.parse_args(words)
    rows = list(export.compared(export.read_rows(chosen.one), export.read_rows(chosen.two)))
    print("\n".join(map(human_text, rows)) or "the same calls")
    return int(bool(rows))
