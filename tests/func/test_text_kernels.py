"""Kernels of text: C on the CPU, PTX on a GPU that is not there."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from baregrad.engine.session import current_session
from baregrad.ir.text.dump import dump, parse
from baregrad.tensor import Tensor
from baregrad.tensor.array.grad_mode import no_grad
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
# Two blocks that run together: each gives its numbers to the other one.
EXCHANGE = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry exchange(.param .u64 out, .param .u64 x) .reqnctapercluster 2, 1, 1 {
  .reg .b64 %rd<5>;
  .reg .b32 %r<8>;
  .shared .align 4 .b32 row[32];
  ld.param.u64 %rd0, [out];
  ld.param.u64 %rd1, [x];
  mov.u32 %r0, %tid.x;
  mov.u32 %r1, %ctaid.x;
  mad.lo.u32 %r2, %r1, 32, %r0;
  mul.wide.u32 %rd2, %r2, 4;
  add.u64 %rd3, %rd1, %rd2;
  add.u64 %rd4, %rd0, %rd2;
  ld.global.u32 %r3, [%rd3];
  mov.u32 %r4, row;
  shl.b32 %r5, %r0, 2;
  add.u32 %r4, %r4, %r5;
  mov.u32 %r6, %cluster_ctarank;
  xor.b32 %r6, %r6, 1;
  mapa.shared::cluster.u32 %r7, %r4, %r6;
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
  st.shared::cluster.u32 [%r7], %r3;
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
  ld.shared.u32 %r3, [%r4];
  st.global.u32 [%rd4], %r3;
  ret;
}
"""
needs_cc = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="C wants an installed compiler"
)


@contextmanager
def launches_of_cpu(seen: list[list[str]]) -> Iterator[None]:
    """Add the labels of each command list that the CPU is given inside the block."""
    device: Any = current_session().backend("CPU").device
    submit = device.submit

    def noted(commands: Any, *rest: Any, **named: Any) -> Any:
        seen.append([one.label for one in commands.commands])
        return submit(commands, *rest, **named)

    device.submit = noted
    try:
        yield
    finally:
        del device.submit


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
        always = func.custom_kernel(ROWS, SIGNATURE, reference, check="always")
        with pytest.raises(JitError, match="compared with its reference at each call"):
            func.vmap(lambda a: always(a, Tensor(v)))(Tensor(np.stack([x, x])))
        other = func.custom_kernel(ROWS, SIGNATURE, lambda x, v: (x @ v).double())
        with pytest.raises(DTypeError, match="gives another out"):
            other(Tensor(x), Tensor(v))
    with options.override(device="REF"), pytest.raises(DeviceError, match="tensors on the CPU"):
        kernel(Tensor(x), Tensor(v))


@needs_cc
def test_a_kernel_is_part_of_a_captured_training_step() -> None:
    """Values, gradients and states of a jitted step are those of the reference's, for new data."""
    kernel = func.custom_kernel(ROWS, SIGNATURE, reference)
    rng = np.random.default_rng(1)
    with options.override(device="CPU"):
        weight = Tensor(rng.standard_normal(4).astype("f4"), requires_grad=True)
        wanted = weight.numpy().copy()
        seen: list[list[str]] = []

        @jit
        def step(x: Tensor) -> Tensor:
            weight.grad = None
            y = kernel(x.relu() + 1, weight) * 2
            (y * y).sum().backward()
            assert weight.grad is not None
            with no_grad():
                weight.sub_(weight.grad * 1e-3)
            return y

        for _ in range(5):
            x = rng.standard_normal((3, 4)).astype("f4")
            rows = np.maximum(x, 0) + 1
            with launches_of_cpu(seen):
                y = step(Tensor(x)).numpy()
            np.testing.assert_allclose(y, 2 * rows @ wanted, rtol=1e-4)
            wanted -= 1e-3 * 2 * 4 * rows.T @ (rows @ wanted)
            np.testing.assert_allclose(weight.numpy(), wanted, rtol=1e-4)
        assert seen[-1].count("weighted") == 1, "the kernel itself is in the replayed list"


