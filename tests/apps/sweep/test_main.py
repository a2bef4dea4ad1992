"""`baregrad bench --suite sweep`: small rows, what is told of them, and of those that fail."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from baregrad.apps import bench
from baregrad.apps.sweep import main as sweep
from baregrad.base.errors import MissingDependency

SMALL = ["--suite", "sweep", "--device", "CPU", "--largest", "2000", "--brief"]


def run(words: list[str], folder: Path) -> list[dict[str, Any]]:
    path = folder / "figures.json"
    status = bench.main([*SMALL, "--json", str(path), *words])
    records: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
    assert not [one for one in records if one["wrong"] or "failed" in one]
    assert status == 0
    return records


def worst(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The two rows that were told of in full, those alone, worst first."""
    told = [one for one in records if "roofline" in one]
    return sorted(told, key=lambda one: float(one["ratio"]))


def test_small_rows_are_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    records = run(["--rows", "12", "--worst", "2"], tmp_path)
    assert [one["row"] for one in records] == [f"0/{row}" for row in range(12)]
    assert all(one["error"] < 1 for one in records if "peer_failed" not in one)
    told = capsys.readouterr().out
    assert "all: 12 rows, geometric mean" in told
    assert "the worst 2:" in told
    assert "baregrad bench --suite sweep --only 0/" in told
    assert "--device CPU --largest 2000" in told
    assert "Schedule(" in told
    assert "of what copies and products of this machine allow" in told
    assert "operations each, at least " in told
    table = told[told.index("ratio  roofline  kernels\n") :].splitlines()
    assert [line.split()[0] for line in table[1:3]] == [one["row"] for one in worst(records)]
    assert all("%" in line for line in table[1:3])


@pytest.mark.slow
def test_more_rows_are_right(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    assert len(run(["--rows", "150", "--seed", "5"], tmp_path)) == 150


def test_rows_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main([*SMALL, "--list", "--seed", "7", "--rows", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["7/0", "7/1", "7/2"]
    assert bench.main([*SMALL, "--list", "--only", "7/2"]) == 0
    assert capsys.readouterr().out.splitlines() == lines[2:]


def test_wrong_words_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    for words, told in ((["--only", "7"], "SEED/ROW"), (["--rows", "many"], "invalid int")):
        with pytest.raises(SystemExit) as caught:
            bench.main([*SMALL, *words])
        assert caught.value.code == 2
        assert told in capsys.readouterr().err


def test_without_pytorch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingDependency, match=r"'torch' is needed.*pip install torch"):
        bench.main(SMALL)


def record(row: int, ratio: float | None, **more: Any) -> dict[str, Any]:
    plain = {"name": "add of 3", "wrong": False, "is_eager": False}
    return {"row": f"0/{row}", "ratio": ratio, **plain, **more}


def test_the_mean_is_geometric_and_failures_are_the_worst() -> None:
    records = [
        record(0, 4.0), record(1, 1.0), record(2, 0.0, failed="no luck"),
        record(3, None, peer_failed="not here"), record(4, 0.5, is_eager=True),
        record(5, None, is_idle=True, is_eager=True),
    ]
    told = sweep._summary(records, records[2:3], "--device NV")
    jit = "4 rows, geometric mean 2.000, worst 0.000; 1 failed or were wrong, 1 PyTorch cannot do"
    assert f"jit: {jit}" in told
    assert "eager: 2 rows, geometric mean 0.500, worst 0.500; 0 failed or were wrong" in told
    assert "all: 6 rows, geometric mean 1.260" in told
    assert told.endswith("1 PyTorch cannot do, 1 launch nothing")
    assert "launches nothing" in sweep._line(records[5])
    assert "FAILED: no luck" in told
    assert "baregrad bench --suite sweep --only 0/2 --device NV" in told
    assert "WRONG: error 5.0e-01" in sweep._line(record(0, 0.0, error=0.5) | {"wrong": True})
