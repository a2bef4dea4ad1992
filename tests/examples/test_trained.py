"""Training programs as PyTorch's users write them, run here with other imports and nothing else.

What is compared is what each notes in LOG: losses, norms of gradients, rates, weights behind it.
A program is given FOLDER, a place for its files, and WEIGHTS, which writes the first weights.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import baregrad
from baregrad.base.options import options

PROGRAMS = Path(__file__).with_name("trained")
# How lines that import are translated; a line that none of these change stays as it is.
IMPORTS = (
    (r"^import torch\.(\S+) as (\w+)$", r"import baregrad.\1 as \2"),
    (r"^from torch\.(\S+) import", r"from baregrad.\1 import"),
    (r"^from torch import", "from baregrad import"),
    (r"^import torch\.(\S+)$", r"import baregrad.\1"),
    (r"^import torch$", "import baregrad as torch"),
)


def translated(text: str) -> str:
    lines = []
    for line in text.splitlines():
        for pattern, by in IMPORTS:
            line = re.sub(pattern, by, line)
        lines.append(line)
    return "\n".join(lines)


def noted(text: str, name: str, folder: Path) -> list[float]:
    """What a program of a package of this name notes."""
    package: Any = importlib.import_module(name)
    rng = np.random.default_rng(0)

    def weights(model: Any) -> None:
        with package.no_grad():
            for parameter in model.parameters():
                drawn = rng.standard_normal(tuple(parameter.shape)) * 0.15
                parameter.copy_(package.tensor(drawn, dtype=parameter.dtype))

    held: dict[str, Any] = {"WEIGHTS": weights, "FOLDER": str(folder), "__name__": "program"}
    folder.mkdir()
    exec(compile(text, "<trained>", "exec"), held)
    return list(numbers(held["LOG"]))


def numbers(found: Any) -> Iterator[float]:
    if isinstance(found, list | tuple):
        for one in found:
            yield from numbers(one)
    else:
        yield float(found)


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """What programs set for the whole process is put back."""
    yield
    for package in (importlib.import_module("torch"), baregrad):
        package.set_default_dtype(package.float32)
        package.autograd.set_detect_anomaly(False)


@pytest.mark.slow
@pytest.mark.differential
@pytest.mark.parametrize("name", sorted(path.stem for path in PROGRAMS.glob("*.txt")))
@pytest.mark.filterwarnings("ignore")
def test_a_program_trains_as_under_pytorch(name: str, tmp_path: Path) -> None:
    text = (PROGRAMS / f"{name}.txt").read_text()
    wanted = noted(text, "torch", tmp_path / "theirs")
    with options.override(device="CPU"):
        found = noted(translated(text), "baregrad", tmp_path / "ours")
    assert len(found) == len(wanted) > 30
    exact = "float64" in text
    np.testing.assert_allclose(found, wanted, rtol=1e-9 if exact else 1e-3, atol=1e-6)
