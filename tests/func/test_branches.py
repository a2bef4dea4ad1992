"""cond and while_loop: what runs where values can be read, and what is chosen elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from baregrad import func
from baregrad.base.errors import ArgumentError, ShapeError
from baregrad.func import cond, while_loop
from baregrad.tensor import Tensor
from baregrad.tensor.jit.jit import jit

X = np.array([1.0, 2.0])


def branch(x: Tensor) -> Tensor:
    found: Tensor = cond(x.sum() > 0, lambda x: x.sin(), lambda x: x * 2, (x,))
    return found


@pytest.mark.parametrize("change", [lambda f: f, jit])
def test_one_branch_is_taken(change: Any) -> None:
    function = change(branch)
    for sign in (1, -1, 1, -1):
        wanted = np.sin(X) if sign > 0 else -2 * X
        np.testing.assert_allclose(function(Tensor(sign * X)).numpy(), wanted)


def test_each_example_takes_its_branch() -> None:
    both = func.vmap(branch)(Tensor(np.stack([X, -X])))
    np.testing.assert_allclose(both.numpy(), np.stack([np.sin(X), -2 * X]))
    np.testing.assert_allclose(func.jacrev(branch)(Tensor(X)).numpy(), np.diag(np.cos(X)))


def test_the_other_branch_does_not_run_where_values_can_be_read() -> None:
    def fails(x: Tensor) -> Tensor:
        raise AssertionError("it ran")

    assert cond(Tensor([3.0]) > 0, lambda x: x + 1, fails, (Tensor(1),)).item() == 2
    assert cond(False, fails, lambda x: x, (Tensor(1),)).item() == 1


def root(a: Tensor, limit: int | None = None) -> Tensor:
    """The square root by Newton's method."""
    found: Tensor = while_loop(
        lambda r, a: (r * r - a).abs() > 1e-12 * a,
        lambda r, a: ((r + a / r) * 0.5, a),
        (Tensor(1.0, dtype="float64"), a),
        limit=limit,
    )[0]
    return found


def number(value: float) -> Tensor:
    return Tensor(value, dtype="float64")


def test_a_loop_ends_by_its_condition() -> None:
    leaf = number(7.0).requires_grad_()
    found = root(leaf)
    found.backward()
    assert leaf.grad is not None
    np.testing.assert_allclose([found.item(), leaf.grad.item()], [7**0.5, 0.5 / 7**0.5])
    second = func.grad(func.grad(root))(number(7.0))
    np.testing.assert_allclose(second.item(), -0.25 * 7**-1.5, rtol=1e-6)
    # Of none that is taken.
    assert root(number(1.0)).item() == 1


def test_steps_after_the_last_change_nothing() -> None:
    captured = jit(lambda a: root(a, 20))
    for value in (2, 3, 1e4, 5):
        np.testing.assert_allclose(captured(number(value)).item(), value**0.5, rtol=1e-9)
    values = np.array([2.0, 3.0, 1e4])
    found = func.vmap(lambda a: root(a, 20))(Tensor(values))
    np.testing.assert_allclose(found.numpy(), np.sqrt(values))
    assert root(number(4.0), 2).item() == 2.05


def test_refused() -> None:
    x = Tensor(X)
    with pytest.raises(ShapeError, match="one element"):
        cond(x > 0, lambda x: x, lambda x: x, (x,))
    with pytest.raises(ArgumentError, match="bool or a tensor"):
        cond(1, lambda: x, lambda: x)
    with pytest.raises(ShapeError, match="same shapes"):
        jit(lambda x: cond(x.sum() > 0, lambda x: x, lambda x: x.sum(), (x,)))(x)
    with pytest.raises(ShapeError, match="same shapes"):
        while_loop(lambda x: x.sum() > 0, lambda x: x.sum(), (x,))
    with pytest.raises(ArgumentError, match="carries tensors"):
        while_loop(lambda x: x > 0, lambda x: x - 1, (3,))
    for limit in (-1, 2.5, "3", True):
        with pytest.raises(ArgumentError, match="count of steps"):
            while_loop(lambda x: x > 0, lambda x: x - 1, (number(2.0),), limit)
    with pytest.raises(ArgumentError, match="tuple of arguments"):
        cond(True, lambda x: x, lambda x: x, x)
