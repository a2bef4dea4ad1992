"""Long reductions to few values in two steps."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad import Tensor
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


@pytest.mark.parametrize("shape", [(524309,), (3, 262147), (2, 3, 174763)])
@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_lengths_that_few_numbers_divide_are_cut_too(shape: tuple[int, ...], dtype: str) -> None:
    """Without parts one thread would do all of it; the last one is filled up."""
    made = canonicalise(sink(param(0, *shape).sum()))
    assert [node.shape for node in toposort(made) if node.op is Ops.CONTIGUOUS] == [(64,)]
    rng = np.random.default_rng(0)
    x = -1 - rng.integers(0, 1000, shape).astype(dtype)
    t = Tensor(x, device="CPU")
    for name in ("sum", "amax", "amin"):
        exact = getattr(np, name)(x.astype(np.float64))
        assert getattr(t, name)().item() == pytest.approx(exact, rel=1e-5 * (x.dtype.kind == "f"))
    assert t.sign().prod().item() == np.sign(x).prod()
    assert ((t < 0).all().item(), (t >= 0).any().item()) == (True, False)


@pytest.mark.parametrize("shape", [(524309, 8), (262147, 9), (174763, 1, 15)])
def test_parts_are_several_where_results_are(shape: tuple[int, ...]) -> None:
    made = canonicalise(sink(param(0, *shape).sum(0)))
    (stored,) = [node for node in toposort(made) if node.op is Ops.CONTIGUOUS]
    assert stored.shape[0] >= 64
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    found = Tensor(x, device="CPU").sum(0).numpy()
    assert np.abs(found - x.sum(0, dtype=np.float64)).max() < 1e-2


@pytest.mark.parametrize(
    "shape",
    [(70001, 17), (2, 1 << 16, 3, 6), pytest.param((1 << 22, 16), marks=pytest.mark.slow)],
)
def test_sums_of_many_like_terms_are_near(shape: tuple[int, ...]) -> None:
    """Term after term in float32 they would be up to 2 % off: 0.1 is rounded alike in each."""
    x = np.full(shape, 0.1, np.float32)
    axis = int(np.argmax(shape))
    exact = x.astype(np.float64).sum(axis)
    np.testing.assert_allclose(Tensor(x, device="CPU").sum(axis).numpy(), exact, rtol=2e-4)
    rows = np.moveaxis(x, axis, -1)
    found = Tensor(rows, device="CPU").sum(-1).numpy()
    np.testing.assert_allclose(found, exact, rtol=2e-4)
    # Rows of a turned array are columns in memory.
    turned = Tensor(x, device="CPU").movedim(axis, -1)
    np.testing.assert_allclose(turned.abs().sum(-1).numpy(), exact, rtol=2e-4)


def test_a_product_of_matrices_is_one_sum() -> None:
    x, y = param(0, 32, 1 << 17), param(1, 1 << 17, 32)
    made = canonicalise(sink(x @ y))
    assert not [node for node in toposort(made) if node.op is Ops.CONTIGUOUS]


@pytest.mark.parametrize(
    "shape", [(34325, 6), (34325, 17), (9001, 30), (200005, 1), (300, 500, 3)]
)
def test_sums_are_near_however_their_terms_lie(shape: tuple[int, ...]) -> None:
    """Term after term they would be up to 3e-4 off, as all are about -30000."""
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(shape) - 30000).astype(np.float32)
    t, wide = Tensor(x, device="CPU").realize(), x.astype(np.float64)
    last = tuple(range(x.ndim - 1))
    for found, exact in (
        (t.sum(), wide.sum()),
        (t.sum(last), wide.sum(last)),
        (t.permute(*range(x.ndim)[::-1]).sum(), wide.sum()),
        (t.reshape(-1)[::5].sum(), wide.reshape(-1)[::5].sum()),
        (t[..., :1].sum(), wide[..., :1].sum()),
    ):
        np.testing.assert_allclose(found.numpy(), exact, rtol=5e-6)


@pytest.mark.parametrize(
    ("shape", "order"),
    [((2493, 5, 5), (0, 2, 1)), ((1771, 20, 3), (1, 0, 2)), ((145, 517), (1, 0))],
)
def test_sums_over_axes_of_middling_lengths_are_near(
    shape: tuple[int, ...], order: tuple[int, ...]
) -> None:
    """No axis is long, but together they are: 60,000 terms one after the other lose 5e-4."""
    values = np.random.default_rng(1).standard_normal((*shape[:-1], 3 * shape[-1])) - 30000
    x = values.astype(np.float32)
    found = Tensor(x, device="CPU").realize()[..., ::3].permute(*order).sum().numpy()
    np.testing.assert_allclose(found, x[..., ::3].astype(np.float64).sum(), rtol=5e-6)
