"""Recordings of a traced program against those that the runtime writes of itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from baregrad.base.errors import BaregradError
from baregrad.runtime.nvidia.abi.vendor import load_tables
from baregrad.runtime.nvidia.device import NvDevice
from baregrad.runtime.nvidia.driver.trace import ReplayPort, read_trace
from baregrad.testing.virtual_gpu.virtual_port import VirtualPort
from baregrad.trace.calls import RawCall
from baregrad.trace.decode import decode
from baregrad.trace.recording import TraceRecorder
from tests.runtime.nvidia import trace_work
from tests.trace.observed import RECORDED, ObservingPort

RELEASES = (
    "535.54.03", "545.23.06", "550.40.07", "560.28.03", "570.86.15", "580.159.04", "590.48.01",
    "595.45.04",
)  # fmt: skip


class WholePort(ObservingPort):
    """Writes down the rest of the calls as well."""

    def exists(self, path: str) -> bool:
        found = bool(self.port.exists(path))
        self.calls.append(RawCall(0, 0, 1, 1, "exists", path, -1, (), 0 if found else -2))
        return found

    def close(self, fd: int) -> None:
        self.port.close(fd)
        self.calls.append(RawCall(0, 0, 1, 1, "close", self.nodes[fd], fd))

    def map_device(self, fd: int, nbytes: int) -> int:
        address = int(self.port.map_device(fd, nbytes))
        row = RawCall(0, 0, 1, 1, "mmap", self.nodes[fd], fd, (0, nbytes, 3, 1, fd, 0), address)
        self.calls.append(row)
        return address

    def map_memory(self, nbytes: int) -> int:
        address = int(self.port.map_memory(nbytes))
        row = RawCall(0, 0, 1, 1, "mmap", "memory", -1, (0, nbytes, 3, 33, -1, 0), address)
        self.calls.append(row)
        return address

    def unmap(self, address: int, nbytes: int) -> None:
        self.calls.append(RawCall(0, 0, 1, 1, "munmap", "memory", -1, (address, nbytes)))
        self.port.unmap(address, nbytes)


def test_what_is_traced_is_what_the_runtime_records(tmp_path: Path) -> None:
    tables = load_tables("580.159.04")
    replay = ReplayPort(RECORDED)
    port = WholePort(replay, tables)
    trace_work.work(port, replay.head["about"])  # type: ignore[arg-type]
    recorder = TraceRecorder(str(tmp_path / "traced.jsonl.gz"), tables)
    for raw in port.calls:
        recorder.take(raw)
    recorder.close()
    head, found = read_trace(tmp_path / "traced.jsonl.gz")
    assert head["about"] == "traced"

    def calls(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        # What a GPU writes into memory passes no call.
        return [{key: value for key, value in event.items() if key != "then"}
                for event in events if event["call"] != "store"]  # fmt: skip

    assert calls(found) == calls(read_trace(RECORDED)[1])


@pytest.mark.parametrize("release", RELEASES)
def test_a_run_under_each_release_is_named_and_replays(
    release: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = load_tables(release)
    port = WholePort(VirtualPort(release=release), tables)
    found = trace_work.work(port, "virtual")  # type: ignore[arg-type]
    path = tmp_path / "traced.jsonl.gz"
    recorder = TraceRecorder(str(path), tables)
    for raw in port.calls:
        recorder.take(raw)
    recorder.close()
    calls = [decode(tables, raw) for raw in port.calls]
    ioctls = [one for one in calls if one.raw.call == "ioctl"]
    assert len(ioctls) > 40
    # The runtime asks with a newer release's struct first, which an older one refuses.
    taken = [one for one in ioctls if not one.failed]
    assert all(one.known for one in ioctls) and all(one.params_known for one in taken)
    # The driver's own answer, read by that release's struct.
    (version,) = {
        change.after for one in ioctls for change in one.changes
        if change.name.endswith("driverVersionBuffer")
    } or {""}  # fmt: skip
    assert version in ("", repr(release)) and release in found
    replay = ReplayPort(path)
    assert replay.head["about"] == "traced"
    asked: list[str] = [event["call"] for event in read_trace(path)[1]]
    assert asked.count("ioctl") == len(ioctls)
    # A device opens on it and gives memory out; of work that passes no call there is nothing.
    monkeypatch.setattr("baregrad.runtime.nvidia.driver.trace._MOST_PAUSES", 50)
    device = NvDevice(port=replay)
    assert f"{device.architecture}, driver {release}" == found
    buffer = device.allocate(128)
    device.copy_in(buffer, np.zeros(32, np.uint32))
    for ask in (device.synchronize, device.close):
        with pytest.raises(BaregradError, match="shows no work that the runtime waits for"):
            ask()


def test_of_a_program_that_forks_the_process_that_opens_a_node_is_written(tmp_path: Path) -> None:
    path = tmp_path / "traced.jsonl.gz"
    recorder = TraceRecorder(str(path), load_tables("580.159.04"))
    node = "/dev/nvidiactl"

    def take(pid: int, call: str, fd: int, *arguments: int, value: int = 0) -> None:
        recorder.take(RawCall(0, 0, pid, pid, call, node, fd, arguments, value))

    take(1, "exists", -1)
    take(2, "exists", -1)
    take(2, "open", 3, value=3)
    take(2, "mmap", 3, 0, 4096, 3, 1, 3, 0, value=1 << 20)
    # A fork closes what it inherited, and maps something else at that address.
    take(4, "munmap", -1, 1 << 20, 4096)
    take(4, "close", 3)
    take(4, "open", 3, value=3)
    take(2, "mmap", 3, 0, 8192, 3, 1, 3, 0, value=2 << 20)
    # Made by dup, of which nothing is seen.
    take(2, "mmap", 9, 0, 4096, 3, 1, 9, 0, value=3 << 20)
    take(2, "close", 9)
    take(2, "munmap", -1, 1 << 20, 4096)
    recorder.close()
    _, found = read_trace(path)
    assert [event["call"] for event in found] == [
        "exists", "open", "map_device", "map_device", "unmap",
    ]  # fmt: skip
    assert found[-1]["map"] == 0 and recorder.left_out == 6


def test_structs_of_another_size_do_not_end_the_recording(tmp_path: Path) -> None:
    tables = load_tables("580.159.04")
    replay = ReplayPort(RECORDED)
    port = WholePort(replay, tables)
    trace_work.work(port, replay.head["about"])  # type: ignore[arg-type]
    path = tmp_path / "traced.jsonl.gz"
    recorder = TraceRecorder(str(path), tables)
    for raw in port.calls:
        # As if of a release that the tables do not know, and longer after than before.
        raw.blocks = [
            replace(one, struct="", before=one.before[:-1], after=one.after)
            if one.role == "params" else one for one in raw.blocks
        ]
        recorder.take(raw)
    recorder.close()
    asked = [event for event in read_trace(path)[1] if event["call"] == "ioctl"]
    assert len(asked) == sum(raw.call == "ioctl" for raw in port.calls)
