"""jit with symbolic integers and extents: one capture for all of their values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from baregrad.base.errors import ShapeError
from baregrad.base.options import options
from baregrad.engine.canonical import bind
from baregrad.engine.session import Session, use_session
from baregrad.ir.core.index import variable
from baregrad.tensor import Tensor
from baregrad.tensor.jit.jit import jit


def numbers(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_symbolic_sizes_stay_symbolic() -> None:
    size = variable("n", 1, 32)

    @jit
    def total(x: Tensor, n: Any) -> Tensor:
        return (x[:n] * 2).sum()

    data = numbers(32)
    for n in (3, 7, 32, 1, 20):
        got = total(Tensor(data), bind(size, n)).item()
        np.testing.assert_allclose(got, data[:n].sum() * 2, rtol=1e-4, atol=1e-5)
    assert total.captures == 1


def test_a_symbolic_view_among_results_is_computed_apart() -> None:
    """What is computed beside a sum may change its last bit; `realize` computes no views."""

    def function(x: Tensor, n: Any) -> tuple[Tensor, Tensor]:
        part = x[:, :n]
        return part, (part * 2).sum(1)

    session = Session()
    with use_session(session):
        runs: list[Any] = []
        session.watching.observers.append(runs.append)
        x, n = Tensor(numbers(4, 8)), variable("n", 1, 8)
        part, total = function(x, bind(n, 5))
        part.realize(total)
        captured = jit(function)
        for size in (3, 4):
            captured(x, bind(n, size))
        sums = runs[0].program.sink
        assert [run.program.sink is sums for run in runs] == [True, True, False, True, False]
        shown, total = captured(x, bind(n, 6))
        np.testing.assert_array_equal(shown.numpy(), x.numpy()[:, :6])
        np.testing.assert_allclose(total.numpy(), 2 * x.numpy()[:, :6].sum(1), rtol=1e-5)


def test_a_view_of_a_symbolic_result_is_computed_apart() -> None:
    """Its base is what a plain call computes: kernels that find both in memory sum otherwise."""

    def function(x: Tensor, n: Any) -> tuple[Tensor, Tensor]:
        base = x.repeat(n, 1)
        shown = base.flip(0)
        shown[:, 1:2] = 0
        return shown, (base * base * 0.125 + base).sum(0)

    session = Session()
    with use_session(session):
        runs: list[Any] = []
        session.watching.observers.append(runs.append)
        x, n = Tensor(numbers(3, 8)), variable("n", 1, 8)
        shown, total = function(x, bind(n, 5))
        shown.realize(total)
        captured = jit(function)
        for size in (3, 4):
            captured(x, bind(n, size))
        plain = runs[0].program.sink
        assert [run.program.sink is plain for run in runs] == [True, True, False, True, False]
        for size in (6, 1, 8):
            shown, total = captured(x, bind(n, size))
            base = np.tile(x.numpy(), (size, 1))
            base[:, 1] = 0
            np.testing.assert_array_equal(shown.numpy(), base[::-1])
            np.testing.assert_allclose(total.numpy(), (base * base / 8 + base).sum(0), rtol=1e-5)
        assert captured.captures == 1


def _part(x: Tensor, n: Any) -> list[Tensor]:
    return [x[:n]]


def _parts_and_products(x: Tensor, n: Any) -> list[Tensor]:
    return [x[:n], x[:n] * 3]


def _turned(x: Tensor, n: Any) -> list[Tensor]:
    return [(x[:n] + 1).T]


@pytest.mark.parametrize("options_", ({}, {"jit_check": True}, {"device": "REF"}))
@pytest.mark.parametrize("given", (_part, _parts_and_products, _turned))
def test_one_capture_serves_all_values_of_an_extent(
    given: Callable[..., list[Tensor]], options_: dict[str, Any]
) -> None:
    size, data = variable("n", 1, 32), numbers(32, 4)

    def function(x: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        y = x + sum(others) if others else x
        return y @ y.mT, y.softmax(0), y.flip(0), y.sum(), x

    with options.override(**options_):
        captured = jit(function)
        for n in (3, 7, 9, 1, 32, 3):
            found = captured(*given(Tensor(data), bind(size, n)))
            wanted = function(*given(Tensor(data), n))
            for one, other in zip(found, wanted, strict=True):
                assert one.numpy().shape == other.shape
                np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-5, atol=1e-5)
        assert captured.captures == 1 and captured.replays == 4


def test_gradients_and_changes_of_arguments_of_symbolic_extents() -> None:
    size, data = variable("n", 1, 32), numbers(32, 4)

    @jit
    def change(x: Tensor) -> Tensor:
        leaf = x.detach().clone().requires_grad_()
        (leaf * leaf).sum().backward()
        x += 1
        assert leaf.grad is not None
        return leaf.grad

    for n in (3, 7, 9, 1, 32):
        x = Tensor(data)[: bind(size, n)] * 2
        np.testing.assert_allclose(change(x).numpy(), 4 * data[:n], rtol=1e-6)
        np.testing.assert_allclose(x.numpy(), data[:n] * 2 + 1, rtol=1e-6)
    assert change.captures == 1


def test_a_symbolic_extent_has_one_value_in_a_call() -> None:
    size, x = variable("n", 1, 32), Tensor(numbers(32, 4))
    with pytest.raises(ShapeError, match="n is both 3 and 4"):
        jit(lambda x, y: x.sum() + y.sum())(x[: bind(size, 3)], x[: bind(size, 4)])


def test_a_symbolic_place_in_a_cache() -> None:
    place = variable("place", 0, 15)
    cache = Tensor.zeros(16, 4).contiguous()

    @jit
    def step(query: Tensor, key: Tensor, at: Any) -> Tensor:
        cache[at] = key
        keys = cache[: at + 1]
        return (keys @ query).softmax(0) @ keys

    kept = np.zeros((16, 4), np.float32)
    for at in range(16):
        query, kept[at] = numbers(4, seed=at), numbers(4, seed=at + 50)
        got = step(Tensor(query), Tensor(kept[at]), bind(place, at))
        keys = kept[: at + 1]
        weights = np.exp(keys @ query - (keys @ query).max())
        wanted = weights / weights.sum() @ keys
        np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-4, atol=1e-5)
    assert step.captures == 1
