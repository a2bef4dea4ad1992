"""Raw calls of the runtime itself, as a tracer would see them: by a port that writes them down."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from baregrad.runtime.nvidia.abi.layout import Record
from baregrad.runtime.nvidia.abi.vendor import VendorTables, load_tables
from baregrad.runtime.nvidia.driver.trace import ReplayPort
from baregrad.trace.calls import RawCall, capture, read_again, request_of
from tests.runtime.nvidia import trace_work

FOLDER = Path(__file__).parents[1] / "runtime" / "nvidia" / "traces"
RECORDED = FOLDER / "580.159.04-sm_90a.jsonl.gz"


def own_memory(address: int, nbytes: int) -> bytes:
    """Memory of this process, "" where nothing is mapped: as a tracer finds another's."""
    try:
        with Path("/proc/self/mem").open("rb", buffering=0) as memory:
            memory.seek(address)
            return memory.read(nbytes) or b""
    except (OSError, OverflowError):
        return b""


@dataclass
class ObservingPort:
    """Passes calls on, and writes each down as bytes before and after."""

    port: Any
    tables: VendorTables
    calls: list[RawCall] = field(default_factory=list)
    nodes: dict[int, str] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.port, name)

    def open(self, path: str) -> int:
        fd = int(self.port.open(path))
        self.nodes[fd] = path
        self.calls.append(RawCall(0.0, 0.0, 1, 1, "open", path, fd, (), fd))
        return fd

    def ioctl(self, fd: int, request: int, argument: Record, inner: Record | None = None) -> None:
        found = request_of(self.tables, self.nodes[fd], request)
        blocks = capture(self.tables, own_memory, found, argument.address)
        self.port.ioctl(fd, request, argument, inner)
        blocks = read_again(own_memory, blocks)
        arguments = (fd, request, argument.address)
        self.calls.append(
            RawCall(0.0, 0.0, 1, 1, "ioctl", self.nodes[fd], fd, arguments, 0, blocks)
        )


def recorded_calls() -> tuple[VendorTables, list[RawCall]]:
    """Replay what hardware answered, and return the calls as a tracer would have seen them."""
    tables = load_tables("580.159.04")
    replay = ReplayPort(RECORDED)
    port = ObservingPort(replay, tables)
    trace_work.work(port, replay.head["about"])  # type: ignore[arg-type]
    replay.finish()
    return tables, port.calls
