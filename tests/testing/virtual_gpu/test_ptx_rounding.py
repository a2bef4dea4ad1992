"""float64 fused multiply-add against rational arithmetic."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from baregrad.testing.virtual_gpu.ptx.rounding import fma_double

COUNT = 2000


def numbers(kind: str) -> tuple[Any, Any, Any]:
    random = np.random.default_rng(8)
    signs = np.where(random.random(COUNT) < 0.5, -1.0, 1.0)
    if kind == "plain":
        a, b, c = random.standard_normal((3, COUNT))
    elif kind == "cancelling":
        a, b = random.standard_normal((2, COUNT))
        c = -(a * b) * (1 + random.integers(-3, 4, COUNT) * 2.0**-52)
    elif kind == "near a tie":
        a, b = 1 + random.integers(0, 8, (2, COUNT)) * 2.0**-52
        c = np.ldexp(signs, random.integers(-110, 3, COUNT))
    elif kind == "whole":
        a, b = random.integers(1, 1 << 53, (2, COUNT)).astype(float)
        c = np.ldexp(signs, random.integers(0, 110, COUNT))
    else:
        a, b, c = (
            np.ldexp(random.standard_normal(COUNT), random.integers(-540, 500, COUNT))
            for _ in range(3)
        )
    return a, b, c


@pytest.mark.parametrize("kind", ["plain", "cancelling", "near a tie", "whole", "of all sizes"])
def test_it_is_rounded_once(kind: str) -> None:
    a, b, c = numbers(kind)
    wanted = [
        float(Fraction(x) * Fraction(y) + Fraction(z))
        for x, y, z in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    ]
    with np.errstate(all="ignore"):
        assert fma_double(a, b, c).tolist() == wanted


def test_numbers_that_are_special() -> None:
    values = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 5e-324, 1.7e308]
    a, b, c = (one.reshape(-1) for one in np.meshgrid(values, values, values))
    with np.errstate(all="ignore"):
        found, plain = fma_double(a, b, c), a * b + c
    special = ~np.isfinite([a, b, c]).all(0) | (a == 0) | (b == 0)
    same = (found == plain) & (np.signbit(found) == np.signbit(plain))
    assert (same | (np.isnan(found) & np.isnan(plain)))[special].all()
    with np.errstate(all="ignore"):
        big = fma_double(np.array([1.7e308]), np.array([1.7e308]), np.array([-1.0]))
    assert big.tolist() == [np.inf]
