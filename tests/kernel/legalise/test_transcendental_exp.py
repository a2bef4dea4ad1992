"""Exponentials, logarithms and powers: errors as stated, thresholds and special values."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from baregrad.dtypes import DType
from baregrad.ir.core.op import Op, Ops
from tests.kernel.legalise.accuracy import (
    ERRORS,
    F32,
    FLOATS,
    WIDE,
    assert_same,
    check_error,
    check_special_values,
    run,
    ulps,
)

pytestmark = pytest.mark.differential
EXPONENTIALS = (Ops.EXP, Ops.EXP_NEAR, Ops.EXP2, Ops.EXP2_NEAR, Ops.LOG, Ops.LOG2, Ops.TANH)


@FLOATS
@pytest.mark.parametrize("op", EXPONENTIALS, ids=str)
def test_error_of_exponentials_is_as_stated(op: Op, dtype: DType) -> None:
    check_error(op, dtype)


@FLOATS
@pytest.mark.parametrize("op", EXPONENTIALS, ids=str)
def test_special_values_of_exponentials(op: Op, dtype: DType) -> None:
    check_special_values(op, dtype)


@FLOATS
def test_error_of_powers_is_as_stated(dtype: DType) -> None:
    generator = np.random.default_rng(3)
    steep = 300 if dtype is F32 else 5000
    spans = (((0, 3), (-40, 40)), ((0.9, 1.1), (-steep, steep)), ((0, 1e9), (-4, 4)))
    xs, ys = zip(*((generator.uniform(*a, 512), generator.uniform(*b, 512)) for a, b in spans),
                 strict=True)
    x, y = np.concatenate(xs).astype(dtype.numpy), np.concatenate(ys).astype(dtype.numpy)
    with mpmath.workprec(120):
        powers = [mpmath.mpf(float(a)) ** mpmath.mpf(float(b)) for a, b in zip(x, y, strict=True)]
        # Far below what either dtype holds, text does not survive the conversion.
        expected = np.array([WIDE(mpmath.nstr(p, 25)) if p > 1e-4000 else WIDE(0) for p in powers])
    with np.errstate(all="ignore"):
        error = ulps(run(Ops.POW, dtype, x, y), expected)
    worst = int(np.argmax(error))
    assert error[worst] <= ERRORS[Ops.POW, dtype], (float(error[worst]), x[worst], y[worst])


@FLOATS
def test_thresholds_of_exponentials(dtype: DType) -> None:
    """The last finite and the first infinite result, the last subnormal and the first zero."""
    info = np.finfo(dtype.numpy)
    top = np.log(WIDE(info.max))
    bottom = np.log(WIDE(info.smallest_subnormal) / 2)
    edges = [top, bottom, np.log(WIDE(info.tiny))]
    x = np.array([np.nextafter(dtype.numpy.type(e), dtype.numpy.type(s)) for e in edges
                  for s in (-1e9, 1e9)] + [700.0, -800.0], dtype.numpy)
    with np.errstate(all="ignore"):
        expected = np.exp(x.astype(WIDE))
        found = run(Ops.EXP, dtype, x)
        assert np.array_equal(np.isinf(found), np.isinf(expected.astype(dtype.numpy)))
        assert np.max(ulps(found, expected)) <= ERRORS[Ops.EXP, dtype]
    powers = np.arange(-1080, 1032)
    with np.errstate(all="ignore"):
        # Exact, as NumPy's own exp2 is not on every machine.
        exact = np.ldexp(dtype.numpy.type(1), powers)
        np.testing.assert_array_equal(run(Ops.EXP2, dtype, powers.astype(dtype.numpy)), exact)


@FLOATS
def test_special_powers(dtype: DType) -> None:
    odd = 2.0**23 + 1 if dtype is F32 else 2.0**52 + 1
    values = [0.0, 1.0, 2.0, 3.0, 0.5, 2.5, np.inf, 1e30, 4.0, 1e-30, odd, 2.0**24]
    values = [*values, *(-v for v in values), np.nan, -0.0, 1.0, 5.0, -7.0]
    values = values[: len(values) // 4 * 4]
    grid = np.meshgrid(np.array(values, dtype.numpy), np.array(values, dtype.numpy))
    x, y = (np.ascontiguousarray(a.ravel()) for a in grid)
    with np.errstate(all="ignore"):
        expected = np.power(x.astype(np.float64), y.astype(np.float64)).astype(dtype.numpy)
    found = run(Ops.POW, dtype, x, y)
    simple = ~np.isfinite(expected) | (expected == 0) | (expected == np.trunc(expected))
    simple &= ~np.isfinite(expected) | (np.abs(expected) < 1 / np.finfo(dtype.numpy).eps)
    assert_same(found[simple], expected[simple], np.stack([x, y])[:, simple])
    np.testing.assert_allclose(found, expected, rtol=3 * np.finfo(dtype.numpy).eps, atol=0)
