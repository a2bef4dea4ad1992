"""`import baregrad` is quick: it loads no room, and loading all of them is kept cheap."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.house.source import ROOT

MODULES = """
import json, sys
{before}
before = set(sys.modules)
{statement}
print(json.dumps(sorted(set(sys.modules) - before)))
"""
# Byte code that lies elsewhere is not found: whether it was written before is not counted.
INSTRUCTIONS = """
import sys
from baregrad.apps.instructions import count
sys.pycache_prefix = {elsewhere!r}
print(count(lambda: exec("from baregrad import *")))
"""
# Files of the standard library that all rooms need, less those that NumPy loads.
MOST_FOREIGN = 60
MOST_OURS = 205
# 1.405 million with Python 3.11: eight modules and four dataclasses more than would do in circles,
# what tells the nearest of every missing name, and generators of random numbers.
MOST_INSTRUCTIONS = 1_410_000


def output_of(program: str) -> str:
    """What a fresh interpreter prints."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("BAREGRAD_")}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    return subprocess.run(
        [sys.executable, "-c", program],
        check=True, capture_output=True, cwd=ROOT, text=True, env=environment,
    ).stdout


def loaded(statement: str, before: str = "") -> tuple[list[str], list[str]]:
    """The modules of the package, and others, that a statement loads."""
    names = json.loads(output_of(MODULES.format(statement=statement, before=before)))
    ours = [name for name in names if name.partition(".")[0] == "baregrad"]
    return ours, [name for name in names if name not in ours]


def test_importing_the_package_loads_no_room() -> None:
    ours, foreign = loaded("import baregrad")
    assert ours == ["baregrad"]
    assert "numpy" not in foreign
    assert len(foreign) < 40


def test_importing_everything_public_loads_what_it_needs() -> None:
    """NumPy aside, nothing but our own files and the standard library."""
    ours, foreign = loaded("from baregrad import *", before="import numpy")
    assert len(ours) <= MOST_OURS
    assert len(foreign) <= MOST_FOREIGN
    roots = {name.partition(".")[0] for name in foreign}
    assert roots - {"numpy"} <= set(sys.stdlib_module_names)


def test_importing_everything_public_is_quick(tmp_path: Path) -> None:
    assert int(output_of(INSTRUCTIONS.format(elsewhere=str(tmp_path)))) <= MOST_INSTRUCTIONS
