"""Profiles, and traces of other programs, as documents: what ran when, and who held memory.

Documents: `summary`, and `timeline`, which has everything by columns: texts are numbers of a table.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from baregrad.base.errors import ArgumentError, FileFormatError
from baregrad.profiling.events import MEMORY_OF, Counter, Events, Stretch, Track
from baregrad.profiling.trace_file import read_file

# What a lane is, from its name; all others are threads.
_KINDS = ("kernels", "copies")


class TimelineDocuments:
    """The documents of a profile's file. Raises ArgumentError where it is none."""

    def __init__(self, path: Path) -> None:
        try:
            events = read_file(path)
        except (FileFormatError, OSError) as error:
            raise ArgumentError(
                "this is no profile and no recording of a program", found=f"{path}: {error}",
                wanted="what `PROFILE=FILE`, `baregrad trace --perfetto FILE` or `baregrad viz "
                "PROGRAM --save FILE` wrote",
            ) from error
        made = {
            "summary": {"title": path.name, "views": ["timeline", "memory"]},
            "timeline": timeline_document(events),
        }
        self._made = {
            name: json.dumps(one, separators=(",", ":")).encode() for name, one in made.items()
        }

    def names(self) -> list[str]:
        """Every document there is."""
        return list(self._made)

    def get(self, name: str) -> bytes | None:
        """The JSON text of a document; None where there is none of that name."""
        return self._made.get(name)


def timeline_document(processes: Iterable[Events]) -> Any:
    """Return lanes and counters of some processes; times are in nanoseconds from the first on.

    A lane has for each of its stretches, by the time of its beginning: `begin`, `length`, `depth`
    below those that it lies in, `name`, and `facts`, as numbers of `texts`. A counter has `at` and
    `value`, and its owner in words if it is one's share of a device's memory.
    """
    known = [one for one in processes if one.slices or one.counters]
    starts = [row.begin_ns for one in known for row in one.slices]
    starts += [row.at_ns for one in known for row in one.counters]
    first = min(starts, default=0)
    ends = [row.end_ns for one in known for row in one.slices]
    texts: dict[str, int] = {}
    lanes, counters = [], []
    for one in known:
        of: dict[Track, list[Stretch]] = {}
        for row in one.slices:
            of.setdefault(row.track, []).append(row)
        for track, rows in of.items():
            lanes.append(_lane(one, track, rows, first, texts))
        counted: dict[Track, list[Counter]] = {}
        for each in one.counters:
            counted.setdefault(each.track, []).append(each)
        counters += [_counter(one, track, rows, first) for track, rows in counted.items()]
    order = (*_KINDS, "thread")
    lanes.sort(key=lambda lane: (lane["process"], order.index(lane["kind"])))
    return {
        "processes": {str(one.pid): one.process for one in known},
        "length": max([*ends, *starts], default=0) - first,
        "lanes": lanes, "counters": counters, "texts": list(texts),
    }


def _lane(
    process: Events, track: Track, rows: Sequence[Stretch], first: int, texts: dict[str, int]
) -> dict[str, Any]:
    def number(text: str) -> int:
        return texts.setdefault(text, len(texts))

    columns: dict[str, list[int]] = {
        key: [] for key in ("begin", "length", "depth", "name", "facts")
    }
    open_: list[int] = []
    for row in sorted(rows, key=lambda one: (one.begin_ns, -one.end_ns)):
        while open_ and open_[-1] <= row.begin_ns:
            open_.pop()
        columns["begin"].append(row.begin_ns - first)
        columns["length"].append(row.end_ns - row.begin_ns)
        columns["depth"].append(len(open_))
        columns["name"].append(number(row.name))
        columns["facts"].append(number(_facts(row.category, row.facts)))
        open_.append(row.end_ns)
    kind = track.name.rpartition(" ")[2]
    return {
        "process": process.pid, "title": track.name,
        "kind": kind if kind in _KINDS and track.name != kind else "thread", **columns,
    }


def _facts(category: str, facts: Mapping[str, Any]) -> str:
    shown = {"kind": category, **facts} if category else dict(facts)
    try:
        return json.dumps(shown, separators=(",", ":"), default=str, allow_nan=False)
    except ValueError:
        # What is not finite is a number in Python's form of JSON, and none in a browser's.
        return json.dumps({name: str(value) for name, value in shown.items()})


def _counter(
    process: Events, track: Track, rows: Sequence[Counter], first: int
) -> dict[str, Any]:
    device, _, owner = track.name.partition(f" {MEMORY_OF}")
    if not owner:
        device = track.name.removesuffix(" memory")
    return {
        "process": process.pid, "name": track.name, "device": device, "owner": owner,
        "at": [row.at_ns - first for row in rows], "value": [row.value for row in rows],
    }
