"""Derivatives of functions beside those of torch.func, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from baregrad import func
from baregrad.base.errors import ArgumentError, DTypeError, ShapeError
from baregrad.tensor import Tensor
from baregrad.tensor.jit.jit import jit

X = np.random.default_rng(0).normal(size=(5, 3))
W = np.random.default_rng(1).normal(size=(3, 4))


def same(ours: Any, theirs: Any) -> None:
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for key, other in theirs.items():
            same(ours[key], other)
    elif isinstance(theirs, tuple | list):
        for one, other in zip(ours, theirs, strict=True):
            same(one, other)
    else:
        assert tuple(ours.shape) == tuple(theirs.shape)
        np.testing.assert_allclose(ours.numpy(), theirs.detach().numpy(), rtol=1e-9, atol=1e-11)


FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "layer": lambda x, w: (x @ w).tanh(),
    "softmax": lambda x, w: (x @ w).softmax(-1),
    "norm": lambda x, w: (x @ w) / (x @ w).var(1, keepdim=True).sqrt(),
    "scans": lambda x, w: (x @ w).cumsum(0).cumprod(1),
    "picked": lambda x, w: (x @ w)[1:, [0, 2]] * x[0, 0],
    "largest": lambda x, w: (x @ w).amax(1),
    "pair": lambda x, w: ((x @ w).sin(), {"x": x * 2}),
}


def given(wrap: Callable[[Any], Any]) -> tuple[Any, Any]:
    return wrap(X), wrap(W)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("argnums", [0, (0, 1)])
@pytest.mark.parametrize("kind", ["jacrev", "jacfwd", "jacobian"])
def test_jacobians(name: str, argnums: Any, kind: str) -> None:
    ours = getattr(func, kind)(FUNCTIONS[name], argnums)(*given(Tensor))
    same(ours, torch.func.jacrev(FUNCTIONS[name], argnums)(*given(torch.tensor)))


@pytest.mark.parametrize("name", ["layer", "softmax", "norm", "scans", "picked"])
def test_hessians(name: str) -> None:
    def scalar(x: Any, w: Any) -> Any:
        return (FUNCTIONS[name](x, w) ** 2).sum()

    ours = func.hessian(scalar, (0, 1))(*given(Tensor))
    same(ours, torch.func.hessian(scalar, (0, 1))(*given(torch.tensor)))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_products_with_vectors(name: str) -> None:
    function = FUNCTIONS[name]
    ours, theirs = given(Tensor), given(torch.tensor)
    same(func.jvp(function, ours, (ours[0] * 3, ours[1] + 1)),
         torch.func.jvp(function, theirs, (theirs[0] * 3, theirs[1] + 1)))
    value, pull = func.vjp(function, *ours)
    other, pull_other = torch.func.vjp(function, *theirs)
    same(value, other)
    same(pull(value), pull_other(other))


def test_gradients_have_the_structure_of_arguments() -> None:
    def loss(parameters: dict[str, Any], x: Any) -> Any:
        hidden = (x @ parameters["w"] + parameters["b"]).tanh()
        return (hidden * hidden).mean(), hidden

    ours = {"w": Tensor(W), "b": Tensor(W[0])}
    theirs = {"w": torch.tensor(W), "b": torch.tensor(W[0])}
    same(func.grad(loss, has_aux=True)(ours, Tensor(X)),
         torch.func.grad(loss, has_aux=True)(theirs, torch.tensor(X)))
    same(func.grad_and_value(loss, has_aux=True)(ours, Tensor(X)),
         torch.func.grad_and_value(loss, has_aux=True)(theirs, torch.tensor(X)))
    captured = jit(func.grad(loss, has_aux=True))
    for _ in range(3):
        same(captured(ours, Tensor(X)),
             torch.func.grad(loss, has_aux=True)(theirs, torch.tensor(X)))


def test_they_nest() -> None:
    cube: Callable[[Any], Any] = lambda x: x**3  # noqa: E731
    third = func.grad(func.grad(func.grad(cube)))
    assert third(Tensor(2.0)).item() == 6
    x, v = Tensor(X[0]), X[1]
    function: Callable[[Any], Any] = lambda x: (x.sin() * x[0]).sum()  # noqa: E731
    ours = func.jvp(func.grad(function), (x,), (Tensor(v),))[1]
    theirs = torch.func.jvp(
        torch.func.grad(function), (torch.tensor(X[0]),), (torch.tensor(v),)
    )[1]
    same(ours, theirs)
    same(func.vmap(func.hessian(function))(Tensor(X)),
         torch.vmap(torch.func.hessian(function))(torch.tensor(X)))


def test_gradients_go_through_them_to_leaves() -> None:
    leaf = Tensor(X).requires_grad_()
    func.grad(lambda x: (x**3).sum())(leaf).sum().backward()
    assert leaf.grad is not None
    np.testing.assert_allclose(leaf.grad.numpy(), 6 * X)
    other = Tensor(X)
    assert not func.grad(lambda x: (x**3).sum())(other).requires_grad
    weight = Tensor(W).requires_grad_()
    func.grad(lambda x: ((x @ weight) ** 2).sum())(other).sum().backward()
    theirs = torch.tensor(W, requires_grad=True)
    torch.func.grad(lambda x: ((x @ theirs) ** 2).sum())(torch.tensor(X)).sum().backward()
    assert weight.grad is not None and theirs.grad is not None
    same(weight.grad, theirs.grad)


def test_what_is_not_reached_is_zero() -> None:
    found = func.grad(lambda x, y: x.sum(), (0, 1))(Tensor(X), Tensor(W))
    np.testing.assert_array_equal(found[1].numpy(), np.zeros_like(W))
    value, product = func.jvp(lambda x: Tensor(W), (Tensor(X),), (Tensor(X),))
    np.testing.assert_array_equal(product.numpy(), np.zeros_like(value.numpy()))


def test_refused() -> None:
    x = Tensor(X)
    with pytest.raises(ShapeError, match="returns a scalar"):
        func.grad(lambda x: x * 2)(x)
    with pytest.raises(DTypeError, match="floating-point"):
        func.grad(lambda x: x.sum())(Tensor([1, 2]))
    with pytest.raises(DTypeError, match="returns floats"):
        func.jacrev(lambda x: x.argmax())(x)
    with pytest.raises(ArgumentError, match="argnums"):
        func.grad(lambda x: x.sum(), 1)(x)
    with pytest.raises(ArgumentError, match="argnums"):
        func.grad(lambda x: x.sum(), None)(x)
    with pytest.raises(ArgumentError, match="positional"):
        func.grad(lambda x: x.sum())(x=x)
    with pytest.raises(ArgumentError, match="argnums"):
        func.grad(lambda x, y: x.sum(), (0, 0))(x, x)
    with pytest.raises(ArgumentError, match="returns a pair"):
        func.grad(lambda x: x.sum(), has_aux=True)(x)
    with pytest.raises(ArgumentError, match="one tensor"):
        func.grad(lambda x: (x.sum(), x.sum()))(x)
    with pytest.raises(ShapeError, match="tangent"):
        func.jvp(lambda x: x, (x,), (x[0],))
    with pytest.raises(ShapeError, match="cotangent"):
        func.vjp(lambda x: x.sum(), x)[1](x)
    with pytest.raises(ArgumentError, match="differentiates by tensors"):
        func.grad(lambda x: x)(3.0)
