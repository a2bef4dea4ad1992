"""The command from end to end: a C program that asks a file as if it were a node."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from baregrad.base.errors import ArgumentError, FileFormatError, UnsupportedError
from baregrad.cli import dispatch
from baregrad.trace import command
from baregrad.trace.engine import BegunProgram
from baregrad.trace.watch import DriverWatch
from tests.trace.programs import compiled


def run(
    tmp_path: Path, *words: str, program: str = "plain", name: str = "program"
) -> tuple[int, str]:
    node, out = tmp_path / "node", tmp_path / "out"
    node.write_bytes(b"")
    binary = compiled(tmp_path).rename(tmp_path / name)
    argv = ["--driver", "580.95.05", "--node", f"{node}=/dev/nvidiactl", "-o", str(out), *words,
            "--", str(binary), str(node), program]  # fmt: skip
    try:
        return command.main(argv), out.read_text()
    except UnsupportedError as error:
        pytest.skip(str(error))


def test_lines(tmp_path: Path) -> None:
    status, text = run(tmp_path)
    assert status == 3
    head, opened, asked, *footer = text.splitlines()
    assert head == "# driver 580.95.05"
    assert " 3<nvidiactl> open" in opened
    assert "NV_ESC_RM_ALLOC NV01_ROOT_CLIENT NVOS21_PARAMETERS(" in asked
    assert "= -1 ENOTTY" in asked and asked.endswith(" program")
    assert "100.00 %" in footer[0]


def test_a_program_tells_the_terminal_nothing(tmp_path: Path) -> None:
    for words in ([], ["-c"]):
        _, text = run(tmp_path, *words, name="pro\x1b]0;gram\x9b")
        assert all(line.isprintable() for line in text.splitlines())
        assert words or text.count(r" pro\x1b]0;gram\x9b") == 2


def test_threads_and_forks_have_their_numbers(tmp_path: Path) -> None:
    for program in ("thread", "fork"):
        _, text = run(tmp_path, program=program)
        tids = {line.split()[1] for line in text.splitlines() if not line.startswith("#")}
        assert len(tids) == 2


def test_other_forms(tmp_path: Path) -> None:
    assert "NV_ESC_RM_ALLOC NV01_ROOT_CLIENT" in run(tmp_path, "-c")[1]
    assert "refused, -1 ENOTTY." in run(tmp_path, "--explain")[1]
    assert "open" not in run(tmp_path, "-e", "alloc")[1]
    assert json.loads(run(tmp_path, "--allowlist")[1])["nodes"] == ["/dev/nvidiactl"]
    timeline = tmp_path / "timeline.json"
    run(tmp_path, "--perfetto", str(timeline))
    assert len(json.loads(timeline.read_text())["traceEvents"]) == 2


def test_a_release_without_headers_is_said_to_be_read_as_another(tmp_path: Path) -> None:
    assert run(tmp_path)[1].startswith("# driver 580.95.05\n")
    text = run(tmp_path, "--driver", "610.43.02")[1]
    assert text.startswith("# driver 610.43.02, structs as of 595.45.04\n")


def test_a_running_process_is_traced_until_an_interrupt(tmp_path: Path) -> None:
    node, out = tmp_path / "node", tmp_path / "out"
    node.write_bytes(b"")
    argv = [sys.executable, "-m", "baregrad", "trace", "-o", str(out), "--explain",
            "--node", f"{node}=/dev/nvidiactl", "--pid"]  # fmt: skip
    program = [str(compiled(tmp_path)), str(node), "wait"]
    with subprocess.Popen(program, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None and child.stdout.readline() == b"ready\n"
            tracer = subprocess.Popen([*argv, str(child.pid)], stderr=subprocess.PIPE)
            deadline = time.monotonic() + 60
            while not (out.exists() and "Makes a client" in out.read_text()):
                if tracer.poll() is not None:
                    assert tracer.stderr is not None
                    pytest.skip(tracer.stderr.read().decode())
                assert time.monotonic() < deadline
                time.sleep(0.05)
            tracer.send_signal(signal.SIGINT)
            assert tracer.wait(60) == 0
            text = out.read_text()
            assert re.search(r"# (\d+) calls, \1 by name \(100.00 %\)", text)
            assert f" {child.pid} Makes a client" in text and child.poll() is None
        finally:
            child.kill()


@pytest.mark.parametrize("words", [["--tree", "--json"], ["-c", "--allowlist"]])
def test_json_has_an_output_of_its_own(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command.main([*words, "--", "true"])
    assert f"{' and '.join(words)} ask for one output" in capsys.readouterr().err


def test_two_traces_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = []
    for program in ("plain", "exec"):
        _, text = run(tmp_path, "--json", program=program)
        files.append(tmp_path / f"{program}.jsonl")
        files[-1].write_text(text)
    assert command.main(["diff", str(files[0]), str(files[0])]) == 0
    assert "the same calls" in capsys.readouterr().out
    assert command.main(["diff", *map(str, files)]) == 1
    assert "NV_ESC_RM_ALLOC NV01_ROOT_CLIENT: 1 -> 2" in capsys.readouterr().out
    with pytest.raises(FileFormatError, match="not a trace"):
        command.main(["diff", str(tmp_path / "none"), str(files[0])])
    for row in ('{"name": [1], "answer": "", "raw": {}}', '{"name": "a", "answer": "", "raw": 1}'):
        files[1].write_text(row)
        with pytest.raises(FileFormatError, match="not a trace"):
            command.main(["diff", *map(str, files)])


def test_a_file_that_is_no_trace_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text('{"a": 1}\nand more\n')
    (tmp_path / "none.json").touch()
    with pytest.raises(FileFormatError, match="no line of it is a call"):
        command.main(["diff", str(other), str(tmp_path / "none.json")])


def test_it_is_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        dispatch.main(["trace", "--help"])
    assert ended.value.code == 0
    assert "--allowlist" in capsys.readouterr().out


def test_exact_needs_a_program_that_begins() -> None:
    with pytest.raises(SystemExit):
        command.main(["--exact", "--pid", "1"])


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="cannot be written"):
        command.main(["-o", str(tmp_path / "none" / "out"), "--", "true"])
    # Before the program runs, not after it.
    for option in ("--perfetto", "--record"):
        with pytest.raises(ArgumentError, match="cannot be written there"):
            command.main([option, str(tmp_path / "none" / "out"), "--", "true"])
    if Path("/dev/full").exists():
        with pytest.raises((ArgumentError, UnsupportedError), match=r"cannot be written|trace"):
            command.main(["-o", "/dev/full", "--", "true"])


@pytest.mark.parametrize("place", ["/dev/full", "a reader that hangs up"])
def test_a_program_runs_to_its_end_whatever_becomes_of_the_trace(
    place: str, tmp_path: Path
) -> None:
    if place == "/dev/full" and not Path(place).exists():
        pytest.skip("there is no full device here")
    program, node, end = compiled(tmp_path), tmp_path / "node", tmp_path / "end"
    node.touch()
    text = f"for n in $(seq 60); do {program} {node} plain; done; echo done > {end}; exit 6"
    words = [sys.executable, "-m", "baregrad", "trace", "--node", f"{node}=/dev/nvidiactl"]
    words += ["-o", place] if place == "/dev/full" else []
    with subprocess.Popen([*words, "--", "sh", "-c", text], stderr=subprocess.PIPE) as tracer:
        assert tracer.stderr is not None
        if place != "/dev/full":
            tracer.stderr.readline()
            tracer.stderr.close()
        told = tracer.stderr.read().decode() if place == "/dev/full" else ""
        status = tracer.wait(120)
    if "does not let" in told:
        pytest.skip(told)
    assert end.read_text() == "done\n"
    assert status == (2 if place == "/dev/full" else 6)
    assert ("the output cannot be written" in told) is (place == "/dev/full")


def test_an_interrupt_ends_decoding_and_keeps_the_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(watch: DriverWatch, seconds: float) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(DriverWatch, "finish_some", interrupted)
    status, text = run(tmp_path)
    assert status == 3
    assert text.splitlines()[-1].startswith("# ")
    assert " calls, " in text


def test_it_is_said_how_much_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    turns = iter([True, True, False])
    monkeypatch.setattr(DriverWatch, "finish_some", lambda *_: next(turns))
    monkeypatch.setattr(DriverWatch, "left", 12)
    monkeypatch.setattr(command, "_TOLD_S", 0.0)
    run(tmp_path)
    assert capsys.readouterr().err.count("# 12 calls and pieces of rings are left") == 2


def test_a_node_needs_a_name() -> None:
    with pytest.raises(ArgumentError, match="--node has no node"):
        command.main(["--node", "/tmp/x", "--", "true"])


def test_what_was_begun_ends_where_it_cannot_be_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = []

    def fails(_chosen: object, _version: str, _out: object, program: BegunProgram) -> int:
        begun.append(program.pid)
        raise RuntimeError("no table")

    monkeypatch.setattr(command, "_follow", fails)
    with pytest.raises(RuntimeError, match="no table"):
        command.main(["-o", str(tmp_path / "out"), "--", "sleep", "600"])
    assert not Path(f"/proc/{begun[0]}").exists()
