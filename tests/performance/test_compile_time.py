"""Compile time has figures in the repository; this fails when they grow by a fifth."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from baregrad.apps.compile_time import measure_in_processes

RECORD = Path(__file__).resolve().parents[2] / "benchmarks" / "compile_time.json"
GROWTH = 1.2


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    return measure_in_processes(tmp_path_factory.mktemp("cache"))


def test_compile_time_has_not_grown(figures: dict[str, dict[str, float]]) -> None:
    """In units of interpreter work timed beside it, so that the machine's speed cancels."""
    recorded = json.loads(RECORD.read_text())["cold"]
    for name in ("ours_units", "median_kernel_units"):
        if figures["cold"][name] <= GROWTH * recorded[name]:
            continue
        pytest.fail(f"{name}: {figures['cold'][name]:.2f}, recorded {recorded[name]:.2f}")


def test_no_more_kernels_than_recorded(figures: dict[str, dict[str, float]]) -> None:
    recorded = json.loads(RECORD.read_text())["cold"]
    assert figures["cold"]["kernels"] <= recorded["kernels"]


def test_a_second_process_compiles_nothing(figures: dict[str, dict[str, float]]) -> None:
    assert figures["cold"]["compiled"] > 50
    assert figures["warm"]["compiled"] == 0
    assert figures["warm"]["kernels"] == figures["cold"]["kernels"]
