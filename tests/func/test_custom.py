"""Gradients that an author gives: used as they are, differentiated, and transformed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from baregrad import func
from baregrad.base.errors import ArgumentError, ShapeError
from baregrad.func import custom_gradient
from baregrad.tensor import Tensor
from baregrad.tensor.jit.jit import jit

X = np.random.default_rng(0).normal(size=(4, 3))


@custom_gradient
def straight(x: Tensor) -> Any:
    """Rounding through which gradients pass."""
    return x.round(), lambda gradient: gradient


@custom_gradient
def cube(x: Tensor) -> Any:
    return x * x * x, lambda gradient: gradient * 3 * x * x


@custom_gradient
def scaled(x: Tensor, by: float, y: Tensor) -> Any:
    """Two results, of which the gradient of the first alone is used, doubled."""
    return {"a": x * by, "b": y + 1}, lambda a, b: (a * 2, None)


def gradient_of(function: Any, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    leaf = Tensor(x).requires_grad_()
    function(leaf).sum().backward()
    assert leaf.grad is not None
    return leaf.grad.numpy()


def test_the_given_gradient_is_used() -> None:
    np.testing.assert_array_equal(straight(Tensor(X)).numpy(), np.round(X))
    np.testing.assert_array_equal(gradient_of(straight, X), np.ones_like(X))
    np.testing.assert_array_equal(gradient_of(lambda x: straight(x * 2), X), np.full_like(X, 2))
    x, y = (Tensor(X).requires_grad_() for _ in range(2))
    found = scaled(x, 5.0, y)
    (found["a"] + found["b"]).sum().backward()
    assert x.grad is not None and y.grad is None
    np.testing.assert_array_equal(x.grad.numpy(), np.full_like(X, 2))
    assert not straight(Tensor(X)).requires_grad
    with Tensor.no_grad():
        assert not straight(Tensor(X).requires_grad_()).requires_grad


def test_it_is_differentiated_and_transformed() -> None:
    second = func.grad(func.grad(cube))
    assert second(Tensor(2.0)).item() == 12
    leaf = Tensor(2.0).requires_grad_()
    (first,) = cube(leaf).gradient(leaf)
    assert first.item() == 12 and first.gradient(leaf)[0].item() == 12
    np.testing.assert_allclose(func.vmap(func.grad(lambda x: cube(x).sum()))(Tensor(X)).numpy(),
                               3 * X * X)
    np.testing.assert_allclose(func.jacrev(cube)(Tensor(X[0])).numpy(), np.diag(3 * X[0] ** 2))
    for inner in (cube, lambda x: func.checkpoint(lambda x: cube(x), x)):
        batch = func.grad(lambda x: func.vmap(inner)(x).sum())  # noqa: B023
        np.testing.assert_allclose(batch(Tensor(X)).numpy(), 3 * X * X)
    captured = jit(lambda x: gradient_step(x))
    for _ in range(3):
        np.testing.assert_allclose(captured(Tensor(X)).numpy(), 3 * X * X)
    rows = func.scan(lambda c, x: (c + cube(x).sum(), cube(x)), Tensor(0.0, dtype="float64"),
                     Tensor(X))[1]
    np.testing.assert_allclose(rows.numpy(), X**3)
    np.testing.assert_array_equal(
        gradient_of(lambda x: func.checkpoint(lambda x: straight(x) * 3, x), X), np.full_like(X, 3)
    )


def gradient_step(x: Tensor) -> Tensor:
    leaf = x.detach().requires_grad_()
    return cube(leaf).sum().gradient(leaf, create_graph=False)[0]


def test_refused() -> None:
    leaf = Tensor(X).requires_grad_()
    with pytest.raises(ArgumentError, match="returns .result, backward"):
        custom_gradient(lambda x: x)(leaf)
    with pytest.raises(ArgumentError, match="for each tensor"):
        custom_gradient(lambda x: (x, lambda g: (g, g)))(leaf).sum().backward()
    with pytest.raises(ShapeError, match="shape of its tensor"):
        custom_gradient(lambda x: (x, lambda g: g.sum()))(leaf).sum().backward()
    with pytest.raises(ArgumentError, match="takes tensors"):
        straight(3.0)
