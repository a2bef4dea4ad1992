"""L @ D @ L.mT factors and what is solved by them, against LAPACK's by PyTorch, and NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from baregrad import Tensor, jit, linalg
from baregrad.base.errors import DTypeError, GradientError, LinAlgError, ShapeError


def given(count: int, is_complex: bool, hermitian: bool) -> np.ndarray:
    """Three matrices: any, one whose diagonal is zeros, so that pivots are pairs, a graded one."""
    rng = np.random.default_rng(count)
    x = rng.standard_normal((3, count, count))
    if is_complex:
        x = x + 1j * rng.standard_normal(x.shape)
    x = x + (x.conj() if hermitian else x).swapaxes(-1, -2)
    x[1] -= np.diag(np.diag(x[1]))
    sizes = 10.0 ** np.arange(count)
    x[2] *= sizes * sizes[:, None]
    return x


@pytest.mark.parametrize(("count", "is_complex", "hermitian"), [
    (7, False, False),
    *(pytest.param(*case, marks=pytest.mark.slow) for case in [
        (1, False, False), (2, True, True), (7, True, False), (7, True, True), (40, False, False),
        (40, True, True), (0, False, False),
    ]),
])  # fmt: skip
def test_factors_are_lapacks_and_solve(count: int, is_complex: bool, hermitian: bool) -> None:
    x = given(count, is_complex, hermitian)
    scale = np.abs(x).max(axis=(1, 2), initial=1e-300)[:, None, None]
    ours = linalg.ldl_factor_ex(Tensor(np.tril(x)), hermitian=hermitian)
    theirs = torch.linalg.ldl_factor_ex(torch.tensor(x), hermitian=hermitian)
    assert ours.info.tolist() == theirs.info.tolist()
    assert ours.pivots.tolist() == theirs.pivots.tolist()
    np.testing.assert_allclose(ours.LD.numpy() / scale, theirs.LD.numpy() / scale, atol=1e-13)
    right = np.random.default_rng(1).standard_normal((count, 2)).astype(x.dtype)
    found = linalg.ldl_solve(ours.LD, ours.pivots, Tensor(right), hermitian=hermitian).numpy()
    bound = 1e-13 * (scale * np.abs(found).max(axis=(1, 2), initial=0)[:, None, None] + 1)
    is_regular = np.array(theirs.info.tolist()) == 0
    assert (np.abs(x @ found - right) <= bound)[is_regular].all()


@pytest.mark.slow
@pytest.mark.parametrize("hermitian", [False, True])
def test_gradients_of_solutions(hermitian: bool) -> None:
    x = given(5, True, hermitian)[:2]
    right = np.random.default_rng(1).standard_normal((5, 2)) + 0j
    made, other = Tensor(right, requires_grad=True), torch.tensor(right, requires_grad=True)
    factors = linalg.ldl_factor(Tensor(x), hermitian=hermitian)
    linalg.ldl_solve(*factors, made, hermitian=hermitian).abs().square().sum().backward()
    torch.linalg.solve(torch.tensor(x), other).abs().square().sum().backward()
    assert made.grad is not None and other.grad is not None
    np.testing.assert_allclose(made.grad.numpy(), other.grad.numpy(), rtol=1e-8, atol=1e-8)


@pytest.mark.slow
def test_captured_factors_have_the_same_bits() -> None:
    x, right = given(7, False, False)[:2], np.ones((7, 1))

    def call(a: Tensor, b: Tensor) -> Tensor:
        return linalg.ldl_solve(*linalg.ldl_factor(a), b)

    eager = call(Tensor(x), Tensor(right)).numpy()
    np.testing.assert_allclose(eager, np.linalg.solve(x, np.stack([right] * 2)), atol=1e-12)
    captured = jit(call)
    for _ in range(3):
        np.testing.assert_array_equal(captured(Tensor(x), Tensor(right)).numpy(), eager)


def test_what_is_refused() -> None:
    x = Tensor(np.zeros((2, 2)))
    with pytest.raises(ShapeError, match="square"):
        linalg.ldl_factor(x[:1])
    with pytest.raises(DTypeError, match="pivots"):
        linalg.ldl_solve(x, Tensor([1.0, 1.0]), x)
    with pytest.raises(ShapeError, match="pivots"):
        linalg.ldl_solve(x, Tensor([1]), x)
    with pytest.raises(LinAlgError, match="rows that there are not"):
        linalg.ldl_solve(x, Tensor([0, 3]), x)


@pytest.mark.slow
def test_zero_pivots_are_told_and_there_are_no_gradients() -> None:
    with pytest.raises(LinAlgError, match="a pivot that is 0"):
        linalg.ldl_factor(Tensor(np.zeros((2, 2))))
    made = Tensor(np.eye(2), requires_grad=True)
    with pytest.raises(GradientError, match="ldl_factor"):
        linalg.ldl_factor(made).LD.sum().backward()
