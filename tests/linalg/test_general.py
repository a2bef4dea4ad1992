"""Eigenvalues of matrices that need not be symmetric, against NumPy's, definitions and PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from baregrad import Tensor, jit, linalg
from baregrad.base.errors import LinAlgError, ShapeError
from baregrad.func import grad, vmap
from baregrad.linalg.spectral import schur


def given(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def matrices() -> dict[str, np.ndarray]:
    """Those with equal values, too few vectors, no shift that helps, and sizes far apart."""
    both = given(12, 12)
    return {
        "real": given(2, 5, 5), "complex": given(9, 9) + 1j * given(9, 9, seed=1),
        "large": given(70, 70), "one": np.eye(5), "zeros": np.zeros((3, 3)),
        "circle": np.roll(np.eye(8), 1, 0), "block": np.eye(6, k=1) + 2 * np.eye(6),
        "nilpotent": np.eye(6, k=1), "triangle": np.tril(both), "symmetric": both + both.T,
        "turns": both - both.T, "graded": both * 10.0 ** -np.arange(12),
        "beside": np.kron(np.eye(3), [[1.0, 2.0], [-2.0, 1.0]]), "tiny": both * 1e-300,
        "huge": both * 1e150, "number": given(2, 1, 1), "empty": np.zeros((2, 0, 0)),
        "companion": np.vstack([-np.poly(np.arange(1.0, 9.0))[1:], np.eye(7, 8)]),
    }  # fmt: skip


@pytest.mark.parametrize(("name", "dtype"), [
    pytest.param(name, dtype, marks=pytest.mark.slow)
    for name in matrices() for dtype in ("float32", "float64")
    if dtype == "float64" or name not in ("tiny", "huge")
])  # fmt: skip
def test_residuals_are_small_and_values_are_all_there(name: str, dtype: str) -> None:
    x = matrices()[name]
    x = x.astype(np.result_type(dtype, np.complex64) if np.iscomplexobj(x) else dtype)
    values, vectors = (part.numpy() for part in linalg.eig(Tensor(x)))
    assert values.dtype == vectors.dtype == np.result_type(x.dtype, np.complex64)
    count = x.shape[-1]
    scale = float(np.abs(x).max(initial=0)) or 1.0
    left = x @ vectors - vectors * values[..., None, :]
    bound = 30 * np.finfo(dtype).eps * count
    assert np.abs(left / scale).max(initial=0) <= bound
    if count:
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=-2), 1, rtol=10 * bound)
        # Coefficients of the polynomial do not feel how ill-conditioned single values are.
        exact = np.linalg.eigvals(x.astype(np.complex128) / scale)
        for one, two in zip(values.reshape(-1, count), exact.reshape(-1, count), strict=True):
            wanted = np.poly(two)
            size = np.poly(-np.abs(two)).max()
            np.testing.assert_allclose(np.poly(one / scale) / size, wanted / size, atol=bound * 20)


@pytest.mark.slow
def test_values_alone_and_vectors_where_values_are_equal() -> None:
    x = given(4, 4)
    found = np.sort_complex(linalg.eigvals(Tensor(x)).numpy())
    np.testing.assert_allclose(found, np.sort_complex(np.linalg.eigvals(x)), atol=1e-13)
    turn = np.linalg.qr(given(9, 9))[0]
    for values in (np.ones(9), np.repeat([1.0, 2.0, 3.0], 3)):
        vectors = linalg.eig(Tensor((turn * values) @ turn.T)).eigenvectors.numpy()
        assert np.linalg.cond(vectors) < 1e3


def phaseless(module: Any) -> Callable[[Any], Any]:
    """A number of values and vectors that neither their order nor their phases change."""

    def call(x: Any) -> Any:
        values, vectors = module.eig(x)
        sizes = vectors.abs() ** 2
        weights = values.real.detach() ** 2 + 1
        return (sizes[..., :1, :] * weights * values.abs()).sum() + (values**3).imag.abs().sum()

    return call


@pytest.mark.parametrize("is_complex", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_gradients(is_complex: bool) -> None:
    x = given(3, 3) + 1j * given(3, 3, seed=1) * is_complex
    x = x if is_complex else x.real
    mine, other = Tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    found, wanted = phaseless(linalg)(mine), phaseless(torch.linalg)(other)
    np.testing.assert_allclose(found.item(), wanted.item(), rtol=1e-11)
    found.backward()
    wanted.backward()
    assert mine.grad is not None
    assert other.grad is not None
    np.testing.assert_allclose(mine.grad.numpy(), other.grad.numpy(), rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_captured_and_mapped_functions() -> None:
    x = given(3, 4, 4)
    wanted = linalg.eigvals(Tensor(x)).numpy()
    captured = jit(linalg.eigvals)
    for _ in range(3):
        np.testing.assert_array_equal(captured(Tensor(x)).numpy(), wanted)
    np.testing.assert_array_equal(vmap(linalg.eigvals)(Tensor(x)).numpy(), wanted)
    np.testing.assert_array_equal(linalg.eigvals(Tensor(x[1])).numpy(), wanted[1])
    x[1, 2, 3] = np.inf
    found = captured(Tensor(x)).numpy()
    assert np.isnan(found[1]).all()
    np.testing.assert_array_equal(found[[0, 2]], wanted[[0, 2]])
    made = grad(lambda a: linalg.eigvals(a).abs().square().sum())(Tensor(x[0]))
    other = torch.tensor(x[0], requires_grad=True)
    torch.linalg.eigvals(other).abs().square().sum().backward()
    np.testing.assert_allclose(made.numpy(), other.grad, rtol=1e-9, atol=1e-9)


def test_what_is_refused() -> None:
    with pytest.raises(ShapeError, match="square"):
        linalg.eig(Tensor.ones(2, 3))
    with pytest.raises(LinAlgError, match="finite"):
        linalg.eig(Tensor([[1.0, np.nan], [0.0, 1.0]]))


@pytest.mark.slow
def test_a_search_that_does_not_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schur, "_MOST_STEPS", 0)
    x = Tensor(np.stack([given(3, 3), np.eye(3)]))
    with pytest.raises(LinAlgError, match="did not find"):
        linalg.eigvals(x)
    found = jit(linalg.eigvals)(x).numpy()
    assert np.isnan(found[0]).all()
    np.testing.assert_array_equal(found[1], np.ones(3))
