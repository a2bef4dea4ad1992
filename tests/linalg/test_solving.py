"""Solutions, inverses and determinants against what they leave, and PyTorch's gradients."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

import baregrad
from baregrad import Tensor, linalg
from baregrad.base.errors import ArgumentError, DTypeError, LinAlgError, ShapeError
from tests.linalg.test_decompositions import (
    EPSILON,
    cases,
    close,
    given,
    norm,
    positive,
    same_gradients,
)


@pytest.mark.parametrize(("shape", "dtype"), cases((1, 1), (40, 40), (2, 3, 4, 4)))
def test_solutions_leave_little(shape: tuple[int, ...], dtype: str) -> None:
    a, b = given(shape, dtype), given((*shape[:-1], 2), dtype, seed=1)
    found = linalg.solve(Tensor(a), Tensor(b)).numpy()
    scale = norm(a) * float(np.abs(found).max())
    close(a @ found, b, scale, dtype)
    right = b.swapaxes(-1, -2)
    found = linalg.solve(Tensor(a), Tensor(right), left=False).numpy()
    close(found @ a, right, norm(a) * float(np.abs(found).max()), dtype)
    inverse = linalg.inv(Tensor(a)).numpy()
    one = np.broadcast_to(np.eye(shape[-1]), shape)
    close(a @ inverse, one, norm(a) * float(np.abs(inverse).max()), dtype)


@pytest.mark.parametrize(("shape", "dtype"), cases((1, 1), (40, 40), (2, 3, 4, 4)))
def test_determinants_are_within_the_bound_of_gaussian_elimination(
    shape: tuple[int, ...], dtype: str
) -> None:
    a = given(shape, dtype)
    if shape[-1] == 40:
        # Orthogonal but for a factor, so that the bound is small.
        a = 1.5 * np.linalg.qr(a).Q
    exact = a.astype(np.float64)
    _, low, up = (part.numpy() for part in torch.linalg.lu(torch.tensor(exact)))
    # Factors are exact for a + e with |e| <= n * u * |L| @ |U|, which to first order changes the
    # logarithm by the trace of inv(a) @ e at most; the product of n pivots adds n * u.
    count, unit = shape[-1], EPSILON[dtype] / 2
    spread = np.abs(np.linalg.inv(low @ up)).swapaxes(-1, -2) * (np.abs(low) @ np.abs(up))
    bound = count * unit * (spread.sum(axis=(-2, -1)) + 1)
    if dtype == "float64":
        # NumPy's factors are rounded as well.
        bound = 2 * bound
    assert (bound < 0.01).all()
    wanted = np.linalg.det(exact)
    assert (np.abs(linalg.det(Tensor(a)).numpy() - wanted) <= bound * np.abs(wanted)).all()
    signs, logs = np.linalg.slogdet(exact)
    sign, log = linalg.slogdet(Tensor(a))
    np.testing.assert_array_equal(sign.numpy(), signs)
    # Logarithms, and their sums, are rounded to this.
    more = count * 2 * EPSILON[dtype] * np.maximum(np.abs(np.log(np.abs(
        np.diagonal(up, 0, -2, -1)))).sum(axis=-1), 1.0)
    assert (np.abs(log.numpy() - logs) <= bound + more).all()


def test_gradients_of_determinants_of_products_keep_the_factors_digits() -> None:
    """The condition of x @ x.mT is that of x squared, but what is left of it by x is not."""
    x = given((200, 3, 3)).astype(np.float32)
    exact = 2 * np.linalg.inv(x.astype(np.float64)).swapaxes(-1, -2)

    def off(side: Any, one: Any) -> Any:
        one.requires_grad_()
        side.logdet(one @ one.mT).sum().backward()
        return np.abs(one.grad.numpy() - exact).max(axis=(1, 2))

    ratio = off(baregrad, Tensor(x)) / (off(torch, torch.tensor(x)) + 1e-30)
    hard = np.linalg.cond(exact) > 50
    assert hard.sum() > 5 and np.median(ratio[hard]) < 3
    assert np.median(ratio) < 3


def test_vectors_and_batches_that_broadcast() -> None:
    a, b = given((2, 3, 3)), given((3, 4), seed=1)
    np.testing.assert_allclose(
        linalg.solve(Tensor(a), Tensor(b)).numpy(), np.linalg.solve(a, b[None]), atol=1e-12
    )
    vector = given((3,), seed=2)
    wanted = torch.linalg.solve(torch.tensor(a), torch.tensor(vector)).numpy()
    np.testing.assert_allclose(
        linalg.solve(Tensor(a), Tensor(vector)).numpy(), wanted, atol=1e-12
    )
    each = given((2, 3), seed=3)
    wanted = torch.linalg.solve(torch.tensor(a), torch.tensor(each)).numpy()
    np.testing.assert_allclose(linalg.solve(Tensor(a), Tensor(each)).numpy(), wanted, atol=1e-12)


def test_ill_conditioned_systems_leave_small_residuals() -> None:
    count = 10
    a = 1.0 / (np.arange(count)[:, None] + np.arange(count)[None, :] + 1.0)
    b = given((count, 1))
    found = linalg.solve(Tensor(a), Tensor(b)).numpy()
    close(a @ found, b, float(np.abs(found).max()), "float64")
    low = np.tril(given((count, count))) * 10.0 ** -np.arange(count)
    found = linalg.solve_triangular(Tensor(low), Tensor(b), upper=False).numpy()
    close(low @ found, b, float((np.abs(low) @ np.abs(found)).max()), "float64")


@pytest.mark.parametrize(("dtype", "orders"), [
    ("float64", 12), pytest.param("float32", 5, marks=pytest.mark.slow),
])  # fmt: skip
def test_inverses_of_ill_conditioned_matrices_leave_little_on_the_left(
    dtype: str, orders: int
) -> None:
    """X @ A is 1 as far as rounding of |X| and |A| lets it be, as LAPACK's (Higham, 14.3.2)."""
    count = 40
    outer, inner = np.linalg.qr(given((2, count, count))).Q
    a = ((outer * np.logspace(0, -orders, count)) @ inner).astype(dtype)
    found = linalg.inv(Tensor(a)).numpy()
    exact = found.astype(np.longdouble) @ a.astype(np.longdouble)
    bound = 16 * EPSILON[dtype] * float((np.abs(found) @ np.abs(a)).max())
    assert float(np.abs(exact - np.eye(count)).max()) <= bound


