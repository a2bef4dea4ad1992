"""The compiler: what it keeps, when it compiles anew, and what a program says of its kernel."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from baregrad import kernel as kernels
from baregrad import render
from baregrad.assemble import cache as kept
from baregrad.assemble.cache import DiskCache
from baregrad.base.errors import ChangedPipeline, CompilerBug, ScheduleError
from baregrad.base.options import options
from baregrad.dtypes import dtypes
from baregrad.engine import compiler as module
from baregrad.engine.compiler import Compiler, arrays_of, variables_of
from baregrad.ir.core.index import variable
from baregrad.ir.core.monoid import primitive
from baregrad.ir.core.node import Node, range_node
from baregrad.ir.core.op import Ops
from baregrad.ir.text.dump import parse
from baregrad.kernel import Schedule, choose_schedule
from baregrad.kernel.language.schedule import split
from baregrad.program import Program, evaluate
from baregrad.render import gpu as gpu_render
from baregrad.runtime.commands import Kernel
from baregrad.runtime.null import NullDevice
from baregrad.target import CpuTarget
from tests.kernel import kernels as k
from tests.kernel.contractions import contraction
from tests.kernel.gpu_kernels import HOPPER
from tests.kernel.test_lowering import AVX512


class Pretence:
    """An assembler whose machine code is a number, and which notes what it was given at once."""

    version = "1"

    def __init__(self, several_at_once: bool = False) -> None:
        self.calls: list[list[str]] = []
        self.several_at_once = several_at_once

    def assemble_all(self, texts: Iterable[str]) -> Iterator[bytes]:
        given: list[str] = []
        self.calls.append(given)
        given.extend(texts)
        return iter([f"code {len(self.calls)}.{number}".encode() for number in range(len(given))])


def compiler(cache: DiskCache | None = None, target: CpuTarget = AVX512) -> Compiler:
    return Compiler(target, render.get("llvm"), Pretence(), cache)


def load(compiler: Compiler, *kernels: Node) -> dict[Node, Kernel]:
    steps: list[int] = []
    found = compiler.load(kernels, NullDevice(), lambda: steps.append(1))
    assert len(steps) == len(set(kernels))
    return found


@pytest.mark.parametrize("beside", [False, True])
def test_texts_are_assembled_while_others_are_made(beside: bool) -> None:
    """By an assembler that has processes of its own; else all of a group's are made first."""
    assembler, made = Pretence(beside), []
    own = Compiler(AVX512, render.get("llvm"), assembler, None)

    def assemble_all(texts: Iterable[str]) -> Iterator[bytes]:
        for number, _ in enumerate(texts):
            made.append(own.compiled)
            yield str(number).encode()

    assembler.assemble_all = assemble_all  # type: ignore[method-assign]
    kernels = [k.bias(rows, 5) for rows in (2, 3, 4)]
    found = load(own, *kernels)
    assert made == ([1, 2, 3] if beside else [3, 3, 3])
    assert [found[one].program.code for one in kernels] == [b"0", b"1", b"2"]


def test_a_kernel_is_compiled_and_loaded_once() -> None:
    own = compiler()
    first, second = k.bias(4, 5), k.row_reduce(4, 5)
    found = load(own, first, second, first)
    assert own.compiled == 2 and set(found) == {first, second}
    # All that is missing is assembled together.
    assert [len(texts) for texts in own.assembler.calls] == [2]
    again = load(own, second, k.bias(4, 5))
    assert own.compiled == 2
    assert again[second] is found[second] and again[first] is found[first]


def test_programs_that_were_used_long_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROGRAMS_KEPT", 2)
    own = compiler()
    first, second, third = (k.elementwise(2 + extent) for extent in range(3))
    # More than are kept, at once.
    assert len(load(own, first, second, third)) == 3
    assert own.compiled == 3
    load(own, second)
    load(own, first)
    assert own.compiled == 4
    load(own, second)
    assert own.compiled == 4


def test_many_kernels_are_assembled_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TOGETHER", 3)
    own = compiler()
    asked = [k.elementwise(2 + extent) for extent in range(7)]
    found = load(own, *asked)
    assert [len(texts) for texts in own.assembler.calls] == [3, 3, 1]
    codes = [found[kernel].program.code.decode() for kernel in asked]
    assert codes == ["code 1.0", "code 1.1", "code 1.2", "code 2.0", "code 2.1", "code 2.2",
                     "code 3.0"]  # fmt: skip


def test_programs_come_from_disk_unless_something_else_made_them(tmp_path: Path) -> None:
    kernel = k.bias(4, 5)
    (made,) = load(compiler(DiskCache(tmp_path)), kernel).values()
    other = compiler(DiskCache(tmp_path))
    (found,) = load(other, kernel).values()
    assert (other.compiled, other.loaded) == (0, 1) and found.program == made.program
    # Another row, renderer, assembler or kernel is another program.
    rows = compiler(DiskCache(tmp_path), replace(AVX512, l2_bytes=AVX512.l2_bytes + 64))
    texts = compiler(DiskCache(tmp_path))
    texts.renderer = render.get("c")
    later = compiler(DiskCache(tmp_path))
    later.assembler.version = "2"
    for each in (rows, texts, later):
        load(each, kernel)
        assert (each.compiled, each.loaded) == (1, 0)
    load(other, k.bias(4, 6))
    assert (other.compiled, other.loaded) == (1, 1)


