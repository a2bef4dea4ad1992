"""Sine, cosine and arctangent: errors as stated, and arguments of every size."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from baregrad.dtypes import DType
from baregrad.ir.core.op import Op, Ops
from tests.kernel.legalise.accuracy import (
    ERRORS,
    F64,
    FLOATS,
    WIDE,
    check_error,
    check_special_values,
    run,
    ulps,
)

pytestmark = pytest.mark.differential
ANGLES = (Ops.SIN, Ops.COS, Ops.ATAN)


@FLOATS
@pytest.mark.parametrize("op", ANGLES, ids=str)
def test_error_of_angles_is_as_stated(op: Op, dtype: DType) -> None:
    check_error(op, dtype)


@FLOATS
@pytest.mark.parametrize("op", ANGLES, ids=str)
def test_special_values_of_angles(op: Op, dtype: DType) -> None:
    check_special_values(op, dtype)


@FLOATS
def test_sine_and_cosine_of_every_power_of_two(dtype: DType) -> None:
    """The whole range of exponents, and neighbours of multiples of pi/2 that cancel most."""
    info = np.finfo(dtype.numpy)
    powers = np.ldexp(1.0, np.arange(info.minexp, info.maxexp)).astype(dtype.numpy)
    # The float64 and the float32 nearest to a multiple of pi/2, by Kahan's and Muller's searches.
    hard = [6381956970095103.0 * 2.0**797] if dtype is F64 else [16367173.0 * 2.0**72]
    multiples = (np.arange(1, 2000) * (np.pi / 2)).astype(dtype.numpy)
    x = np.concatenate([powers, -powers[::3], multiples, np.array(hard, dtype.numpy)])
    x = np.concatenate([x, x[: -len(x) % 8]])
    for op, function in ((Ops.SIN, mpmath.sin), (Ops.COS, mpmath.cos)):
        with mpmath.workprec(1200):
            texts = [mpmath.nstr(function(mpmath.mpf(float(v))), 25) for v in x]
        error = ulps(run(op, dtype, x), np.array([WIDE(text) for text in texts]))
        worst = int(np.argmax(error))
        assert error[worst] <= ERRORS[op, dtype], (float(error[worst]), x[worst])
