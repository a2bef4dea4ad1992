"""Hooks of tensors, against PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from baregrad.base.errors import DTypeError, GradientError, ShapeError
from baregrad.tensor import Tensor
from baregrad.tensor.jit.jit import jit

START = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -1.0]], np.float32)


def both() -> list[tuple[Any, Any]]:
    return [
        (Tensor(START, requires_grad=True), Tensor),
        (torch.tensor(START, requires_grad=True), torch),
    ]


def test_hooks_of_leaves_and_results_change_gradients() -> None:
    found = []
    for x, _ in both():
        seen: list[Any] = []
        x.register_hook(lambda g: g * 2)
        handle = x.register_hook(lambda g, seen=seen: seen.append(g.numpy().copy()))
        y = x * x
        y.register_hook(lambda g: g + 1)
        z = y[0]
        z.register_hook(lambda g: g.clamp(max=1.0))
        (z * 3).sum().backward()
        first = x.grad.numpy().copy()
        handle.remove()
        (x * 5).sum().backward()
        found.append((first, x.grad.numpy(), seen))
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(np.array(ours), np.array(theirs), rtol=1e-6)
    assert len(found[0][2]) == 1


def test_gradients_of_results_are_retained() -> None:
    found = []
    for x, _ in both():
        y = x * 2
        y.retain_grad()
        (y * y).sum().backward()
        found.append(y.grad.numpy())
    np.testing.assert_allclose(found[0], found[1])


def test_what_comes_after_a_gradient_was_added() -> None:
    found = []
    for x, _ in both():
        sums: list[float] = []
        handle = x.register_post_accumulate_grad_hook(
            lambda p, sums=sums: sums.append(p.grad.sum().item())
        )
        for _ in range(2):
            (x * 2).sum().backward()
        handle.remove()
        x.sum().backward()
        found.append(sums)
    assert found[0] == found[1] == [12.0, 24.0]


def test_hooks_are_part_of_what_is_captured() -> None:
    w = Tensor(START, requires_grad=True)
    w.register_hook(lambda g: g * 0.5)

    @jit
    def step(x: Tensor) -> Tensor:
        w.grad = None
        y = w * x
        y.register_hook(lambda g: g * 4)
        y.sum().backward()
        assert w.grad is not None
        return w.grad

    for k in range(4):
        x = Tensor(START + k)
        np.testing.assert_allclose(step(x).numpy(), 2 * (START + k), rtol=1e-6)


def test_gradients_that_are_asked_for_pass_hooks_too() -> None:
    x = Tensor(START, requires_grad=True)
    y = x * 3
    y.register_hook(lambda g: g * 10)
    (by_x,) = y.sum().gradient(x)
    assert (by_x.numpy() == 30).all()
    z = y.sum()
    z.register_hook(lambda g: None)
    (again,) = (z * z).gradient(x)
    assert again.shape == x.shape


def test_what_is_no_gradient_is_told() -> None:
    with pytest.raises(GradientError, match="hooks are called with gradients"):
        Tensor(START).register_hook(print)
    for made, error in ((Tensor([1.0]), ShapeError), (3, DTypeError)):
        x = Tensor(START, requires_grad=True)
        x.register_hook(lambda g, made=made: made)  # type: ignore[misc]
        with pytest.raises(error):
            x.sum().backward()
    with pytest.raises(GradientError, match="accumulated in leaves"):
        (x * 2).register_post_accumulate_grad_hook(print)


def test_values_are_written_in_place_behind_a_hook() -> None:
    x = Tensor(START, requires_grad=True)
    y = x * 2
    y.register_hook(lambda g: g)
    y.mul_(3.0)
    y.sum().backward()
    assert x.grad is not None and (x.grad.numpy() == 6).all()
