"""The script for a visit to a GPU runs: each of its parts, a little of it, on virtual GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from baregrad.base.options import options
from baregrad.runtime.nvidia.lists.list_style import DEFAULT_STYLE
from tests.runtime.nvidia import hardware_round

LONG = ("early",)


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=pytest.mark.slow) if name in LONG else name
    for name in hardware_round.PARTS
])  # fmt: skip
def test_a_part_runs(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAREGRAD_NV_PORT", "virtual")
    with options.override(nv_port="virtual"):
        hardware_round.PARTS[name].run()
    lines = capsys.readouterr().out.splitlines()
    assert lines and all(line.startswith("  ") for line in lines)
    assert not any("WRONG" in line for line in lines)


def test_parts_run_apart_and_failures_count() -> None:
    """A part that has no time fails, and those behind it are said to be left out."""
    script = Path(hardware_round.__file__)
    done = subprocess.run(
        [sys.executable, str(script), "--virtual", "--total", "5.1", "facts", "peers", "flat"],
        capture_output=True, text=True, timeout=600, check=False,
        env={**os.environ, "PYTHONPATH": str(hardware_round.ROOT)},
    )  # fmt: skip
    assert done.returncode > 0
    assert "--- facts: What there is." in done.stdout
    assert "LEFT OUT peers: no time" in done.stdout and "LEFT OUT flat" in done.stdout
    assert done.stdout.splitlines()[-1].endswith(", peers, flat")


def test_early_styles_are_among_what_is_checked() -> None:
    assert "early-progress" in hardware_round.EARLY
    assert DEFAULT_STYLE in hardware_round.STYLES
