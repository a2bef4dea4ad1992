"""Backends: the option chooses what compiles, and REF evaluates at the level that it names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from baregrad import runtime
from baregrad.base.errors import UnsupportedDevice
from baregrad.base.options import options
from baregrad.engine import backends
from baregrad.engine.backends import (
    CompiledBackend,
    ReferenceBackend,
    gpu_backend,
    gpu_compiler,
    host_target,
    open_backend,
)
from baregrad.engine.canonical import Canonical, canonicalise
from baregrad.engine.session import Session, use_session
from baregrad.engine.workers.wire import target_fields, target_of
from baregrad.runtime.cpu import host
from baregrad.target import gpu_row
from baregrad.tensor import Tensor
from baregrad.testing.ptx_device import PtxDevice

VALUES = np.arange(12, dtype=np.float32).reshape(3, 4)


def program_on(backend: backends.Backend) -> Canonical:
    session = Session()
    session.adopt(backend)
    with use_session(session):
        x = Tensor(VALUES, device=backend.name).realize()
        return canonicalise([(x * x).sum(1).node], lambda node: None)


def result(backend: backends.Backend, program: Canonical) -> np.ndarray[Any, Any]:
    (found,) = backend.execute(backend.prepare(program, {}), program, None)
    return np.frombuffer(found.as_memoryview(), np.float32)


@pytest.fixture
def reference() -> Iterator[ReferenceBackend]:
    opened = open_backend("REF")
    assert isinstance(opened, ReferenceBackend)
    yield opened
    opened.close()


@pytest.mark.parametrize("level", ["tensor", "kernel", "loop", "linear"])
def test_the_reference_evaluates_at_the_level_that_is_named(
    reference: ReferenceBackend, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from baregrad.engine import reference as work

    asked: list[str] = []
    plans, programs = work.evaluate_plan, work.evaluate_program
    monkeypatch.setattr(work, "evaluate_plan", lambda *args: asked.append(args[3]) or plans(*args))
    monkeypatch.setattr(
        work, "evaluate_program", lambda *args: asked.append("tensor") or programs(*args)
    )
    program = program_on(reference)
    with options.override(ref_level=level):
        assert reference.setting() == (level,)
        found = result(reference, program)
    assert asked == [level]
    np.testing.assert_array_equal(found, (VALUES * VALUES).sum(1))


def test_what_is_compiled_has_the_values_of_the_reference(reference: ReferenceBackend) -> None:
    cpu = open_backend("CPU")
    assert isinstance(cpu, CompiledBackend) and cpu.compiles and not reference.compiles
    try:
        found = result(cpu, program_on(cpu))
    finally:
        cpu.close()
    np.testing.assert_array_equal(found, result(reference, program_on(reference)))


def test_options_that_change_a_plan_are_its_setting() -> None:
    """Else a plan that was made without a search, say, would be taken for one with it."""
    null = open_backend("NULL")
    plain = null.setting()
    for change in ({"beam": 2}, {"debug": 1}):
        with options.override(**change):
            assert null.setting() != plain
    assert null.setting() == plain


def test_what_is_not_run_is_not_timed(capfd: pytest.CaptureFixture[str]) -> None:
    null = open_backend("NULL")
    program = program_on(null)
    with options.override(debug=1):
        executable = null.prepare(program, {})
        (found,) = null.execute(executable, program, lambda canonical, launch: "here")
    assert found.nbytes == 12 and "GFLOP/s" not in capfd.readouterr().err


def test_the_row_of_this_machine_has_its_own_caches_and_all_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 77)
    found, machine = host_target(), host.detect_host()
    assert found.cores == 77
    for name in ("l1", "l2", "l3"):
        known = getattr(machine, f"{name}_nbytes")
        assert not known or getattr(found, f"{name}_bytes") == known


class OddGpu(PtxDevice):
    """A GPU of a generation that there is no row for."""

    closed = 0

    def __init__(self) -> None:
        super().__init__("NV:1", "sm_12")

    def close(self) -> None:
        self.closed += 1


def test_a_gpu_that_nothing_compiles_for_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = OddGpu()
    monkeypatch.setattr(runtime, "open_device", lambda name: gpu)
    with pytest.raises(UnsupportedDevice):
        open_backend("NV:1")
    assert gpu.closed == 1


@pytest.mark.parametrize("renderer,name,port,wanted", [
    ("ptx", "NV", "kernel", ("ptx", "ptx-cubin-2")),
    ("cuda", "NV", "kernel", ("cuda", "cuda-cubin-1")),
    ("cuda", "CUDA", "virtual", ("cuda", "cuda-cubin-1")),
])
def test_the_option_chooses_text_and_assembler(
    renderer: str, name: str, port: str, wanted: tuple[str, str]
) -> None:
    with options.override(gpu_renderer=renderer, nv_port=port):
        compiler = gpu_backend(name, PtxDevice()).compiler
    assert (compiler.renderer.name, compiler.assembler.form) == wanted


def test_a_gpu_in_software_takes_ptx() -> None:
    with options.override(gpu_renderer="cuda", nv_port="virtual"):
        assert gpu_backend("NV", PtxDevice()).compiler.renderer.name == "ptx"


@pytest.mark.parametrize("instructions", ["sm_80", "sm_90"])
def test_the_option_chooses_instructions(instructions: str) -> None:
    """A worker of a search is told the row by name."""
    with options.override(gpu_instructions=instructions):
        target = gpu_backend("NV", PtxDevice()).compiler.target
        assert gpu_compiler("NV", target.name).target == target
    assert target == gpu_row(f"sm_90a:{instructions}")
    assert target_of(target_fields(target)) == target


def test_instructions_that_the_gpu_lacks() -> None:
    newer = options.override(gpu_instructions="sm_120")
    with newer, pytest.raises(UnsupportedDevice, match="gpu_instructions.*sm_80"):
        gpu_backend("NV", PtxDevice())
