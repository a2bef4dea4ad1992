"""Workers that crash, hang, or talk nonsense cost their candidate and nothing else."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from baregrad.base.errors import FileFormatError
from baregrad.base.options import options
from baregrad.engine.backends import CompiledBackend, open_backend
from baregrad.engine.search.child import Child, ChildLost
from baregrad.engine.search.records import Record, Records
from baregrad.engine.search.tuner import Tuner
from baregrad.engine.search.wire import receive, send
from baregrad.ir.core.node import Node
from baregrad.kernel.search import beam
from tests.engine.search import faults
from tests.kernel import kernels as k

ECHO = (
    "import sys, time; from baregrad.engine.search.wire import receive, send\n"
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


def test_messages_come_back_as_they_were_sent() -> None:
    stream = io.BytesIO()
    send(stream, {"ask": "x", "n": [1, 2]}, [b"", b"\x00\xff" * 1000])
    stream.seek(0)
    assert receive(stream) == ({"ask": "x", "n": [1, 2]}, [b"", b"\x00\xff" * 1000])
    assert receive(stream) is None


@pytest.mark.parametrize("text", [b"[]", b"{}", b'{"blobs": [-1]}', b'{"blobs": 3}', b"no"])
def test_nonsense_is_no_message(text: bytes) -> None:
    with pytest.raises(FileFormatError):
        receive(io.BytesIO(b"x" * 64))
    with pytest.raises(FileFormatError):
        receive(io.BytesIO(len(text).to_bytes(8, "little") + text))


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


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> CompiledBackend:
    """The CPU; searches there are of two rounds, so that they end long before their time is up."""
    monkeypatch.setattr(beam, "MOST_ROUNDS", 2)
    opened = open_backend("CPU")
    assert isinstance(opened, CompiledBackend)
    return opened


def run(backend: CompiledBackend, tuner: Tuner | None, *kernels: object) -> list[np.ndarray]:
    """The first result of each kernel on the CPU, under what the tuner finds."""
    found = []
    chosen = {} if tuner is None else tuner.schedules(kernels)  # type: ignore[arg-type]
    for kernel in kernels:
        arrays = k.arguments(kernel)  # type: ignore[arg-type]
        program = backend.compiler.compile(kernel, chosen.get(kernel))  # type: ignore[arg-type]
        loaded = backend.device.load(program)
        buffers = []
        for slot in range(len(arrays)):
            buffer = backend.device.allocate(arrays[slot].nbytes)
            backend.device.copy_in(buffer, np.ascontiguousarray(arrays[slot]))
            buffers.append(buffer)
        backend.device.run(loaded, buffers)
        found.append(buffers[0].contents().view(arrays[0].dtype).reshape(arrays[0].shape))
    return found


@pytest.mark.parametrize(("fault", "told"), [
    ("crash", "crashed"), ("hang", "late"), ("idle", "wrong"),
])  # fmt: skip
def test_crashing_compilers_and_endless_kernels_end_in_time(
    backend: CompiledBackend, tmp_path: Path, fault: str, told: str
) -> None:
    file = tmp_path / "found.jsonl"
    kernel = k.matmul(96, 80, 64)
    # Where nothing hangs, a schedule has all the time that a busy machine may need.
    patience = 1 if fault == "hang" else 120
    with options.override(beam=2, beam_seconds=3600, beam_timeout=patience, beam_file=file):
        tuner = Tuner(backend.compiler, backend.device)
        make = tuner._make_child
        tuner.make_child = lambda: Child(make().setting, faults.program(fault))
        (found,) = run(backend, tuner, kernel)
    arrays = k.arguments(kernel)
    wanted = arrays[1].astype(np.float64) @ arrays[2].astype(np.float64)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    assert getattr(tuner.losses, told)


def test_a_second_run_takes_schedules_from_the_file_and_measures_nothing(
    backend: CompiledBackend, tmp_path: Path
) -> None:
    file = tmp_path / "found.jsonl"
    kernel = k.matmul(64, 64, 64)
    with options.override(beam=1, beam_seconds=3600, beam_timeout=120, beam_file=file):
        tuner = Tuner(backend.compiler, backend.device)
        first = tuner.schedules([kernel])
        assert len(Records(file).all()) == 1

        def refuse() -> Child:
            raise AssertionError("a worker was started")

        again = Tuner(backend.compiler, backend.device, refuse)
        assert again.schedules([kernel]) == first
    # Named, the file is read without a search as well.
    with options.override(beam=0, beam_file=file):
        assert Tuner(backend.compiler, backend.device, refuse).schedules([kernel]) == first


def test_an_interrupted_search_keeps_what_it_has_found(
    backend: CompiledBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "found.jsonl"
    kernels = [k.matmul(64, 64, 64), k.row_reduce(40, 50)]
    with options.override(beam=1, beam_seconds=3600, beam_timeout=120, beam_file=file):
        tuner = Tuner(backend.compiler, backend.device)
        one = Tuner._search_one

        def interrupted(self: Tuner, *args: object) -> object:
            if self.found:
                raise KeyboardInterrupt
            return one(self, *args)  # type: ignore[arg-type]

        monkeypatch.setattr(Tuner, "_search_one", interrupted)
        with pytest.raises(KeyboardInterrupt):
            tuner.schedules(kernels)
        assert len(Records(file).all()) == 1
        monkeypatch.setattr(Tuner, "_search_one", one)
        # The next run goes on where this one stopped.
        later = Tuner(backend.compiler, backend.device)
        later.schedules(kernels)
        assert len(later.found) == 1
        assert len(Records(file).all()) == 2


def test_a_kernel_whose_time_was_too_short_has_what_is_left(
    backend: CompiledBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def search_one(
        tuner: Tuner, crew: object, kernel: Node, clock: object, earlier: object, late: list[Node]
    ) -> Record | None:
        asked.append(kernel.arg.name)
        if asked == ["long"]:
            late.append(kernel)
            return None
        return tuner._record(kernel, None, 1.0, 1.0, 9)

    monkeypatch.setattr(Tuner, "_search_one", search_one)
    kernels = [replace_name(k.matmul(64, 64, 64), "long"), replace_name(k.bias(3, 5), "short")]
    with options.override(beam=2, beam_seconds=90, beam_file=tmp_path / "found.jsonl"):
        tuner = Tuner(backend.compiler, backend.device)
        tuner.schedules(kernels)
    assert asked == ["long", "short", "long"]
    assert tuner.skipped == 0
    assert [record.name for record in tuner.found] == ["short", "long"]


def replace_name(kernel: Node, name: str) -> Node:
    return Node(kernel.op, kernel.dtype, kernel.src, kernel.arg._replace(name=name))
