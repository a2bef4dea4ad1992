"""A process that makes texts: programs without code, under a schedule or the first one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baregrad.base.options import options
from baregrad.engine.backends import gpu_compiler
from baregrad.engine.workers.compile_worker import CompileWorker
from baregrad.ir.text.dump import dump
from baregrad.kernel import Schedule
from baregrad.program import Program
from tests.kernel import kernels as k

KERNEL = k.matmul(12, 20, 16)


@pytest.mark.parametrize("schedule", [None, Schedule()], ids=["first", "given"])
def test_programs_are_those_of_the_compiler(schedule: Schedule | None) -> None:
    with options.override(nv_port="virtual"):
        worker = CompileWorker("NV", "sm_90a")
        header = {} if schedule is None else {"schedule": str(schedule)}
        answer, (found,) = worker.answer(header, [dump(KERNEL).encode()])
        wanted = gpu_compiler("NV", "sm_90a").compile(KERNEL, schedule)
    assert wanted.code
    assert answer == {} and Program.from_bytes(found) == replace(wanted, code=b"")
    assert worker.compiler.cache is None