@needs_cc
def test_a_kernel_in_functions_that_are_transformed() -> None:
    kernel = func.custom_kernel(ROWS, SIGNATURE, reference)
    x, v = arrays(3, 4)
    xs = np.stack([x, 2 * x, -x])
    with options.override(device="CPU"):
        each: list[list[str]] = []
        with launches_of_cpu(each):
            mapped = func.vmap(lambda a: kernel(a, Tensor(v)))(Tensor(xs)).numpy()
        np.testing.assert_allclose(mapped, xs @ v, rtol=1e-5)
        assert sum(one.count("weighted") for one in each) == 3

        def loss(a: Tensor, b: Tensor) -> Tensor:
            return (kernel(a, b) ** 3).sum()

        def plain(a: Tensor, b: Tensor) -> Tensor:
            return (reference(a, b) ** 3).sum()

        given = Tensor(x), Tensor(v)
        transformations: list[Callable[..., Tensor]] = [
            lambda f: func.grad(f, argnums=1)(*given),
            lambda f: func.jvp(f, given, given)[1],
            lambda f: func.hessian(f, argnums=1)(*given),
        ]
        for made in transformations:
            np.testing.assert_allclose(made(loss).numpy(), made(plain).numpy(), rtol=1e-4)

        def advance(carry: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
            y = kernel(a, carry)
            return carry + y.sum(), y

        for run in (func.scan, jit(lambda *given: func.scan(*given))):
            for _ in range(3):
                end, rows = run(advance, Tensor(v), Tensor(xs))
            now = v.copy()
            for step, a in enumerate(xs):
                np.testing.assert_allclose(rows.numpy()[step], a @ now, rtol=1e-4, atol=1e-4)
                now = now + (a @ now).sum()
            np.testing.assert_allclose(end.numpy(), now, rtol=1e-4)


@needs_cc
def test_of_several_results_those_nobody_wants_are_written_beside() -> None:
    both = func.custom_kernel(
        "void both(float *sums, int32_t *counts, const float *x) {\n"
        "  for (int64_t i = 0; i < n; i++) { sums[i] = x[i] + x[i]; counts[i] = x[i] > 0; }\n}",
        "x: float32[n] -> sums: float32[n], counts: int32[n]",
        lambda x: (x + x, (x > 0).int()), check="never",
    )
    with options.override(device="CPU"):
        x = Tensor([1.0, -2.0, 3.0])
        np.testing.assert_array_equal((both(x)[1] + 1).numpy(), [2, 1, 2])
        sums, counts = both(x * 2)
        np.testing.assert_array_equal((sums * counts).numpy(), [4, 0, 12])
        shift = Tensor([9.0])
        moved = func.custom_kernel(
            "void moved(float *out, const float *x) {\n"
            "  for (int64_t i = 0; i < n; i++) out[i] = x[i] + 9;\n}",
            "x: float32[n] -> out: float32[n]", lambda x: x + shift, check="never",
        )
        text = dump(moved(x).node)
        assert dump(parse(text)) == text and "void moved" in text
        np.testing.assert_array_equal(moved(x).numpy(), [10, 7, 12])


@pytest.mark.parametrize("words,error", [
    (("x: float32[n]", SIGNATURE), "both sides"),
    (("x float32[n] -> y: float32[n]", ""), "names arrays"),
    (("x: float32[n] -> y: float32[k]", ""), "in none of the inputs"),
    (("x: float32[n+1] -> y: float32[2]", ""), "a number or a name"),
])  # fmt: skip
def test_signatures_that_are_none(words: tuple[str, str], error: str) -> None:
    with pytest.raises(ArgumentError, match=error):
        func.custom_kernel(ROWS, words[0], reference)


def test_blocks_of_ptx_that_run_together() -> None:
    kernel = func.custom_kernel(
        EXCHANGE, "x: float32[4, 32] -> out: float32[4, 32]", lambda x: x[[1, 0, 3, 2]],
        language="ptx", grid=lambda: (4,), block=(32,),
    )
    given = np.arange(128, dtype="f4").reshape(4, 32)
    with ptx_session(), options.override(device="NV"):
        np.testing.assert_array_equal(kernel(Tensor(given)).numpy(), given[[1, 0, 3, 2]])


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
        step = jit(lambda a: kernel(a + 1) * 3)
        for first in range(4):
            given = np.arange(first, first + 32, dtype="f4")
            np.testing.assert_array_equal(step(Tensor(given)).numpy(), 6 * (given + 1))


def test_grids_and_blocks_that_no_gpu_launches() -> None:
    """A grid that was rounded down to nothing left results as their memory was."""
    def made(signature: str, grid: tuple[int, ...], block: tuple[int, ...] = (32,)) -> Any:
        return func.custom_kernel(PTX, signature, lambda x: x * 2, language="ptx",
                                  grid=lambda **sizes: grid, block=block, check="never")

    for block in ((0,), (-32,), (32, 64), (1, 1, 1, 1)):
        with pytest.raises(ArgumentError, match="block"):
            made("x: float32[n] -> out: float32[n]", (1,), block)
    with ptx_session(), options.override(device="NV"):
        for grid in ((0,), (-1,), (1, 65536), (1 << 31,)):
            with pytest.raises(ArgumentError, match="a grid of impossible size"):
                made("x: float32[n] -> out: float32[n]", grid)(Tensor(np.zeros(32, "f4")))
        nothing = Tensor(np.zeros(0, "f4"))
        assert made("x: float32[n] -> out: float32[n]", (0,))(nothing).shape == (0,)
