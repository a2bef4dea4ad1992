"""Compile time has figures in the repository; this fails when they grow by a fifth."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from baregrad.apps.compile_time import measure_in_processes

RECORD = Path(__file__).resolve().parents[2] / "benchmarks" / "compile_time.json"
GROWTH = 1.2
ATTEMPTS = 4
NAMES = ("ours_units", "median_kernel_units")


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    return measure_in_processes(tmp_path_factory.mktemp("cache"))


def test_compile_time_has_not_grown(
    figures: dict[str, dict[str, float]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """In units of interpreter work timed beside it, so that the machine's speed cancels.

    What else the machine does in the meantime does not: the best of a few measurements counts.
    """
    recorded = json.loads(RECORD.read_text())["cold"]
    best = dict(figures["cold"])
    for _ in range(ATTEMPTS - 1):
        if all(best[name] <= GROWTH * recorded[name] for name in NAMES):
            return
        again = measure_in_processes(tmp_path_factory.mktemp("again"))["cold"]
        best = {name: min(best[name], again[name]) for name in NAMES}
    for name in NAMES:
        assert best[name] <= GROWTH * recorded[name], (name, best[name], recorded[name])


def test_no_more_kernels_than_recorded(figures: dict[str, dict[str, float]]) -> None:
    recorded = json.loads(RECORD.read_text())["cold"]
    assert figures["cold"]["kernels"] <= recorded["kernels"]


def test_a_second_process_compiles_nothing(figures: dict[str, dict[str, float]]) -> None:
    assert figures["cold"]["compiled"] > 50
    assert figures["warm"]["compiled"] == 0
    assert figures["warm"]["kernels"] == figures["cold"]["kernels"]
