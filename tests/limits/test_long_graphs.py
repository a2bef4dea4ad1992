"""Graphs far larger than a model's: they compile, run, and nothing recurses over them."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
import pytest

from baregrad.base.options import options
from baregrad.ir.core.node import toposort
from baregrad.ir.text.dump import dump
from baregrad.tensor import Tensor

# Enough for pytest and a compiler pass, far from enough for recursion over 10,000 nodes.
FRAMES = 900


@pytest.fixture(autouse=True)
def _on_cpu() -> Iterator[None]:
    # Verifying is linear too, but would double the time of these tests.
    with options.override(device="CPU", verify=False):
        yield


@pytest.fixture
def _shallow_stack() -> Iterator[None]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(FRAMES)
    yield
    sys.setrecursionlimit(before)


def chain(x: Tensor, nodes: int) -> Tensor:
    """x -> x / 2 + 1, again and again: 2 is where it ends."""
    for _ in range(nodes // 2):
        x = x * 0.5 + 1.0
    return x


@pytest.mark.usefixtures("_shallow_stack")
@pytest.mark.parametrize("nodes", [
    pytest.param(20_000), pytest.param(100_000, marks=pytest.mark.slow),
])
def test_a_long_chain_compiles_and_runs(nodes: int) -> None:
    y = chain(Tensor([1.0, 2.0, 3.0]).realize(), nodes)
    assert len(toposort(y.node)) > nodes
    np.testing.assert_array_equal(y.numpy(), np.full(3, 2.0, np.float32))


@pytest.mark.usefixtures("_shallow_stack")
@pytest.mark.parametrize("count", [
    pytest.param(2_500), pytest.param(10_000, marks=pytest.mark.slow),
])
def test_a_sum_of_many_tensors_compiles_and_runs(count: int) -> None:
    total = Tensor([0.0, 1.0])
    for number in range(1, count):
        total = total + Tensor([float(number), 1.0])
    # Each of the additions rounds once, by at most 2**-24 of the sum so far.
    wanted = np.array([count * (count - 1) / 2, count])
    np.testing.assert_allclose(total.numpy(), wanted, rtol=count * 2.0**-24)


@pytest.mark.usefixtures("_shallow_stack")
def test_a_long_chain_has_gradients() -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)
    y = x
    for _ in range(2_000):
        y = y * 0.999 + 0.001
    y.sum().backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), np.full(2, 0.999**2000), rtol=1e-3)


@pytest.mark.usefixtures("_shallow_stack")
def test_a_chain_of_sines_compiles_in_linear_time() -> None:
    """Each sine reads the last one twice, once behind a branch: all of it is computed once."""
    x = np.array([0.5, 1.0, 2.0, 3.0], np.float32)
    t = Tensor(x, requires_grad=True)
    y = t
    value, slope = x.astype(np.float64), np.ones(4)
    for _ in range(40):
        y = y.sin()
        slope = slope * np.cos(value)
        value = np.sin(value)
    y.sum().backward()
    assert t.grad is not None
    np.testing.assert_allclose(y.numpy(), value, rtol=1e-4)
    np.testing.assert_allclose(t.grad.numpy(), slope, rtol=1e-3)


@pytest.mark.usefixtures("_shallow_stack")
def test_a_long_chain_of_writes_compiles_and_runs() -> None:
    x = Tensor([1.0, 2.0])
    for _ in range(5_000):
        x += 1.0
    np.testing.assert_array_equal(x.numpy(), np.array([5001.0, 5002.0], np.float32))


@pytest.mark.usefixtures("_shallow_stack")
def test_a_long_chain_of_reductions_compiles_and_runs() -> None:
    x = Tensor([1.0, 2.0, 3.0, 4.0]).realize()
    y = x
    wanted = np.array([1.0, 2.0, 3.0, 4.0])
    for _ in range(1_000):
        y = x + y.sum() * 0.1
        wanted = np.array([1.0, 2.0, 3.0, 4.0]) + wanted.sum() * 0.1
    np.testing.assert_allclose(y.numpy(), wanted, rtol=1e-5)


@pytest.mark.usefixtures("_shallow_stack")
def test_a_graph_of_100_000_nodes_is_built_walked_printed_and_freed() -> None:
    y = chain(Tensor([1.0]), 100_000)
    order = toposort(y.node)
    assert len(order) > 100_000
    assert dump(y.node).count("\n") >= 100_000
    del order, y
