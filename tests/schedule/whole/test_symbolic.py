"""Symbolic sizes stay symbolic: one plan for every value of a variable."""

from __future__ import annotations

import pytest

from baregrad.ir.core import index
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from tests.schedule.graphs import F32, I64, A, check, iota, param

N = index.variable("n", 1, 64)


def product(a: A, b: A) -> A:
    m, k = a.shape
    n = b.shape[1]
    left = a.reshape(m, 1, k).expand(m, n, k)
    return (left * b.permute(1, 0).reshape(1, n, k).expand(m, n, k)).sum(2)


@pytest.mark.parametrize("n", [1, 2, 13, 64])
@pytest.mark.parametrize(
    ("kernels", "make"),
    [
        (1, lambda x: x + 1.0),
        (1, lambda x: x.softmax()),
        (1, lambda x: product(x, param(1, 32, 8)).relu()),
        (1, lambda x: x.sum(0)),
        (1, lambda x: x.sum()),
        (1, lambda x: x.flip(0) * 2.0),
        (1, lambda x: x.reshape(index.mul(N, 32)) * 2.0),
        (1, lambda x: x.reshape(N, 4, 8).permute(1, 0, 2) * 1.0),
        (1, lambda x: x.pad((0, index.sub(64, N)), (0, 0)) + 1.0),
        (1, lambda x: iota(N).cast(F32).reshape(N, 1).expand(N, 32) * x),
        (1, lambda x: x.scan(0)),
        (2, lambda x: product(product(x, param(1, 32, 16)).relu(), param(2, 16, 4))),
        (2, lambda x: product(x, param(1, 64, 32).shrink((0, N), (0, 32)).permute(1, 0)).softmax()),
    ],
)
def test_symbolic_extent(n: int, kernels: int, make: object) -> None:
    x = param(0, N, 32)
    plan = check([make(x)], variables={"n": n}, kernels=kernels)  # type: ignore[operator]
    output = plan.buffers[plan.outputs[0]]
    assert isinstance(output.nbytes, int) or output.nbytes.mask & Ops.VAR.bit
    assert isinstance(plan.arena_nbytes, int)


@pytest.mark.parametrize("place", [0, 5, 63])
def test_cache_write_at_a_symbolic_place(place: int) -> None:
    p = index.variable("p", 0, 63)
    cache, row = param(0, 64, 16), param(1, 1, 16)
    at = A(Node(Ops.CAST, I64, (p,))).reshape(1, 1).expand(1, 16)
    made = cache.scatter(row, at, iota(16).reshape(1, 16))
    plan = check([made], variables={"p": place}, kernels=1, donate={0: 0})
    # The place is index arithmetic, not a loaded value.
    assert not any(child.mask & Ops.CAST.bit for child in plan.kernels[0].src[0].src[2:])
