"""Searches for the kernels of a program: time shared out, faults survived, results kept."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from baregrad.base.options import options
from baregrad.engine.backends import CompiledBackend, open_backend
from baregrad.engine.search import tuner
from baregrad.engine.search.records import Records, SearchRecord
from baregrad.engine.search.tuner import Tuner
from baregrad.engine.search.verdict import LEAST_RATIO, LEAST_RATIO_APART
from baregrad.engine.workers.child import Child
from baregrad.ir.core.node import Node
from baregrad.kernel.search import beam
from tests.engine.search import faults
from tests.kernel import kernels as k


@pytest.mark.parametrize("seconds", [540.0, 300.0, 60.0])
def test_time_is_left_for_the_kernels_that_come_last(
    monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """A hundred kernels that each take all the time they may, the longest ones first."""
    now = 0.0
    monkeypatch.setattr(tuner, "time", SimpleNamespace(monotonic=lambda: now))
    kernels = [3e7 / (1 + number) for number in range(100)]
    weights = [tuner.weight_of(ns) for ns in kernels]
    spent = []
    for number, ns in enumerate(kernels):
        clock = tuner.Clock(seconds, sum(weights[number + 1 :]), len(kernels) - number - 1)
        begin, now = now, clock.deadline(ns)
        spent.append(now - begin)
    assert now <= seconds
    searched = sum(one >= tuner.KEPT_S - 1e-6 for one in spent)
    # With little time some are searched well rather than all of them badly.
    assert searched == 100 if seconds > 2 * 100 * tuner.KEPT_S else searched >= seconds / 12
    assert spent[0] > spent[len(spent) // 2] and max(spent) <= tuner.MOST_S


def test_time_goes_to_what_a_program_spends_its_time_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that is launched often comes first, and has as much as one that takes as long."""
    order = []

    def search_one(
        self: Tuner, crew: object, kernel: Node, clock: tuner.Clock, *more: object
    ) -> None:
        order.append((kernel, clock.launches))

    monkeypatch.setattr(Tuner, "_search_one", search_one)
    monkeypatch.setattr(Tuner, "_keep", lambda *given: None)
    long, often = k.row_reduce(64, 4096), k.row_reduce(16, 4096)
    monkeypatch.setattr(Tuner, "_guess_ns", lambda self, one: 1e6 if one is long else 3e5)
    opened = open_backend("CPU")
    assert isinstance(opened, CompiledBackend)
    with options.override(beam=1, beam_seconds=60, cache=False):
        Tuner(opened.compiler, opened.device).schedules([long, *[often] * 4])
    assert order == [(often, 4), (long, 1)]
    monkeypatch.setattr(tuner, "time", SimpleNamespace(monotonic=lambda: 0.0))
    four, one = tuner.Clock(60.0, 500.0, 9, 4), tuner.Clock(60.0, 500.0, 9)
    assert four.deadline(3e6) == one.deadline(12e6)


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


def test_short_kernels_without_sums_keep_their_first_schedules(
    backend: CompiledBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched = []
    monkeypatch.setattr(
        Tuner, "_search_one", lambda self, crew, kernel, *more: searched.append(kernel)
    )
    monkeypatch.setattr(Tuner, "_guess_ns", lambda self, one: 1e4)
    once, often, sums = k.bias(3, 5), k.bias(4, 5), k.row_reduce(3, 5)
    with options.override(beam=1, beam_seconds=60, cache=False):
        Tuner(backend.compiler, backend.device).schedules([once, *[often] * 3, sums])
    assert searched == [often, sums]


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
    ) -> SearchRecord | None:
        asked.append(kernel.arg.name)
        if asked == ["long"]:
            late.append(kernel)
            return None
        return tuner._record(kernel, None, 1.0, 1.0, 9)

    monkeypatch.setattr(Tuner, "_search_one", search_one)
    long, short = k.matmul(64, 64, 64), k.row_reduce(3, 5)
    kernels = [replace_name(long, "long"), replace_name(short, "short")]
    with options.override(beam=2, beam_seconds=90, beam_file=tmp_path / "found.jsonl"):
        tuner = Tuner(backend.compiler, backend.device)
        tuner.schedules(kernels)
    assert asked == ["long", "short", "long"]
    assert tuner.skipped == 0
    assert [record.name for record in tuner.found] == ["short", "long"]


def replace_name(kernel: Node, name: str) -> Node:
    return Node(kernel.op, kernel.dtype, kernel.src, kernel.arg._replace(name=name))


class Bout:
    """Two programs, of which the other takes 100 ns; near is what it takes from the caches."""

    def __init__(self, near: int, right: bool) -> None:
        self.near = near
        self.right = right

    def confirm(self, name: str) -> bool:
        return self.right

    def race(self, names: object, rounds: int, near: bool = False) -> list[list[int]]:
        return [[110] * rounds, [self.near if near else 100] * rounds]


@pytest.mark.parametrize(("near", "right", "least", "wins"), [
    (100, True, LEAST_RATIO_APART, True), (111, True, LEAST_RATIO_APART, True),
    (120, True, LEAST_RATIO_APART, False), (100, False, LEAST_RATIO_APART, False),
    (120, True, LEAST_RATIO, True),
])  # fmt: skip
def test_a_winner_on_a_gpu_is_no_slower_from_its_caches(
    near: int, right: bool, least: float, wins: bool
) -> None:
    clock = tuner.Clock(0.0, 0.0, 0)
    judge = tuner.Judge(None, b"", 0, clock, least)  # type: ignore[arg-type]
    judge.bout = Bout(near, right)  # type: ignore[assignment]
    assert (judge._confirmed("other", 20) is not None) == wins
