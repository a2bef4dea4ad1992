"""Profiles in Chrome's form: JSON, which its own viewer and Perfetto's read.

Source: "Trace Event Format", the document of the Chromium project. Times are in microseconds.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

from baregrad.base.errors import FileFormatError
from baregrad.profiling.events import Counter, Events, Stretch, Track


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


def read(data: bytes) -> list[Events]:
    """Return what each process did by a file of this form, of ours or of another program.

    Of other programs' events those that have a duration and those that count are read. Raises
    FileFormatError for another file.
    """
    try:
        whole = json.loads(data)
        found = whole["traceEvents"] if isinstance(whole, dict) else whole
        processes: dict[Any, list[dict[str, Any]]] = {}
        for row in found:
            processes.setdefault(row.get("pid", 0), []).append(row)
        # Some call what is no process by a text.
        numbers = itertools.count(-1, -1)
        return [
            _events(pid if isinstance(pid, int) else next(numbers), str(pid), own)
            for pid, own in processes.items()
        ]
    except (
        ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError
    ) as error:  # fmt: skip
        raise FileFormatError(
            "the file is no trace in Chrome's form", found=f"{type(error).__name__}: {error}"
        ) from error


def _events(pid: int, title: str, found: list[dict[str, Any]]) -> Events:
    """Return the events of one process by its rows; `title` is its name where none says more."""
    meta = {(row["name"], row.get("tid")): str(row["args"]["name"])
            for row in found if row["ph"] == "M" and "name" in row.get("args", {})}  # fmt: skip
    process = next((name for (kind, _), name in meta.items() if kind == "process_name"), title)
    lanes: dict[Any, Track] = {}

    def track(key: Any, name: str) -> Track:
        return lanes.setdefault(key, Track(key if isinstance(key, int) else -len(lanes) - 1, name))

    slices, counters = [], []
    for row in found:
        if row["ph"] == "X":
            tid = row.get("tid", 0)
            lane = track(tid, meta.get(("thread_name", tid), f"thread {tid}"))
            begin = round(row["ts"] * 1e3)
            end = begin + max(round(row.get("dur", 0) * 1e3), 0)
            category, facts = str(row.get("cat", "")), dict(row.get("args", {}))
            slices.append(Stretch(lane, str(row["name"]), category, begin, end, facts))
        elif row["ph"] == "C":
            lane, at = track(("counter", row["name"]), str(row["name"])), round(row["ts"] * 1e3)
            counters += [Counter(lane, at, int(one)) for one in row["args"].values()]
    return Events(pid, process, tuple(lanes.values()), tuple(slices), tuple(counters))


def _file(pid: int, found: list[dict[str, Any]]) -> bytes:
    head = {"displayTimeUnit": "ns", "begunBy": pid}
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in found)
    return f'{json.dumps(head)[:-1]}, "traceEvents": [\n{lines}\n]}}\n'.encode()


def _parse(data: bytes) -> dict[str, Any]:
    try:
        whole = json.loads(data)
        if isinstance(whole["traceEvents"], list) and isinstance(whole["begunBy"], int):
            return dict(whole)
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise FileFormatError("the file is no profile of ours", wanted="one that a profile began")
