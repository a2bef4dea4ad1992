"""A process that crashes, hangs or talks nonsense is replaced."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from baregrad.engine.workers.child import Child, ChildLost, program_of
from baregrad.engine.workers.wire import receive, send

ECHO = (
    "import sys, time; from baregrad.engine.workers.wire import receive, send\n"
    "while True:\n"
    "    header, blobs = receive(sys.stdin.buffer)\n"
    "    if header['ask'] == 'die': sys.exit(3)\n"
    "    if header['ask'] == 'sleep': time.sleep(600)\n"
    "    if header['ask'] == 'nonsense': sys.stdout.buffer.write(b'x' * 64); "
    "sys.stdout.buffer.flush()\n"
    "    send(sys.stdout.buffer, header, blobs)\n"
)


def echo() -> Child:
    root = Path(__file__).resolve().parents[3]
    return Child({}, f"import sys; sys.path.insert(0, {str(root)!r})\n{ECHO}")


def test_a_worker_that_dies_hangs_or_raves_is_replaced() -> None:
    child = echo()
    try:
        for word, late in (("die", False), ("sleep", True), ("nonsense", False)):
            with pytest.raises(ChildLost) as lost:
                child.ask({"ask": word}, seconds=1.0 if late else 300.0)
            assert lost.value.late is late
            assert not child.alive
            answer, blobs = child.ask({"ask": "hello"}, [b"abc"], 300.0)
            assert (answer["ask"], blobs) == ("hello", [b"abc"])
        assert child.started == 4
    finally:
        child.kill()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts threads as Linux does")
def test_a_worker_begins_with_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    child = Child({}, program_of(__name__))
    try:
        assert child.ask({})[0] == {"threads": 1}
    finally:
        child.kill()


def main(setting: dict[str, Any]) -> None:
    """Answer how many threads there are, with NumPy."""
    receive(sys.stdin.buffer)
    count = np.size([one.name for one in Path("/proc/self/task").iterdir()])
    send(sys.stdout.buffer, {"threads": int(count)})
