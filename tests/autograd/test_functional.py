"""Derivatives of functions beside PyTorch's, and gradients beside quotients of differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd import functional as theirs

from baregrad import Tensor
from baregrad.autograd import functional as ours
from baregrad.autograd import gradcheck
from baregrad.base.errors import ArgumentError, GradientError, ShapeError, UnsupportedError
from baregrad.base.options import options

X, Y = np.array([0.3, -1.2, 0.8]), np.array([1.5, 0.4, -0.7])


@pytest.fixture(autouse=True)
def _device() -> Any:
    with options.override(device="REF"):
        yield


def agree(mine: Any, other: Any) -> None:
    if isinstance(other, tuple):
        assert isinstance(mine, tuple) and len(mine) == len(other)
        for one, two in zip(mine, other, strict=True):
            agree(one, two)
    else:
        np.testing.assert_allclose(mine.numpy(), other.detach().numpy(), rtol=1e-6, atol=1e-9)


def number(x: Any, y: Any) -> Any:
    return (x.sin() * y * y).sum() + x.prod()


def vector(x: Any, y: Any) -> Any:
    return x.exp() * y, (x * y).sum()


@pytest.mark.parametrize("what", ["jacobian", "hessian", "vjp", "jvp", "hvp", "vhp"])
def test_derivatives_equal_pytorchs(what: str) -> None:
    two, two_t = (Tensor(X), Tensor(Y)), (torch.tensor(X), torch.tensor(Y))
    one, one_t = two[0], two_t[0]
    if what in ("jacobian", "vjp", "jvp"):
        function: Any = vector if what == "jacobian" else lambda x, y: x.exp() * y
        alone: Any = lambda x: x.cos() * x.sum()  # noqa: E731
    else:
        function, alone = number, lambda x: (x**3).sum() * x[0]
    mine, other = getattr(ours, what), getattr(theirs, what)
    if what in ("jacobian", "hessian"):
        agree(mine(function, two), other(function, two_t))
        agree(mine(alone, one), other(alone, one_t))
        return
    v, v_t = Tensor(Y), torch.tensor(Y)
    pair: Any = v if what == "vjp" else (v, v)
    pair_t: Any = v_t if what == "vjp" else (v_t, v_t)
    agree(mine(function, two, pair), other(function, two_t, pair_t))
    agree(mine(alone, one, v), other(alone, one_t, v_t))


def test_gradients_beside_differences() -> None:
    x, y = Tensor(X, requires_grad=True), Tensor(Y, requires_grad=True)
    assert gradcheck(vector, (x, y))

    def wrong(x: Tensor) -> Tensor:
        return x.sin() + (x - x.detach())

    assert not gradcheck(wrong, x, raise_exception=False)
    with pytest.raises(GradientError, match="output 0 by input 0 is not its slope"):
        gradcheck(wrong, (x,))


def test_what_is_refused() -> None:
    x = Tensor(X)
    with pytest.raises(ArgumentError, match="requires gradients"):
        gradcheck(Tensor.sin, x)
    with pytest.raises(ShapeError, match="one number"):
        ours.hessian(Tensor.sin, x)
    with pytest.raises(ShapeError, match="one number alone"):
        ours.vjp(Tensor.sin, x)
    with pytest.raises(ShapeError, match="one number alone"):
        ours.jvp(Tensor.sin, x)
    with pytest.raises(ArgumentError, match="strategy"):
        ours.jacobian(Tensor.sin, x, strategy="sideways")
    with pytest.raises(ArgumentError, match="a tensor, or a tuple"):
        ours.jacobian(Tensor.sin, 1.0)
    with pytest.raises(UnsupportedError, match="strict=True"):
        ours.jacobian(Tensor.sin, x, strict=True)
    with pytest.raises(ArgumentError, match="to tensors"):
        gradcheck(lambda x: None, x.requires_grad_())
    with pytest.raises(AttributeError, match="'jacobian'"):
        _ = ours.jacobians
