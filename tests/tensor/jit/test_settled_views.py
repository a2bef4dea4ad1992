"""Results that are views with symbolic extents: what they are views of is symbolic as well."""

from __future__ import annotations

from typing import Any

import numpy as np

from baregrad import Tensor, bind, jit, variable
from tests.tensor.jit.test_jit import numbers


def test_a_view_of_a_symbolic_result_follows_its_size() -> None:
    n = variable("n", 1, 8)

    @jit
    def function(x: Tensor, rows: Any) -> tuple[Tensor, Tensor]:
        part = x[:rows]
        return part.cumsum(1)[:, -1], part.take_along_dim(part.argmax(1, True), 1)[:, 0]

    x = numbers(8, 4)
    for size in (3, 3, 5, 8, 1):
        total, best = function(Tensor(x), bind(n, size))
        np.testing.assert_allclose(total.numpy(), x[:size].sum(1), rtol=1e-5)
        np.testing.assert_array_equal(best.numpy(), x[:size].max(1))
    assert function.captures == 1


def test_a_symbolic_result_with_gradients_follows_its_size() -> None:
    n = variable("n", 1, 8)

    @jit
    def function(x: Tensor, rows: Any) -> Tensor:
        return x.detach().requires_grad_()[:rows].exp()

    x = numbers(8, 4)
    for size in (2, 2, 8, 5):
        found = function(Tensor(x), bind(n, size))
        np.testing.assert_allclose(found.numpy(), np.exp(x[:size]), rtol=1e-5)
    assert function.captures == 1


def test_a_symbolic_view_beside_what_is_computed_from_it() -> None:
    """Once the other result is computed, its size is a number: other sizes were refused."""

    @jit
    def function(x: Tensor, n: Any) -> tuple[Tensor, Tensor]:
        part = x[:n]
        return part, part.clone()

    x, n = Tensor(numbers(9, 4)), variable("n", 1, 9)
    for size in (3, 2, 9, 1):
        for result in function(x, bind(n, size)):
            np.testing.assert_array_equal(result.numpy(), x.numpy()[:size])
    assert function.captures == 1