def test_what_debug_shows_is_compiled(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    kernel = k.bias(4, 5)
    load(compiler(DiskCache(tmp_path)), kernel)
    with options.override(debug=2):
        own = compiler(DiskCache(tmp_path))
        own.assembler.disassemble = lambda code: code.decode()
        load(own, kernel)
    assert own.compiled == 1
    assert str(choose_schedule(kernel, AVX512)) in capfd.readouterr().err


def test_programs_differ_by_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, own = k.bias(8, 32), compiler()
    plain = own.compile(kernel)
    assert own.compile(kernel, choose_schedule(kernel, AVX512)).source == plain.source
    assert own.compile(kernel, Schedule()).source != plain.source
    (first,) = load(own, kernel).values()
    monkeypatch.setattr(own, "tuner", Found({kernel: Schedule()}))
    with options.override(beam=1):
        (searched,) = load(own, kernel).values()
    assert searched is not first and searched.program.source != first.program.source


class Found:
    """A search that has ended."""

    def __init__(self, schedules: dict[Node, Schedule]) -> None:
        self.schedules = lambda kernels: schedules


def test_the_stages_are_the_ones_that_are_listed() -> None:
    for own in (compiler(), Compiler(HOPPER, render.get("ptx"), Pretence(), None)):
        stages = list(own.stages(k.matmul(16, 16, 16)))
        assert [(stage.name, stage.why) for stage in stages] == own.stage_names()
        assert [type(stage.result) for stage in stages[:2]] == [Node, Schedule]
        assert isinstance(stages[-1].result, str)


def test_a_pass_that_fails_is_a_fault_with_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(kernel: Node, target: Any) -> Schedule:
        raise ZeroDivisionError("by nought")

    kernel = k.bias(4, 5)
    monkeypatch.setattr(kernels, "choose_schedule", fail)
    with pytest.raises(CompilerBug, match="'choose schedule' failed: ZeroDivisionError: by") as bug:
        compiler().compile(kernel)
    assert bug.value.ir_text is not None and parse(bug.value.ir_text) == kernel


def test_a_step_that_is_not_legal_is_no_fault() -> None:
    steps = Schedule().then(split("nobody", outer="a", b=4))
    with pytest.raises(ScheduleError, match="nobody"):
        compiler().compile(k.bias(4, 5), steps)


def test_a_program_says_how_it_uses_its_arrays() -> None:
    i = range_node(6, 0)
    total, x, changed = k.param(0, 6), k.param(1, 6), k.param(2, 6)
    body = [
        k.out(total, k.at(x, i), i, monoid=primitive(Ops.ADD, dtypes.float32)),
        k.out(changed, k.at(changed, i), i),
    ]
    program = compiler().compile(k.kernel(*body))
    assert [spec.access for spec in program.params] == ["rw", "r", "rw"]
    (out, *read) = compiler().compile(k.matmul(8, 8, 8)).params
    assert (out.access, [spec.access for spec in read]) == ("w", ["r", "r"])


def test_a_program_says_how_much_work_it_is() -> None:
    """For every value of its variables, which come in the order of their names."""
    zebra, ant = variable("zebra", 1, 64), variable("ant", 1, 64)
    i, j = range_node(zebra, 0), range_node(ant, 1)
    total = k.reduce(Ops.ADD, k.at(k.param(1, zebra, ant), i, j), j)
    kernel = k.kernel(k.out(k.param(0, zebra), total, i))
    assert variables_of(kernel) == ("ant", "zebra") and arrays_of(kernel) == 2
    assert variables_of(k.bias(4, 5)) == () and arrays_of(k.bias(4, 5)) == 3
    program = compiler().compile(kernel)
    assert program.variables == ("ant", "zebra")
    for rows, columns in ((1, 1), (3, 5), (64, 17)):
        values = {"zebra": rows, "ant": columns}
        flops, read, written = (evaluate(each, values) for each in program.meta.work())
        assert (read, written) == (4 * rows * columns, 4 * rows)
        assert rows * (columns - 1) <= flops <= rows * columns
        assert 1 <= evaluate(program.chunks, values) <= rows


def test_a_gpus_program_says_how_many_threads_run_it() -> None:
    gpu = Compiler(HOPPER, render.get("ptx"), Pretence(), None)
    program = gpu.compile(k.elementwise(1000))
    assert program.launch is not None and program.chunks == 1
    grid, block = program.launch.grid, program.launch.block
    assert evaluate(grid[0], {}) * block[0] * 16 >= 1000 and block[0] <= 1024
    # An extent of no elements has one block, which does nothing.
    rows = variable("rows", 0, 8)
    i = range_node(rows, 0)
    empty = gpu.compile(k.kernel(k.out(k.param(0, rows), k.at(k.param(1, rows), i), i)))
    assert empty.launch is not None and evaluate(empty.launch.grid[0], {"rows": 0}) == 1


class Workers:
    """Processes that give texts in another order than they are asked for, and not the first one."""

    def __init__(self, made: list[int]) -> None:
        self.worker = Compiler(HOPPER, render.get("ptx"), None, None)
        self.made = made

    def programs(self, jobs: list[module.Job]) -> Iterator[tuple[int, Program]]:
        for place in reversed(range(1, len(jobs))):
            self.made.append(place)
            yield place, self.worker.without_code(*jobs[place])


@pytest.mark.parametrize("beside", [False, True])
def test_texts_of_workers_are_assembled_as_they_come(beside: bool) -> None:
    kernels, made, assembled = [k.elementwise(8 * count) for count in (1, 2, 3, 4)], [], []
    assembler = Pretence(beside)
    gpu = Compiler(HOPPER, render.get("ptx"), assembler, None)
    gpu._crew = Workers(made)  # type: ignore[assignment]

    def assemble_all(texts: Iterable[str]) -> Iterator[bytes]:
        for text in texts:
            assembled.append(list(made))
            yield text.encode()

    assembler.assemble_all = assemble_all  # type: ignore[method-assign]
    found = load(gpu, *kernels)
    alone = Compiler(HOPPER, render.get("ptx"), None, None)
    wanted = [alone.without_code(kernel) for kernel in kernels]
    assert [found[kernel].program for kernel in kernels] == [
        replace(program, code=program.source.encode()) for program in wanted
    ]
    assert gpu.compiled == len(kernels)
    assert assembled == ([[3], [3, 2], [3, 2, 1], [3, 2, 1]] if beside else [[3, 2, 1]] * 4)


def test_what_takes_an_assembler_longest_is_begun_first() -> None:
    product = contraction((256,), (256,), (256,), "ax", "nx", "an")
    small = k.elementwise(8)
    gpu = Compiler(HOPPER, render.get("ptx"), assembler := Pretence(True), None)
    found = load(gpu, small, product)
    (texts,) = assembler.calls
    assert ["mma" in text for text in texts] == [True, False]
    assert [found[one].program.code for one in (small, product)] == [b"code 1.1", b"code 1.0"]


class Waiting(Pretence):
    """An assembler that would make the products of groups of warps wait for each other."""

    disassemble = None

    def assemble_all(self, texts: Iterable[str]) -> Iterator[bytes]:
        for text in texts:
            if "wgmma" in text:
                raise ChangedPipeline("ptxas changed the pipeline of one", found="(C7510)")
            yield text.encode()


@pytest.mark.parametrize("beside", [False, True])
def test_single_warps_multiply_where_groups_would_wait(
    beside: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    large = [contraction((size,), (size,), (size,), "ax", "nx", "an") for size in (1024, 2048)]
    asked = [k.elementwise(8), large[0], k.elementwise(16), large[1], k.elementwise(32)]
    gpu = Compiler(HOPPER, render.get("ptx"), Waiting(beside), DiskCache(tmp_path))
    with options.override(debug=2):
        found = load(gpu, *asked)
    products = [one for one in asked if b"mma.sync" in found[one].program.code]
    assert products == large
    assert capfd.readouterr().err.count("ptxas changed the pipeline of one: (C7510)") == 2
    again = Compiler(HOPPER, render.get("ptx"), Waiting(beside), DiskCache(tmp_path))
    assert load(again, *asked).keys() == found.keys() and not again.compiled
    # What somebody asked for is not given up.
    with pytest.raises(ChangedPipeline):
        gpu.compile(large[0], choose_schedule(large[0], HOPPER))


def test_a_block_that_keeps_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the passes thought that it keeps: what counts is what stands in the text."""
    whole = gpu_render.gpu_signature
    room = HOPPER.shared_bytes_per_block
    compiler = Compiler(HOPPER, render.get("ptx"), Pretence(), None)
    for more, refused in ((0, False), (1, True)):
        monkeypatch.setattr(
            gpu_render, "gpu_signature",
            lambda linear, more=more: replace(whole(linear), shared_nbytes=room + more),
        )  # fmt: skip
        with pytest.raises(ScheduleError, match="for a block") if refused else nullcontext():
            compiler.compile(k.elementwise(1000))


def test_the_environment_is_of_every_text_that_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "baregrad"
    for room in module.COMPILER_ROOMS:
        source = kept.PACKAGE / room
        (copy / room).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, copy / room)
    monkeypatch.setattr(kept, "PACKAGE", copy)
    whole = compiler().environment
    for changed in ("kernel/loops/guards.py", "program.py", "ir/core/node.py", "target/gpu.py"):
        path = copy / changed
        text = path.read_text()
        path.write_text(text + "# changed\n")
        assert compiler().environment != whole
        path.write_text(text)
    assert compiler().environment == whole
