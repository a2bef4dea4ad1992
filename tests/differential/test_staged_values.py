"""A dear value that two loops share is kept in scratch memory, once for each step around it."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad.base.options import options
from baregrad.tensor import Tensor
from tests.differential import sweep


@pytest.mark.parametrize("rows", (16, 7, 33))
@pytest.mark.parametrize("columns", (16, 40))
def test_rows_that_are_unrolled_keep_values_of_their_own(rows: int, columns: int) -> None:
    rng = np.random.default_rng(rows)
    data, others = rng.uniform(-4, 4, (rows, columns)), rng.uniform(-4, 4, (1, columns))
    with options.override(device=sweep.DEVICE):
        x, weight = Tensor(data), Tensor(others)
        flipped = x.sin().flip(1)
        product = flipped @ weight.mT
        mixed = x + (product * 0.25 + 1) * weight.flip(1) * x.cos() + x.sin()
        shown = flipped.contiguous()
        shown.realize(product, mixed)
        found = [t.numpy() for t in (shown, product, mixed)]
    sine = np.sin(data)[:, ::-1]
    scaled = sine @ others.T
    wanted = data + (scaled * 0.25 + 1) * others[:, ::-1] * np.cos(data) + np.sin(data)
    for a, b in zip(found, (sine, scaled, wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
