"""How what a jitted function closes over is viewed, has gradients or hooks, and failed learning."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path

import numpy as np
import pytest

import baregrad
from baregrad import Tensor, jit
from baregrad.base.errors import JitError


def test_axes_that_change_in_place_are_noticed() -> None:
    weight = Tensor(np.arange(4, dtype=np.float32).reshape(2, 2)).realize()

    @jit
    def add(x: Tensor) -> Tensor:
        return x + weight

    zeros = Tensor.zeros(2, 2).contiguous().realize()
    for _ in range(3):
        add(zeros)
    weight.t_()
    for _ in range(3):
        assert add(zeros).tolist() == [[0.0, 2.0], [1.0, 3.0]]


def test_memory_that_is_another_one_is_noticed() -> None:
    weight, other = Tensor([1.0, 2.0]).realize(), Tensor([10.0, 20.0]).realize()

    @jit
    def add(x: Tensor) -> Tensor:
        return x + weight

    ones = Tensor.ones(2).contiguous().realize()
    for _ in range(4):
        assert add(ones).tolist() == [2.0, 3.0]
    weight.set_(other)
    for _ in range(4):
        assert add(ones).tolist() == [11.0, 21.0]
    weight.resize_(1)
    for _ in range(4):
        assert add(ones).tolist() == [11.0, 11.0]


def test_a_parameter_that_is_frozen_gets_no_gradient_any_more() -> None:
    weight, bias = (Tensor([1.0, 2.0]).requires_grad_() for _ in range(2))

    @jit
    def backward(x: Tensor) -> None:
        (x * weight + bias).sum().backward()

    x = Tensor([3.0, 4.0]).realize()
    for _ in range(4):
        backward(x)
    bias.requires_grad_(False)
    for _ in range(3):
        backward(x)
    assert weight.grad.tolist() == [21.0, 28.0]
    assert bias.grad.tolist() == [4.0, 4.0]
    bias.requires_grad_()
    assert backward.captures == 2
    for _ in range(3):
        backward(x)
    assert bias.grad.tolist() == [7.0, 7.0]


def test_a_gradient_is_read_where_it_is_though_others_lie_there_too() -> None:
    """The first gradient is the argument itself: no memory of its own is made for `x * 1`."""
    weight = Tensor([1.0, 2.0], device="CPU").requires_grad_()

    @jit
    def backward(x: Tensor) -> None:
        (x * weight).sum().backward()

    x = Tensor([3.0, 4.0], device="CPU").realize()
    others = [(x * 1.0).realize() for _ in range(50)]
    for calls in range(1, 5):
        backward(x)
        assert weight.grad.tolist() == [3.0 * calls, 4.0 * calls]
    assert {tuple(other.tolist()) for other in others} == {(3.0, 4.0)}
    assert x.tolist() == [3.0, 4.0]


@pytest.mark.parametrize("is_given", [False, True])
def test_hooks_that_come_and_go_are_noticed(is_given: bool) -> None:
    weight, x = Tensor([1.0, 2.0]).requires_grad_(), Tensor([3.0, 4.0]).realize()

    @jit
    def given(w: Tensor) -> None:
        (w * x).sum().backward()

    @jit
    def closed() -> None:
        (weight * x).sum().backward()

    def gradient() -> list[float]:
        weight.grad = None
        given(weight) if is_given else closed()
        found: list[float] = weight.grad.tolist()
        return found

    for _ in range(2):
        assert [gradient() for _ in range(3)] == [[3.0, 4.0]] * 3
        with weight.register_hook(lambda g: g * 10):
            assert [gradient() for _ in range(3)] == [[30.0, 40.0]] * 3


def test_a_hook_after_the_gradient_of_an_argument_is_refused() -> None:
    weight = Tensor([1.0, 2.0]).requires_grad_()
    weight.register_post_accumulate_grad_hook(lambda p: None)

    @jit
    def given(w: Tensor) -> None:
        w.sum().backward()

    given(weight)
    weight.grad = None
    with pytest.raises(JitError, match="hook"):
        given(weight)


@pytest.mark.parametrize("fails_at", [0, 1])
def test_what_failed_to_be_learnt_is_learnt_from_the_start(fails_at: int) -> None:
    numbers = itertools.count()

    @jit
    def scale(x: Tensor) -> Tensor:
        number = next(numbers)
        if number == fails_at:
            raise KeyError(number)
        return x * float(number)

    x = Tensor([1.0, 2.0]).realize()
    errors = []
    for _ in range(6):
        try:
            scale(x)
        except (KeyError, JitError) as error:
            errors.append(type(error))
    # A number that changes from call to call is refused however often it is tried.
    assert errors == [KeyError, JitError, JitError]


def test_steps_change_where_it_is_counted_alone() -> None:
    """Replays look at no tensor's steps while nobody has changed any: all changes come one way."""
    room = Path(baregrad.__file__).parent / "tensor"
    found = set()
    for file in room.rglob("*.py"):
        for function in ast.walk(ast.parse(file.read_text())):
            if not isinstance(function, ast.FunctionDef):
                continue
            stored = [
                node for node in ast.walk(function)
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            ]
            if any(node.attr == "_steps" for node in stored):
                found.add((str(file.relative_to(room)), function.name))
    assert found == {
        ("array/core.py", "_on"), ("array/views.py", "change_steps"), ("tensor.py", "__init__"),
        # What a function reaches, which keeps what steps were.
        ("jit/closure.py", "__init__"), ("jit/closure.py", "_changed_manner"),
    }
