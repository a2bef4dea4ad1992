"""Norms, powers and products against PyTorch's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from baregrad import Tensor, jit, linalg
from baregrad.base.errors import ArgumentError, IndexOutOfRange, ShapeError
from tests.linalg.test_decompositions import given, same_gradients


def same(name: str, x: np.ndarray, *args: Any, **kwargs: Any) -> None:
    found = getattr(linalg, name)(Tensor(x), *args, **kwargs)
    wanted = getattr(torch.linalg, name)(torch.tensor(x), *args, **kwargs)
    assert tuple(found.shape) == tuple(wanted.shape)
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("order", [
    "fro", "nuc", math.inf, -1, -2,
    *(pytest.param(each, marks=pytest.mark.slow) for each in (-math.inf, 1, 2)),
])  # fmt: skip
def test_norms_of_matrices(order: Any) -> None:
    x = given((2, 4, 3))
    same("matrix_norm", x, order)
    same("matrix_norm", x, order, (0, 2), keepdim=True)
    same("norm", x[0], order)
    same("norm", x, order, dim=(1, 0))


@pytest.mark.parametrize("order", [2, 1, 0, 3.5, math.inf, -math.inf, -1])
def test_norms_of_vectors(order: float) -> None:
    x = given((3, 4))
    same("vector_norm", x, order)
    same("vector_norm", x, order, dim=1, keepdim=True)
    same("norm", x[0], order)
    same("norm", x, order, dim=0)


def test_norms_without_an_order() -> None:
    same("norm", given((2, 3, 4)))
    same("norm", given((2, 3, 4)), dim=(0, 2))


@pytest.mark.parametrize("order", [
    None, -2, 1, *(pytest.param(each, marks=pytest.mark.slow) for each in ("fro", "nuc", math.inf))
])  # fmt: skip
def test_condition_numbers(order: Any) -> None:
    same("cond", given((2, 3, 3)), order)


def test_condition_of_a_singular_matrix_is_infinite() -> None:
    same("cond", np.array([[[1.0, 2.0], [2.0, 4.0]], [[1.0, 2.0], [3.0, 4.0]]]), 1)


@pytest.mark.parametrize("power", [0, 1, 5, 8, -3])
def test_powers(power: int) -> None:
    same("matrix_power", given((2, 3, 3)), power)


@pytest.mark.parametrize("scale", [0.0, 1e-3, 1.0, 30.0])
def test_exponentials(scale: float) -> None:
    x = given((2, 4, 4)) * scale
    found = linalg.matrix_exp(Tensor(x)).numpy()
    wanted = torch.linalg.matrix_exp(torch.tensor(x)).numpy()
    np.testing.assert_allclose(found / np.abs(wanted).max(), wanted / np.abs(wanted).max(),
                               atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("angle", [1e3, 1e6])
def test_exponentials_of_large_matrices(angle: float, dtype: str) -> None:
    x = np.array([[[0.0, -angle], [angle, 0.0]], [[0.1, 0.0], [0.0, 0.2]]], dtype)
    large = float(x[0, 1, 0])
    turn = [[math.cos(large), -math.sin(large)], [math.sin(large), math.cos(large)]]
    wanted = np.array([turn, np.diag(np.exp([0.1, 0.2]))])
    # Each square doubles the error that there is.
    bound = 8 * np.finfo(dtype).eps * max(angle, 1.0)
    found = linalg.matrix_exp(Tensor(x)).numpy()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=bound)
    alone = linalg.matrix_exp(Tensor(x[1])).numpy()
    np.testing.assert_array_equal(found[1], alone)
    captured = jit(linalg.matrix_exp)(Tensor(x)).numpy()
    np.testing.assert_array_equal(captured[1], alone)
    if angle > 2**15:
        assert np.isnan(captured[0]).all()
    else:
        np.testing.assert_array_equal(captured[0], found[0])


def test_exponentials_of_no_numbers() -> None:
    for value in (math.nan, math.inf):
        found = linalg.matrix_exp(Tensor(np.array([[0.0, value], [1.0, 2.0]])))
        assert np.isnan(found.numpy()).all()
    assert linalg.matrix_exp(Tensor.zeros(2, 0, 0)).shape == (2, 0, 0)
    decay = linalg.matrix_exp(Tensor(np.diag([-1e6, 0.0])))
    np.testing.assert_array_equal(decay.numpy(), np.diag([0.0, 1.0]))


def test_gradients_of_exponentials_and_norms() -> None:
    x = given((3, 3))
    same_gradients(linalg.matrix_exp, torch.linalg.matrix_exp, x, 1e-8)
    same_gradients(lambda a: linalg.matrix_norm(a, 2), lambda a: torch.linalg.matrix_norm(a, 2), x)
    same_gradients(lambda a: linalg.matrix_norm(a, "nuc"),
                   lambda a: torch.linalg.matrix_norm(a, "nuc"), x, 1e-8)


def test_products() -> None:
    parts = [given((3,)), given((3, 40), seed=1), given((40, 2), seed=2), given((2, 5), seed=3)]
    found = linalg.multi_dot([Tensor(part) for part in parts])
    np.testing.assert_allclose(found.numpy(), np.linalg.multi_dot(parts), rtol=1e-12)
    a, b = given((4, 3)), given((1, 3), seed=1)
    for name in ("cross", "vecdot"):
        found = getattr(linalg, name)(Tensor(a), Tensor(b))
        wanted = getattr(torch.linalg, name)(torch.tensor(a), torch.tensor(b))
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-12)
    same("vander", given((2, 3)))
    same("vander", given((2, 3)), N=5)
    same("diagonal", given((2, 3, 4)), offset=1)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ArgumentError, match="no such norm"):
        linalg.matrix_norm(Tensor.ones(2, 2), 3)
    for x in (Tensor(1.0), Tensor([1.0])):
        with pytest.raises(ShapeError, match="two axes"):
            linalg.matrix_norm(x)
    with pytest.raises(ArgumentError, match="integers"):
        linalg.matrix_power(Tensor.ones(2, 2), 0.5)  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="may be vectors"):
        linalg.multi_dot([Tensor.ones(2, 2), Tensor.ones(2), Tensor.ones(2, 2)])
    with pytest.raises(IndexOutOfRange, match="no axis 3"):
        linalg.cross(Tensor.ones(3), Tensor.ones(3), dim=3)
    with pytest.raises(ArgumentError, match="one power"):
        linalg.vander(Tensor.ones(3), 0)
    with pytest.raises(ShapeError, match="vector or a matrix"):
        linalg.norm(Tensor.ones(2, 2, 2), 2)
    with pytest.raises(ShapeError, match="of three"):
        linalg.cross(Tensor.ones(2), Tensor.ones(2))
    with pytest.raises(ArgumentError, match="two matrices"):
        linalg.multi_dot([Tensor.ones(2, 2)])
