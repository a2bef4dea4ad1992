"""What a replay costs has figures in the repository; this fails when they grow by a fifth."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

RECORD = Path(__file__).resolve().parents[2] / "benchmarks" / "call_time.json"
GROWTH = 1.2
ATTEMPTS = 4
MARGINAL_US = 1.0


def measured(path: Path) -> dict[str, dict[str, float]]:
    """The figures of a process of its own, where nothing else was imported or is kept alive."""
    subprocess.run(
        [sys.executable, "-m", "baregrad.apps.call_time", "--json", str(path)],
        check=True, capture_output=True,
    )
    found: dict[str, dict[str, float]] = json.loads(path.read_text())
    return found


def test_a_replay_costs_what_it_did(tmp_path: Path) -> None:
    """In steps of interpreter work timed beside it; the best of a few measurements counts."""
    recorded = json.loads(RECORD.read_text())
    best = {name: row["steps"] for name, row in measured(tmp_path / "1.json").items()}
    assert best.keys() == recorded.keys()
    for _ in range(ATTEMPTS - 1):
        if all(best[name] <= GROWTH * row["steps"] for name, row in recorded.items()):
            break
        again = measured(tmp_path / "again.json")
        best = {name: min(best[name], again[name]["steps"]) for name in best}
    for name, row in recorded.items():
        assert best[name] <= GROWTH * row["steps"], (name, best[name], row["steps"])


def test_a_further_kernel_costs_less_than_a_microsecond() -> None:
    recorded = json.loads(RECORD.read_text())
    more = recorded["100 kernels"]["us"] - recorded["10 kernels"]["us"]
    assert more / 90 < MARGINAL_US
