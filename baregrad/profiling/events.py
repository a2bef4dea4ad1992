"""A profile as tracks, slices and counters: what every form of file is written from."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from baregrad.profiling.collector import Collector

# Numbers of lanes that are no threads of the system, beyond those that it gives.
_LANES = 1 << 24


@dataclass(frozen=True, slots=True)
class Track:
    """A lane of the picture: a thread of the process, or a device's work."""

    number: int
    name: str


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of a lane, in nanoseconds of `time.perf_counter`."""

    track: Track
    name: str
    category: str
    begin_ns: int
    end_ns: int
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Counter:
    """A value from a time on."""

    track: Track
    at_ns: int
    value: int


@dataclass(frozen=True, slots=True)
class Events:
    """What one process did."""

    pid: int
    process: str
    tracks: tuple[Track, ...]
    slices: tuple[Stretch, ...]
    counters: tuple[Counter, ...]


def events_of(seen: Collector) -> Events:
    """Return what a collector saw."""
    tracks: dict[Any, Track] = {}

    def track(key: Any, name: str, number: int = 0) -> Track:
        if key not in tracks:
            tracks[key] = Track(number or _LANES + len(tracks), name)
        return tracks[key]

    def thread(number: int) -> Track:
        name = seen.threads.get(number, "thread")
        return track(number, name, number % _LANES or 1)

    slices: list[Stretch] = []
    for run in seen.runs():
        for facts, begin, end in zip(run.facts, run.begin_ns, run.end_ns, strict=True):
            if end <= begin:
                continue
            kind = "copies" if facts.program is None else "kernels"
            flops, nbytes = facts.work(run.variables)
            told = {"line": facts.where, "asked for at": run.where, "bytes": nbytes}
            if flops:
                told["flops"] = flops
            lane = track((run.device, kind), f"{run.device} {kind}")
            slices.append(Stretch(lane, facts.name, kind, begin, end, told))
    for call in seen.calls:
        told = {"device": call.device, "line": call.where}
        if call.nbytes:
            told["bytes"] = call.nbytes
        slices.append(
            Stretch(thread(call.thread), call.kind, "calls", call.begin_ns, call.end_ns, told)
        )
    for span in seen.recorder.spans:
        end = seen.end_ns if span.end != span.end else round(span.end * 1e9)
        begin = round(span.start * 1e9)
        lane = thread(span.thread)
        slices.append(Stretch(lane, span.name, "spans", begin, end, dict(span.facts)))
    counters = tuple(_memory(seen, track))
    process = " ".join(sys.argv) or "python"
    return Events(os.getpid(), process, tuple(tracks.values()), tuple(slices), counters)


def _memory(seen: Collector, track: Any) -> Iterator[Counter]:
    now = dict(seen.memory.before)
    for device, nbytes in now.items():
        yield Counter(track((device, "memory"), f"{device} memory"), seen.begin_ns, nbytes)
    for at, held, change in seen.memory.changes():
        now[held.device] = now.get(held.device, 0) + change
        lane = track((held.device, "memory"), f"{held.device} memory")
        yield Counter(lane, at, now[held.device])
