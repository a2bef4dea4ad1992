"""PTX that a compiler made, from kernels/compiled.cu, against NumPy."""

from __future__ import annotations

import math
import shutil
import subprocess
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from baregrad.testing.virtual_gpu.ptx.memory import PtxMemory
from baregrad.testing.virtual_gpu.ptx.program import PtxModule

KERNELS = Path(__file__).parent / "kernels"
RANDOM = np.random.default_rng(5)


@pytest.fixture(scope="module")
def module() -> PtxModule:
    return PtxModule.parse((KERNELS / "compiled.ptx").read_text())


def launch(
    module: PtxModule, name: str, grid: Any, block: Any, arguments: list[Any],
    shared_nbytes: int = 0,
) -> list[np.ndarray[Any, Any]]:
    """Run a kernel on copies of the arrays among its arguments; return them as it left them."""
    memory = PtxMemory()
    arrays = [one for one in arguments if isinstance(one, np.ndarray)]
    places = [memory.put(one) for one in arrays]
    left = iter(places)
    given = [next(left) if isinstance(one, np.ndarray) else one for one in arguments]
    module.kernel(name).launch(memory, grid, block, given, shared_nbytes)
    return [
        memory.get(place, one.dtype, one.shape) for place, one in zip(places, arrays, strict=True)
    ]


def normal(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype(np.float32)


def zeros(*shape: int, dtype: Any = np.float32) -> Any:
    return np.zeros(shape, dtype)


def test_every_kernel_is_decoded(module: PtxModule) -> None:
    for name in module.kernels:
        module.kernel(name)


def test_saxpy(module: PtxModule) -> None:
    x, y = normal(1000), normal(1000)
    found = launch(module, "saxpy", (4,), (256,), [1000, 2.5, x, y])[1]
    np.testing.assert_allclose(found, np.float32(2.5) * x + y, rtol=1e-6, atol=1e-6)


def test_histogram(module: PtxModule) -> None:
    x = RANDOM.integers(0, 256, 5000).astype(np.uint8)
    found = launch(module, "histogram", (3,), (128,), [x, 5000, zeros(256, dtype=np.uint32)])[1]
    np.testing.assert_array_equal(found, np.bincount(x, minlength=256))


def test_softmax(module: PtxModule) -> None:
    x = normal(3, 300)
    found = launch(module, "softmax_rows", (3,), (32,), [x, zeros(3, 300), 300])[1]
    wanted = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(found, wanted / wanted.sum(1, keepdims=True), rtol=2e-6)


def test_sum(module: PtxModule) -> None:
    x = normal(1000)
    found = launch(module, "sum_block", (1,), (256,), [x, 1000, zeros(1)])[1]
    np.testing.assert_allclose(found[0], x.astype(np.float64).sum(), rtol=1e-5)


def test_matmul(module: PtxModule) -> None:
    a, b = normal(40, 40), normal(40, 40)
    found = launch(module, "matmul_tiles", (3, 3), (16, 16), [a, b, zeros(40, 40), 40])[2]
    np.testing.assert_allclose(found, a @ b, rtol=1e-4, atol=1e-5)


def test_transpose(module: PtxModule) -> None:
    x = normal(64, 64)
    found = launch(module, "transpose", (2, 2), (8, 32), [x, zeros(64, 64), 64], 32 * 33 * 4)[1]
    np.testing.assert_array_equal(found, x.T)


def test_gelu(module: PtxModule) -> None:
    x = (3 * normal(300)).astype(ml_dtypes.bfloat16)
    found = launch(module, "gelu_bf16", (2,), (256,), [x, np.zeros_like(x), 300])[1]
    v = x.astype(np.float64)
    wanted = 0.5 * v * (1 + np.tanh(0.7978845608 * (v + 0.044715 * v**3)))
    np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=2.0**-8, atol=1e-6)


def test_half_pairs(module: PtxModule) -> None:
    x, y = normal(200).astype(np.float16), normal(200).astype(np.float16)
    found = launch(module, "half_pairs", (1,), (128,), [x, y, np.zeros_like(x), 100])[2]
    wide = [one.astype(np.float64) for one in (x, y)]
    wanted = (wide[0] * wide[1] + np.maximum(wide[0], 0.25)).astype(np.float16)
    np.testing.assert_array_equal(found, wanted)


def test_mathematics(module: PtxModule) -> None:
    x = 3 * normal(200)
    empty = zeros(200), zeros(200, dtype=np.float64)
    found = launch(module, "mathematics", (2,), (128,), [x, *empty, 200])
    v = x.astype(np.float64)
    erf = np.array([math.erf(one) for one in v])
    y = np.sin(v) + np.log(np.abs(v) + 1) + (np.abs(v) + 0.1) ** 1.5 + erf + 1 / np.hypot(v, 1)
    np.testing.assert_allclose(found[1], y, rtol=2e-6, atol=2e-6)
    z = np.exp(v) / (1 + v * v) + np.sqrt(v * v + 2)
    np.testing.assert_allclose(found[2], z, rtol=1e-15)


