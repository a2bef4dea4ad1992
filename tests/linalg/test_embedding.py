"""Equations, inverses and measures of complex matrices, against NumPy's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from baregrad import linalg
from baregrad.linalg.embedding import embedded, extracted
from baregrad.tensor import Tensor

_RANDOM = np.random.default_rng(5)
A = _RANDOM.normal(size=(2, 4, 4)) + 1j * _RANDOM.normal(size=(2, 4, 4))
B = _RANDOM.normal(size=(2, 4, 3))


def test_an_embedding_keeps_products() -> None:
    a = Tensor(A)
    assert np.allclose(extracted(embedded(a) @ embedded(a)).numpy(), A @ A)
    assert np.array_equal(extracted(embedded(a)).numpy(), A)


def test_inverses_and_equations() -> None:
    assert np.allclose(linalg.inv(Tensor(A)).numpy(), np.linalg.inv(A))
    assert np.allclose(linalg.solve(Tensor(A), Tensor(B)).numpy(), np.linalg.solve(A, B))
    assert np.allclose(linalg.matrix_power(Tensor(A), -2).numpy(), np.linalg.matrix_power(A, -2))


@pytest.mark.slow
def test_pseudoinverses() -> None:
    assert np.allclose(linalg.pinv(Tensor(A[..., :2])).numpy(), np.linalg.pinv(A[..., :2]))


@pytest.mark.slow
def test_singular_values_and_ranks() -> None:
    assert np.allclose(linalg.svdvals(Tensor(A)).numpy(), np.linalg.svd(A, compute_uv=False))
    low = A[..., :1] @ A[..., :1, :]
    assert linalg.matrix_rank(Tensor(low)).tolist() == [1, 1]


def test_gradients_are_those_of_the_inverse() -> None:
    x = Tensor(A, requires_grad=True)
    linalg.inv(x).real.sum().backward()
    inverse = np.linalg.inv(A)
    wanted = -(inverse.mT.conj() @ np.ones((4, 4)) @ inverse.mT.conj())
    assert x.grad is not None
    assert np.allclose(x.grad.numpy(), wanted)


@pytest.mark.parametrize("upper", [False, True])
def test_cholesky_and_eigenvalues_read_one_triangle_and_a_real_diagonal(upper: bool) -> None:
    whole = A @ A.mT.conj() + np.eye(4)
    read = (np.triu if upper else np.tril)(whole) + 1j * np.eye(4)
    wanted = np.linalg.cholesky(whole)
    found = linalg.cholesky(Tensor(read), upper=upper).numpy()
    assert np.allclose(found, wanted.mT.conj() if upper else wanted)
    values = linalg.eigvalsh(Tensor(read), "U" if upper else "L").numpy()
    assert np.allclose(values, np.linalg.eigvalsh(whole))


def test_cholesky_has_the_gradient_of_pytorch() -> None:
    whole = A @ A.mT.conj() + np.eye(4)
    x, other = Tensor(whole, requires_grad=True), torch.tensor(whole, requires_grad=True)
    weights = np.cos(np.arange(16.0)).reshape(4, 4)
    (linalg.cholesky(x).abs().square() * Tensor(weights)).sum().backward()
    (torch.linalg.cholesky(other).abs().square() * torch.tensor(weights)).sum().backward()
    assert x.grad is not None
    assert other.grad is not None
    # PyTorch's is the Hermitian part of what reading one triangle gives.
    found = x.grad.numpy()
    assert np.allclose((found + found.mT.conj()) / 2, other.grad.numpy())


@pytest.mark.slow
def test_least_squares() -> None:
    tall, right = A[0][:, :2], A[1][:, :3]
    found = linalg.lstsq(Tensor(tall), Tensor(right))
    wanted, residuals, rank, values = np.linalg.lstsq(tall, right, rcond=None)
    assert found.residuals is not None
    assert found.rank is not None
    assert found.singular_values is not None
    assert np.allclose(found.solution.numpy(), wanted)
    assert np.allclose(found.residuals.numpy(), residuals)
    assert found.rank.item() == rank
    assert np.allclose(found.singular_values.numpy(), values)
    found = linalg.lstsq(Tensor(tall), Tensor(right), driver="gels")
    assert np.allclose(found.solution.numpy(), wanted)


def test_condition_numbers() -> None:
    assert np.allclose(linalg.cond(Tensor(A), 1).numpy(), np.linalg.cond(A, 1))
    assert linalg.inv_ex(Tensor(np.zeros((2, 2), complex))).info.item() == 1


def test_vecdot_conjugates_its_first_factor() -> None:
    found = linalg.vecdot(Tensor(A), Tensor(A[::-1].copy()))
    assert np.allclose(found.numpy(), np.linalg.vecdot(A, A[::-1]))
