"""`baregrad.autograd`, against PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import baregrad
from baregrad.base.errors import ArgumentError, GradientError
from baregrad.tensor import Tensor

DATA = np.array([[0.5, -1.0], [2.0, 0.25]], np.float32)


def test_gradients_of_gradients() -> None:
    found = []
    for t in (baregrad, torch):
        x = t.tensor(DATA, requires_grad=True)
        y = (x**3).sum(dim=1)
        (first,) = t.autograd.grad(y, x, grad_outputs=t.ones_like(y), create_graph=True)
        (second,) = t.autograd.grad(first.sum(), [x], retain_graph=True)
        t.autograd.backward([y], [t.ones_like(y)])
        found.append([first.detach().numpy(), second.numpy(), x.grad.numpy()])
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    with pytest.raises(GradientError):
        baregrad.autograd.grad(Tensor([1.0]), x)


def swish(t: Any, apart: bool) -> Any:
    class Swish(t.autograd.Function):
        if apart:

            @staticmethod
            def forward(x: Any, beta: float) -> Any:
                return x * t.sigmoid(x * beta)

            @staticmethod
            def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
                ctx.save_for_backward(inputs[0])
                ctx.beta = inputs[1]
        else:

            @staticmethod
            def forward(ctx: Any, x: Any, beta: float) -> Any:
                ctx.save_for_backward(x)
                ctx.beta = beta
                return x * t.sigmoid(x * beta)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            (x,) = ctx.saved_tensors
            s = t.sigmoid(x * ctx.beta)
            return grad * (s + 10 * x), None

    return Swish


@pytest.mark.parametrize("apart", [False, True])
def test_functions_have_gradients_of_their_own(apart: bool) -> None:
    found = []
    for t in (baregrad, torch):
        x = t.tensor(DATA, requires_grad=True)
        y = swish(t, apart).apply(x * 2, 1.5)
        (y * y).sum().backward()
        found.append([y.detach().numpy(), x.grad.numpy()])
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_what_does_not_fit_is_told() -> None:
    class Short(baregrad.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, y: Any) -> Any:
            return x * y

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad

    x = Tensor(DATA, requires_grad=True)
    with pytest.raises(ArgumentError, match="a gradient, or None, for each argument"):
        Short.apply(x, x).sum().backward()


def test_it_is_imported_by_its_name() -> None:
    from baregrad.autograd import Function, Variable

    assert Function is baregrad.autograd.Function and Variable(Tensor(DATA), True).requires_grad


def test_backward_wants_a_gradient_for_each_tensor() -> None:
    x = Tensor([1.0, 2.0]).requires_grad_()
    with pytest.raises(ArgumentError, match="a gradient for each tensor"):
        baregrad.autograd.backward([x.sum(), x.sum()], [None])


def test_what_is_not_reached_has_no_gradient() -> None:
    for package in (torch, baregrad):
        t: Any = package
        x, other = t.ones(2, requires_grad=True), t.ones(3, requires_grad=True)
        found = t.autograd.grad(x.sum(), [x, other], allow_unused=True)
        assert found[0].tolist() == [1, 1] and found[1] is None
        (zeros,) = t.autograd.grad((x * 2).sum(), other, materialize_grads=True)
        assert zeros.tolist() == [0, 0, 0]
    with pytest.raises(ArgumentError, match="materialize_grads alone"):
        baregrad.autograd.grad(x.sum(), x, allow_unused=False, materialize_grads=True)


def test_anomalies_are_found_where_they_are_looked_for() -> None:
    x = Tensor([0.0, 4.0], requires_grad=True)
    assert not baregrad.is_anomaly_enabled()
    with baregrad.autograd.detect_anomaly():
        assert baregrad.is_anomaly_enabled()
        (x * 2).sum().backward()
        with pytest.raises(GradientError, match="with NaN"):
            (x.sqrt() * 0).sum().backward()
        with pytest.raises(GradientError, match="with NaN"):
            baregrad.autograd.grad((x.sqrt() * 0).sum(), x)
        with baregrad.autograd.detect_anomaly(check_nan=False):
            (x.sqrt() * 0).sum().backward()
    assert not baregrad.is_anomaly_enabled()
    baregrad.autograd.set_detect_anomaly(True)
    assert baregrad.is_anomaly_enabled() and baregrad.is_anomaly_check_nan_enabled()
    with baregrad.autograd.set_detect_anomaly(False):
        (x.sqrt() * 0).sum().backward()
    baregrad.autograd.set_detect_anomaly(False)
