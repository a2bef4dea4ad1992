"""Values that two loops share in scratch memory, kept for each point of the tiles around them."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from baregrad.base.options import options
from baregrad.tensor import Tensor

WAYS = (("CPU", "tensor"), ("REF", "loop"), ("REF", "linear"))


@pytest.mark.parametrize(("device", "level"), WAYS)
@pytest.mark.parametrize(("rows", "columns"), tuple(product((1, 2, 3, 8), (16, 17, 40, 64, 192))))
def test_a_product_with_a_softmax(rows: int, columns: int, device: str, level: str) -> None:
    """Short axes are unrolled: the exponentials of several rows are kept at once."""
    a = np.random.default_rng(rows * columns).normal(size=(rows, columns))
    high = np.exp(a - a.max(1, keepdims=True))
    wanted = a @ (high / high.sum(1, keepdims=True)).T
    with options.override(device=device, ref_level=level):
        t = Tensor(a)
        made = (t @ t.softmax(1).mT).numpy()
    np.testing.assert_allclose(made, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("rows", "columns"), ((16, 3), (17, 8), (40, 2), (64, 3), (128, 20)))
def test_a_softmax_of_columns(rows: int, columns: int) -> None:
    """The other axis across: it may lie in the lanes of vectors."""
    a = np.random.default_rng(rows * columns).normal(size=(rows, columns))
    high = np.exp(a - a.max(0, keepdims=True))
    wanted = (high / high.sum(0, keepdims=True)).T @ a
    with options.override(device="CPU"):
        t = Tensor(a)
        made = (t.softmax(0).mT @ t).numpy()
    np.testing.assert_allclose(made, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("device", "level"), WAYS)
@pytest.mark.parametrize(("rows", "columns"), ((5, 17), (3, 16), (4, 64)))
def test_a_stacked_softmax_reads_inside_its_rows(
    rows: int, columns: int, device: str, level: str
) -> None:
    """Exponentials that a guard covers are not kept ahead of it, where there is nothing to read."""
    rng = np.random.default_rng(rows)
    scale = rng.normal(size=(rows, 1)).astype(np.float32)
    row = rng.integers(0, 2, columns).astype(bool)
    a = scale.astype(np.float64) * row
    high = np.exp(a - a.max(1, keepdims=True))
    wanted = np.stack([a, high / high.sum(1, keepdims=True)])
    with options.override(device=device, ref_level=level):
        t = Tensor(scale) * Tensor(row)
        made = Tensor.stack([t, t.softmax(1)], dim=0).numpy()
    np.testing.assert_allclose(made, wanted, rtol=1e-5, atol=1e-6)
