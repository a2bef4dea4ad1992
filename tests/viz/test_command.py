from __future__ import annotations

import _thread
import json
import urllib.request
import webbrowser
from pathlib import Path

import pytest

from baregrad.base.errors import ArgumentError, OptionError
from baregrad.viz.command import main, open_documents
from baregrad.viz.server import PageServer


def test_a_saved_recording_opens_elsewhere(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "shown.viz"
    assert main([str(program), "--target", "sm_80", "--save", str(path)]) == 0
    assert str(path) in capsys.readouterr().out
    assert b'"target":"sm_80"' in (open_documents(path).get("summary") or b"")


def test_programs_of_which_nothing_can_be_shown_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="no such file"):
        main([str(tmp_path / "none.py")])
    idle = tmp_path / "idle.py"
    idle.write_text("import baregrad\n")
    with pytest.raises(ArgumentError, match="computes nothing"):
        main([str(idle), "--target", "sm_90a"])


def test_a_port_in_use_is_refused(program: Path, tmp_path: Path) -> None:
    path = tmp_path / "shown.viz"
    main([str(program), "--target", "sm_90a", "--save", str(path)])
    with PageServer(open_documents(path)) as taken:
        port = str(taken.server_address[1])
        with pytest.raises(OptionError, match="cannot be had"):
            main([str(path), "--port", port, "--no-browser"])


def test_a_place_that_cannot_be_written_is_refused_first(program: Path, tmp_path: Path) -> None:
    before = program.read_text()
    for place, told in ((tmp_path / "none" / "a.viz", "cannot be written"),
                        (tmp_path, "cannot be written"), (program, "for a program")):
        with pytest.raises(ArgumentError, match=told):
            main([str(program), "--save", str(place)])
    assert program.read_text() == before


def test_a_port_that_there_is_not_is_refused(program: Path, tmp_path: Path) -> None:
    path = tmp_path / "shown.viz"
    main([str(program), "--target", "sm_90a", "--save", str(path)])
    for port in ("70000", "-4"):
        with pytest.raises(OptionError, match="cannot be had"):
            main([str(path), f"--port={port}", "--no-browser"])
    with pytest.raises(ArgumentError, match="has the target"):
        main([str(path), "--target", "sm_80", "--no-browser"])


def test_a_program_that_ends_itself_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "ends.py"
    script.write_text(
        "from baregrad import Tensor\nprint((Tensor([1.0]) * 2).item())\nraise SystemExit('end')\n"
    )
    assert main([str(script), "--target", "sm_90a", "--save", str(tmp_path / "ends.viz")]) == 0
    assert "end" in capsys.readouterr().err


def test_a_browser_that_runs_until_it_is_left_gets_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    got: list[bytes] = []

    def browse(url: str) -> None:
        # As those in a terminal do: nothing else happens before they have their page.
        with urllib.request.urlopen(url, timeout=20) as answer:
            got.append(answer.read())
        _thread.interrupt_main()

    path = tmp_path / "profile.json"
    path.write_text(json.dumps({"traceEvents": []}))
    monkeypatch.setattr(webbrowser, "open", browse)
    assert main([str(path)]) == 0
    assert b"baregrad viz" in got[0]
