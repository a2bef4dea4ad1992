"""Narrow numbers in words: DOT2, its order, roundings and special values; sums of 8-bit floats."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from baregrad.dtypes import dtypes
from baregrad.ir.analysis.words import octet_sums
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.alu import apply


def rounded(value: Fraction) -> float:
    """The nearest float32, of two the even one; 0 for subnormal ones."""
    if not value:
        return 0.0
    exponent = math.frexp(float(abs(value)))[1]
    step = Fraction(2) ** (exponent - 24)
    near = float(round(value / step) * step)
    return near if abs(near) >= 2.0**-126 else 0.0


def test_the_upper_product_is_added_first_and_each_is_rounded_once() -> None:
    """Exact fractions stand beside it; subnormal factors, summands and sums are 0."""
    rng = np.random.default_rng(0)
    halves = rng.standard_normal((2, 3000, 2)) * 2.0 ** rng.integers(-70, 8, (2, 3000, 2))
    halves[:, ::50] *= 2.0**-63
    codes = (halves.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    x, y = codes.view(np.int32)[..., 0]
    z = (rng.standard_normal(3000) * 2.0 ** rng.integers(-134, 12, 3000)).astype(np.float32)
    found = apply(Ops.DOT2, dtypes.float32, [dtypes.int32, dtypes.int32, dtypes.float32], (x, y, z))
    assert found.dtype == np.float32
    numbers = (codes.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    numbers[np.abs(numbers) < 2.0**-126] = 0
    for a, b, c, value in zip(*numbers.tolist(), z.tolist(), found.tolist(), strict=True):
        total = Fraction(c) if abs(c) >= 2.0**-126 else Fraction(0)
        for part in (1, 0):
            total = Fraction(rounded(total + Fraction(a[part]) * Fraction(b[part])))
        assert value == total, (a, b, c)


@pytest.mark.parametrize(("x", "y", "z", "wanted"), [
    ((1.0, np.inf), (2.0, 1.0), 0.0, np.inf), ((0.0, np.inf), (1.0, 0.0), 1.0, np.nan),
    ((np.inf, np.inf), (1.0, -1.0), 0.0, np.nan), ((np.nan, 0.0), (0.0, 0.0), 1.0, np.nan),
    ((2.0**127, 2.0**127), (-2.0, 2.0), 0.0, np.inf), ((0.0, 2.0**127), (0.0, 2.0), -1.0, np.inf),
    ((2.0**-24, 1.0), (1.0, 1.0), 0.0, 1.0), ((-1.0, 1.0), (1.0, 1.0), 2.0**-24, 0.0),
    ((1.0, -1.0), (1.0, 1.0), 2.0**-24, 2.0**-24), ((1e-39, 0.0), (2.0**100, 1.0), 0.0, 0.0),
    ((-0.0, 0.0), (1.0, 1.0), -0.0, 0.0), ((-0.0, -0.0), (1.0, 1.0), -0.0, -0.0),
    ((0.0, -1e-39), (1.0, 1.0), -1e-39, 0.0), ((-1e-39, -1e-39), (1.0, 1.0), -1e-39, -0.0),
])  # fmt: skip
def test_special_values(
    x: tuple[float, float], y: tuple[float, float], z: float, wanted: float
) -> None:
    """As the instruction gave them on a processor of the fourth generation of EPYC."""
    with np.errstate(under="ignore"):
        words = [
            (np.array(each, np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.int32)
            for each in (x, y)
        ]
    found = apply(
        Ops.DOT2, dtypes.float32, [dtypes.int32, dtypes.int32, dtypes.float32],
        (*words, np.array([z], np.float32)),
    )
    assert np.array_equal(found, np.array([wanted], np.float32), equal_nan=True)
    assert np.isnan(wanted) or np.signbit(found[0]) == np.signbit(wanted)


@pytest.mark.parametrize(("products", "before", "wanted"), [
    (((128, 64), (1, 1.125)), 0, 8193), (((128, 128), (1, 1.125)), 0, 16384),
    (((1, 1.125),), 8192, 8193), (((1, 1.125),), 16384, 16384), (((-1, 1.125),), 8192, 8191),
    (((128, 128), (-128, 128), (1, 1.125)), 0, 0), (((1, 1.125),), 0, 1.125),
    # Of 2.25, whose factors' exponents are 0, two halves of its last bit are kept, and make one.
    (((1.5, 1.5), (2.0**-6, 2.0**-7)), 0, 2.25), (((2.0, 1.0), *((2.0**-6, 2.0**-7),) * 2), 0, 2),
    (((1.5, 1.5), *((2.0**-6, 2.0**-7),) * 2), 0, 2.25 + 2.0**-12),
    (((0.0, 1.0),), 0, 0), (((np.nan, 1.0),), 1, np.nan), (((0.0, 1.0),), np.inf, np.inf),
])  # fmt: skip
def test_sums_of_8_bit_floats_keep_13_bits_below_the_first_of_the_largest(
    products: tuple[tuple[float, float], ...], before: float, wanted: float
) -> None:
    """As Hopper's unit gave them: what is cut off hangs on the largest term, not on the sum."""
    left, right = (np.array(side, np.float64)[None] for side in zip(*products, strict=True))
    kinds = dtypes.float8_e4m3fn, dtypes.float8_e4m3fn
    found = octet_sums(left, right, np.array([[before]], np.float64), kinds)
    assert np.array_equal(found, [[wanted]], equal_nan=True)
