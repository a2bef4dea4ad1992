"""Profiles in Perfetto's form: packets of protocol buffers, one behind the other.

Source of the field numbers: Perfetto's protos/perfetto/trace, trace_packet.proto, track_event/
track_event.proto, track_descriptor.proto, process_descriptor.proto, thread_descriptor.proto,
counter_descriptor.proto and debug_annotation.proto. Clock 3 is the system's CLOCK_MONOTONIC.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from baregrad.base.errors import FileFormatError
from baregrad.profiling.events import Counter, Events, Stretch, Track

_VARINT, _FIXED, _BYTES = 0, 1, 2
# A varint has at most ten bytes of seven bits each.
_MOST_SHIFT = 63
# Trace, TracePacket.
_PACKET, _TIMESTAMP, _SEQUENCE, _EVENT, _CLOCK, _DESCRIPTOR = 1, 8, 10, 11, 58, 60
_MONOTONIC = 3
# TrackDescriptor, ProcessDescriptor, ThreadDescriptor, CounterDescriptor.
_UUID, _NAME, _PROCESS, _THREAD, _PARENT, _COUNTER = 1, 2, 3, 4, 5, 8
_PID, _PROCESS_NAME, _TID, _THREAD_NAME, _UNIT, _UNIT_BYTES = 1, 6, 2, 5, 3, 3
# TrackEvent, DebugAnnotation.
_ANNOTATION, _TYPE, _TRACK, _CATEGORY, _TITLE, _VALUE = 4, 9, 11, 22, 23, 30
_BEGIN, _END, _COUNT = 1, 2, 4
_KEY, _INT, _FLOAT, _TEXT = 10, 4, 5, 6


def field(number: int, value: int | str | bytes | float) -> bytes:
    """Return a field of a message: an integer, a float, or bytes, text and messages."""
    if isinstance(value, float):
        return _varint(number << 3 | _FIXED) + struct.pack("<d", value)
    if isinstance(value, int):
        return _varint(number << 3 | _VARINT) + _varint(value & ((1 << 64) - 1))
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | _BYTES) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def fields(data: Any) -> Iterator[tuple[int, int | float | bytes]]:
    """Yield number and value of each field of a message; raises FileFormatError for no message."""
    if not isinstance(data, bytes):
        raise FileFormatError("the file is no profile of ours", found="a number for a message")
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            if shift > _MOST_SHIFT:
                raise IndexError
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    try:
        while at < len(data):
            number, kind = divmod(varint(), 8)
            if kind == _VARINT:
                yield number, varint()
            elif kind == _FIXED:
                yield number, struct.unpack_from("<d", data, at)[0]
                at += 8
            elif kind == _BYTES:
                length = varint()
                if at + length > len(data):
                    raise IndexError
                yield number, data[at : at + length]
                at += length
            else:
                raise IndexError
    except (IndexError, struct.error) as error:
        raise FileFormatError("the file is no profile of ours", found=f"byte {at}") from error


def _packet(sequence: int, *parts: bytes) -> bytes:
    return field(_PACKET, b"".join((*parts, field(_SEQUENCE, sequence))))


def _uuid(pid: int, number: int) -> int:
    return pid << 32 | number


def begin(pid: int) -> bytes:
    """Return a file without events, begun by a process."""
    process = field(_UUID, _uuid(pid, 0)) + field(_PROCESS, field(_PID, pid))
    return _packet(pid, field(_DESCRIPTOR, process))


def begun_by(data: bytes) -> int:
    """Return the process that began a file; raises FileFormatError."""
    found: Any = data
    for wanted in (_PACKET, _DESCRIPTOR, _PROCESS, _PID):
        found = next((value for number, value in fields(found) if number == wanted), b"")
    if isinstance(found, int):
        return found
    raise FileFormatError("the file is no profile of ours", wanted="one that a profile began")


def joined(data: bytes, events: Events) -> bytes:
    """Return a file with the events of one more process."""
    return data + b"".join(packets(events))


def read(data: bytes) -> list[Events]:
    """Return what each process did by a file of ours; raises FileFormatError for another."""
    begun_by(data)
    reader = _Reader()
    for number, packet in fields(data):
        if number == _PACKET and isinstance(packet, bytes):
            reader.take(packet)
    return reader.events()


class _Reader:
    """Puts packets together again: lanes, what began and ended in them, and what was counted."""

    def __init__(self) -> None:
        self._processes: dict[int, str] = {}
        self._tracks: dict[int, Track] = {}
        self._open: dict[int, list[tuple[int, str, str, dict[str, Any]]]] = {}
        self._slices: dict[int, list[Stretch]] = {}
        self._counters: dict[int, list[Counter]] = {}

    def take(self, packet: bytes) -> None:
        found = dict(fields(packet))
        described, event = found.get(_DESCRIPTOR), found.get(_EVENT)
        if isinstance(described, bytes):
            self._describe(dict(fields(described)))
        elif isinstance(event, bytes):
            self._event(int(_number(found, _TIMESTAMP)), list(fields(event)))

    def events(self) -> list[Events]:
        return [
            Events(
                pid, name,
                tuple([lane for uuid, lane in self._tracks.items() if uuid >> 32 == pid]),
                tuple(self._slices.get(pid, ())), tuple(self._counters.get(pid, ())),
            )
            for pid, name in self._processes.items()
        ]  # fmt: skip

    def _describe(self, found: dict[int, Any]) -> None:
        uuid = int(_number(found, _UUID))
        if _PROCESS in found:
            name = dict(fields(found[_PROCESS])).get(_PROCESS_NAME, b"")
            if name or uuid >> 32 not in self._processes:
                self._processes[uuid >> 32] = _text(name)
        else:
            self._tracks[uuid] = Track(uuid & 0xFFFFFFFF, _text(found.get(_NAME, b"")))

    def _event(self, at: int, rows: list[tuple[int, Any]]) -> None:
        found = dict(rows)
        uuid = int(_number(found, _TRACK))
        pid, track = uuid >> 32, self._tracks.setdefault(uuid, Track(uuid & 0xFFFFFFFF, ""))
        kind, stack = found.get(_TYPE), self._open.setdefault(uuid, [])
        if kind == _COUNT:
            value = int(_number(found, _VALUE))
            self._counters.setdefault(pid, []).append(Counter(track, at, value))
        elif kind == _BEGIN:
            notes = dict(_read_note(value) for number, value in rows if number == _ANNOTATION)
            stack.append(
                (at, _text(found.get(_TITLE, b"")), _text(found.get(_CATEGORY, b"")), notes)
            )
        elif kind == _END and stack:
            begin, title, category, notes = stack.pop()
            made = Stretch(track, title, category, begin, at, notes)
            self._slices.setdefault(pid, []).append(made)


def _number(found: dict[int, Any], number: int) -> float:
    value = found.get(number, 0)
    return value if isinstance(value, int | float) else 0


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else ""


def _read_note(data: bytes) -> tuple[str, Any]:
    found = dict(fields(data))
    value = next((found[one] for one in (_INT, _FLOAT, _TEXT) if one in found), "")
    return _text(found.get(_KEY, b"")), _text(value) if isinstance(value, bytes) else value


def packets(events: Events) -> Iterator[bytes]:
    """Yield the packets of one process, in order of time."""
    pid = events.pid
    process = field(_PID, pid) + field(_PROCESS_NAME, events.process)
    yield _packet(
        pid, field(_DESCRIPTOR, field(_UUID, _uuid(pid, 0)) + field(_PROCESS, process))
    )
    counting = {one.track for one in events.counters}
    for track in events.tracks:
        yield _packet(pid, field(_DESCRIPTOR, _track(pid, track, track in counting)))
    timed: list[tuple[int, int, int, bytes]] = []
    for one in events.slices:
        title = field(_TITLE, one.name) + field(_CATEGORY, one.category)
        notes = b"".join(_note(name, value) for name, value in one.facts.items() if value != "")
        uuid = _uuid(pid, one.track.number)
        # An outer slice begins before and ends after those in it; what ends does so first.
        length = one.end_ns - one.begin_ns
        timed.append((one.begin_ns, 1, -length, _event(uuid, _BEGIN, title + notes)))
        timed.append((one.end_ns, 0 if length else 2, -one.begin_ns, _event(uuid, _END, b"")))
    for count in events.counters:
        value = field(_VALUE, count.value)
        timed.append((count.at_ns, 1, 0, _event(_uuid(pid, count.track.number), _COUNT, value)))
    for at, *_, event in sorted(timed, key=lambda row: row[:3]):
        clock = field(_CLOCK, _MONOTONIC)
        yield _packet(pid, field(_TIMESTAMP, at), clock, field(_EVENT, event))


def _track(pid: int, track: Track, counts: bool) -> bytes:
    text = field(_UUID, _uuid(pid, track.number)) + field(_NAME, track.name)
    text += field(_PARENT, _uuid(pid, 0))
    return text + (field(_COUNTER, field(_UNIT, _UNIT_BYTES)) if counts else b"")


def _event(uuid: int, kind: int, rest: bytes) -> bytes:
    return field(_TYPE, kind) + field(_TRACK, uuid) + rest


def _note(name: str, value: Any) -> bytes:
    key = field(_KEY, name)
    if isinstance(value, float):
        return field(_ANNOTATION, key + field(_FLOAT, value))
    if isinstance(value, int):
        return field(_ANNOTATION, key + field(_INT, int(value)))
    return field(_ANNOTATION, key + field(_TEXT, str(value)))
