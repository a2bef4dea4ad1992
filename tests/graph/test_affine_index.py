"""One-hot sums, scatters that write each row once, arrays that count."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad.graph import canonicalise
from baregrad.graph.affine_index import affine_index_of
from baregrad.ir.core.op import Ops
from tests.graph.graphs.canonical import ops
from tests.schedule.graphs import F32, I64, A, check, iota, iota_along, param, sink, value


def hot(labels: A, classes: int) -> A:
    n = labels.shape[0]
    return labels.reshape(n, 1).eq(iota(classes).reshape(1, classes))


def test_embedding_by_one_hot_matmul_is_a_gather() -> None:
    ids, table = param(0, 12, dtype=I64), param(1, 50, 8)
    made = hot(ids, 50).cast(F32) @ table
    assert Ops.REDUCE not in ops(made)
    check([made], kernels=1)


@pytest.mark.parametrize(
    "make",
    [
        lambda x, i: hot(i, 9).where(x, 0).sum(1),
        lambda x, i: (hot(i, 9).cast(F32) * x).sum(1),
        lambda x, i: (x * hot(i, 9).cast(F32)).sum(1),
        lambda x, i: iota_along((7, 9), 1).eq(i.reshape(7, 1)).where(x.exp(), 0).sum(1),
        lambda x, i: (iota_along((7, 9), 1) + value(1, I64)).eq(i.reshape(7, 1)).where(x, 0).sum(1),
        lambda x, i: iota(9).flip(0).reshape(1, 9).eq(i.reshape(7, 1)).where(x, 0).sum(1),
        lambda x, i: hot(i, 9).where(x, 0).sum(),
        lambda x, i: hot(i, 9).cast(F32).sum(1),
    ],
)
@pytest.mark.parametrize("low", [0, -2])
def test_one_hot_sums(make: object, low: int) -> None:
    x, i = param(0, 7, 9), param(1, 7, dtype=I64)
    made = make(x, i)  # type: ignore[operator]
    assert Ops.REDUCE not in ops(made) or made.shape == ()
    # Labels out of range count for nothing.
    labels = np.arange(7) * 2 + low
    check([made], {0: np.random.default_rng(1).standard_normal((7, 9)).astype("f4"), 1: labels})


def test_other_sums_stay() -> None:
    x, i = param(0, 7, 9), param(1, 7, 9, dtype=I64)
    made = i.eq(iota_along((7, 9), 1)).where(x, 0).sum(1)
    assert Ops.REDUCE in ops(made)
    check([made])


def test_places() -> None:
    x = (iota(10).shrink((2, 9, 3)).flip(0) * value(1, I64) + value(5, I64)).reshape(1, 3, 1)
    found = affine_index_of(canonicalise(sink(x)).src[0])
    assert found is not None
    assert (found.axis, found.start, found.step) == (1, 13, -3)
    assert affine_index_of(param(0, 4, dtype=I64).node) is None
    assert affine_index_of((iota(4) * iota(4)).node) is None


def test_gather_of_places_is_read_directly() -> None:
    plan = check([param(0, 20).gather(iota(5) * value(3, I64) + value(2, I64))], kernels=1)
    kernel = plan.kernels[0]
    assert not kernel.mask & (Ops.GUARD.bit | Ops.CAST.bit)


def test_iota_through_views_stays_a_place() -> None:
    check([iota(12).reshape(3, 4).permute(1, 0).flip(0).cast(param(0, 4).node.dtype)], kernels=1)
