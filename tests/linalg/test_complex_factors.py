"""Factors and determinants of complex matrices, and their gradients, against PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from baregrad import Tensor, linalg


def given(*shape: int) -> np.ndarray:
    rng = np.random.default_rng(2)
    return rng.standard_normal(shape) + 1j * rng.standard_normal(shape)


def eigen(module: Any, x: Any) -> tuple[Any, ...]:
    """What phases of vectors do not change."""
    values, vectors = module.eigh(x + x.mH)
    return values, vectors.abs() ** 2, vectors.unsqueeze(-2) * vectors.conj().unsqueeze(-3)


def singular(module: Any, x: Any) -> tuple[Any, ...]:
    u, s, vh = module.svd(x, full_matrices=False)
    return s, u.abs() ** 2, vh.abs() ** 2, u.unsqueeze(-2) * vh.mT.unsqueeze(-3)


def orthogonal(module: Any, x: Any) -> tuple[Any, ...]:
    """With a diagonal that is not negative."""
    q, r = module.qr(x)
    signs = r.diagonal(0, -2, -1).real.sign()
    return q * signs.unsqueeze(-2), r * signs.unsqueeze(-1)


FUNCTIONS: dict[str, Callable[[Any, Any], tuple[Any, ...]]] = {
    "qr": orthogonal,
    "eigh": eigen,
    "svd": singular,
    "det": lambda module, x: (module.det(x),),
    "slogdet": lambda module, x: tuple(module.slogdet(x)),
    "lu": lambda module, x: module.lu(x)[1:],
    "lu_factor": lambda module, x: (module.lu_factor(x)[0],),
    "matrix_exp": lambda module, x: (module.matrix_exp(x),),
    "triangle": lambda module, x: (module.solve_triangular(x.tril(), x, upper=False),),
}


@pytest.mark.few(4)
@pytest.mark.parametrize(("name", "shape"), [
    ("qr", (4, 4)), ("svd", (4, 4)), ("det", (2, 4, 4)),
    ("slogdet", (2, 4, 4)), ("triangle", (3, 3)), ("lu", (2, 4, 4)), ("matrix_exp", (2, 2)),
    *(
        pytest.param(name, shape, marks=pytest.mark.slow)
        for name, shape in [
            ("lu", (5, 3)), ("lu", (3, 5)), ("lu_factor", (2, 4, 4)),
            ("matrix_exp", (2, 4, 4)), ("matrix_exp", (40, 40)),
            ("qr", (5, 3)), ("qr", (3, 5)), ("qr", (2, 3, 3)), ("eigh", (4, 4)),
            ("eigh", (2, 4, 4)), ("eigh", (40, 40)), ("svd", (3, 5)), ("svd", (5, 3)),
        ]
    ),
])  # fmt: skip
def test_values_and_gradients(name: str, shape: tuple[int, ...]) -> None:
    call = FUNCTIONS[name]
    x = given(*shape)
    mine, theirs = Tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    total: Any = 0.0
    wanted: Any = 0.0
    for place, (one, two) in enumerate(
        zip(call(linalg, mine), call(torch.linalg, theirs), strict=True)
    ):
        np.testing.assert_allclose(one.numpy(), two.numpy(force=True), atol=1e-12)
        weights = np.cos(np.arange(two.numel()) + place).reshape(two.shape)
        total = total + (one * Tensor(weights)).sum()
        wanted = wanted + (two * torch.tensor(weights)).sum()
    (total.real if total.is_complex() else total).backward()
    (wanted.real if wanted.is_complex() else wanted).backward()
    assert mine.grad is not None
    assert theirs.grad is not None
    np.testing.assert_allclose(mine.grad.numpy(), theirs.grad.numpy(), atol=1e-11)


def test_the_diagonal_of_r_is_not_negative() -> None:
    _, r = linalg.qr(Tensor(given(4, 4)))
    diagonal = r.numpy().diagonal()
    assert (diagonal.real > 0).all()
    np.testing.assert_allclose(diagonal.imag, 0, atol=1e-15)


def test_complete_qr_of_no_columns() -> None:
    q, r = linalg.qr(Tensor(np.zeros((3, 0), "complex64")), "complete")
    np.testing.assert_array_equal(q.numpy(), np.eye(3))
    assert r.shape == (3, 0)


def test_values_that_are_equal_have_orthonormal_vectors() -> None:
    one, low = np.eye(4) + 0j, given(4, 1) @ given(1, 4)
    for x in (one, low):
        u, s, vh = (part.numpy() for part in linalg.svd(Tensor(x)))
        np.testing.assert_allclose(u * s @ vh, x, atol=1e-13)
        for columns in (u, vh):
            np.testing.assert_allclose(columns.conj().T @ columns, np.eye(4), atol=1e-13)
    values, vectors = linalg.eigh(Tensor(one))
    np.testing.assert_allclose(values.numpy(), np.ones(4))
    np.testing.assert_allclose(np.abs(vectors.numpy()), np.eye(4), atol=1e-15)


def test_singular_matrices_have_no_determinant() -> None:
    x = Tensor(np.ones((2, 2)) + 0j)
    assert linalg.det(x).item() == 0
    sign, size = linalg.slogdet(x)
    assert (sign.item(), size.item()) == (0, -np.inf)
