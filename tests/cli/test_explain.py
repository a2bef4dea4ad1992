"""`baregrad explain --kernels` and `--kernel`: what a kernel does, how fast, and why so."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from baregrad.base.errors import ArgumentError, OptionError
from baregrad.base.options import options
from baregrad.cli import main
from baregrad.engine import explain, explain_kernel
from baregrad.engine.rates import Level, Rates, multiply_adds
from baregrad.kernel import Schedule, parse_schedule
from baregrad.target.cpu import CPU_ROWS
from baregrad.tensor import Tensor

PROGRAM = """
from baregrad import Tensor
a = Tensor([[1.0] * 64] * 48).realize()
b = Tensor([[1.0] * 64] * 48).realize()
(a @ b.T).realize()
(a.exp() + b).realize()
a.sum().realize()
"""
# A machine of round numbers: 10 operations a byte from memory, 5 from the cache.
RATES = Rates((Level("cache", 1e5, 2e9), Level("memory", float("inf"), 1e9)), 1e10, 2)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("explained") / "program.py"
    path.write_text(PROGRAM)
    return path


@pytest.fixture(scope="module")
def kernels(program: Path) -> list[explain_kernel.Found]:
    return explain.kernels_of(program)


def test_bytes_and_operations_are_counted(kernels: list[explain_kernel.Found]) -> None:
    product, mapped, total = (explain_kernel.work_of(one) for one in kernels)
    assert (product.bytes_read, product.bytes_written) == (2 * 4 * 48 * 64, 4 * 48 * 48)
    assert product.operations == product.weighted == 2 * 48 * 48 * 64
    assert product.intensity == product.operations / product.nbytes
    assert (mapped.bytes_read, mapped.bytes_written) == (2 * 4 * 48 * 64, 4 * 48 * 64)
    assert mapped.operations == 2 * 48 * 64
    # An exponential is some fifteen additions more.
    assert mapped.weighted == mapped.operations + 15 * 48 * 64
    assert (total.bytes_read, total.bytes_written, total.operations) == (4 * 48 * 64, 4, 48 * 64)


def test_the_roofline_is_the_longer_of_two_times(kernels: list[explain_kernel.Found]) -> None:
    assert RATES.seconds(5e4, 1e6) == (2.5e-5, 1e-4)
    assert RATES.seconds(2e5, 1e6) == (2e-4, 1e-4)
    lines = explain_kernel.list_kernels(kernels, RATES).splitlines()
    assert [line.split()[0] for line in lines] == ["1", "2", "3", "machine"]
    # 29,491 operations take 29.5 us; 33,792 bytes take 16.9 us.
    assert "operations" in lines[0]
    assert "29.5 us" in lines[0]
    assert "cache" in lines[2]
    assert ":5" in lines[0]


def test_a_kernel_is_picked_by_number_or_name(kernels: list[explain_kernel.Found]) -> None:
    name = kernels[1].kernel.arg.name
    assert explain_kernel.pick(kernels, "2") == (2, kernels[1])
    assert explain_kernel.pick(kernels, name) == (2, kernels[1])
    for wanted in ("0", "4", "moon"):
        with pytest.raises(ArgumentError, match="there is no such kernel.*--kernels"):
            explain_kernel.pick(kernels, wanted)
    with pytest.raises(ArgumentError, match=r"2 kernels are called.*one of the numbers 1, 2"):
        explain_kernel.pick([kernels[0], kernels[0]], kernels[0].kernel.arg.name)


def test_a_kernel_is_run_and_explained(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(program), "--kernel", "1"]) == 0
    told = capsys.readouterr().out
    assert re.search(r"operations  294.91k, 8\.73 for each byte", told)
    assert re.search(r"GFLOP/s in float32; GB/s copied: .* in memory; measured just now", told)
    assert re.search(r"bound by    (operations|\w+ cache|memory): bytes alone take", told)
    assert re.search(r"time        .*: \d+% of what the machine could", told)
    text = told.partition("schedule\n")[2].partition("why\n")[0]
    schedule = parse_schedule(text)
    assert len(schedule.steps) > 2
    assert explain_kernel.schedule_text(schedule).split() == text.split()
    why = told.partition("why\n")[2].partition("loops\n")[0]
    reasons = why.splitlines()
    assert reasons
    assert all(line.startswith("  - ") and "{" not in line for line in reasons)
    loops = told.partition("loops\n")[2].splitlines()
    assert loops[0].startswith("  for ")
    assert "fma(" in told


def test_the_kernels_are_listed(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(program), "--kernels"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[-1].startswith("machine")


def test_one_pass_of_one_kernel_is_shown(
    program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", str(program), "--kernel", "3", "--after", "to-loops"]) == 0
    told = capsys.readouterr().out
    assert told.count("== ") == 1
    assert "-- to-loops:" in told


def test_a_saved_kernel_is_one_kernel(
    kernels: list[explain_kernel.Found], tmp_path: Path
) -> None:
    from baregrad.ir.text.dump import dump

    path = tmp_path / "kernel.txt"
    path.write_text(dump(kernels[0].kernel))
    (found,) = explain.kernels_of(path)
    assert found.kernel is kernels[0].kernel


def test_a_saved_kernel_of_symbolic_size_is_refused(tmp_path: Path) -> None:
    from baregrad.ir.text.dump import dump

    program = tmp_path / "program.py"
    program.write_text(
        "from baregrad import Tensor\n"
        "from baregrad.engine.canonical import bind\n"
        "from baregrad.ir.core.index import variable\n"
        "x = Tensor([1.0, 2.0, 3.0]).realize()\n"
        "(x[:bind(variable('n', 1, 3), 2)] + 1).realize()\n"
    )
    (found,) = explain.kernels_of(program)
    assert found.variables == {"n": 2}
    assert explain_kernel.work_of(found).operations == 2
    path = tmp_path / "kernel.txt"
    path.write_text(dump(found.kernel))
    with pytest.raises(OptionError, match="symbolic sizes.*found n"):
        explain.kernels_of(path)


def test_an_empty_schedule_is_python_too() -> None:
    assert explain_kernel.schedule_text(Schedule()) == "Schedule()"


@pytest.mark.parametrize("row", CPU_ROWS, ids=lambda row: row.name)
def test_the_multiply_adds_of_every_row_are_llvm_ir(row: object) -> None:
    from llvmlite import binding

    module = binding.parse_assembly(multiply_adds(row, 8))  # type: ignore[arg-type]
    module.verify()
    assert [one.name for one in module.functions if not one.is_declaration] == ["multiply_adds"]


def test_debug_tells_the_schedule_and_why(capfd: pytest.CaptureFixture[str]) -> None:
    with options.override(debug=2, cache=False, device="CPU"):
        # A size that no other test uses, so that it is compiled here.
        (Tensor(np.ones(7919, np.float32)) * 3).realize()
    told = capfd.readouterr().err
    assert re.search(r"map_7919: Schedule\(split\(", told)
    assert "  - vectors of up to" in told
    assert re.search(r"map_7919 .* GB/s", told)


def test_a_program_is_run_as_python_runs_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside_the_program.py").write_text("FACTOR = 3.0\n")
    path = tmp_path / "program.py"
    path.write_text(
        "import sys\nfrom beside_the_program import FACTOR\nfrom baregrad import Tensor\n"
        "print(sys.argv)\n(Tensor([1.0, 2.0]) * FACTOR).realize()\n"
    )
    monkeypatch.chdir(tmp_path.parent)
    before = list(sys.path)
    assert main(["explain", "--after", "schedule", str(path)]) == 0
    shown = capsys.readouterr().out
    assert str([str(path)]) in shown
    assert "== map_2" in shown
    assert sys.path == before
    sys.modules.pop("beside_the_program")


@pytest.mark.parametrize("words", (["explain"], ["explain", "--kernels"], ["search"]))
@pytest.mark.parametrize("name", ("missing.py", "folder.py"))
def test_a_file_that_is_not_there(
    words: list[str], name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder.py").mkdir()
    assert main([*words, str(tmp_path / name)]) == 2
    told = capsys.readouterr().err
    assert re.search(rf"error: there is no such program: found .*{name}, wanted a Python", told)
    assert "Traceback" not in told


def test_the_passes_are_listed_without_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--list"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names[0] == "input"
    assert names[-1] == "render"
    ours = ["prepare", "schedule", "apply-schedule", "to-loops", "join-reads", "delay-stores"]
    first = names.index("prepare")
    assert names[first : first + len(ours)] == ours
    assert {"fuse", "linearise"} < set(names)


@pytest.mark.parametrize("words", ([], ["--kernels"], ["--kernel", "1"], ["--after", "to-loops"]))
def test_anything_else_needs_a_program(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["explain", *words])
    assert caught.value.code == 2
    assert "which program? give a Python file" in capsys.readouterr().err


def test_a_program_that_computes_nothing_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "idle.py"
    path.write_text("x = 1\n")
    for words in ([], ["--kernels"]):
        assert main(["explain", str(path), *words]) == 0
        assert capsys.readouterr().out == "the program computes nothing\n"


def test_a_kernel_has_no_passes_before_it(
    program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", str(program), "--kernel", "1", "--after", "views"]) == 2
    told = capsys.readouterr().err
    assert "'views' is done before there are kernels: wanted prepare, schedule" in told
    with pytest.raises(SystemExit):
        main(["explain", str(program), "--kernels", "--after", "to-loops"])
    assert "one kernel with --kernel N" in capsys.readouterr().err
