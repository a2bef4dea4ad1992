"""Searches for a GPU's kernels, on one in software: no device to compile, faults end a process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from baregrad.base.options import options
from baregrad.engine.backends import CompiledBackend, open_backend
from baregrad.engine.search import bench as module
from baregrad.engine.search.bench import Bench
from baregrad.engine.search.records import Records
from baregrad.engine.search.tuner import Tuner
from baregrad.engine.search.worker import Worker
from baregrad.engine.workers.child import Child
from baregrad.engine.workers.wire import target_fields
from baregrad.ir.text.dump import dump
from baregrad.kernel import choose_schedule, parse_schedule
from baregrad.kernel.search import beam, candidates
from baregrad.program import CUBIN, Program
from baregrad.target import gpu_row
from tests.kernel import kernels as k

HOPPER = gpu_row("sm_90a")
KERNEL = k.row_reduce(4, 24)


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[CompiledBackend]:
    """A virtual GPU; searches on it are of one round."""
    monkeypatch.setattr(beam, "MOST_ROUNDS", 1)
    with options.override(nv_port="virtual"):
        opened = open_backend("NV")
        assert isinstance(opened, CompiledBackend)
        yield opened
        opened.close()


def result(backend: CompiledBackend, program: Program) -> np.ndarray:
    arrays = k.arguments(KERNEL)
    buffers = []
    for slot in range(len(arrays)):
        buffer = backend.device.allocate(arrays[slot].nbytes)
        backend.device.copy_in(buffer, np.ascontiguousarray(arrays[slot]))
        buffers.append(buffer)
    backend.device.run(backend.device.load(program), buffers)
    return buffers[0].contents().view(np.float32)


def test_a_kernel_is_searched_and_its_record_used_later(
    backend: CompiledBackend, tmp_path: Path
) -> None:
    file = tmp_path / "found.jsonl"
    with options.override(beam=1, beam_seconds=3600, beam_timeout=120, beam_file=file):
        tuner = Tuner(backend.compiler, backend.device)
        chosen = tuner.schedules([KERNEL])
        (record,) = Records(file).all()
        assert record.tried > 1 and len(record.measured) > 1
        found = result(backend, backend.compiler.compile(KERNEL, chosen.get(KERNEL)))
        wanted = k.arguments(KERNEL)[1].astype(np.float64).sum(1)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)

        def refuse() -> Child:
            raise AssertionError("a worker was started")

        assert Tuner(backend.compiler, backend.device, refuse).schedules([KERNEL]) == chosen


FAULTY = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1])\n"
    "from baregrad.base.errors import DriverError\n"
    "from baregrad.engine.search import worker\n"
    "def check(self, header, blobs):\n"
    "    raise DriverError('the kernel was stopped by a fault')\n"
    "worker.Worker.check = check\n"
    "worker.main(json.loads(sys.argv[2]))\n"
)


def test_a_fault_ends_the_process_that_times_and_nothing_else(
    backend: CompiledBackend, tmp_path: Path
) -> None:
    file = tmp_path / "found.jsonl"
    with options.override(beam=1, beam_seconds=3600, beam_timeout=120, beam_file=file):
        tuner = Tuner(backend.compiler, backend.device)
        made: list[Child] = []

        def make() -> Child:
            made.append(Child(Tuner._make_child(tuner).setting, FAULTY))
            return made[-1]

        tuner.make_child = make
        assert tuner.schedules([KERNEL]) == {}
    # Each of those that faulted was the last of its process, which another one followed.
    assert tuner.losses.crashed > 1
    assert max(child.started for child in made) == tuner.losses.crashed
    (record,) = Records(file).all()
    assert record.schedule == ""


def test_no_gpu_is_opened_to_compile_for_it() -> None:
    with options.override(nv_port="virtual"):
        worker = Worker("NV", target_fields(HOPPER))
        schedule = candidates(KERNEL, HOPPER)[-1].schedule
        question = {"ask": "compile", "schedule": str(schedule)}
        _, (code,) = worker.answer(question, [dump(KERNEL).encode()])
        assert Program.from_bytes(code).kind == CUBIN
        assert "backend" not in vars(worker)


def test_candidates_survive_their_texts() -> None:
    """Schedules go to workers, and into files, as text."""
    for kernel in (KERNEL, k.brain_product(64, 64, 64), k.elementwise(64, 128)):
        for each in candidates(kernel, HOPPER):
            assert parse_schedule(str(each.schedule)) == each.schedule


def test_what_a_check_did_not_look_at_is_compared_before_a_schedule_wins(
    backend: CompiledBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COMPARED", 1)
    monkeypatch.setattr(module, "samples", lambda problem: [])
    bench = Bench(KERNEL, backend.device, 0)
    code = backend.compiler.compile(KERNEL, choose_schedule(KERNEL, HOPPER)).to_bytes()
    assert bench.first(code)["ns"] > 0
    place = np.random.default_rng(0).integers(0, 4, 1)
    first = bench.results[0].view(np.float32)
    first[(place + 1) % 4] += 1
    assert "times" in bench.check("other", code)
    assert "against the first schedule" in bench.confirm("other")["wrong"]
    first[(place + 1) % 4] -= 1
    assert bench.confirm("other") == {}
