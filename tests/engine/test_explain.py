"""`baregrad explain --kernels` and `--kernel`: what a kernel does, how fast, and why so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from baregrad.base.errors import OptionError
from baregrad.cli import main
from baregrad.engine import explain, explain_kernel
from baregrad.kernel import parse_schedule


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