def integers(a: int, b: int) -> int:
    u, v = a & 0xFFFFFFFF, b & 0xFFFFFFFF
    kind = a & 7
    if kind == 0:
        quotient = abs(a) // 7 * (1 if a > 0 else -1)
        return quotient + a - 7 * quotient
    if kind == 1:
        return a * b
    if kind == 2:
        return u * v >> 32
    if kind == 3:
        return u.bit_count() + (32 - v.bit_length()) * 100 + (u & -u).bit_length() * 10000
    if kind == 4:
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) if b else 5
    if kind == 5:
        return u % 1000
    if kind == 6:
        return ((v << 32 | u) << 5 >> 32 & 0xFFFFFFFF) ^ int(f"{v:032b}"[::-1], 2)
    return min(a, b) - max(a, b)


def test_integers(module: PtxModule) -> None:
    x, y = (RANDOM.integers(-(2**31), 2**31, 256).astype(np.int32) for _ in range(2))
    y[:8] = 0
    found = launch(module, "integers", (2,), (128,), [x, y, zeros(256, dtype=np.int64), 256])[2]
    wanted = [integers(a, b) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    np.testing.assert_array_equal(found, wanted)


def test_local_memory(module: PtxModule) -> None:
    x = RANDOM.integers(-100, 100, (64, 9)).astype(np.int32)
    found = launch(module, "local_sort", (2,), (32,), [x, np.zeros_like(x), 9])[1]
    np.testing.assert_array_equal(found, np.sort(x, axis=1))


def test_constants_and_variables(module: PtxModule) -> None:
    x = normal(100)
    found = launch(module, "blur", (2,), (64,), [x, zeros(100), 100])[1]
    np.testing.assert_allclose(found, np.convolve(x, [1, 4, 6, 4, 1], "same"), rtol=1e-5, atol=1e-5)


def test_votes(module: PtxModule) -> None:
    x = RANDOM.integers(-3, 4, 64).astype(np.int32)
    found = launch(module, "warp_votes", (1,), (64,), [x, zeros(64, dtype=np.uint32)])[1]
    wanted = []
    for row in x.reshape(2, 32):
        ballot = sum(1 << lane for lane in range(32) if row[lane] > 0)
        for v in row:
            # The shuffle gives the ballot of a lane that is among those that vote yes.
            b = ballot + (int((row > 0).sum()) + ballot if v > 0 else 0)
            alike = sum(1 << lane for lane in range(32) if row[lane] & 3 == v & 3)
            wanted.append(b + bool((row == 3).any()) * 1000 + int(row.sum()) + alike % 7)
    np.testing.assert_array_equal(found, np.array(wanted).astype(np.uint32))


def test_compare_and_swap_loop(module: PtxModule) -> None:
    x = np.abs(normal(300))
    least = np.full(1, np.inf, np.float32)
    found = launch(module, "float_minimum", (3,), (128,), [x, 300, least])[1]
    assert found[0] == x.min()


def test_a_structure_by_value(module: PtxModule) -> None:
    x = RANDOM.integers(-1000, 1000, 64).astype(np.int32)
    parts = np.arange(-3, 3, dtype=np.int16)
    how = np.float32(0.5).tobytes() + np.int32(2).tobytes() + parts.tobytes()
    found = launch(module, "by_value", (1,), (64,), [how, x, zeros(64), 64])[1]
    np.testing.assert_array_equal(found, np.float32(0.5) * (x >> 2) + parts[np.arange(64) % 6])


def test_asynchronous_copies(module: PtxModule) -> None:
    x = normal(5, 128)
    found = launch(module, "copy_pipeline", (1,), (32,), [x, zeros(5, 128), 5])[1]
    np.testing.assert_array_equal(found, 2 * x[:, ::-1])


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.parametrize("architecture", ["sm_90a"])
def test_the_source_compiled_now_runs_too(architecture: str, tmp_path: Path) -> None:
    out = tmp_path / "fresh.ptx"
    source = str(KERNELS / "compiled.cu")
    command = ["nvcc", "-ptx", f"-arch={architecture}", source, "-o", str(out)]
    subprocess.run(command, check=True, capture_output=True)
    fresh = PtxModule.parse(out.read_text())
    test_every_kernel_is_decoded(fresh)
    test_softmax(fresh)
    test_half_pairs(fresh)
    test_gelu(fresh)
