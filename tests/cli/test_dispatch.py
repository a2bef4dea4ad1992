from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from baregrad import __version__
from baregrad.base.errors import BaregradError, ShapeError
from baregrad.base.options import Options, options
from baregrad.cli import main
from baregrad.cli.dispatch import COMMANDS
from baregrad.cli.table import format_table

ROOT = Path(__file__).resolve().parent.parent.parent
READY = [one.name for one in COMMANDS if one.module.startswith("baregrad.cli")]


def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "baregrad", *words],
        env=os.environ | variables,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("name", READY)
def test_every_command_of_this_room_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name]) in (0, 1)
    assert capsys.readouterr().out


@pytest.mark.parametrize("name", READY)
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([name, "--help"])
    assert caught.value.code == 0
    assert f"usage: baregrad {name}" in capsys.readouterr().out


def test_commands_are_sorted_and_listed(capsys: pytest.CaptureFixture[str]) -> None:
    names = [one.name for one in COMMANDS]
    assert names == sorted(set(names))
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    for one in COMMANDS:
        assert f"  {one.name} " in text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"baregrad {__version__}\n"


@pytest.mark.parametrize("words", [[], ["nonsense"], ["--nonsense"], ["options", "--nonsense"]])
def test_a_wrong_command_line_is_explained(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert "usage: baregrad" in capsys.readouterr().err


def install(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Make `baregrad info` raise an error."""

    def fail(argv: list[str]) -> int:
        raise error

    module = types.ModuleType("baregrad.cli.info")
    module.main = fail  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "baregrad.cli.info", module)


def test_our_errors_become_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(monkeypatch, ShapeError("cannot add", found=2, wanted=3))
    with options.override(debug=0):
        assert main(["info"]) == 2
    assert capsys.readouterr().err == "baregrad: error: cannot add: found 2, wanted 3\n"


def test_debug_shows_the_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(monkeypatch, BaregradError("odd"))
    with options.override(debug=1):
        assert main(["info"]) == 2
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_other_errors_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        main(["info"])


def test_an_interrupt_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(monkeypatch, KeyboardInterrupt())
    assert main(["info"]) == 130
    assert capsys.readouterr().err == "baregrad: interrupted\n"


def test_a_wrong_variable_is_one_line() -> None:
    done = run("options", BAREGRAD_DEBG="1")
    assert done.returncode == 2
    assert done.stderr == (
        "baregrad: error: unknown environment variable 'BAREGRAD_DEBG'; "
        "did you mean 'BAREGRAD_DEBUG'?\n"
    )


def test_a_reader_that_leaves_early_is_no_error() -> None:
    command = f"{sys.executable} -u -m baregrad dtypes; echo $? >&2"
    done = subprocess.run(
        ["bash", "-c", f"({command}) | true"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )
    assert done.stderr.strip() == "0"


def test_options_are_listed_with_their_values() -> None:
    done = run("options", BAREGRAD_BEAM="7")
    assert done.returncode == 0
    for row in Options.table():
        assert row.variable in done.stdout
        assert row.help in done.stdout
    line = next(line for line in done.stdout.splitlines() if line.startswith("BAREGRAD_BEAM"))
    assert line.split()[:4] == ["BAREGRAD_BEAM", "0..1024", "0", "7"]
    line = next(line for line in done.stdout.splitlines() if line.startswith("BAREGRAD_BEAM_FILE"))
    assert line.split()[1:4] == ["a", "path", "(empty)"]


def test_a_table_is_aligned() -> None:
    text = format_table(("a", "word"), [("longer", 1), ("b", "c")])
    assert text.splitlines() == ["a       word", "------  ----", "longer  1", "b       c"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
@pytest.mark.parametrize("words", [["dtypes"], ["info", "--json"]])
def test_output_that_cannot_be_written(words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "baregrad", *words], cwd=ROOT, stdout=full,
            stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("baregrad: error: nothing more can be written")
