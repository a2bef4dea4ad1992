"""Recordings of a traced program against those that the runtime writes of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from baregrad.runtime.nvidia.abi.vendor import load_tables
from baregrad.runtime.nvidia.driver.trace import ReplayPort, read_trace
from baregrad.trace.calls import RawCall
from baregrad.trace.recording import TraceRecorder
from tests.runtime.nvidia import trace_work
from tests.trace.observed import RECORDED, ObservingPort


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
