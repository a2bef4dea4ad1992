"""LU factors as LAPACK packs them, and what is solved by them, against PyTorch and NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import baregrad
from baregrad import Tensor, linalg
from baregrad.base.errors import ArgumentError, DTypeError, LinAlgError, ShapeError
from baregrad.tensor.jit.jit import jit


def given(*shape: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.standard_normal(shape) + 1j * rng.standard_normal(shape)


def same(found: Any, wanted: Any) -> None:
    for one, two in zip(found, wanted, strict=True):
        assert str(one.dtype) == str(two.dtype).removeprefix("torch.")
        np.testing.assert_allclose(one.numpy(), two.numpy(force=True), atol=1e-12)


@pytest.mark.parametrize(("shape", "is_complex"), [
    ((2, 0), False),
    *(pytest.param(shape, is_complex, marks=pytest.mark.slow)
      for shape in [(2, 5, 5), (40, 70), (70, 40), (3, 7, 2), (1, 1), (0, 3, 3)]
      for is_complex in [False, True]),
])  # fmt: skip
def test_factors_and_pivots_are_lapacks(shape: tuple[int, ...], is_complex: bool) -> None:
    x = given(*shape)
    x = x if is_complex else x.real
    ours, theirs = linalg.lu_factor(Tensor(x)), torch.linalg.lu_factor(torch.tensor(x))
    same(ours, theirs)
    same(linalg.lu(Tensor(x)), torch.linalg.lu(torch.tensor(x)))
    same(baregrad.lu_unpack(*ours), torch.lu_unpack(*theirs))


def test_pivots_of_any_swaps() -> None:
    """Of every order of four rows, by matrices whose pivots come in that order."""
    orders = np.array(np.meshgrid(*[range(4)] * 4, indexing="ij")).reshape(4, -1).T
    orders = orders[[len(set(one)) == 4 for one in orders.tolist()]]
    x = np.eye(4)[orders] @ (np.eye(4) * 3 + np.triu(np.ones((4, 4)), 1))
    ours = linalg.lu_factor(Tensor(x))
    same(ours, torch.linalg.lu_factor(torch.tensor(x)))
    same(baregrad.lu_unpack(*ours), torch.lu_unpack(*map(torch.tensor, map(np.array, ours))))


def test_ties_between_pivots_fall_as_lapacks() -> None:
    x = np.random.default_rng(4).integers(-2, 3, (200, 4, 4)).astype(float)
    ours, theirs = linalg.lu_factor_ex(Tensor(x)), torch.linalg.lu_factor_ex(torch.tensor(x))
    same(ours, theirs)


@pytest.mark.parametrize(("left", "adjoint"), [
    (True, False), *(pytest.param(*how, marks=pytest.mark.slow)
                     for how in [(True, True), (False, True), (False, False)]),
])  # fmt: skip
def test_lu_solve_and_its_gradients(left: bool, adjoint: bool) -> None:
    x, right = given(2, 4, 4), given(4, 4, seed=1)[: 4 if left else 3]
    found = []
    for module, make in ((linalg, Tensor), (torch.linalg, torch.tensor)):
        a, b = make(x, requires_grad=True), make(right, requires_grad=True)
        lu, pivots = module.lu_factor(a)
        solved = module.lu_solve(lu, pivots, b, left=left, adjoint=adjoint)
        (solved.abs() ** 2).sum().backward()
        found.append((solved.detach(), a.grad, b.grad))
    for one, two in zip(*found, strict=True):
        np.testing.assert_allclose(one.numpy(), two.resolve_conj().numpy(), rtol=1e-9, atol=1e-9)
    op = x.conj().swapaxes(1, 2) if adjoint else x
    solved = found[0][0].numpy()
    np.testing.assert_allclose(op @ solved if left else solved @ op, [right, right], atol=1e-12)


def test_older_name_and_captured_functions() -> None:
    x, right = given(3, 3), given(3, 2, seed=1)

    def call(a: Tensor, b: Tensor) -> Tensor:
        return b.lu_solve(*linalg.lu_factor(a))

    eager = call(Tensor(x), Tensor(right)).numpy()
    np.testing.assert_allclose(eager, np.linalg.solve(x, right), atol=1e-13)
    captured = jit(call)
    for _ in range(3):
        np.testing.assert_array_equal(captured(Tensor(x), Tensor(right)).numpy(), eager)


def test_zero_pivots_are_told() -> None:
    x = np.stack([np.eye(3), np.diag([1.0, 0.0, 2.0]), np.zeros((3, 3))])
    with pytest.raises(LinAlgError, match="a pivot that is 0"):
        linalg.lu_factor(Tensor(x))
    ours, theirs = linalg.lu_factor_ex(Tensor(x)), torch.linalg.lu_factor_ex(torch.tensor(x))
    assert ours.info.tolist() == theirs.info.tolist() == [0, 2, 1]
    with pytest.raises(LinAlgError):
        linalg.lu_factor_ex(Tensor(x), check_errors=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["inf", "nan"])
def test_rows_of_the_padding_are_no_pivots(name: str) -> None:
    """33 rows are padded to whole blocks, and what is not finite reaches all rows below it."""
    x = given(33, 33).real
    x[0, :3] = 100, float(name), 1
    found = linalg.lu_factor_ex(Tensor(x))
    permutation, _, upper = baregrad.lu_unpack(found.LU, found.pivots)
    assert found.pivots.numpy().max() <= 33
    np.testing.assert_array_equal(permutation.numpy().sum(0), np.ones(33))
    assert np.isnan(upper.numpy()).any()


def test_what_is_refused() -> None:
    x = Tensor(given(3, 3))
    lu, pivots = linalg.lu_factor(x)
    with pytest.raises(ArgumentError, match="pivot=False"):
        linalg.lu_factor(x, pivot=False)
    with pytest.raises(DTypeError, match="int32"):
        linalg.lu_solve(lu, pivots.float(), x)
    with pytest.raises(ShapeError, match="as many pivots"):
        linalg.lu_solve(lu, pivots[:2], x)
    with pytest.raises(LinAlgError, match="rows that there are not"):
        linalg.lu_solve(lu, pivots + 1, x)
