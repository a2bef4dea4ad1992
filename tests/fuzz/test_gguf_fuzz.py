"""Damaged GGUF files are read or refused, in little time and memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from baregrad.testing import fuzz_gguf


def opened(files: int, seed: int) -> subprocess.CompletedProcess[str]:
    """Open files in a process of its own, whose memory is limited."""
    program = [sys.executable, "-m", "baregrad.testing.fuzz_gguf",
               "--files", str(files), "--seed", str(seed)]  # fmt: skip
    return subprocess.run(program, capture_output=True, text=True, check=False, timeout=1800)


def test_damaged_files_are_refused() -> None:
    done = opened(400, 1)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


@pytest.mark.slow
def test_many_damaged_files_are_refused() -> None:
    done = opened(20_000, 2)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_the_sound_file_is_read_and_most_damage_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    sound = fuzz_gguf.sound_file(path)
    with fuzz_gguf.GgufFile.open(path) as file:
        assert len(file.tensors) == len(fuzz_gguf.TYPES)
    assert fuzz_gguf.damaged(sound, 0, 5) == fuzz_gguf.damaged(sound, 0, 5)
    changed = {fuzz_gguf.damaged(sound, 0, number) for number in range(100)}
    assert len(changed) > 95


def test_other_errors_are_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.gguf"
    fuzz_gguf.sound_file(path)
    assert fuzz_gguf.problem_of(path) is None

    def fail(*_: object) -> None:
        raise KeyError("planted")

    monkeypatch.setattr(fuzz_gguf.GgufFile, "open", fail)
    assert fuzz_gguf.problem_of(path) == "KeyError: 'planted'"
