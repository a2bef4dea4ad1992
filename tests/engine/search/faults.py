"""A worker whose compiler crashes for some schedules, or makes programs that hang or do nothing.

The first schedule is left alone, as is about every second other one.
"""

from __future__ import annotations

import os
import signal
import zlib
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from baregrad.assemble.llvm import LlvmAssembler
from baregrad.engine.search import worker
from baregrad.kernel import choose_schedule, parse_schedule
from baregrad.program import Program

BODIES = MappingProxyType(
    {"hang": "br label %again\nagain:\n  br label %again", "idle": "ret void"}
)


def stub(entry: str, body: str) -> bytes:
    """An object with a function of a kernel's signature that does something else."""
    arguments = "ptr %b, ptr %v, i64 %l, i64 %h, ptr %s"
    return LlvmAssembler(None).assemble(
        f"define void @{entry}({arguments}) {{\nentry:\n  {body}\n}}\n"
    )


class FaultyWorker(worker.Worker):
    """A worker with a fault for every second schedule, by its text."""

    fault = ""

    def compile(
        self, header: dict[str, Any], blobs: list[bytes]
    ) -> tuple[dict[str, Any], list[bytes]]:
        kernel = self._kernel(blobs[0])
        schedule = parse_schedule(header["schedule"])
        answer, (code,) = super().compile(header, blobs)
        if schedule == choose_schedule(kernel, self.backend.compiler.target):
            return answer, [code]
        if zlib.crc32(header["schedule"].encode()) % 2:
            return answer, [code]
        if self.fault == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        program = Program.from_bytes(code)
        code = replace(program, code=stub(program.entry, BODIES[self.fault])).to_bytes()
        return answer, [code]


def main(setting: dict[str, Any], fault: str) -> None:
    worker.Worker = FaultyWorker  # type: ignore[misc]
    FaultyWorker.fault = fault
    worker.main(setting)


def program(fault: str) -> str:
    """A worker's text, with that fault: crash, hang or idle."""
    return (
        "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
        f"from tests.engine.search.faults import main; main(json.loads(sys.argv[2]), {fault!r})"
    )
