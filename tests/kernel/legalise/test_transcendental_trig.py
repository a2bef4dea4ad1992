"""Sine, cosine and arctangent: errors as stated, and arguments of every size."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.attrs import Param
from baregrad.ir.core.node import Node, alu, const, toposort
from baregrad.ir.core.op import Op, Ops
from baregrad.kernel.legalise.transcendental_trig import cos, most
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


def angles(scale: float, dtype: DType = dtypes.float32) -> Node:
    """Integers of 24 bits as angles of up to 2**24 * scale."""
    word = Node(Ops.PARAM, dtypes.uint64, (), Param(0, ()))
    short = alu(Ops.SHR, word, const(40, dtypes.uint64))
    return alu(Ops.MUL, Node(Ops.CAST, dtype, (short,)), const(scale, dtype))


def test_angles_that_are_small_for_certain_need_no_long_reduction() -> None:
    small, huge = angles(2.0**-22), angles(2.0**20)
    assert most(small) < 4.1
    assert most(huge) >= 2.0**44
    assert most(const(math.nan, dtypes.float32)) == math.inf
    # The words of 2/pi are 64-bit integers, which small angles multiply nothing with.
    products = {
        size: sum(
            node.op is Ops.MUL and node.dtype is dtypes.uint64 for node in toposort(cos(angle))
        )
        for size, angle in {"small": small, "huge": huge}.items()
    }
    assert products["small"] == 0 < products["huge"]
