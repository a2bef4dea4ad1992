"""`baregrad trace`: what a program asks of the NVIDIA driver, by name."""

from __future__ import annotations

import argparse
import contextlib
import platform
import re
import sys
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, TextIO

from baregrad.base.bits import human_text
from baregrad.base.errors import ArgumentError, UnsupportedError
from baregrad.base.places import check_writable
from baregrad.runtime.nvidia.abi.releases import parse_version
from baregrad.trace.calls import CATEGORIES
from baregrad.trace.engine import BegunProgram, ProgramFollower, begin
from baregrad.trace.output import TraceOutput, open_output
from baregrad.trace.ptrace import RECORDED, WATCHED

if TYPE_CHECKING:
    from baregrad.trace.watch import DriverWatch

_VERSION_FILE = Path("/proc/driver/nvidia/version")
# The newest release whose headers are published, where there is no driver to ask.
_NEWEST = "595.45.04"
# How often it is said how much is left to decode.
_TOLD_S = 2.0
# The options that say what the output is made of.
_FORMS: MappingProxyType[str, str] = MappingProxyType({
    "-c": "c", "--tree": "tree", "--explain": "explain", "--allowlist": "allowlist",
    "--json": "json",
})  # fmt: skip


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
    parser.add_argument("-e", action="append", choices=CATEGORIES, metavar="KIND",
                        help="only calls of a kind: " + ", ".join(CATEGORIES))
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
    asked = [option for option, name in _FORMS.items() if getattr(chosen, name)]
    if len(asked) > 1 and (chosen.json or chosen.allowlist):
        parser.error(f"{' and '.join(asked)} ask for one output in several forms: --json and "
                     "--allowlist write JSON alone")  # fmt: skip
    if chosen.exact and chosen.pid is not None:
        parser.error("--exact closes doorbells as they are mapped, which that process has done")
    if platform.system() != "Linux":
        raise ArgumentError("programs are traced on Linux alone", found=platform.system())
    version = chosen.driver or driver_version()
    for row in chosen.node:
        if "=" not in row:
            raise ArgumentError("--node has no node", found=row, wanted="PATH=NODE")
    for place in (chosen.perfetto, chosen.record):
        if place:
            check_writable(Path(place), "the file cannot be written there")
    with open_output(chosen.o) as out:
        if not (chosen.json or chosen.allowlist):
            found = f"driver {version}" if version else "no driver here"
            if not version or parse_version(version) > parse_version(_NEWEST):
                found += f", structs as of {_NEWEST}"
            print(f"# {found}", file=out)
        begun = None
        if words:
            # What reads files alone matters to a sandbox and to a replay, from the beginning.
            early = bool(chosen.record or chosen.allowlist)
            begun = begin(words, RECORDED if chosen.record else WATCHED, early=early)
        try:
            return _follow(chosen, version or _NEWEST, out, begun)
        except BaseException:
            if begun is not None:
                begun.end()
            raise


def _follow(
    chosen: argparse.Namespace, version: str, out: TextIO | TraceOutput, begun: BegunProgram | None
) -> int:
    """Follow what was begun, or a process, to its end.

    What that takes is imported here: the program starts meanwhile.
    """
    from baregrad.runtime.nvidia.abi.vendor import load_tables
    from baregrad.trace.session import TraceSession
    from baregrad.trace.watch import DriverWatch

    tables = load_tables(version)
    session = TraceSession(tables, chosen, out)
    recorder = trap = None
    if chosen.record:
        from baregrad.trace.recording import TraceRecorder

        recorder = TraceRecorder(chosen.record, tables)
    if chosen.exact:
        from baregrad.trace.exact import DoorbellTrap

        trap = DoorbellTrap(session.rings.read_all)
    nodes = dict(row.split("=", 1) for row in chosen.node)
    watch = DriverWatch(tables, session.take, nodes, session.rings, recorder, trap)
    follower = ProgramFollower(watch)
    began = True
    try:
        if begun is None:
            return follower.attach(chosen.pid)
        return follower.follow(begun)
    except (ArgumentError, UnsupportedError):
        began = False
        raise
    finally:
        _finish(watch)
        if recorder is not None:
            recorder.close()
        if began:
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
    from baregrad.trace import export

    parser = argparse.ArgumentParser(
        prog="baregrad trace diff", description="In what two files of --json differ; 1 if they do."
    )
    parser.add_argument("one")
    parser.add_argument("two")
    chosen = parser.parse_args(words)
    rows = list(export.compared(export.read_rows(chosen.one), export.read_rows(chosen.two)))
    print("\n".join(map(human_text, rows)) or "the same calls")
    return int(bool(rows))