def test_singular_matrices() -> None:
    a = np.array([[1.0, 2.0], [2.0, 4.0]])
    for call in (linalg.inv, lambda x: linalg.solve(x, Tensor([1.0, 1.0], dtype="float64"))):
        with pytest.raises(LinAlgError, match="singular"):
            call(Tensor(a))
    both = np.stack([a, np.eye(2)])
    wanted = torch.linalg.inv_ex(torch.tensor(both)).info.tolist()
    assert linalg.inv_ex(Tensor(both)).info.tolist() == wanted
    solved = linalg.solve_ex(Tensor(both), Tensor(np.ones((2, 2))))
    assert solved.info.tolist() == wanted
    np.testing.assert_array_equal(solved.result.numpy()[1], np.ones(2))
    wide = linalg.solve_ex(Tensor(a), Tensor(np.ones((3, 2, 1))), left=True)
    theirs = torch.linalg.solve_ex(torch.tensor(a), torch.ones(3, 2, 1, dtype=torch.float64))
    assert wide.info.tolist() == theirs.info.tolist()
    assert linalg.det(Tensor(a)).item() == 0
    sign, log = linalg.slogdet(Tensor(a))
    assert sign.item() == 0 and log.item() == -np.inf


@pytest.mark.parametrize(("left", "upper", "unitriangular"), [
    pytest.param(*how, marks=[] if sum(how) in (0, 3) else pytest.mark.slow)
    for how in itertools.product((False, True), repeat=3)
])  # fmt: skip
def test_triangular_systems(left: bool, upper: bool, unitriangular: bool) -> None:
    a, b = given((2, 5, 5)), given((2, 5, 5), seed=1)
    how = {"left": left, "upper": upper, "unitriangular": unitriangular}
    wanted = torch.linalg.solve_triangular(torch.tensor(a), torch.tensor(b), **how)
    found = linalg.solve_triangular(Tensor(a), Tensor(b), **how)
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-9, atol=1e-9)
    same_gradients(
        lambda x: linalg.solve_triangular(x, Tensor(b), **how),
        lambda x: torch.linalg.solve_triangular(x, torch.tensor(b), **how), a + 4 * np.eye(5), 1e-8,
    )


@pytest.mark.parametrize("shape", [(2, 4, 4), pytest.param((3, 3), marks=pytest.mark.slow)])
def test_gradients(shape: tuple[int, ...]) -> None:
    a, b = given(shape) + 2 * np.eye(shape[-1]), given(shape, seed=1)
    same_gradients(linalg.inv, torch.linalg.inv, a)
    same_gradients(linalg.det, torch.linalg.det, a)
    same_gradients(lambda x: linalg.slogdet(x)[1], lambda x: torch.linalg.slogdet(x)[1], a)
    same_gradients(lambda x: linalg.solve(x, Tensor(b)),
                   lambda x: torch.linalg.solve(x, torch.tensor(b)), a)  # fmt: skip
    same_gradients(lambda x: linalg.solve(Tensor(a), x),
                   lambda x: torch.linalg.solve(torch.tensor(a), x), b)  # fmt: skip


@pytest.mark.parametrize("matrix", [
    [[0.0]], [[1.0, 2.0], [2.0, 4.0]], [[0.0, 0.0], [0.0, 0.0]],
    [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [5.0, 7.0, 9.0]],
])  # fmt: skip
def test_gradient_of_the_determinant_of_a_singular_matrix(matrix: list[list[float]]) -> None:
    a = Tensor(matrix, dtype="float64", requires_grad=True)
    linalg.det(a).backward()
    x = np.array(matrix)
    cofactors = np.array([
        [(-1) ** (i + j) * np.linalg.det(np.delete(np.delete(x, i, 0), j, 1))
         for j in range(len(x))] for i in range(len(x))
    ])  # fmt: skip
    assert a.grad is not None
    np.testing.assert_allclose(a.grad.numpy(), cofactors, atol=1e-12)


