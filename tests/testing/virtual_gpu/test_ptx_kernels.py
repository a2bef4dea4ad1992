"""Whole kernels written by hand, from kernels/own.ptx, against NumPy."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from baregrad.base.errors import ArgumentError, CompileError
from baregrad.testing.virtual_gpu.ptx.errors import UnsupportedInstruction
from baregrad.testing.virtual_gpu.ptx.memory import PtxMemory
from baregrad.testing.virtual_gpu.ptx.program import PtxModule
from tests.testing.virtual_gpu.test_ptx_compiled import KERNELS, launch, normal, zeros

OWN = KERNELS / "own.ptx"


@pytest.fixture(scope="module")
def module() -> PtxModule:
    return PtxModule.parse(OWN.read_text())


def test_saxpy(module: PtxModule) -> None:
    x, y = normal(600), normal(600)
    found = launch(module, "saxpy", (2,), (96,), [600, -1.5, x, y])[1]
    np.testing.assert_allclose(found, np.float32(-1.5) * x + y, rtol=1e-6, atol=1e-6)


def test_reduction(module: PtxModule) -> None:
    x = normal(3 * 192)
    found = launch(module, "sum_block", (3,), (192,), [x, zeros(1)])[1]
    np.testing.assert_allclose(found[0], x.astype(np.float64).sum(), rtol=1e-4)


def test_transpose(module: PtxModule) -> None:
    x = normal(64, 64)
    found = launch(module, "transpose", (2, 2), (32, 32), [x, zeros(64, 64), 64], 33 * 32 * 4)
    np.testing.assert_array_equal(found[1], x.T)


def test_histogram(module: PtxModule) -> None:
    x = np.minimum(np.random.default_rng(3).integers(0, 300, 3000), 255).astype(np.uint8)
    found = launch(module, "histogram", (1,), (256,), [x, zeros(256, dtype=np.uint32), 3000])
    np.testing.assert_array_equal(found[1], np.bincount(x, minlength=256))


def test_softmax(module: PtxModule) -> None:
    x = 3 * normal(2, 128)
    found = launch(module, "softmax", (2,), (128,), [x, zeros(2, 128)])[1]
    wanted = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(found, wanted / wanted.sum(1, keepdims=True), rtol=2e-6)


def test_matmul(module: PtxModule) -> None:
    a, b = normal(64, 64), normal(64, 64)
    found = launch(module, "matmul", (4, 4), (16, 16), [a, b, zeros(64, 64)])[2]
    np.testing.assert_allclose(found, a @ b, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="ptxas is not installed")
def test_the_vendor_accepts_these_kernels(tmp_path: Path) -> None:
    command = ["ptxas", "-arch=sm_80", str(OWN), "-o", str(tmp_path / "own.cubin")]
    subprocess.run(command, check=True, capture_output=True)


def test_a_mapping_of_arrays_is_memory_enough(module: PtxModule) -> None:
    x, y = normal(32), normal(32)
    wanted = np.float32(2.0) * x + y
    memory = {0x1000: x.view(np.uint8), 0x2000: y.view(np.uint8)}
    module.kernel("saxpy").launch(memory, (1,), (8,), [32, 2.0, 0x1000, 0x2000])
    np.testing.assert_allclose(y, wanted, rtol=1e-6, atol=1e-6)


def test_arguments_may_come_as_bytes(module: PtxModule) -> None:
    kernel = module.kernel("saxpy")
    x, y = normal(32), normal(32)
    memory = PtxMemory()
    places = memory.put(x), memory.put(y)
    data = np.uint32(32).tobytes() + np.float32(2).tobytes() + np.array(places, np.uint64).tobytes()
    assert kernel.parameter_nbytes == len(data) == 24
    kernel.launch(memory, (1,), (8,), data)
    np.testing.assert_allclose(memory.get(places[1], np.float32, (32,)), 2 * x + y, rtol=1e-5)


@pytest.mark.parametrize("change,error", [
    ({"arguments": [32, 2.0]}, ArgumentError),
    ({"arguments": [32, 2, 0, 0]}, ArgumentError),
    ({"block": (2000,)}, ArgumentError),
    ({"shared_nbytes": 300_000}, ArgumentError),
    ({"arguments": b"12"}, ArgumentError),
])
def test_launches_that_cannot_be(module: PtxModule, change: dict, error: type[Exception]) -> None:
    given = {"grid": (1,), "block": (32,), "arguments": [0, 2.0, 0, 0], **change}
    with pytest.raises(error):
        module.kernel("saxpy").launch(PtxMemory(), **given)


def test_malformed_text_names_its_line() -> None:
    with pytest.raises(CompileError, match="line 2: rubbish"):
        PtxModule.parse(".version 8.0\nrubbish here")
    with pytest.raises(CompileError):
        PtxModule.parse(".visible .entry f() { add.u32 %r1 %r2; }")


@pytest.mark.parametrize("line", [
    "tex.2d.v4.f32.f32 {r, r, r, r}, [r, {r, r}];", "add.u99 r, r, r;", "frobnicate.b32 r, r;",
    "mov.u32 r, undeclared;", "{ .param .b32 p; st.param.b32 [p], r; }",
    "shfl.up.b32 r, r, 1, 0;", "add.u64 r, r, r;", "bra NOWHERE;", "cvt.rn.f16x2.s32 r, r;",
])
def test_what_is_not_known_is_refused_when_decoded(line: str) -> None:
    text = f".visible .entry f() {{\n .reg .b32 r;\n {line}\n ret; }}"
    module = PtxModule.parse(text)
    with pytest.raises(UnsupportedInstruction, match="PTX line 3") as caught:
        module.kernel("f")
    assert caught.value.text == line
