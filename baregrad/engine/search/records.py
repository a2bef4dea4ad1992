"""What searches found, in a file that can be shipped: a line of JSON for each kernel.

A line is good for one kernel (by digest), one target row and one toolchain (renderer, assembler,
our own compiler's text), and says what was measured. Lines are appended whole, under a lock, so
that processes may share the file; of several lines for one kernel the last one holds, and lines
that are broken or of another kind are passed over.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from baregrad.base.errors import ScheduleError
from baregrad.base.options import options
from baregrad.ir.core.digest import stable_repr
from baregrad.kernel import Schedule, parse_schedule
from baregrad.target import AnyTarget

VERSION = 1


@dataclass(frozen=True, slots=True)
class SearchRecord:
    """The outcome of one search.

    kernel, target, toolchain: what it is good for, as digests. width: of the search. schedule: the
    winner's text, empty where none beat the first schedule. first_ns and ns: medians of the first
    schedule and of the winner, run in turn. tried: how many schedules were measured. measured: the
    best of these, as what they are and their nanoseconds.
    """

    kernel: str
    target: str
    toolchain: str
    name: str
    width: int
    schedule: str
    first_ns: float
    ns: float
    tried: int
    measured: tuple[tuple[str, float], ...] = ()

    @property
    def gain(self) -> float:
        """How many times as fast as the first schedule the winner is."""
        return self.first_ns / self.ns if self.schedule and self.ns else 1.0

    def parsed(self) -> Schedule | None:
        """The winner, None where there is none. Raises ScheduleError for a text that is none."""
        return parse_schedule(self.schedule) if self.schedule else None


Key = tuple[str, str, str]


def records_path() -> Path:
    """The file of schedules: the one that is named, or one beside the compiled kernels."""
    named = options.beam_file
    return named if named.name else options.cache_dir / "schedules.jsonl"


class Records:
    """A file of records; read when it has changed, appended to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp: tuple[int, int] | None = None
        self._found: dict[Key, SearchRecord] = {}

    def get(self, kernel: str, target: str, toolchain: str) -> SearchRecord | None:
        """The last record of a kernel."""
        self._read()
        return self._found.get((kernel, target, toolchain))

    def all(self) -> list[SearchRecord]:
        """Every record of the file."""
        self._read()
        return list(self._found.values())

    def put(self, record: SearchRecord) -> None:
        """Append a record. A file that cannot be written costs a warning, and the record."""
        self._found[record.kernel, record.target, record.toolchain] = record
        line = json.dumps({"version": VERSION, **asdict(record)}, sort_keys=True) + "\n"
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _locked(self.path) as descriptor:
                if not _ends_whole(descriptor):
                    # Of a process that was killed while it wrote.
                    line = "\n" + line
                _append(descriptor, line.encode())
        except OSError as error:
            warnings.warn(
                f"what a search found cannot be written to {self.path} ({error}); set "
                "BAREGRAD_BEAM_FILE to a file of your own",
                RuntimeWarning,
                stacklevel=2,
            )

    def _read(self) -> None:
        try:
            status = self.path.stat()
        except OSError:
            return
        stamp = (status.st_mtime_ns, status.st_size)
        if stamp == self._stamp:
            return
        try:
            text = self.path.read_bytes()
        except OSError:
            return
        self._stamp = stamp
        for line in text.split(b"\n"):
            record = parse_record(line)
            if record is not None:
                self._found[record.kernel, record.target, record.toolchain] = record


def parse_record(line: bytes) -> SearchRecord | None:
    """The record that a line holds; None for any other line."""
    try:
        found: Any = json.loads(line)
        if not isinstance(found, dict) or found.pop("version", None) != VERSION:
            return None
        rows = found.pop("measured", [])
        measured = tuple([(str(what), float(ns)) for what, ns in rows])
        record = SearchRecord(**found, measured=measured)
    except (ValueError, TypeError, RecursionError):
        return None
    texts = (record.kernel, record.target, record.toolchain, record.name, record.schedule)
    numbers = (record.first_ns, record.ns)
    good = all(type(text) is str for text in texts)
    good = good and all(type(n) in (int, float) and 0 < n < 1e18 for n in numbers)
    if not good or type(record.width) is not int or type(record.tried) is not int:
        return None
    try:
        record.parsed()
    except ScheduleError:
        return None
    return record


def short_digest(text: str) -> str:
    """A name for a text, for the keys of records."""
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def row_digest(target: AnyTarget, threads: int) -> str:
    """A name for a target's row and the threads of its device, 0 on a GPU."""
    return short_digest(f"{stable_repr(target)}|{threads}")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        try:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except (ImportError, OSError):
            # Without locks a line is still one write at the end of the file.
            pass
        yield descriptor
    finally:
        os.close(descriptor)


def _ends_whole(descriptor: int) -> bool:
    size = os.fstat(descriptor).st_size
    return size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"


def _append(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
