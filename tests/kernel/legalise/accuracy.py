"""How far functions are from exact, in units in the last place, for the tests of each.

float32 is measured against NumPy's 80-bit functions, float64 against mpmath, on samples of all
magnitudes and dense ones where the function is interesting.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import mpmath
import numpy as np
import pytest

from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.node import Node, alu
from baregrad.ir.core.op import Op, Ops
from tests.render.harness import compiled, elementwise, lower

# The largest error over all arguments, in units in the last place of the result. GELU's are those
# of the larger of the result and half its argument: below 0 the result is a difference of such.
# Without LOOKUP float32's is 2.7; PyTorch's own reaches 9.5.
ERRORS = {
    (op, dtype): error
    for op, *errors in (
        # of float32 and of float64
        (Ops.EXP, 1.5, 1.5),
        (Ops.EXP2, 1.5, 1.5),
        # Where they are no instructions; their rows allow more.
        (Ops.EXP_NEAR, 1.5, 1.5),
        (Ops.EXP2_NEAR, 1.5, 1.5),
        (Ops.LOG, 1.5, 1.5),
        (Ops.LOG2, 1.5, 1.5),
        (Ops.SIN, 1.6, 2.0),
        (Ops.COS, 1.6, 2.0),
        (Ops.TANH, 2.0, 2.0),
        (Ops.ERF, 2.0, 2.0),
        (Ops.GELU, 4.1, 1.5),
        (Ops.GELU_NEAR, 4.1, 1.5),
        (Ops.ATAN, 2.0, 2.0),
        (Ops.POW, 1.5, 2.0),
    )
    for dtype, error in zip((dtypes.float32, dtypes.float64), errors, strict=True)
}
F32, F64 = dtypes.float32, dtypes.float64
SLOW = pytest.mark.slow
FLOATS = pytest.mark.parametrize("dtype", (F32, F64), ids=str)
WIDE = np.longdouble


def run(function: Op | Callable[..., Node], dtype: DType, *arguments: Any) -> Any:
    """The function as compiled, over equally long arrays whose length is a multiple of 8."""
    count = len(arguments[0])
    made = partial(alu, function) if isinstance(function, Op) else function
    node = elementwise([made], count, [dtype] * len(arguments))
    found = np.zeros(count, dtype.numpy)
    compiled(lower(node))([found, *arguments])
    return found


def ulps(found: Any, exact: Any) -> Any:
    """The error in units in the last place of `exact`, extended precision; 0 where not finite."""
    info = np.finfo(found.dtype)
    exponent = np.floor(np.log2(np.maximum(np.abs(exact), WIDE(info.tiny))))
    unit = np.exp2(exponent - info.nmant)
    with np.errstate(invalid="ignore", over="ignore"):
        finite = np.isfinite(exact) & np.isfinite(exact.astype(found.dtype))
        return np.where(finite, np.abs(found.astype(WIDE) - exact) / unit, 0)


def samples(dtype: DType, *spans: tuple[float, float], count: int = 1 << 12) -> Any:
    """Bit patterns at random, and uniform numbers from each span."""
    generator = np.random.default_rng(7)
    integer = np.int32 if dtype is F32 else np.int64
    limits = np.iinfo(integer)
    patterns = generator.integers(limits.min, limits.max, count, dtype=integer, endpoint=True)
    parts = [patterns.view(dtype.numpy)]
    parts += [generator.uniform(low, high, count).astype(dtype.numpy) for low, high in spans]
    return np.concatenate(parts)


def exact(function: Callable[[Any], Any], values: Any) -> Any:
    """A function by mpmath, in extended precision; infinities and NaN by NumPy's own."""
    with mpmath.workprec(100):
        texts = [
            mpmath.nstr(function(mpmath.mpf(float(v))), 25) if np.isfinite(v) else "nan"
            for v in values
        ]
    return np.array([WIDE(text) for text in texts])


SPANS: dict[Op, tuple[tuple[float, float], ...]] = {
    Ops.EXP: ((-110, 95), (-760, 720), (-1, 1)),
    Ops.EXP_NEAR: ((-110, 95), (-760, 720), (-1, 1)),
    Ops.EXP2: ((-155, 130), (-1080, 1030), (-1, 1)),
    Ops.EXP2_NEAR: ((-155, 130), (-1080, 1030), (-1, 1)),
    Ops.LOG: ((0, 2), (0.7, 1.5), (0, 1e30)),
    Ops.LOG2: ((0, 2), (0.7, 1.5), (0, 1e30)),
    Ops.SIN: ((-4, 4), (-1e5, 1e5), (-1e15, 1e15)),
    Ops.COS: ((-4, 4), (-1e5, 1e5), (-1e15, 1e15)),
    Ops.TANH: ((-1, 1), (-12, 12), (-25, 25)),
    Ops.ATAN: ((-1, 1), (-10, 10), (-1e3, 1e3)),
}
NUMPY = {
    Ops.EXP: np.exp,
    Ops.EXP_NEAR: np.exp,
    Ops.EXP2: np.exp2,
    Ops.EXP2_NEAR: np.exp2,
    Ops.LOG: np.log,
    Ops.LOG2: np.log2,
    Ops.SIN: np.sin,
    Ops.COS: np.cos,
    Ops.TANH: np.tanh,
    Ops.ATAN: np.arctan,
}


def assert_same(found: Any, expected: Any, arguments: Any) -> None:
    """Equal, signs of zeros included, NaN for NaN."""
    nan = np.isnan(found) & np.isnan(expected)
    same = nan | ((found == expected) & (np.signbit(found) == np.signbit(expected)))
    bad = np.flatnonzero(~same)
    assert not bad.size, [(np.asarray(arguments)[..., k], found[k], expected[k]) for k in bad[:5]]


def check_error(op: Op, dtype: DType) -> None:
    """Measure a function of `SPANS` on samples of them and on any bits."""
    x = samples(dtype, *SPANS[op], count=1 << 14)
    with np.errstate(all="ignore"):
        expected = NUMPY[op](x.astype(WIDE))
        error = ulps(run(op, dtype, x), expected)
    worst = int(np.argmax(error))
    assert error[worst] <= ERRORS[op, dtype], f"{float(error[worst])} ulp at {x[worst]!r}"


def check_special_values(op: Op, dtype: DType) -> None:
    """Where the exact result is a zero, an infinity, a NaN or the argument itself."""
    info = np.finfo(dtype.numpy)
    tiny = [info.tiny, info.tiny / 8, info.smallest_subnormal]
    values = [0.0, np.inf, np.nan, 1.0, *tiny, info.max]
    x = np.array(values + [-v for v in values], dtype.numpy)
    x = np.concatenate([x, x[: -len(x) % 8]])
    functions = {**NUMPY, Ops.ERF: lambda v: np.array([math.erf(a) for a in v], WIDE)}
    with np.errstate(all="ignore"):
        expected = functions[op](x.astype(WIDE)).astype(dtype.numpy)
        found = run(op, dtype, x)
    simple = np.isnan(expected) | np.isinf(expected) | (expected == 0) | (expected == x)
    assert_same(found[simple], expected[simple], x[simple])
    np.testing.assert_allclose(found, expected, rtol=4 * info.eps, atol=0)
