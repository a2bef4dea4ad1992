"""Replays over gradients that are put in the place of others: views, shared ones, arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from baregrad import no_grad, optim
from baregrad.tensor import Tensor
from baregrad.tensor.jit.jit import jit

Wrap = Callable[[Any], Any]
CHANGED = 4  # The call that finds other gradients; two calls are replayed before.
CALLS = 7


def numbered(first: float) -> Tensor:
    return Tensor((np.arange(9, dtype="f4") + first).reshape(3, 3)).realize()


def stepped(wrap: Wrap, give: Callable[[int, Tensor, Tensor], None]) -> list[np.ndarray]:
    """Two parameters, step after step by gradients that `give` puts there."""
    first, second = [numbered(n).requires_grad_() for n in (0, 50)]
    optimizer = optim.SGD([first, second], lr=0.125, momentum=0.5)
    step = wrap(lambda: optimizer.step())
    found = []
    for number in range(CALLS):
        give(number, first, second)
        step()
        found += [one.detach().numpy().copy() for one in (first, second)]
    return found


def turned_later(number: int, first: Tensor, second: Tensor) -> None:
    first.grad, second.grad = numbered(number), numbered(9)
    if number >= CHANGED:
        first.grad = first.grad.transpose(0, 1)


def turned_at_first(number: int, first: Tensor, second: Tensor) -> None:
    first.grad, second.grad = numbered(number), numbered(9)
    if number < CHANGED:
        first.grad = first.grad.flip(0)


def turned_where_it_lies(number: int, first: Tensor, second: Tensor) -> None:
    if number == 0:
        first.grad, second.grad = numbered(number), numbered(9)
    elif number == CHANGED:
        assert first.grad is not None
        first.grad = first.grad.transpose(0, 1)


def shared_at_first(number: int, first: Tensor, second: Tensor) -> None:
    if number == 0:
        first.grad = second.grad = numbered(3)
    elif number == CHANGED:
        second.grad = numbered(20)


def shared_later(number: int, first: Tensor, second: Tensor) -> None:
    if number == 0:
        first.grad, second.grad = numbered(3), numbered(4)
    elif number == CHANGED:
        second.grad = first.grad


def a_parameter_later(number: int, first: Tensor, second: Tensor) -> None:
    first.grad, second.grad = numbered(number), numbered(9)
    if number >= CHANGED:
        second.grad = first.detach()


@pytest.mark.parametrize("give", [
    turned_later, turned_at_first, turned_where_it_lies, shared_at_first, shared_later,
    a_parameter_later,
])
def test_a_replayed_step_takes_the_gradients_that_are_there(
    give: Callable[[int, Tensor, Tensor], None]
) -> None:
    for plain, replayed in zip(stepped(lambda f: f, give), stepped(jit, give), strict=True):
        np.testing.assert_array_equal(replayed, plain)


def halve_gradient(x: Tensor, weight: Tensor) -> Tensor:
    assert weight.grad is not None
    with no_grad():
        weight.grad.mul_(0.5)
        return x * 2.0 + weight.grad


def double_argument(x: Tensor, weight: Tensor) -> Tensor:
    assert weight.grad is not None
    with no_grad():
        return x.mul_(2.0) + weight.grad


@pytest.mark.parametrize("function", [halve_gradient, double_argument])
@pytest.mark.parametrize("given", [(0, 1), (1,), (5, 7)])
def test_an_argument_may_be_the_gradient(
    function: Callable[[Tensor, Tensor], Tensor], given: tuple[int, ...]
) -> None:
    def called(wrap: Wrap) -> list[np.ndarray]:
        weight = numbered(0).requires_grad_()
        weight.grad = numbered(1)
        call = wrap(lambda x: function(x, weight))
        found = []
        for number in range(CALLS + 2):
            if number == CHANGED:
                weight.grad = numbered(7)
            x = weight.grad if number in given else numbered(number)
            found += [one.numpy().copy() for one in (call(x), weight.grad, x)]
        return found

    for plain, replayed in zip(called(lambda f: f), called(jit), strict=True):
        np.testing.assert_array_equal(replayed, plain)


def test_a_step_over_gradients_as_before_stays_captured() -> None:
    weight = numbered(0).requires_grad_()
    optimizer = optim.SGD([weight], lr=0.125)
    step = jit(lambda: optimizer.step())
    for number in range(CALLS):
        weight.grad = numbered(number).transpose(0, 1)
        step()
    assert (step.captures, step.replays) == (1, CALLS - 2)


Values = Any


def counted(first: float) -> Values:
    return (np.arange(9, dtype="f4") + first).reshape(3, 3)


def put_another(weight: Tensor, value: Values, gradient: Values) -> Values:
    weight.grad = numbered(7)
    return counted(7)


def accumulate(weight: Tensor, value: Values, gradient: Values) -> Values:
    (weight * 3.0).sum().backward()
    return gradient + 3


def compute_anew(weight: Tensor, value: Values, gradient: Values) -> Values:
    weight.zero_grad()
    (weight * weight).sum().backward()
    return 2 * value


def write_over(weight: Tensor, value: Values, gradient: Values) -> Values:
    assert weight.grad is not None
    with no_grad():
        weight.grad.copy_(numbered(5))
    return counted(5)


def show_otherwise(weight: Tensor, value: Values, gradient: Values) -> Values:
    assert weight.grad is not None
    weight.grad = weight.grad.transpose(0, 1)
    return gradient.T


@pytest.mark.parametrize("wrap", [jit, lambda f: f])
@pytest.mark.parametrize(
    "change", [put_another, accumulate, compute_anew, write_over, show_otherwise]
)
def test_gradients_that_rested_for_many_calls_are_looked_at_again(
    change: Callable[[Tensor, Values, Values], Values], wrap: Wrap
) -> None:
    """NumPy's steps by the gradient that there is, whatever put it there and however late."""
    weight, value = numbered(0).requires_grad_(), counted(0)
    weight.grad, gradient = numbered(1), counted(1)
    step = wrap(optim.SGD([weight], lr=0.125).step)
    kept = []
    for number in range(3 * CALLS):
        if number and number % CALLS == 0:
            kept.append(weight.grad)  # its end would tell of the change
            gradient = change(weight, value, gradient)
        step()
        value = value - np.float32(0.125) * gradient
    np.testing.assert_array_equal(weight.detach().numpy(), value)


def test_a_step_whose_gradient_is_taken_away_leaves_the_parameter() -> None:
    weight = numbered(0).requires_grad_()
    weight.grad = numbered(1)
    step = jit(optim.SGD([weight], lr=0.125).step)
    for _ in range(CALLS):
        step()
    weight.zero_grad()
    left = weight.detach().numpy().copy()
    for _ in range(CALLS):
        step()
        np.testing.assert_array_equal(weight.detach().numpy(), left)
