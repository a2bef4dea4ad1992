"""Random programs of images: every way agrees, and each statement is what PyTorch makes of it."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from baregrad.base.options import options
from baregrad.tensor import Tensor
from baregrad.testing.fuzz import fuzz
from baregrad.testing.fuzz_compare import upload, values_of
from baregrad.testing.fuzz_grow import grow
from baregrad.testing.fuzz_program import FuzzProgram, given

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.differential

_CALL = re.compile(r"(v\d+) = (\w+)\.(interpolate|pad|max_pool2d|avg_pool2d|conv2d)\((.*)\)$")
_FEW = 20


def _as_torch(tensor: Tensor) -> Any:
    return torch.from_numpy(values_of(tensor).copy())


def _compared(program: FuzzProgram) -> tuple[int, str]:
    """How many statements PyTorch has an answer to, and the first that it answers otherwise."""
    count = 0
    space: dict[str, Any] = {**given(plain=True), **upload(program.data(0), program)}
    with options.override(device="REF"):
        for statement in program.statements:
            before = {n: space[n] for n in statement.reads if isinstance(space.get(n), Tensor)}
            exec(statement.text, space)
            called = _CALL.match(statement.text)
            if called is None:
                continue
            name, first, function, rest = called.groups()
            names = {n: _as_torch(t) for n, t in before.items()}
            try:
                text = f"torch.nn.functional.{function}({first}, {rest})"
                wanted = eval(text, {"torch": torch, **names}).numpy()
            except (RuntimeError, NotImplementedError, ValueError):
                continue
            found = values_of(space[name])
            count += 1
            close = np.array_equal(found, wanted)
            if found.dtype.kind == "f" and found.shape == wanted.shape:
                limit = 1e-3 if found.dtype.itemsize == 4 else 0.5
                close = np.allclose(found, wanted, atol=limit, rtol=limit)
            if not close:
                return count, f"{program.seed}: {statement.text}\n{found}\ninstead of\n{wanted}"
    return count, ""


@pytest.mark.parametrize("programs", [30, pytest.param(75, marks=pytest.mark.slow)])
def test_statements_are_what_pytorch_makes_of_them(programs: int) -> None:
    total = 0
    for seed in range(programs):
        count, detail = _compared(grow(seed, "images"))
        assert not detail, detail
        total += count
    assert total > _FEW


@pytest.mark.parametrize("count", [10, pytest.param(25, marks=pytest.mark.slow)])
def test_programs_of_images_agree(count: int) -> None:
    with options.override(verify=False):
        found = fuzz(count, kind="images")
    assert not found, "\n\n".join(finding.script for finding in found[:3])
