"""The forms of files, read by a reader of their own."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from baregrad.base.errors import ArgumentError, FileFormatError
from baregrad.profiling import chrome_form, perfetto_form
from baregrad.profiling.events import Counter, Events, Stretch, Track
from baregrad.profiling.trace_file import ancestors, begin_file, join_file, read_file

LANE, THREAD = Track(1 << 24, "NV kernels"), Track(77, "MainThread")
EVENTS = Events(
    1234, "python a.py", (LANE, THREAD),
    (
        Stretch(THREAD, "outer", "spans", 1000, 9000),
        Stretch(THREAD, "inner", "spans", 1000, 2000, {"kernels": 3}),
        Stretch(LANE, "gemm", "kernels", 1500, 1500 + 300, {"line": "a.py:3", "share": 0.5}),
    ),
    (Counter(LANE, 1200, 1 << 40),),
)  # fmt: skip


def test_a_message_is_written_as_protocol_buffers_say() -> None:
    # Two examples of the encoding's own description: 150 as field 1, "testing" as field 2.
    assert perfetto_form.field(1, 150) == bytes.fromhex("089601")
    assert perfetto_form.field(2, "testing") == bytes.fromhex("120774657374696e67")


def test_perfetto_s_packets_nest_and_come_in_order_of_time() -> None:
    data = perfetto_form.joined(perfetto_form.begin(99), EVENTS)
    assert perfetto_form.begun_by(data) == 99
    open_: dict[int, list[str]] = {}
    seen: list[tuple[int, str]] = []
    times = []
    for number, packet in perfetto_form.fields(data):
        assert number == 1 and isinstance(packet, bytes)
        found = dict(perfetto_form.fields(packet))
        if 11 not in found:
            continue
        event = found[11]
        assert isinstance(event, bytes) and found[58] == 3
        times.append(found[8])
        what = dict(perfetto_form.fields(event))
        track = int(what[11])  # type: ignore[arg-type]
        if what[9] == 1:
            name = what[23]
            assert isinstance(name, bytes)
            open_.setdefault(track, []).append(name.decode())
        elif what[9] == 2:
            seen.append((int(times[-1]), open_[track].pop()))  # type: ignore[arg-type]
        else:
            assert what[30] == 1 << 40
    assert times == sorted(times) and not any(open_.values())  # type: ignore[type-var]
    assert seen == [(1800, "gemm"), (2000, "inner"), (9000, "outer")]


def test_chrome_s_form_has_microseconds_and_names() -> None:
    data = chrome_form.joined(chrome_form.begin(99), EVENTS)
    assert chrome_form.begun_by(data) == 99
    rows = json.loads(data)["traceEvents"]
    gemm = next(row for row in rows if row["name"] == "gemm")
    assert (gemm["ph"], gemm["ts"], gemm["dur"], gemm["pid"]) == ("X", 1.5, 0.3, 1234)
    assert gemm["args"] == {"line": "a.py:3", "share": 0.5}
    names = {row["tid"]: row["args"]["name"] for row in rows if row["name"] == "thread_name"}
    assert names == {1 << 24: "NV kernels", 77: "MainThread"}


@pytest.mark.parametrize("form", [chrome_form, perfetto_form])
@pytest.mark.parametrize("data", [b"", b"{}", b"\xff" * 30, b"\x0a\x7f", b'{"traceEvents": []}'])
def test_another_file_is_refused(form: object, data: bytes) -> None:
    with pytest.raises(FileFormatError):
        form.begun_by(data)  # type: ignore[attr-defined]


def test_who_begins_a_file_writes_it_anew_and_others_join(tmp_path: Path) -> None:
    for name in ("p.json", "p"):
        path = tmp_path / name
        begin_file(path)
        empty = path.read_bytes()
        join_file(path, EVENTS)
        once = path.read_bytes()
        # A parent, or this process, has begun it.
        begin_file(path)
        assert path.read_bytes() == once and len(once) > len(empty)
        join_file(path, EVENTS)
        assert len(path.read_bytes()) > len(once)
        form = chrome_form if name == "p.json" else perfetto_form
        # Of another process, and from before this one.
        path.write_bytes(form.begin((1 << 22) + 1))
        os.utime(path, (1, 1))
        begin_file(path)
        assert form.begun_by(path.read_bytes()) == os.getpid()


@pytest.mark.parametrize("form", [chrome_form, perfetto_form])
def test_what_was_written_is_read(form: Any, tmp_path: Path) -> None:
    second = replace(EVENTS, pid=77, process="child")
    path = tmp_path / "p"
    path.write_bytes(form.joined(form.joined(form.begin(1234), EVENTS), second))
    found = {one.pid: one for one in read_file(path)}
    assert set(found) == {1234, 77} and found[77].process == "child"
    one = found[1234]
    assert one.process == EVENTS.process
    assert {track.name for track in one.tracks} == {"NV kernels", "MainThread"}

    def told(row: Stretch) -> tuple[Any, ...]:
        return row.track.name, row.name, row.category, row.begin_ns, row.end_ns, row.facts

    assert sorted(map(told, one.slices), key=str) == sorted(map(told, EVENTS.slices), key=str)
    assert [(row.track.name, row.at_ns, row.value) for row in one.counters] == [
        ("NV kernels", 1200, 1 << 40)
    ]


def test_a_trace_of_another_program_is_read(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(
        '[{"ph": "X", "name": "f", "ts": 2.5, "dur": 1, "pid": 3, "tid": 4},'
        ' {"ph": "i", "name": "mark", "ts": 1, "pid": 3, "tid": 4}]'
    )
    (one,) = read_file(path)
    (row,) = one.slices
    assert (one.pid, row.track.name, row.begin_ns, row.end_ns) == (3, "thread 4", 2500, 3500)


def test_names_of_another_program_may_be_of_any_kind(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(
        '[{"ph": "X", "name": 7, "ts": 2, "dur": -1, "pid": "Spans", "tid": "a", "cat": [1]},'
        ' {"ph": "X", "name": ["f"], "ts": 2, "dur": 1, "pid": 3, "tid": 4},'
        ' {"ph": "M", "name": "thread_name", "pid": 3, "tid": 4, "args": {"name": 5}},'
        ' {"ph": "C", "name": 9, "ts": 1, "pid": 3, "args": {"x": 1}}]'
    )
    spans, process = read_file(path)
    assert spans.pid < 0 and (spans.process, spans.tracks[0].name) == ("Spans", "thread a")
    assert (spans.slices[0].name, spans.slices[0].end_ns) == ("7", 2000)
    assert (process.pid, process.slices[0].name) == (3, "['f']")
    assert [one.name for one in process.tracks] == ["5", "9"]


@pytest.mark.parametrize("data", [
    b"", b"{}", b"[3]", b"\xff" * 30, b"no trace", b"\x0a\x7f", b"[" * 100_000,
    b'[{"ph": "X", "name": "f", "ts": 1e999}]', b'[{"ph": "X", "name": "f", "ts": NaN}]',
    b'[{"ph": "X", "name": "f", "ts": 1, "args": [1, 2]}]',
    # A number where a message belongs: of the packets, and of a later packet's process.
    b"\x0a\x03\xe0\x03\x05", perfetto_form.begin(9) + b"\x0a\x05\xe2\x03\x02\x18\x05",
])  # fmt: skip
def test_what_is_no_trace_is_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_bytes(data)
    with pytest.raises(FileFormatError):
        read_file(path)


def test_a_profile_takes_no_program_s_place_nor_what_is_no_file(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("x = 1\n")
    with pytest.raises(ArgumentError, match="place of a program"):
        begin_file(program)
    assert program.read_text() == "x = 1\n"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ArgumentError, match="cannot be written"):
        begin_file(pipe)


def test_parents_are_known_nearest_first() -> None:
    found = ancestors()
    assert found[:2] == [os.getpid(), os.getppid()] and len(set(found)) == len(found)
