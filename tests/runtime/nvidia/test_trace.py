"""Traces: recorded from the virtual GPU and replayed; replays of what hardware answered."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from baregrad.base.errors import DriverError, FileFormatError
from baregrad.runtime.nvidia.driver.trace import MASKED_UUID, RecordingPort, ReplayPort, read_trace
from baregrad.testing.virtual_gpu.virtual_port import VirtualPort
from tests.runtime.nvidia import trace_work

FOLDER = Path(__file__).parent / "traces"
NOTHING = pytest.param(None, marks=pytest.mark.skip(
    reason="no trace of a GPU is here yet: record_trace.py writes one where there is hardware"
))


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.jsonl.gz")) or [NOTHING])
def test_what_hardware_answered_is_enough(path: Path) -> None:
    port = ReplayPort(path)
    trace_work.work(port, port.head["about"])
    port.finish()


def recorded(path: Path, **settings: Any) -> Path:
    virtual = VirtualPort(**settings)
    port = RecordingPort(virtual, path, "virtual")
    trace_work.work(port, "virtual")
    port.close_trace()
    assert not virtual.held()
    return path


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("traces") / "one.jsonl.gz")


@pytest.mark.parametrize("release", [
    "535.54.03", "545.23.06", "550.40.07", "555.42.02", "560.28.03", "565.57.01", "570.86.15",
    "575.51.02", "580.159.04", "590.48.01", "595.45.04",
])  # fmt: skip
def test_a_replay_needs_no_driver(release: str, tmp_path: Path) -> None:
    port = ReplayPort(recorded(tmp_path / "trace.jsonl.gz", release=release))
    found = trace_work.work(port, "virtual")
    port.finish()
    assert found == f"sm_90a, driver {release}"


def test_a_replay_does_not_depend_on_when_the_gpu_worked(tmp_path: Path) -> None:
    texts = [
        gzip.decompress(recorded(tmp_path / f"{seed}.gz", seed=seed, lag=lag).read_bytes())
        for seed, lag in ((0, True), (7, True), (0, False))
    ]
    for text in texts:
        path = tmp_path / "again.gz"
        path.write_bytes(gzip.compress(text))
        port = ReplayPort(path)
        trace_work.work(port, "virtual")
        port.finish()


def test_a_trace_tells_nothing_of_the_machine(trace: Path) -> None:
    text = gzip.decompress(trace.read_bytes()).decode()
    virtual = VirtualPort()
    for gpu in virtual.machine.gpus:
        assert gpu.uuid.hex() not in text
    assert MASKED_UUID.hex() in text
    assert "pci" not in text and "fb_address" not in text
    # Addresses of this process: 47 bits, beginning with 7f or 55.
    for event in read_trace(trace)[1]:
        for part in ("in", "out", "inner_in", "inner_out"):
            for name, value in event.get(part, {}).items():
                assert not isinstance(value, int) or value >> 40 not in (0x7F, 0x55), (name, value)
    assert len(trace.read_bytes()) < 50_000


def changed(trace: Path, path: Path, change: Callable[[list[Any]], None]) -> ReplayPort:
    head, events = read_trace(trace)
    change(events)
    lines = "\n".join(json.dumps(one) for one in [head, *events])
    path.write_bytes(gzip.compress(lines.encode()))
    return ReplayPort(path)


def first(events: list[Any], **wanted: Any) -> int:
    return next(
        place for place, event in enumerate(events)
        if all(event.get(key) == value for key, value in wanted.items())
    )


def test_another_call_is_told_with_what_differs(trace: Path, tmp_path: Path) -> None:
    places = []

    def channel_of_another_class(events: list[Any]) -> None:
        channels = ["gpFifoEntries" in one.get("inner_in", {}) for one in events]
        place = channels.index(True)
        events[place]["in"]["hClass"] = 0xC46F
        events[place]["inner_in"]["gpFifoEntries"] = 17
        places.append(place)

    port = changed(trace, tmp_path / "a.gz", channel_of_another_class)
    with pytest.raises(FileFormatError) as caught:
        trace_work.work(port, "virtual")
    told = str(caught.value)
    assert f"call {places[0] + 1} of the trace a.gz is another one" in told
    assert "hClass is 0xc86f, was 0xc46f" in told
    assert "gpFifoEntries is 0x" in told and ", was 0x11" in told
    # Letting go of what there was added nothing to the error.
    assert not getattr(caught.value, "__notes__", [])
    with pytest.raises(FileFormatError, match="another one"):
        port.finish()


def test_a_call_of_another_kind(trace: Path, tmp_path: Path) -> None:
    def no_second_open(events: list[Any]) -> None:
        del events[first(events, call="open", path="/dev/nvidia-uvm")]

    port = changed(trace, tmp_path / "b.gz", no_second_open)
    with pytest.raises(FileFormatError, match="call is open, was ioctl.*found open path"):
        trace_work.work(port, "virtual")


def test_fewer_and_more_calls(trace: Path, tmp_path: Path) -> None:
    def longer(events: list[Any]) -> None:
        events.append({"call": "close", "fd": 0})

    port = changed(trace, tmp_path / "longer.gz", longer)
    trace_work.work(port, "virtual")
    with pytest.raises(FileFormatError, match="fewer calls.*the next being close fd 0"):
        port.finish()

    def shorter(events: list[Any]) -> None:
        events.pop()

    port = changed(trace, tmp_path / "shorter.gz", shorter)
    with pytest.raises(FileFormatError, match="the trace shorter.gz ended: found close"):
        trace_work.work(port, "virtual")


def test_what_the_system_refused_is_refused_again(trace: Path, tmp_path: Path) -> None:
    def no_node(events: list[Any]) -> None:
        events[:] = [{"call": "open", "path": "/dev/nvidiactl", "errno": 2}]

    port = changed(trace, tmp_path / "c.gz", no_node)
    with pytest.raises(DriverError, match="cannot open /dev/nvidiactl"):
        trace_work.work(port, "virtual")
    port.finish()


def test_waiting_for_what_never_came_ends(trace: Path, tmp_path: Path) -> None:
    def nothing_happens(events: list[Any]) -> None:
        for event in events:
            event.pop("then", None)

    port = changed(trace, tmp_path / "d.gz", nothing_happens)
    with pytest.raises(FileFormatError, match="shows no work that the runtime waits for"):
        trace_work.work(port, "virtual")


@pytest.mark.parametrize(("packed", "text"), [
    (False, b""), (False, b"text"), (True, b""), (True, b"{}\n"), (True, b"[1]\n{}\n"),
    (True, b'{"format":"baregrad trace 1"}\n{"x":1}\n'),
    (True, b'{"format":"baregrad trace 1"}\n{"call":'),
], ids=["empty", "not-packed", "nothing-packed", "no-format", "no-object", "no-call", "cut-short"])
def test_broken_files(packed: bool, text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "broken.gz"
    path.write_bytes(gzip.compress(text)[:-4 if text.endswith(b":") else None] if packed else text)
    with pytest.raises(FileFormatError, match="trace"):
        ReplayPort(path)
