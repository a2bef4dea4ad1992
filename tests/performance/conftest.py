"""What the tests of costs share: the figures of a process of its own, and those on record."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def recorded() -> dict[str, Any]:
    """What is on record, of Python 3.11: newer versions take fewer instructions."""
    found: dict[str, Any] = json.loads((ROOT / "benchmarks" / "instructions.json").read_text())
    return found


@pytest.fixture(scope="session")
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The figures of a process where nothing else was compiled, with no options but its own."""
    path = tmp_path_factory.mktemp("counts") / "counts.json"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("BAREGRAD_")}
    environment["BAREGRAD_CACHE_DIR"] = str(path.parent / "cache")
    subprocess.run(
        [sys.executable, "-m", "baregrad.apps.instructions", "--json", str(path)],
        check=True, stdout=subprocess.DEVNULL, cwd=ROOT, env=environment,
    )
    found: dict[str, Any] = json.loads(path.read_text())
    return found
