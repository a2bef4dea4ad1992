"""Complex matrices by real ones of twice the size, against NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad import linalg
from baregrad.base.errors import DTypeError
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
    assert np.allclose(linalg.pinv(Tensor(A[..., :2])).numpy(), np.linalg.pinv(A[..., :2]))
    assert np.allclose(linalg.matrix_power(Tensor(A), -2).numpy(), np.linalg.matrix_power(A, -2))


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


def test_factors_of_complex_matrices_are_refused() -> None:
    for function in (linalg.cholesky, linalg.qr, linalg.svd, linalg.det):
        with pytest.raises(DTypeError, match="float"):
            function(Tensor(A))