@pytest.mark.parametrize("shape", [
    (2, 5, 3), (3, 6), pytest.param((4, 4), marks=pytest.mark.slow),
    pytest.param((6, 3), marks=pytest.mark.slow),
])  # fmt: skip
def test_pseudoinverses_and_least_squares(shape: tuple[int, ...]) -> None:
    a, b = given(shape), given((*shape[:-1], 2), seed=1)
    np.testing.assert_allclose(
        linalg.pinv(Tensor(a)).numpy(), np.linalg.pinv(a), rtol=1e-9, atol=1e-10
    )
    same_gradients(linalg.pinv, torch.linalg.pinv, a, 1e-8)
    wanted = torch.linalg.lstsq(torch.tensor(a), torch.tensor(b), driver="gelsd")
    for driver in (None, "gels"):
        found = linalg.lstsq(Tensor(a), Tensor(b), driver=driver)
        np.testing.assert_allclose(found.solution.numpy(), wanted.solution.numpy(), atol=1e-10)
        if shape[-2] > shape[-1]:
            assert found.residuals is not None
            np.testing.assert_allclose(found.residuals.numpy(), wanted.residuals, atol=1e-10)
    same_gradients(
        lambda x: linalg.lstsq(x, Tensor(b)).solution,
        lambda x: torch.linalg.pinv(x) @ torch.tensor(b), a, 1e-8,
    )
    assert (linalg.matrix_rank(Tensor(a)).numpy() == min(shape[-2:])).all()


def test_ranks() -> None:
    low = given((6, 2)) @ given((2, 5), seed=1)
    assert linalg.matrix_rank(Tensor(low)).item() == 2
    assert linalg.matrix_rank(Tensor(low @ low.T), hermitian=True).item() == 2
    assert linalg.matrix_rank(Tensor(np.zeros((3, 3)))).item() == 0
    assert linalg.matrix_rank(Tensor(np.diag([1.0, 0.1])), rtol=0.5).item() == 1
    np.testing.assert_allclose(
        linalg.pinv(Tensor(low)).numpy(), np.linalg.pinv(low), atol=1e-12
    )
    square = positive((4, 4))
    np.testing.assert_allclose(
        linalg.pinv(Tensor(square), hermitian=True).numpy(), np.linalg.inv(square), atol=1e-11
    )


def test_equations_of_tensors() -> None:
    a, b = given((2, 3, 6)), given((2, 3), seed=1)
    found = linalg.tensorinv(Tensor(a)).numpy()
    np.testing.assert_allclose(found, np.linalg.tensorinv(a), rtol=1e-11)
    moved = a.transpose(2, 0, 1)
    found = linalg.tensorsolve(Tensor(moved), Tensor(b), dims=(0,)).numpy()
    np.testing.assert_allclose(found, np.linalg.tensorsolve(moved, b, (0,)), rtol=1e-11)
    with pytest.raises(ShapeError, match="as many elements"):
        linalg.tensorinv(Tensor(a), 1)
    with pytest.raises(ShapeError, match="as many equations"):
        linalg.tensorsolve(Tensor(a), Tensor(b[:1]))


@pytest.mark.slow
def test_gradients_of_equations_of_tensors() -> None:
    a, b = given((2, 3, 6)), given((2, 3), seed=1)
    same_gradients(linalg.tensorinv, torch.linalg.tensorinv, a)
    same_gradients(lambda x: linalg.tensorsolve(x, Tensor(b)),
                   lambda x: torch.linalg.tensorsolve(x, torch.tensor(b)), a)  # fmt: skip


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ShapeError, match="as many"):
        linalg.solve(Tensor.ones(3, 3), Tensor.ones(2, 1))
    with pytest.raises(DTypeError, match="solve is of tensors"):
        linalg.solve(Tensor.ones(2, 2), np.ones(2))  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="gelsd or gels"):
        linalg.lstsq(Tensor.ones(3, 3), Tensor.ones(3, 1), driver="gelsy")


@pytest.mark.slow
@pytest.mark.parametrize(("count", "dtype"), [(256, "float32"), (301, "float64")])
def test_triangles_that_are_cut_into_blocks(count: int, dtype: str) -> None:
    a, b = given((2, count, count), dtype), given((2, count, 3), dtype, seed=1)
    a = a / count**0.5 + 2 * np.eye(count, dtype=dtype)
    for upper in (False, True):
        found = linalg.solve_triangular(Tensor(a), Tensor(b), upper=upper).numpy()
        used = np.triu(a) if upper else np.tril(a)
        scale = float((np.abs(used) @ np.abs(found)).max())
        close(used @ found, b, scale, dtype, times=2.0)
    low = Tensor(np.tril(a))
    mapped = baregrad.vmap(lambda x, y: linalg.solve_triangular(x, y, upper=False))(low, Tensor(b))
    wanted = linalg.solve_triangular(low, Tensor(b), upper=False)
    np.testing.assert_allclose(mapped.numpy(), wanted.numpy(), atol=20 * EPSILON[dtype])
