"""`import baregrad` is quick: the bar is 0.3 s."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.house.source import ROOT

BAR_S = 0.3
CODE = "import time; start = time.process_time(); {}; print(time.process_time() - start)"


def least_seconds(statement: str, runs: int = 5) -> float:
    """Return the least processor time that a fresh interpreter takes for a statement."""
    # As for users: the first run leaves the byte code for the others.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", CODE.format(statement)]
    times = []
    for _ in range(runs):
        done = subprocess.run(
            command, check=True, capture_output=True, cwd=ROOT, text=True, env=environment
        )
        times.append(float(done.stdout))
    return min(times)


def test_importing_the_package_is_quick() -> None:
    assert least_seconds("import baregrad") < BAR_S


def test_importing_everything_public_is_quick() -> None:
    """All public names with all rooms that they need, less NumPy, which has a time of its own."""
    everything = least_seconds("import numpy; start = time.process_time(); from baregrad import *")
    assert everything < BAR_S
