"""Long reductions to few values in two steps."""

from __future__ import annotations

import pytest

from baregrad.graph import canonicalise
from baregrad.ir.core.node import toposort
from baregrad.ir.core.op import Ops
from tests.schedule.graphs import check, param, sink


def test_long_sums_are_made_in_parts() -> None:
    x = param(0, 512, 1024)
    plan = check([x.sum(), x.max(), (x * x).mean()], kernels=2, tolerance=1e-3)
    assert plan.arena_nbytes == 3 * 256


@pytest.mark.parametrize("shape", [(1 << 19,), (2, 1 << 18), (1, 300007), (64, 3, 64, 64)])
def test_parts_of_odd_shapes(shape: tuple[int, ...]) -> None:
    x = param(0, *shape)
    last = tuple(axis for axis in range(len(shape)) if axis != 1) or (0,)
    check([x.sum(), x.sum(*last)], tolerance=1e-2)


@pytest.mark.parametrize(
    ("shape", "parts"),
    (((1 << 19,), 64), ((1 << 23,), 128), ((1 << 12, 1 << 12), 256), ((1 << 26,), 256)),
)
def test_longer_sums_have_more_parts(shape: tuple[int, ...], parts: int) -> None:
    """Threads wait for the last part to end, so it is a smaller share of what takes longer."""
    made = canonicalise(sink(param(0, *shape).sum()))
    (stored,) = [node for node in toposort(made) if node.op is Ops.CONTIGUOUS]
    assert stored.shape == (parts,)
