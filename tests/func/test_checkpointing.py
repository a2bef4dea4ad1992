"""checkpoint: the same values and gradients, by programs that keep nothing of the inside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from baregrad import nn
from baregrad.base.errors import ArgumentError
from baregrad.engine.session import Session, use_session
from baregrad.func import checkpoint, grad
from baregrad.tensor import Tensor
from baregrad.tensor.jit.jit import jit

X = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
W = np.random.default_rng(1).normal(size=(3, 3)).astype(np.float32)


def trained(through: Any, x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    h = x
    for _ in range(3):
        # The weight is closed over.
        h = through(lambda h, scale: (h @ w).tanh() * scale, h, 2.0)
    return (h.detach(), *(h * h).sum().gradient(x, w, create_graph=False))


def plain(function: Any, *args: Any) -> Any:
    return function(*args)


def test_values_and_gradients_are_the_same() -> None:
    captured = jit(lambda x, w: trained(checkpoint, x, w))
    wanted = trained(plain, Tensor(X), Tensor(W))
    for function in (lambda x, w: trained(checkpoint, x, w), captured, captured, captured):
        for one, other in zip(function(Tensor(X), Tensor(W)), wanted, strict=True):
            np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-5, atol=1e-6)


def test_higher_derivatives_and_several_results() -> None:
    x = Tensor(2.0).requires_grad_()
    y = checkpoint(lambda x: x**4, x)
    found = [y]
    for _ in range(3):
        found += found[-1].gradient(x)
    assert [one.item() for one in found] == [16, 32, 48, 48]
    leaf = Tensor(X).requires_grad_()
    double, total, places = checkpoint(lambda x: (x * 2, x.sum(), x.argmax(1)), leaf)
    (double.sum() * 3 + total).backward()
    assert leaf.grad is not None
    np.testing.assert_array_equal(leaf.grad.numpy(), np.full_like(X, 7))
    np.testing.assert_array_equal(places.numpy(), X.argmax(1))


def test_it_draws_the_same_numbers_again_and_changes_state_once() -> None:
    x = Tensor(X).requires_grad_()
    y = checkpoint(lambda x: x.dropout(0.5) * x, x)
    y.sum().backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy() * X, 2 * y.detach().numpy(), rtol=1e-5)
    images = Tensor(np.random.default_rng(2).normal(size=(2, 3, 4, 4)).astype(np.float32))
    layers = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
    first, second = checkpoint(layers[0], images), layers[1](images)
    np.testing.assert_allclose(first.detach().numpy(), second.detach().numpy(), rtol=1e-5)
    np.testing.assert_allclose(
        layers[0].running_mean.numpy(), layers[1].running_mean.numpy(), rtol=1e-6
    )


def test_what_it_computes_on_its_way_is_in_no_result() -> None:
    """Programs write results, values kept for the backward pass and gradients alone."""
    session = Session()
    with use_session(session):
        outputs: list[tuple[int, ...]] = []
        session.watching.observers.append(
            lambda run: outputs.extend(ref.shape for ref in run.outputs)
        )
        x = Tensor(X).requires_grad_()
        y = checkpoint(lambda x: (x[:, None] * Tensor.arange(40)[:, None]).exp().sum(1), x)
        y.sum().backward()
        assert x.grad is not None
        x.grad.realize()
    assert outputs and all(np.prod(shape) <= X.size for shape in outputs if shape != (40,))


def test_long_chains() -> None:
    """Of marks that name what is not below them: no walk is a recursion."""

    def chain(x: Tensor) -> Tensor:
        for _ in range(400):
            x = checkpoint(lambda x: x * 1.001, x)
        return x.sum()

    wanted = np.full_like(X, 1.001**400)
    np.testing.assert_allclose(grad(chain)(Tensor(X)).numpy(), wanted, rtol=1e-4)
    leaf = Tensor(X).requires_grad_()
    chain(leaf).backward()
    assert leaf.grad is not None
    np.testing.assert_allclose(leaf.grad.numpy(), wanted, rtol=1e-4)


def test_refused() -> None:
    with pytest.raises(ArgumentError, match="no tensor"):
        checkpoint(lambda: Tensor(1.0))
    with pytest.raises(ArgumentError, match="returns tensors"):
        checkpoint(lambda x: 3, Tensor(1.0))
    with pytest.raises(ArgumentError, match="not there yet"):
        checkpoint(lambda x: x if x.item() else -x, Tensor(1.0))
