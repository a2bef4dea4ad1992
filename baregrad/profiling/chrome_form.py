"""Profiles in Chrome's form: JSON, which its own viewer and Perfetto's read.

Source: "Trace Event Format", the document of the Chromium project. Times are in microseconds.
"""

from __future__ import annotations

import json
from typing import Any

from baregrad.base.errors import FileFormatError
from baregrad.profiling.events import Events


def rows(events: Events) -> list[dict[str, Any]]:
    """Return the events of one process."""
    pid = events.pid
    found: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": events.process}}
    ]
    found += [
        {"ph": "M", "name": "thread_name", "pid": pid, "tid": one.number,
         "args": {"name": one.name}}
        for one in events.tracks
    ]  # fmt: skip
    found += [
        {"ph": "X", "name": one.name, "cat": one.category, "pid": pid, "tid": one.track.number,
         "ts": one.begin_ns / 1e3, "dur": (one.end_ns - one.begin_ns) / 1e3,
         "args": {name: _plain(value) for name, value in one.facts.items()}}
        for one in events.slices
    ]  # fmt: skip
    found += [
        {"ph": "C", "name": one.track.name, "pid": pid, "ts": one.at_ns / 1e3,
         "args": {"bytes": one.value}}
        for one in events.counters
    ]  # fmt: skip
    return found


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | float | str | bool) else str(value)


def begin(pid: int) -> bytes:
    """Return a file without events, begun by a process."""
    return _file(pid, [])


def begun_by(data: bytes) -> int:
    """Return the process that began a file; raises FileFormatError."""
    return int(_parse(data)["begunBy"])


def joined(data: bytes, events: Events) -> bytes:
    """Return a file with the events of one more process; raises FileFormatError."""
    whole = _parse(data)
    return _file(int(whole["begunBy"]), [*whole["traceEvents"], *rows(events)])


def _file(pid: int, found: list[dict[str, Any]]) -> bytes:
    head = {"displayTimeUnit": "ns", "begunBy": pid}
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in found)
    return f'{json.dumps(head)[:-1]}, "traceEvents": [\n{lines}\n]}}\n'.encode()


def _parse(data: bytes) -> dict[str, Any]:
    try:
        whole = json.loads(data)
        if isinstance(whole["traceEvents"], list) and isinstance(whole["begunBy"], int):
            return dict(whole)
    except (ValueError, KeyError, TypeError):
        pass
    raise FileFormatError("the file is no profile of ours", wanted="one that a profile began")
