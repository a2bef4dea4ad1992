"""`import baregrad` is quick: the bar is 0.3 s."""

from __future__ import annotations

import statistics
import subprocess
import sys

import pytest

from tests.house.source import ROOT

BAR_S = 0.3
CODE = "import time; start = time.perf_counter(); {}; print(time.perf_counter() - start)"


def median_seconds(statement: str, runs: int = 5) -> float:
    """Return the median time that fresh interpreters take for a statement."""
    command = [sys.executable, "-c", CODE.format(statement)]
    times = [
        float(subprocess.run(command, check=True, capture_output=True, cwd=ROOT, text=True).stdout)
        for _ in range(runs)
    ]
    return statistics.median(times)


def test_importing_the_package_is_quick() -> None:
    assert median_seconds("import baregrad") < BAR_S


@pytest.mark.skipif("Tensor" not in __import__("baregrad").__all__, reason="no Tensor yet")
def test_importing_everything_public_is_quick() -> None:
    """All public names with all rooms that they need, less NumPy, which has a time of its own."""
    everything = median_seconds("import numpy; start = time.perf_counter(); from baregrad import *")
    assert everything < BAR_S
