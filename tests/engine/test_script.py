"""A program is run as `python FILE` would run it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from baregrad.cli import main


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
