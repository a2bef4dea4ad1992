"""Kernels of text: C on the CPU, PTX on a GPU that is not there."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest

from baregrad import func
from baregrad.base.errors import (
    ArgumentError,
    CompileError,
    DeviceError,
    DTypeError,
    JitError,
    ShapeError,
)
from baregrad.base.options import options
from baregrad.tensor import Tensor
from baregrad.tensor.jit.jit import jit
from baregrad.testing.ptx_device import ptx_session

ROWS = """
void weighted(float *out, const float *x, const float *v) {
  for (int64_t i = 0; i < n; i++) {
    float total = 0;
    for (int64_t j = 0; j < m; j++) total += x[i * m + j] * v[j];
    out[i] = total;
  }
}
"""
SIGNATURE = "x: float32[n, m], v: float32[m] -> out: float32[n]"
PTX = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry twice(.param .u64 out, .param .u64 x) {
  .reg .b64 %rd<5>;
  .reg .b32 %r<2>;
  .reg .f32 %f<2>;
  ld.param.u64 %rd0, [out];
  ld.param.u64 %rd1, [x];
  mov.u32 %r0, %tid.x;
  mul.wide.u32 %rd2, %r0, 4;
  add.u64 %rd3, %rd1, %rd2;
  add.u64 %rd4, %rd0, %rd2;
  ld.global.f32 %f0, [%rd3];
  add.rn.f32 %f1, %f0, %f0;
  st.global.f32 [%rd4], %f1;
  ret;
}
"""
needs_cc = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="C wants an installed compiler"
)


def reference(x: Tensor, v: Tensor) -> Tensor:
    return x @ v


def arrays(*shape: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return rng.standard_normal(shape).astype("f4"), rng.standard_normal(shape[1]).astype("f4")


@needs_cc
def test_a_kernel_of_c_and_the_gradients_of_its_reference() -> None:
    kernel = func.custom_kernel(ROWS, SIGNATURE, reference)
    with options.override(device="CPU"):
        for rows in (3, 5):
            x, v = arrays(rows, 4)
            a, b = Tensor(x, requires_grad=True), Tensor(v, requires_grad=True)
            y = kernel(a * 1, b)
            np.testing.assert_allclose(y.numpy(), x @ v, rtol=1e-5)
            (y * y).sum().backward()
            assert a.grad is not None and b.grad is not None
            np.testing.assert_allclose(a.grad.numpy(), 2 * np.outer(x @ v, v), rtol=1e-4)
            np.testing.assert_allclose(b.grad.numpy(), 2 * x.T @ (x @ v), rtol=1e-4)
        given = func.custom_kernel(
            ROWS, SIGNATURE, reference, gradient=lambda inputs, grads: (None, inputs[1] * 7)
        )
        b.grad = None
        given(Tensor(x), b).sum().backward()
        np.testing.assert_allclose(b.grad.numpy(), v * 7, rtol=1e-6)


@needs_cc
def test_what_differs_from_its_reference_is_told() -> None:
    x, v = map(Tensor, arrays(3, 4))
    wrong = ROWS.replace("total += x", "total -= x")
    with options.override(device="CPU"):
        with pytest.raises(CompileError, match="does not give what its reference does: out"):
            func.custom_kernel(wrong, SIGNATURE, reference)(x, v)
        careless = func.custom_kernel(wrong, SIGNATURE, reference, check="never")
        np.testing.assert_allclose(careless(x, v).numpy(), -(x @ v).numpy(), rtol=1e-5)
        with pytest.raises(CompileError):
            careless.check(x, v)
        with pytest.raises(CompileError):
            func.custom_kernel("void broken(float *out { }", SIGNATURE, reference)(x, v)


@needs_cc
def test_what_does_not_fit_the_signature_is_told() -> None:
    x, v = arrays(3, 4)
    kernel = func.custom_kernel(ROWS, SIGNATURE, reference)
    with options.override(device="CPU"):
        with pytest.raises(DTypeError, match="another v"):
            kernel(Tensor(x), Tensor(v.astype("f8")))
        with pytest.raises(ShapeError, match="another v"):
            kernel(Tensor(x), Tensor(v[:3]))
        with pytest.raises(ArgumentError, match="takes 2 tensors"):
            kernel(Tensor(x))
        with pytest.raises(JitError, match="runs when it is called"):
            jitted = jit(lambda a, b: kernel(a, b))
            for _ in range(3):
                jitted(Tensor(x), Tensor(v))
        with pytest.raises(JitError, match="runs when it is called"):
            func.vmap(lambda a: kernel(a, Tensor(v)))(Tensor(np.stack([x, x])))
    with options.override(device="REF"), pytest.raises(DeviceError, match="tensors on the CPU"):
        kernel(Tensor(x), Tensor(v))


@pytest.mark.parametrize("words,error", [
    (("x: float32[n]", SIGNATURE), "both sides"),
    (("x float32[n] -> y: float32[n]", ""), "names arrays"),
    (("x: float32[n] -> y: float32[k]", ""), "in none of the inputs"),
    (("x: float32[n+1] -> y: float32[2]", ""), "a number or a name"),
])  # fmt: skip
def test_signatures_that_are_none(words: tuple[str, str], error: str) -> None:
    with pytest.raises(ArgumentError, match=error):
        func.custom_kernel(ROWS, words[0], reference)


def test_a_kernel_of_ptx() -> None:
    with pytest.raises(ArgumentError, match="has a grid"):
        func.custom_kernel(PTX, "x: float32[32] -> out: float32[32]", lambda x: x * 2,
                           language="ptx")
    kernel = func.custom_kernel(
        PTX, "x: float32[32] -> out: float32[32]", lambda x: x * 2, language="ptx",
        grid=lambda: (1,), block=(32,),
    )
    with ptx_session(), options.override(device="NV"):
        x = Tensor(np.arange(32, dtype="f4"), requires_grad=True)
        y = kernel(x)
        np.testing.assert_array_equal(y.numpy(), 2 * np.arange(32))
        y.sum().backward()
        assert x.grad is not None and (x.grad.numpy() == 2).all()
