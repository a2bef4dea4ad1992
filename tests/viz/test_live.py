from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import baregrad
from baregrad.base.options import options, parse_environment
from baregrad.viz.filed import FiledDocuments

PROGRAM = """\
import subprocess, sys
import numpy as np
from baregrad import Tensor, jit

@jit
def step(x):
    return (x @ x).exp().sum()

x = Tensor(np.zeros((8, 8), np.float32))
for _ in range(4):
    print(step(x).item(), flush=True)
if sys.argv[1:] == ["parent"]:
    subprocess.run([sys.executable, __file__, "child"], check=True)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "live.py"
    path.write_text(PROGRAM)
    return path


def environment(folder: Path, wanted: str) -> dict[str, str]:
    return {
        "VIZ": wanted, "PATH": "", "BAREGRAD_CACHE_DIR": str(folder / "cache"), "BROWSER": "true",
        "PYTHONPATH": str(Path(baregrad.__file__).parents[1]),
    }


def read(path: Path, name: str) -> Any:
    return json.loads(FiledDocuments(path).get(name) or b"")


def test_a_real_run_is_saved_with_its_graphs_and_its_timeline(
    script: Path, tmp_path: Path
) -> None:
    path = tmp_path / "run.viz"
    done = subprocess.run(
        [sys.executable, str(script), "parent"], capture_output=True, text=True, check=True,
        env=environment(tmp_path, str(path)),
    )
    # What it computes is computed, and its child is not asked for a page of its own.
    assert done.stdout.split() == ["64.0"] * 8 and done.stderr.count("written to") == 1
    summary = read(path, "summary")
    assert summary["views"] == ["lines", "kernels", "graph", "timeline", "memory"]
    assert summary["title"] == "live.py"
    assert f"{script}:7" in {one["where"] for one in summary["lines"]}
    kernels = {step["name"] for step in read(path, "plan/0")["steps"]}
    timeline = read(path, "timeline")
    (lane,) = [one for one in timeline["lanes"] if one["title"] == "CPU kernels"]
    ran = [timeline["texts"][one] for one in lane["name"]]
    assert set(ran) == kernels and len(ran) == 4 * len(kernels)


@pytest.mark.slow
def test_a_real_run_on_a_gpu_is_saved_with_its_commands(script: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.viz"
    where = {"BAREGRAD_DEVICE": "NV:1", "BAREGRAD_NV_PORT": "virtual"}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True,
        env={**environment(tmp_path, str(path)), **where},
    )
    assert done.stdout.split() == ["64.0"] * 4 and "written to" in done.stderr, done.stderr
    assert "commands" in read(path, "summary")["views"]
    (compute, _) = read(path, "words/0")["channels"]
    told = [text for *_, work in compute["rows"] for kind, text in work if kind == "launch"]
    names = [step["name"] for step in read(path, "plan/0")["steps"]]
    assert [text.split(":")[0] for text in told] == names


def test_a_real_run_is_shown_until_it_is_interrupted(script: Path, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True,
        env=environment(tmp_path, "1"),
    ) as process:
        assert process.stdout is not None
        found = None
        while found is None:
            line = process.stdout.readline()
            assert line, "it ended without a page"
            found = re.search(r"live.py at (http\S+)", line)
        with urllib.request.urlopen(found[1] + "data/summary") as answer:
            assert json.load(answer)["title"] == "live.py"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def test_a_place_that_cannot_be_written_is_refused_at_once(script: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True,
        env=environment(tmp_path, str(tmp_path / "none" / "run.viz")), check=False,
    )
    assert done.returncode == 1 and "cannot be written" in done.stderr
    assert not (tmp_path / "none").exists()


def test_lines_are_noted_unless_told_otherwise() -> None:
    assert parse_environment({"VIZ": "1"})["lines"]
    assert not parse_environment({"VIZ": "1", "BAREGRAD_LINES": "0"})["lines"]
    assert options.viz == ""
