"""A worker: it answers every question, with what it could not do where that is so."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from baregrad.base.errors import BaregradError, ScheduleError
from baregrad.base.options import options
from baregrad.engine.backends import host_target
from baregrad.engine.search.bench import Bench
from baregrad.engine.search.worker import Worker
from baregrad.engine.workers.child import Child
from baregrad.engine.workers.wire import target_fields
from baregrad.ir.text.dump import dump
from baregrad.kernel import Schedule, choose_schedule
from baregrad.program import Program
from tests.kernel import kernels as k

KERNEL = k.matmul(12, 20, 16)
TEXT = dump(KERNEL).encode()
TARGET = host_target()


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    made = Worker("CPU", target_fields(TARGET))
    yield made
    made.backend.close()


def test_it_compiles_for_the_row_that_it_is_given() -> None:
    """Which is not always this machine's, and keeps nothing on disk."""
    row = target_fields(TARGET) | {"vector_bytes": 16, "cores": 3}
    made = Worker("CPU", row)
    assert target_fields(made.backend.compiler.target) == row
    assert made.backend.compiler.cache is None
    made.backend.close()


def test_programs_are_those_of_the_compiler(worker: Worker) -> None:
    for schedule in (Schedule(), choose_schedule(KERNEL, TARGET)):
        header, (found,) = worker.answer({"ask": "compile", "schedule": str(schedule)}, [TEXT])
        wanted = worker.backend.compiler.compile(KERNEL, schedule)
        assert header == {} and Program.from_bytes(found) == wanted


def test_a_kernel_is_opened_checked_and_raced(worker: Worker) -> None:
    plain = {"ask": "compile", "schedule": str(Schedule())}
    first = choose_schedule(KERNEL, TARGET)
    _, (code,) = worker.answer({"ask": "compile", "schedule": str(first)}, [TEXT])
    _, (other,) = worker.answer(plain, [TEXT])
    opened, _ = worker.answer({"ask": "open", "cold_nbytes": 0}, [TEXT, code])
    assert opened["ns"] > 0 and isinstance(worker.bench, Bench)
    checked, _ = worker.answer({"ask": "check", "name": "plain"}, [other])
    assert [len(times) > 0 for times in checked["times"]] == [True, True]
    raced, _ = worker.answer({"ask": "race", "names": ["plain", "first"], "rounds": 3}, [])
    assert [len(times) for times in raced["times"]] == [3, 3]
    product = worker.bench.results[0].view(np.float32).reshape(12, 20)
    left, right = (array.view(np.float32) for array in worker.bench.problem.arrays[1:])
    np.testing.assert_allclose(
        product, left.reshape(12, 16) @ right.reshape(16, 20), rtol=1e-4, atol=1e-4
    )


def test_a_kernel_that_cannot_be_opened_leaves_none_open(worker: Worker) -> None:
    worker.bench = Bench(KERNEL, worker.backend.device, 0)
    with pytest.raises(BaregradError):
        worker.answer({"ask": "open", "cold_nbytes": 0}, [b"no kernel", b""])
    assert worker.bench is None
    with pytest.raises(ScheduleError):
        worker.answer({"ask": "compile", "schedule": "split('nobody')"}, [TEXT])


def test_a_device_that_compiles_nothing_is_refused() -> None:
    with pytest.raises(BaregradError, match="needs a device that compiles"):
        Worker("REF", target_fields(TARGET))


# --- the process ---------------------------------------------------------------------------------


LOUD = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1])\n"
    "from baregrad.engine.search import worker\n"
    "compile = worker.Worker.compile\n"
    "def loud(self, header, blobs):\n"
    "    print('a library says something', flush=True)\n"
    "    return compile(self, header, blobs)\n"
    "worker.Worker.compile = loud\n"
    "worker.main(json.loads(sys.argv[2]))\n"
)


def setting() -> dict[str, Any]:
    values = options.values()
    kept = {"cache_dir": str(values["cache_dir"]), "verify": True}
    return {"device": "CPU", "options": kept, "target": target_fields(TARGET)}


def test_it_lives_on_after_what_it_could_not_do() -> None:
    """Neither what libraries print nor an interrupt, which its parent has as well, disturbs it."""
    child = Child(setting(), LOUD)
    plain = {"ask": "compile", "schedule": str(Schedule())}
    try:
        for header, blobs, error in (
            ({"ask": "compile", "schedule": "import os"}, [TEXT], "ScheduleError: "),
            (plain, [b"no kernel"], ""), ({"ask": "sing"}, [], "KeyError: "),
            ({"ask": "race", "names": [], "rounds": 1}, [], "AssertionError: "),
        ):  # fmt: skip
            answer, out = child.ask(header, blobs, 120.0)
            assert answer["error"].startswith(error) and out == []
        assert child._process is not None
        os.kill(child._process.pid, signal.SIGINT)
        answer, (code,) = child.ask(plain, [TEXT], 120.0)
        assert answer == {} and Program.from_bytes(code).name == KERNEL.arg.name
        assert child.started == 1
    finally:
        child.kill()


PARENT = (
    "import subprocess, sys\n"
    "program = 'from baregrad.engine.search.worker import _die_with_parent as die; die(); '\n"
    "program += 'print(1, flush=True); import time; time.sleep(600)'\n"
    "child = subprocess.Popen([sys.executable, '-c', program], stdout=subprocess.PIPE)\n"
    "child.stdout.read(1)\n"
    "print(child.pid, flush=True)\n"
    "import os, signal; os.kill(os.getpid(), signal.SIGKILL)\n"
)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux ends it so")
def test_it_ends_with_its_parent() -> None:
    """Which may be killed while the worker is in an endless loop: nobody is left to end that."""
    parent = subprocess.run([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, check=False)
    assert parent.returncode == -signal.SIGKILL
    pid = int(parent.stdout)
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], 60)[0]
    finally:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        os.close(descriptor)
