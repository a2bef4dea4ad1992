"""Single instructions of the PTX interpreter against Python's integers, rationals and NumPy."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from baregrad.testing.virtual_gpu.ptx.memory import PtxMemory
from baregrad.testing.virtual_gpu.ptx.ops.floats import APPROXIMATIONS
from baregrad.testing.virtual_gpu.ptx.program import PtxModule
from tests.testing.virtual_gpu.ptx_cases import (
    COUNT,
    FLOAT_CASES,
    INTEGER_CASES,
    NUMPY,
    Case,
    inputs,
    kernel_text,
)


def run(
    body: str, sources: list[str], result: str, arrays: list[Any], skew: float = 0.0
) -> np.ndarray[Any, Any]:
    memory = PtxMemory()
    places = [memory.put(one) for one in arrays]
    dtype = np.dtype(NUMPY[result])
    out = memory.allocate(COUNT * dtype.itemsize)
    kernel = PtxModule.parse(kernel_text(body, sources, result)).kernel("one")
    kernel.launch(memory, (1,), (COUNT,), [*places, out], skew=skew)
    return memory.get(out, f"uint{8 * dtype.itemsize}", (COUNT,)).view(dtype)


def same(found: Any, wanted: Any) -> None:
    """Bit for bit, NaNs being all alike."""
    wanted = np.asarray(wanted)
    if found.dtype.kind in "fV" or found.dtype.name == "bfloat16":
        wanted = wanted.astype(found.dtype)
        both = np.isnan(found.astype(np.float64)) & np.isnan(wanted.astype(np.float64))
        raw = f"uint{8 * found.dtype.itemsize}"
        np.testing.assert_array_equal(found.view(raw)[~both], wanted.view(raw)[~both])
    else:
        np.testing.assert_array_equal(found, wanted.astype(found.dtype, casting="unsafe"))


@pytest.mark.parametrize("case", INTEGER_CASES + FLOAT_CASES, ids=lambda case: case.body)
def test_instruction(case: Case) -> None:
    arrays = inputs(list(case.sources))
    found = run(case.body, list(case.sources), case.result, arrays)
    with np.errstate(all="ignore"):
        wanted = case.oracle(*arrays)
    if case.result in ("f16x2", "bf16x2", "e4m3x2"):
        import ml_dtypes

        lane = {"f16x2": np.float16, "bf16x2": ml_dtypes.bfloat16}.get(case.result, np.uint8)
        wanted = np.asarray(wanted).astype(found.dtype)
        same(found.view(lane), np.ascontiguousarray(wanted).view(lane))
    else:
        same(found, wanted)


@pytest.mark.parametrize("name", sorted(APPROXIMATIONS))
def test_approximations_stay_within_their_bounds(name: str) -> None:
    function, relative, absolute = APPROXIMATIONS[name]
    random = np.random.default_rng(1)
    x = random.uniform(0.5, 2.0, COUNT).astype(np.float32)
    exact = function(x.astype(np.float64))
    for skew in (-1.0, 0.0, 1.0):
        found = run(f"{name}.approx.f32 r, a;", ["f32"], "f32", [x], skew).astype(np.float64)
        bound = np.abs(exact) * (relative + 2.0**-24) + absolute
        assert (np.abs(found - exact) <= bound * 1.0001).all()
        if skew:
            assert (np.abs(found - exact) > bound * 0.2).mean() > 0.9


def test_packed_approximations() -> None:
    x = np.linspace(-3, 3, 2 * COUNT).astype(np.float16)
    found = run("ex2.approx.f16x2 r, a;", ["f16x2"], "f16x2", [x.view(np.uint32)])
    wanted = np.exp2(x.astype(np.float64))
    np.testing.assert_allclose(found.view(np.float16), wanted, rtol=2.0**-9.9)


def test_special_values_of_approximations() -> None:
    x = np.zeros(COUNT, np.float32)
    x[:5] = [np.inf, -np.inf, np.nan, 0.0, -0.0]
    ex2 = run("ex2.approx.ftz.f32 r, a;", ["f32"], "f32", [x])
    np.testing.assert_array_equal(ex2[:5], [np.inf, 0, np.nan, 1, 1])
    lg2 = run("lg2.approx.f32 r, a;", ["f32"], "f32", [x])
    np.testing.assert_array_equal(lg2[:5], [np.inf, np.nan, np.nan, -np.inf, -np.inf])
    rcp = run("rcp.approx.ftz.f32 r, a;", ["f32"], "f32", [x])
    np.testing.assert_array_equal(rcp[:5], [0, -0.0, np.nan, np.inf, -np.inf])


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="ptxas is not installed")
def test_the_vendor_accepts_these_instructions(tmp_path: Path) -> None:
    texts = []
    for number, case in enumerate(INTEGER_CASES + FLOAT_CASES):
        text = kernel_text(case.body, list(case.sources), case.result)
        head, _, rest = text.partition(".visible .entry one(")
        texts.append(f"{head if not number else ''}.visible .entry k{number}({rest}")
    file = tmp_path / "cases.ptx"
    file.write_text("\n".join(texts))
    command = ["ptxas", "-arch=sm_90a", str(file), "-o", str(tmp_path / "cases.cubin")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_zeros_rounded_down() -> None:
    a = np.full(COUNT, 1.5, np.float32)
    for body, sign in (("sub.rm.f32 r, a, a;", True), ("sub.rn.f32 r, a, a;", False)):
        found = run(body, ["f32"], "f32", [a])
        assert (found == 0).all() and (np.signbit(found) == sign).all()


def test_f64_fma_is_rounded_once() -> None:
    a = np.full(COUNT, 1.0 + 2.0**-30)
    c = -(a * a)
    found = run("fma.rn.f64 r, a, b, c;", ["f64"] * 3, "f64", [a, a, c])
    np.testing.assert_array_equal(found, np.full(COUNT, 2.0**-60))
