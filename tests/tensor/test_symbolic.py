"""Symbolic extents: lengths that are variables with bounds, bound to a value when computed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from baregrad.base.errors import IndexOutOfRange, ShapeError
from baregrad.engine.canonical import bind
from baregrad.ir.core.index import add, variable
from baregrad.tensor import Tensor


def test_a_slice_of_symbolic_length() -> None:
    array = np.arange(12.0).reshape(4, 3)
    x = Tensor(array)
    for length in (1, 3):
        n = bind(variable("n", 1, 4), length)
        part = x[:n]
        assert part.shape == (n, 3)
        np.testing.assert_allclose(part.sum(0).numpy(), array[:length].sum(0))
        np.testing.assert_allclose(part.mean(0).numpy(), array[:length].mean(0))
        np.testing.assert_allclose(
            (part @ part.T).sum().numpy(), (array[:length] @ array[:length].T).sum()
        )
        np.testing.assert_allclose(part.softmax(0).sum().item(), 3.0)
        np.testing.assert_allclose(part.numpy(), array[:length])


def test_made_with_a_symbolic_extent() -> None:
    n = bind(variable("n", 1, 9), 5)
    assert Tensor.zeros(n, 4).sum().item() == 0
    assert Tensor.ones(n, 4).sum().item() == 20
    assert Tensor.arange(n).sum().item() == 10
    assert Tensor.arange(n).shape == (n,)


def test_writing_at_a_symbolic_place() -> None:
    at = bind(variable("at", 0, 3), 2)
    cache = Tensor.zeros(4, 2)
    cache[at : add(at, 1)] = Tensor([[5.0, 6.0]])
    assert cache.tolist() == [[0.0, 0.0], [0.0, 0.0], [5.0, 6.0], [0.0, 0.0]]
    cache[at] += 1
    assert cache[2].tolist() == [6.0, 7.0]


def test_attention_over_a_prefix() -> None:
    rng = np.random.default_rng(1)
    q, k = (
        rng.normal(size=(1, 2, 4)).astype(np.float32),
        rng.normal(size=(1, 6, 4)).astype(np.float32),
    )
    n = bind(variable("n", 1, 6), 3)
    keys = Tensor(k)[:, :n]
    found = Tensor(q).scaled_dot_product_attention(keys, keys)
    wanted = Tensor(q).scaled_dot_product_attention(Tensor(k[:, :3]), Tensor(k[:, :3]))
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-6, atol=2.0**-25)


def test_reshape_and_gradient() -> None:
    n = bind(variable("n", 1, 4), 3)
    x = Tensor(np.arange(8.0).reshape(4, 2), requires_grad=True)
    loss = (x[:n].reshape(n, 1, 2).permute(1, 0, 2) * 2).sum()
    (gradient,) = loss.gradient(x)
    assert gradient.tolist() == [[2.0, 2.0]] * 3 + [[0.0, 0.0]]


def test_arithmetic_in_indices() -> None:
    """The last rows of a part whose length is symbolic, read with and without arithmetic."""
    array = np.arange(24.0).reshape(8, 3)
    x = Tensor(array)
    n = variable("n", 2, 6)
    for length in (2, 5, 6):
        m = bind(n, length)
        part = x[:m]
        assert part[-1].tolist() == array[length - 1].tolist()
        assert x[m - 1].tolist() == array[length - 1].tolist()
        assert (part + 1)[-2].tolist() == (array[length - 2] + 1).tolist()
        assert x[m - 2 : m + 2].tolist() == array[length - 2 : length + 2].tolist()
        assert x[m // 2 : m].sum().item() == array[length // 2 : length].sum()


def test_what_needs_a_known_extent_says_so() -> None:
    part = Tensor.ones(8, 3)[: bind(variable("n", 2, 6), 3)]
    asked: list[Callable[[], object]] = [
        lambda: len(part), lambda: list(part), lambda: part.split(1), lambda: part.chunk(2),
        lambda: part.roll(1, 0), lambda: part.topk(1, 0), lambda: part.median(0),
    ]  # fmt: skip
    for ask in asked:
        with pytest.raises(ShapeError, match="known now.*found .*n=3"):
            ask()


def test_scalars_of_variables() -> None:
    n = bind(variable("n", 1, 4), 3)
    assert (Tensor([1.0, 2.0]) * n).tolist() == [3.0, 6.0]


def test_errors() -> None:
    n = variable("n", 1, 9)
    with pytest.raises(IndexOutOfRange, match="up to 9, wanted at most 4"):
        Tensor.ones(4)[:n]
    with pytest.raises(IndexOutOfRange, match="1 to 9"):
        Tensor.ones(4)[n]
    with pytest.raises(ShapeError, match="known"):
        Tensor.ones(n).sort()
