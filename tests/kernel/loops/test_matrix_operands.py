"""Products of 8-bit floats by matrix units: exact factors, float32 sums, mixed dtypes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from baregrad.base.options import options
from baregrad.kernel.loops.matrix_operands import fit_factors
from baregrad.kernel.loops.sharing import prepare
from baregrad.target import gpu_row
from baregrad.tensor import Tensor
from baregrad.testing.ptx_device import PtxDevice, ptx_session
from tests.kernel import kernels as k

SHORT = {ml_dtypes.float8_e4m3fn: "e4m3", ml_dtypes.float8_e5m2: "e5m2"}
E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
BF16, F16 = ml_dtypes.bfloat16, np.float16


@pytest.mark.parametrize("left,right", [
    (E4M3, E4M3), (E4M3, E5M2), (E5M2, E5M2), (E4M3, BF16), (F16, E5M2), (E5M2, BF16),
])  # fmt: skip
def test_products_of_8_bit_floats(
    left: type, right: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few rows and columns: each product's kernel converts on the way to shared memory."""
    random = np.random.default_rng(3)
    a = random.integers(-16, 17, (48, 64)).astype(left)
    b = random.integers(-16, 17, (64, 56)).astype(right)
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    with options.override(device="CPU"):
        found = Tensor(a).matmul(Tensor(b), out_dtype="float32").numpy()
    np.testing.assert_array_equal(found, wanted)
    texts = []
    load = PtxDevice.load
    monkeypatch.setattr(
        PtxDevice, "load", lambda self, program: texts.append(program.source) or load(self, program)
    )
    with ptx_session():
        found = Tensor(a).matmul(Tensor(b), out_dtype="float32").numpy()
    np.testing.assert_array_equal(found, wanted)
    kind = "bf16.bf16" if BF16 in (left, right) else "f16.f16"
    (text,) = [each for each in texts if f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}" in each]
    assert all(f"cvt.rn.f16x2.{SHORT[one]}x2" in text for one in (left, right) if one in SHORT)


def test_factors_that_many_results_read_are_converted_once(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(4)
    a, b = (random.integers(-16, 17, (64, 72)).astype(E4M3) for _ in range(2))
    texts = []
    load = PtxDevice.load
    monkeypatch.setattr(
        PtxDevice, "load", lambda self, program: texts.append(program.source) or load(self, program)
    )
    with ptx_session():
        found = Tensor(a).matmul(Tensor(b).T, out_dtype="float32").numpy()
    np.testing.assert_array_equal(found, a.astype(np.float64) @ b.astype(np.float64).T)
    (text,) = [each for each in texts if "mma.sync" in each]
    assert "e4m3" not in text and any("cvt.rn.f16x2.e4m3x2" in each for each in texts)


@pytest.mark.parametrize("architecture", ["sm_90a", "sm_80"])
@pytest.mark.parametrize("dtype", [E4M3, E5M2])
def test_casts_of_every_code(dtype: type, architecture: str) -> None:
    """Of machines that convert them, and of one that does not."""
    codes = np.arange(256, dtype=np.uint8).view(dtype)
    with ptx_session(architecture=architecture):
        for wide in ("float32", "float16"):
            found = Tensor(codes).cast(wide).numpy()
            np.testing.assert_array_equal(found, codes.astype(np.float32).astype(wide))
        numbers = np.array([448, 464, 465, 1e9, -0.0, np.inf, np.nan, 61439, 61440], np.float32)
        back = Tensor(numbers).cast(np.dtype(dtype).name).cast("float32").numpy()
        np.testing.assert_array_equal(back, numbers.astype(dtype).astype(np.float32))


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
def test_every_code_is_multiplied_as_it_is(dtype: type) -> None:
    codes = np.arange(256, dtype=np.uint8).view(dtype)
    values = codes.astype(np.float32)
    a = np.where(np.isfinite(values), values, 0).astype(dtype).reshape(16, 16)
    ones = np.zeros((16, 64), dtype)
    ones[np.arange(16), np.arange(16)] = 1
    with ptx_session():
        found = Tensor(a).matmul(Tensor(ones), out_dtype="float32").numpy()
    np.testing.assert_array_equal(found[:, :16], a.astype(np.float32))
    special = np.zeros((16, 16), np.float32)
    special[3, 5] = np.nan
    special[4, 6] = np.inf if dtype is E5M2 else 448
    with ptx_session():
        found = Tensor(special.astype(dtype)).matmul(Tensor(ones), out_dtype="float32").numpy()
    assert np.isnan(found[3, :16]).all() and found[4, 6] == special[4, 6]


def test_machines_without_such_units_keep_their_kernels() -> None:
    kernel = k.matmul(64, 64, 64)
    assert fit_factors(kernel, gpu_row("sm_75")) is kernel
    assert prepare(kernel, gpu_row("sm_90a")) is prepare(kernel, gpu_row("sm_90a"))
