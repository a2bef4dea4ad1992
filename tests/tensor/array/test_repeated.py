"""Repeated calls: what is written again is what running the function gives, or it is run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from baregrad.engine.canonical import bind
from baregrad.ir.core.index import variable
from baregrad.tensor import Tensor
from baregrad.tensor.array.repeated import RepeatedCalls
from baregrad.tensor.jit.jit import jit

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(3)
DEPTH, WIDTH = 6, 8
ROWS = variable("repeated_rows", 1, 5)


class Layer:
    """A product, a norm, and a sum kept in place; `runs` counts how often its Python ran."""

    runs = 0

    def __init__(self) -> None:
        self.weight = Tensor(RNG.standard_normal((WIDTH, WIDTH)).astype(np.float32)).realize()
        self.kept = Tensor.zeros(5, WIDTH).contiguous().realize()

    def __call__(self, x: Tensor) -> Tensor:
        Layer.runs += 1
        found = (x @ self.weight.T).softmax(-1) + x
        rows = x.shape[0]
        self.kept[:rows] = self.kept[:rows] + found
        made: Tensor = found * 0.5 + self.kept[:rows].mean()
        return made


@pytest.fixture
def layers(monkeypatch: pytest.MonkeyPatch) -> list[Layer]:
    monkeypatch.setattr(Layer, "runs", 0)
    return [Layer() for _ in range(DEPTH)]


def repeated(layers: list[Layer], x: Tensor) -> Tensor:
    calls = RepeatedCalls()
    for one in layers:
        x = calls.call("layer", one, x, [one.weight], [one.kept])
    return x


def wanted(layers: list[Layer], x: Array, times: int = 1) -> tuple[Array, list[Array]]:
    kept = [np.zeros((5, WIDTH)) for _ in layers]
    result = x
    for _ in range(times):
        result = x.astype(np.float64)
        for one, state in zip(layers, kept, strict=True):
            scores = result @ one.weight.numpy().astype(np.float64).T
            powers = np.exp(scores - scores.max(-1, keepdims=True))
            found = powers / powers.sum(-1, keepdims=True) + result
            state[: len(x)] += found
            result = found * 0.5 + state[: len(x)].mean()
    return result, kept


def compare(layers: list[Layer], found: Tensor, x: Array, times: int = 1) -> None:
    result, kept = wanted(layers, x, times)
    np.testing.assert_allclose(found.numpy(), result, rtol=2e-4)
    for one, state in zip(layers, kept, strict=True):
        np.testing.assert_allclose(one.kept.numpy(), state, rtol=2e-4)


def test_two_calls_run_and_the_others_are_written(layers: list[Layer]) -> None:
    x = RNG.standard_normal((5, WIDTH)).astype(np.float32)
    found = repeated(layers, Tensor(x).realize())
    assert Layer.runs == 2
    compare(layers, found, x)


def test_the_graph_is_the_one_that_running_gives(layers: list[Layer]) -> None:
    x = Tensor(RNG.standard_normal((5, WIDTH)).astype(np.float32)).realize()
    before = [one.kept._storage.node for one in layers]
    found = repeated(layers, x)
    written = [one.kept._storage.node for one in layers]
    for one, node in zip(layers, before, strict=True):
        one.kept._storage.put(node)
    again = x
    for one in layers:
        again = one(again)
    assert found._value() is again._value()
    assert written == [one.kept._storage.node for one in layers]


def test_a_captured_step_keeps_state_and_follows_symbolic_rows(layers: list[Layer]) -> None:
    x = RNG.standard_normal((5, WIDTH)).astype(np.float32)
    given = Tensor(x).realize()

    @jit
    def step(whole: Tensor, rows: object) -> Tensor:
        return repeated(layers, whole[:rows])

    for turn, count in enumerate((3, 3, 3)):
        found = step(given, bind(ROWS, count))
        compare(layers, found, x[:count], turn + 1)
    assert Layer.runs == 4


def test_what_is_not_told_of_is_found_out(layers: list[Layer]) -> None:
    x = RNG.standard_normal((5, WIDTH)).astype(np.float32)
    calls, value = RepeatedCalls(), Tensor(x).realize()
    for one in layers:
        # The weight, which differs from layer to layer, is not told of.
        value = calls.call("layer", one, value, [], [one.kept])
    assert Layer.runs == DEPTH
    compare(layers, value, x)


def test_numbers_in_python_are_found_out() -> None:
    x = Tensor(np.ones((2, WIDTH), np.float32)).realize()
    calls = RepeatedCalls()
    for number in range(5):
        def scaled(value: Tensor, by: int = number) -> Tensor:
            return value * (by + 2)

        x = calls.call("scaled", scaled, x, [], [])
    np.testing.assert_array_equal(x.numpy(), np.full((2, WIDTH), 2.0 * 3 * 4 * 5 * 6))


def test_kinds_are_told_apart(layers: list[Layer]) -> None:
    calls, runs = RepeatedCalls(), []

    def kind(number: int) -> Callable[[Tensor], Tensor]:
        def double(value: Tensor) -> Tensor:
            runs.append(number)
            return value * (2 + number % 2)

        return double

    x = Tensor(np.ones((2, 3), np.float32)).realize()
    for number in range(10):
        x = calls.call(number % 2, kind(number), x, [], [])
    np.testing.assert_array_equal(x.numpy(), np.full((2, 3), 6.0**5))
    assert len(runs) == 4


def test_a_first_call_that_is_unlike_the_others_is_passed_over() -> None:
    calls, runs, x = RepeatedCalls(), [], Tensor(np.ones((2, 3), np.float32)).realize()

    def double(value: Tensor) -> Tensor:
        runs.append(1)
        return value * 2 if len(runs) > 1 else value * 3 + 1

    for _ in range(6):
        x = calls.call("double", double, x, [], [])
    np.testing.assert_array_equal(x.numpy(), np.full((2, 3), 4 * 2.0**5))
    assert len(runs) == 3


def test_gradients_go_through_calls_that_run(layers: list[Layer]) -> None:
    weights = [Tensor(RNG.standard_normal(4).astype(np.float32)).requires_grad_() for _ in range(5)]
    x = Tensor(np.ones(4, np.float32)).realize()
    calls = RepeatedCalls()
    for weight in weights:
        x = calls.call("scale", weight.__mul__, x, [weight], [])
    x.sum().backward()
    others = np.prod([weight.detach().numpy() for weight in weights[1:]], axis=0)
    assert weights[0].grad is not None
    np.testing.assert_allclose(weights[0].grad.numpy(), others, rtol=1e-5)


def test_other_shapes_are_run(layers: list[Layer]) -> None:
    calls = RepeatedCalls()
    for length in (3, 3, 3, 4, 3):
        x = Tensor(np.arange(length, dtype=np.float32)).realize()
        by = Tensor(np.full(length, 2.0, np.float32)).realize()
        found = calls.call("double", by.__mul__, x, [by], [])
        np.testing.assert_array_equal(found.numpy(), np.arange(length) * 2.0)
