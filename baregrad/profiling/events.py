"""A profile as tracks, slices and counters: what every form of file is written from."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from baregrad.profiling.collector import Collector

# What the lane of an owner of memory is called, after its device, and those too small for a lane.
MEMORY_OF = "memory of "
OTHER_OWNERS = "other owners"
_OWNERS = 16
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
            if not run.measured:
                told["time"] = "by the runs beside that were timed closely"
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
    """The memory of each device over time, whole and by those owners that ever held most."""
    now = dict(seen.memory.before)
    for device, nbytes in now.items():
        yield Counter(track((device, "memory"), f"{device} memory"), seen.begin_ns, nbytes)
    shown = _largest_owners(seen)
    held_by: dict[tuple[str, str], int] = {}
    for at, held, change in seen.memory.changes():
        device = held.device
        now[device] = now.get(device, 0) + change
        yield Counter(track((device, "memory"), f"{device} memory"), at, now[device])
        key = (device, held.owner if (device, held.owner) in shown else OTHER_OWNERS)
        held_by[key] = held_by.get(key, 0) + change
        lane = track((device, "memory", key[1]), f"{device} {MEMORY_OF}{key[1]}")
        yield Counter(lane, at, held_by[key])


def _largest_owners(seen: Collector) -> set[tuple[str, str]]:
    """Return device and owner of those that held most at some time, so many for each device."""
    now: dict[tuple[str, str], int] = {}
    most: dict[tuple[str, str], int] = {}
    for _, held, change in seen.memory.changes():
        key = (held.device, held.owner)
        now[key] = now.get(key, 0) + change
        most[key] = max(most.get(key, 0), now[key])
    ranked = sorted(most, key=lambda key: -most[key])
    found: set[tuple[str, str]] = set()
    for device in {device for device, _ in ranked}:
        found.update([key for key in ranked if key[0] == device][:_OWNERS])
    return found
