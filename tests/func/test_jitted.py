"""Jitted functions inside transformations: called as they are, whatever was captured before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from baregrad import Tensor, func, jit

X = [1.0, 2.0, 3.0]


@pytest.mark.parametrize("calls_before", [0, 3])
@pytest.mark.parametrize("transformed", [
    lambda f, x: func.grad(lambda a: f(a).sum())(x),
    lambda f, x: func.jvp(f, (x,), (x.ones_like(),))[1],
    lambda f, x: func.vmap(func.grad(f))(x),
    lambda f, x: func.vmap(f)(x) * 2 / x,
    lambda f, x: func.scan(lambda c, v: (c, f(v)), Tensor(0.0), x)[1] * 2 / x,
    lambda f, x: func.checkpoint(f, x) * 2 / x,
])  # fmt: skip
def test_derivatives_and_batches_pass_jitted_functions(
    transformed: Callable[..., Any], calls_before: int
) -> None:
    f = jit(lambda x: x * x)
    x = Tensor(X).realize()
    for _ in range(calls_before):
        f(x)
    for _ in range(3):
        assert transformed(f, x).tolist() == pytest.approx([2.0, 4.0, 6.0])
    for _ in range(3):
        assert f(x).tolist() == [1.0, 4.0, 9.0]
