"""The error function and GELU, in both ways that machines compute it."""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest

from baregrad.dtypes import DType
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.kernel.legalise import transcendental_erf
from tests.kernel.legalise.accuracy import (
    ERRORS,
    F32,
    F64,
    FLOATS,
    SLOW,
    WIDE,
    assert_same,
    check_special_values,
    exact,
    run,
    samples,
    ulps,
)

pytestmark = pytest.mark.differential


@FLOATS
def test_special_values_of_erf(dtype: DType) -> None:
    check_special_values(Ops.ERF, dtype)


@FLOATS
def test_error_of_erf_is_as_stated(dtype: DType) -> None:
    x = samples(dtype, (-1, 1), (-4, 4), (-6, 6), count=1 << 9)
    error = ulps(run(Ops.ERF, dtype, x), exact(mpmath.erf, x))
    worst = int(np.argmax(error))
    assert error[worst] <= ERRORS[Ops.ERF, dtype], f"{float(error[worst])} ulp at {x[worst]!r}"


Gelu = Callable[[Node], Node]
# Machines compute float32's in one way or the other: the error of each.
SINGLE = (
    (transcendental_erf.gelu, F32, 2.7),
    (transcendental_erf.gelu_by_lookup, F32, ERRORS[Ops.GELU, F32]),
)
GELUS = (*SINGLE, (transcendental_erf.gelu, F64, ERRORS[Ops.GELU, F64]))


@pytest.mark.parametrize(("gelu", "dtype", "most"), GELUS)
def test_error_of_gelu_is_as_stated(gelu: Gelu, dtype: DType, most: float) -> None:
    """In units of the larger of the result and half the argument."""
    x = samples(dtype, (-1, 1), (-4, 4), (-7, 7), count=1 << 10)
    x = x[: len(x) // 8 * 8]
    # Beyond 40 it is the argument or nothing, and mpmath has no room for e**-x**2.
    true = exact(
        lambda v: v * mpmath.erfc(-v / mpmath.sqrt(2)) / 2 if abs(v) < 40 else max(v, 0), x
    )
    found = run(gelu, dtype, x)
    info = np.finfo(dtype.numpy)
    finite = np.isfinite(x)
    true = np.where(finite, true, 1)
    largest = np.maximum(np.maximum(np.abs(true), np.abs(x.astype(WIDE)) / 2), WIDE(info.tiny))
    unit = np.exp2(np.floor(np.log2(np.where(finite, largest, 1))) - info.nmant)
    error = np.where(finite, np.abs(found.astype(WIDE) - true) / unit, 0)
    worst = int(np.argmax(error))
    assert error[worst] <= most, f"{float(error[worst])} ulp at {x[worst]!r}"


@SLOW
@pytest.mark.parametrize(("gelu", "dtype", "most"), SINGLE)
def test_error_of_gelu_at_every_fifth_float(gelu: Gelu, dtype: DType, most: float) -> None:
    """Float32, where few samples miss the worst. Judged by the C library's erfc."""
    first, last = np.array([2.0**-10, 8.0], np.float32).view(np.int32).tolist()
    for start in range(first, last, 1 << 22):
        size = np.arange(start, min(start + (1 << 22), last), 5, np.int32)
        size = size[: len(size) // 8 * 8].view(np.float32)
        wide = size.astype(np.float64)
        halves = map(math.erfc, (wide * math.sqrt(0.5)).tolist())
        part = wide * np.fromiter(halves, np.float64, len(size)) / 2
        for x, true in ((-size, -part), (size, wide - part)):
            unit = np.exp2(np.floor(np.log2(np.maximum(np.abs(true), wide / 2))) - 23)
            error = np.abs(run(gelu, dtype, x) - true) / unit
            worst = int(np.argmax(error))
            assert error[worst] <= most, f"{error[worst]} ulp at {x[worst]!r}"


@pytest.mark.parametrize(("gelu", "dtype", "most"), GELUS)
def test_special_values_of_gelu(gelu: Gelu, dtype: DType, most: float) -> None:
    """The limits, signs of zeros, half of what is tiny, and nothing but -0 far below 0."""
    info = np.finfo(dtype.numpy)
    tiny = info.tiny
    x = np.array([np.inf, np.nan, 0.0, 50.0, 1e30, info.max, tiny, tiny / 8], dtype.numpy)
    assert_same(run(gelu, dtype, x), np.array([*x[:6], tiny / 2, tiny / 16], dtype.numpy), x)
    wanted = np.array([-0.0, np.nan, *[-0.0] * 4, -tiny / 2, -tiny / 16], dtype.numpy)
    assert_same(run(gelu, dtype, -x), wanted, -x)
    below = -np.geomspace(5.5 if dtype is F32 else 40, 1e38, 1 << 12).astype(dtype.numpy)
    assert_same(run(gelu, dtype, below), np.full_like(below, -0.0), below)
