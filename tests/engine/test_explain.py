"""`baregrad explain --kernels` and `--kernel`: what a kernel does, how fast, and why so."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from baregrad.base.errors import OptionError
from baregrad.base.options import options
from baregrad.cli import main
from baregrad.engine import explain, explain_kernel
from baregrad.engine.search.records import Records, SearchRecord, row_digest
from baregrad.engine.search.written import parse_written
from baregrad.ir.core.digest import digest
from baregrad.target import gpu_row


def test_a_kernel_is_run_and_explained(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(program), "--kernel", "1"]) == 0
    told = capsys.readouterr().out
    assert re.search(r"operations  294.91k, 8\.73 for each byte", told)
    assert re.search(r"GFLOP/s in float32; GB/s copied: .* in memory; measured just now", told)
    assert re.search(r"bound by    (operations|\w+ cache|memory): bytes alone take", told)
    assert re.search(r"time        .*: \d+% of what the machine could", told)
    text = told.partition("schedule\n")[2].partition("why\n")[0]
    ((name, schedule),) = parse_written(textwrap.dedent(text)).items()
    assert len(schedule.steps) > 2 and f"kernel      {name} " in told
    assert explain_kernel.schedule_text(schedule, name).split() == text.split()
    why, _, rest = told.partition("why\n")[2].partition("candidates\n")
    assert rest.splitlines()[1].endswith("the first schedule")
    reasons = why.splitlines()
    assert reasons
    assert all(line.startswith("  - ") and "{" not in line for line in reasons)
    loops = told.partition("loops\n")[2].splitlines()
    assert loops[0].startswith("  for ")
    assert "fma(" in told


def test_candidates_are_shown_with_what_a_search_measured(
    program: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["explain", str(program), "--target", "sm_90a", "--kernel", "1"]
    file = tmp_path / "found.jsonl"
    file.touch()
    with options.override(beam_file=file):
        assert main(words) == 0
        told = capsys.readouterr().out
        assert "time  " not in told and "bind(" in told and "loops\n" in told
        shown = told.partition("candidates\n")[2].partition("loops\n")[0].splitlines()
        assert len(shown) > 3 and shown[1].endswith("us             the first schedule")
        other = shown[2].split("us")[1].strip()
        kernel = explain.kernels_of(program, explain.null_backend("sm_90a"))[0].kernel
        row = row_digest(gpu_row("sm_90a"), 0)
        measured = (("the first schedule", 12345.0), (other, 9876.0), ("what was found", 8765.0))
        Records(file).put(
            SearchRecord(digest(kernel), row, "any", "k", 4, "", 1.0, 1.0, 3, measured)
        )
        assert main(words) == 0
    told = capsys.readouterr().out
    assert re.search(r"us  +12\.3 us  the first schedule\n", told)
    assert re.search(rf"us  +9\.9 us  {re.escape(other)}\n", told)
    assert re.search(r"^ +8\.8 us  what was found$", told, re.MULTILINE)


def test_kernels_for_gpus_are_listed_without_one(
    program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", str(program), "--target", "sm_80", "--kernels"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines and all(re.search(r"op/B  >= +\d+\.\d us", line) for line in lines)
    with pytest.raises(SystemExit):
        main(["explain", str(program), "--target", "sm_80"])


def test_a_gpu_with_the_instructions_of_an_older_one(
    program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["explain", str(program), "--kernel", "1", "--target"]
    assert main([*words, "sm_90a:sm_80"]) == 0
    assert "target      sm_90a:sm_80" in capsys.readouterr().out.splitlines()
    assert main([*words, "sm_80:sm_90"]) != 0


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
    ours = ["prepare", "schedule", "apply-schedule", "to-loops", "join-reads", "delay-stores",
            "last-steps"]
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


def test_kernels_for_gpus_are_those_of_tensors_on_gpus(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a function computes may hang on its tensors' device, as rounded factors do."""
    path = tmp_path / "program.py"
    path.write_text(
        "import baregrad\nfrom baregrad import Tensor\n"
        "x = Tensor([[1.0] * 64] * 64).realize()\n"
        "with baregrad.options.override(matmul_precision='high'):\n    (x.T @ x).realize()\n"
    )
    assert main(["explain", str(path), "--kernels", "--target", "sm_90a"]) == 0
    shown = capsys.readouterr()
    assert "map_64x64" in shown.out and "reduce_64x64_64" in shown.out and not shown.err
    assert main(["explain", str(path), "--kernels"]) == 0
    assert "map_64x64" not in capsys.readouterr().out
