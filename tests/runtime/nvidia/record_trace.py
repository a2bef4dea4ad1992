"""Record what the driver is asked and answers: `python3 tests/runtime/nvidia/record_trace.py`.

Needs a GPU of sm_90 and its kernel driver. Does the work of `trace_work.py`, writes
traces/DRIVER-GENERATION.jsonl.gz beside this file (or `--out FILE`), and replays it at once. No
serial number, UUID or place on the bus is written (see `baregrad/runtime/nvidia/driver/trace.py`).
`--port virtual` records from the GPU that is not there.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from baregrad.runtime.nvidia.driver.port import open_port
from baregrad.runtime.nvidia.driver.trace import RecordingPort, ReplayPort
from tests.runtime.nvidia import trace_work

FOLDER = Path(__file__).parent / "traces"


def record(port_name: str, path: Path) -> str:
    """Write a trace and return what was found on the way."""
    kind = "virtual" if port_name == "virtual" else "cubin"
    port = RecordingPort(open_port(port_name), path, about=kind)
    try:
        return trace_work.work(port, kind)
    finally:
        port.close_trace()


def main() -> int:
    """Record, replay, and say how large the trace is."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--port", default="kernel", choices=("kernel", "virtual"))
    parser.add_argument("--out", default="", help="the file to write")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        draft = Path(folder) / "trace.jsonl.gz"
        begin = time.perf_counter()
        found = record(arguments.port, draft)
        print(f"recorded in {time.perf_counter() - begin:.1f} s: {found}")
        replay = ReplayPort(draft)
        again = trace_work.work(replay, replay.head["about"])
        replay.finish()
        print(f"replayed: {again}")
        architecture, version = found.split(", driver ")
        path = Path(arguments.out or FOLDER / f"{version}-{architecture}.jsonl.gz")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(draft.read_bytes())
    print(f"wrote {path}: {path.stat().st_size} bytes")
    # What a broken run may leave of threads must not keep the process.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
