"""Kernels that processes compile beside each other are those that this one would compile."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from baregrad.base.options import options
from baregrad.engine.backends import gpu_compiler
from baregrad.engine.compiler import Compiler
from baregrad.engine.workers import compile_crew
from baregrad.engine.workers.child import Child
from baregrad.engine.workers.compile_crew import (
    LEAST_CORES,
    LEAST_KERNELS,
    LEAST_NODES,
    CompileCrew,
    workers_wanted,
)
from baregrad.ir.core.node import Node
from baregrad.program import Program
from baregrad.runtime.null import NullDevice
from tests.kernel import kernels as k

ARCHITECTURE = "sm_90a"
KERNELS = [k.matmul(4 * count, 8, 8) for count in range(1, LEAST_KERNELS + 1)]


@pytest.fixture
def compiler() -> Iterator[Compiler]:
    """One for a GPU that is not there, which keeps nothing on disk."""
    with options.override(nv_port="virtual", cache=False, compile_workers=1):
        yield gpu_compiler("NV", ARCHITECTURE)


def loaded(compiler: Compiler, kernels: list[Node]) -> list[Program]:
    """The programs of kernels, as they are loaded."""
    found = compiler.load(kernels, NullDevice(), lambda: None)
    return [found[kernel].program for kernel in kernels]


def refuse(*_: object) -> None:
    raise AssertionError("this process compiled")


def test_programs_are_those_that_this_process_compiles(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = loaded(gpu_compiler("NV", ARCHITECTURE), KERNELS)
    with monkeypatch.context() as patch, compiler.helped(LEAST_NODES):
        patch.setattr(Compiler, "stages", refuse)
        assert loaded(compiler, KERNELS) == wanted
        assert compiler.compiled == len(KERNELS)
        assert compiler._crew is not None
        children = compiler._crew.children
    assert compiler._crew is None and not any(child.alive for child in children)


@pytest.mark.parametrize("program", [
    "import sys; sys.exit(3)",
    "import sys; from baregrad.engine.workers.wire import receive, send\n"
    "while receive(sys.stdin.buffer): send(sys.stdout.buffer, {}, [b'no program'])",
], ids=["dies", "raves"])  # fmt: skip
def test_what_a_process_does_not_give_is_compiled_here(
    compiler: Compiler, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_crew, "program_of", lambda module: (
        f"import json, sys; sys.path[:] = json.loads(sys.argv[1])\n{program}"
    ))  # fmt: skip
    wanted = loaded(gpu_compiler("NV", ARCHITECTURE), KERNELS)
    with compiler.helped(LEAST_NODES):
        assert loaded(compiler, KERNELS) == wanted


def test_few_kernels_and_small_programs_are_compiled_here(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    with compiler.helped(LEAST_NODES - 1):
        assert compiler._crew is None
    monkeypatch.setattr(Child, "start", lambda child: None)
    monkeypatch.setattr(Child, "send", refuse)
    with compiler.helped(LEAST_NODES):
        assert isinstance(compiler._crew, CompileCrew)
        assert len(loaded(compiler, KERNELS[1:])) == LEAST_KERNELS - 1


def test_they_are_as_many_as_cores_let(monkeypatch: pytest.MonkeyPatch) -> None:
    def wanted(cores: int, nodes: int = LEAST_NODES) -> int:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
        return workers_wanted(nodes)

    assert wanted(LEAST_CORES - 1) == 0 < wanted(LEAST_CORES) < LEAST_CORES
    assert wanted(256) < 16 and wanted(256, LEAST_NODES - 1) == 0
    with options.override(compile_workers=3):
        assert wanted(1) == 3
    with options.override(debug=2):
        assert wanted(256) == 0
