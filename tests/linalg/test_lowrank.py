"""A few values of large matrices against all of them, by NumPy and by PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from baregrad import Tensor, jit, linalg
from baregrad import lobpcg as exported
from baregrad.base.errors import ArgumentError, ShapeError
from baregrad.func import vmap
from baregrad.linalg.lowrank import lobpcg, pca_lowrank, svd_lowrank


def falling(shape: tuple[int, ...], kept: int, dtype: str = "float64") -> np.ndarray:
    """Matrices of a low rank, with values 1, 1/2, ..."""
    u, _, v = np.linalg.svd(np.random.default_rng(0).standard_normal(shape), full_matrices=False)
    u, v = u[..., :, :kept], v[..., :kept, :]
    return np.asarray((u * (0.5 ** np.arange(kept))) @ v).astype(dtype)


@pytest.mark.parametrize("shape", [(12, 7), pytest.param((2, 7, 12), marks=pytest.mark.slow)])
def test_matrices_of_low_rank_come_back(shape: tuple[int, ...]) -> None:
    a = falling(shape, 3)
    u, s, v = svd_lowrank(Tensor(a), 4)
    assert u.shape == (*shape[:-1], 4) and v.shape == (*shape[:-2], shape[-1], 4)
    np.testing.assert_allclose((u * s.unsqueeze(-2) @ v.mT).numpy(), a, atol=1e-12)
    np.testing.assert_allclose(s.numpy(), torch.svd_lowrank(torch.tensor(a), 4)[1], atol=1e-12)
    moved = svd_lowrank(Tensor(a), 4, M=Tensor(a) * 0.5).S
    np.testing.assert_allclose(moved.numpy(), s.numpy() / 2, atol=1e-12)


@pytest.mark.slow
def test_principal_axes() -> None:
    a = falling((20, 6), 3) + np.arange(6)
    found, wanted = pca_lowrank(Tensor(a), 3), torch.pca_lowrank(torch.tensor(a), 3)
    np.testing.assert_allclose(found.S.numpy(), wanted[1], atol=1e-12)
    np.testing.assert_allclose(
        np.abs((found.V.mT @ Tensor(wanted[2].numpy())).numpy()), np.eye(3), atol=1e-8
    )
    assert pca_lowrank(Tensor(a)).S.shape == (6,)


def symmetric(*shape: int, seed: int = 0) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal(shape)
    return np.asarray(x + x.swapaxes(-1, -2))


@pytest.mark.slow
@pytest.mark.parametrize("largest", [True, False])
def test_eigenpairs_at_the_ends(largest: bool) -> None:
    a = symmetric(2, 12, 12)
    values, vectors = lobpcg(Tensor(a), 2, largest=largest)
    every = np.linalg.eigvalsh(a)
    wanted = every[..., ::-1][..., :2] if largest else every[..., :2]
    np.testing.assert_allclose(values.numpy(), wanted, rtol=1e-11)
    left = (Tensor(a) @ vectors - vectors * values.unsqueeze(-2)).abs().amax().item()
    assert left < 1e-6
    np.testing.assert_allclose((vectors.mT @ vectors).numpy(), [np.eye(2)] * 2, atol=1e-12)


@pytest.mark.slow
def test_a_matrix_beside_another_and_a_good_guess_of_the_inverse() -> None:
    a, x = symmetric(15, 15), np.random.default_rng(2).standard_normal((15, 15))
    b = x @ x.T + np.eye(15)
    values, vectors = lobpcg(Tensor(a), 3, Tensor(b))
    wanted = np.sort(np.linalg.eigvals(np.linalg.solve(b, a)).real)[::-1][:3]
    np.testing.assert_allclose(values.numpy(), wanted, rtol=1e-10)
    np.testing.assert_allclose(
        a @ vectors.numpy(), b @ vectors.numpy() * values.numpy(), atol=1e-5
    )
    definite = b + 20 * np.diag(np.arange(15.0))
    few = lobpcg(Tensor(definite), 2, iK=Tensor(np.linalg.inv(definite)), niter=12, largest=False)
    np.testing.assert_allclose(few[0].numpy(), np.linalg.eigvalsh(definite)[:2], rtol=1e-9)


@pytest.mark.slow
def test_gradients_are_those_of_all_eigenpairs() -> None:
    a = Tensor(symmetric(12, 12), requires_grad=True)
    weights = Tensor(symmetric(12, 12, seed=3)[:, :2])

    def loss(values: Tensor, vectors: Tensor) -> Tensor:
        return (values * values).sum() + (vectors.square() * weights).sum()

    both = (a + a.mT) / 2
    (found,) = loss(*lobpcg(both, 2, tol=1e-13)).gradient(a)
    values, vectors = linalg.eigh(both)
    (wanted,) = loss(values.flip(0)[:2], vectors.flip(1)[:, :2]).gradient(a)
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), atol=1e-9)


@pytest.mark.slow
def test_captured_and_mapped() -> None:
    a = symmetric(2, 12, 12)
    wanted = np.linalg.eigvalsh(a)[:, :-3:-1]
    once = jit(lambda x: lobpcg(x, 2)[0])
    for _ in range(3):
        np.testing.assert_allclose(once(Tensor(a)).numpy(), wanted, rtol=1e-9)
    mapped = vmap(lambda x: lobpcg(x, 2)[0], randomness="same")(Tensor(a))
    np.testing.assert_allclose(mapped.numpy(), wanted, rtol=1e-9)
    low = vmap(lambda x: svd_lowrank(x, 2).S, randomness="same")(Tensor(falling((2, 9, 5), 2)))
    np.testing.assert_allclose(low.numpy(), [[1, 0.5]] * 2, rtol=1e-9)


def test_what_is_refused() -> None:
    a: Any = Tensor(symmetric(6, 6))
    with pytest.raises(ShapeError, match="a third"):
        lobpcg(a, 3)
    with pytest.raises(ArgumentError, match="as many singular values"):
        svd_lowrank(a, 7)
    with pytest.raises(ArgumentError, match="no such method"):
        lobpcg(a, 1, method="other")
    assert exported is lobpcg


@pytest.mark.parametrize("size", [
    1e25, pytest.param(1e-30, marks=pytest.mark.slow), pytest.param(1.0, marks=pytest.mark.slow),
])
def test_matrices_far_from_one_have_their_own_eigenvalues(size: float) -> None:
    a = (symmetric(9, 9) * size).astype(np.float32)
    wanted = np.linalg.eigvalsh(a.astype(np.float64))[::-1][:2]
    found = lobpcg(Tensor(a), 2, niter=-1).eigenvalues.numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-4)


def test_no_matrices_have_no_eigenvalues_and_steps_are_counted() -> None:
    values, vectors = lobpcg(Tensor(np.zeros((0, 9, 9), np.float32)), 2)
    assert values.shape == (0, 2) and vectors.shape == (0, 9, 2)
    with pytest.raises(ArgumentError, match="count of steps"):
        lobpcg(Tensor(np.eye(9)), 2, niter=-2)
