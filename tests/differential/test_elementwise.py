"""Elementwise operations on the CPU against the reference device and NumPy: bits and ulps."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest

from baregrad.dtypes import DType, dtypes
from tests.differential import sweep
from tests.differential.sweep import FLOATS, INTEGERS, assert_same_bits, every_pair

pytestmark = pytest.mark.differential

EXACT_UNARY: tuple[tuple[str, Any], ...] = (
    ("neg", operator.neg), ("abs", abs), ("sqrt", lambda x: x.sqrt()),
    ("reciprocal", lambda x: x.reciprocal()), ("square", lambda x: x.square()),
    ("floor", lambda x: x.floor()), ("ceil", lambda x: x.ceil()),
    ("trunc", lambda x: x.trunc()), ("round", lambda x: x.round()),
    ("frac", lambda x: x.frac()), ("sign", lambda x: x.sign()),
    ("signbit", lambda x: x.signbit()), ("isnan", lambda x: x.isnan()),
    ("isinf", lambda x: x.isinf()), ("isfinite", lambda x: x.isfinite()),
    ("relu", lambda x: x.relu()), ("clamp", lambda x: x.clamp(-1, 2)),
    ("clamp low", lambda x: x.clamp(min=0)), ("nan_to_num", lambda x: x.nan_to_num()),
    ("x + 1.5", lambda x: x + 1.5), ("x * 3", lambda x: x * 3), ("x / 3", lambda x: x / 3),
    ("1 / x", lambda x: 1 / x), ("x - 0.1", lambda x: x - 0.1), ("x // 2", lambda x: x // 2),
    ("x % 3", lambda x: x % 3), ("x == 0", lambda x: x == 0), ("x * 0", lambda x: x * 0),
    ("x - x", lambda x: x - x), ("x / x", lambda x: x / x), ("x == x", lambda x: x == x),
    ("x + 0", lambda x: x + 0), ("x * 1", lambda x: x * 1), ("x * -1", lambda x: x * -1),
    ("0 - x", lambda x: 0 - x), ("-(-x)", lambda x: x.neg().neg()),
    ("x * 2 / 2", lambda x: x * 2 / 2),
    ("x + 1 - 1", lambda x: x + 1 - 1), ("x < inf", lambda x: x < float("inf")),
    ("masked", lambda x: x.masked_fill(x > 1, 7)), ("not", lambda x: x.logical_not()),
)  # fmt: skip
BINARY: tuple[tuple[str, Any], ...] = (
    ("add", operator.add), ("sub", operator.sub), ("mul", operator.mul),
    ("div", operator.truediv), ("floordiv", operator.floordiv), ("mod", operator.mod),
    ("maximum", lambda x, y: x.maximum(y)), ("minimum", lambda x, y: x.minimum(y)),
    ("lt", operator.lt), ("le", operator.le), ("gt", operator.gt), ("ge", operator.ge),
    ("eq", operator.eq), ("ne", operator.ne),
    ("where", lambda x, y: (x < y).where(x, y)), ("copysign", lambda x, y: x.copysign(y)),
    ("fmod", lambda x, y: x.fmod(y)), ("a*b+a", lambda x, y: x * y + x),
    ("a*b-b", lambda x, y: x * y - y), ("and", lambda x, y: (x > 0) & (y > 0)),
)  # fmt: skip
BITS: tuple[tuple[str, Any], ...] = (
    ("and", operator.and_), ("or", operator.or_), ("xor", operator.xor),
    ("shl", operator.lshift), ("shr", operator.rshift), ("invert", lambda x, y: ~x),
    ("add", operator.add), ("sub", operator.sub), ("mul", operator.mul),
    ("floordiv", operator.floordiv), ("mod", operator.mod), ("div", operator.truediv),
    ("maximum", lambda x, y: x.maximum(y)), ("minimum", lambda x, y: x.minimum(y)),
    ("lt", operator.lt), ("le", operator.le), ("eq", operator.eq), ("ne", operator.ne),
    ("neg", lambda x, y: -x), ("abs", lambda x, y: abs(x)), ("square", lambda x, y: x.square()),
    ("sign", lambda x, y: x.sign()), ("x // 3", lambda x, y: x // 3),
    ("x % 7", lambda x, y: x % 7), ("x // 8", lambda x, y: x // 8), ("x % 8", lambda x, y: x % 8),
    ("x << 3", lambda x, y: x << 3), ("x >> 3", lambda x, y: x >> 3), ("x * 5", lambda x, y: x * 5),
    ("100 // x", lambda x, y: 100 // x), ("100 % x", lambda x, y: 100 % x),
    ("clamp", lambda x, y: x.clamp(1, 100)), ("fmod", lambda x, y: x.fmod(y)),
    ("pow 3", lambda x, y: x**3),
)  # fmt: skip
# name, function, exact value, largest error in ulps, lowest and highest argument
FUNCTIONS: tuple[tuple[str, Any, Any, float, float, float], ...] = (
    ("exp", lambda x: x.exp(), np.exp, 2, -80, 80),
    ("exp2", lambda x: x.exp2(), np.exp2, 2, -120, 120),
    ("log", lambda x: x.log(), np.log, 2, 1e-6, 1e6),
    ("log2", lambda x: x.log2(), np.log2, 2, 1e-6, 1e6),
    ("sin", lambda x: x.sin(), np.sin, 2, -100, 100),
    ("cos", lambda x: x.cos(), np.cos, 2, -100, 100),
    ("tanh", lambda x: x.tanh(), np.tanh, 4, -12, 12),
    ("sigmoid", lambda x: x.sigmoid(), lambda x: 1 / (1 + np.exp(-x)), 4, -40, 40),
    ("rsqrt", lambda x: x.rsqrt(), lambda x: 1 / np.sqrt(x), 2, 1e-6, 1e6),
    ("expm1", lambda x: x.expm1(), np.expm1, 4, -5, 5),
    ("log1p", lambda x: x.log1p(), np.log1p, 4, -0.9, 100),
    ("atan", lambda x: x.atan(), np.arctan, 4, -50, 50),
    ("sinh", lambda x: x.sinh(), np.sinh, 6, -10, 10),
    ("cosh", lambda x: x.cosh(), np.cosh, 6, -10, 10),
)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_float_arithmetic_has_the_bits_of_the_reference(dtype: DType) -> None:
    special = sweep.floats(dtype)
    assert_same_bits(EXACT_UNARY, [(special, dtype)])
    assert_same_bits(EXACT_UNARY, [(sweep.floats(dtype, 997), dtype)])
    left, right = every_pair(special)
    assert_same_bits(BINARY, [(left, dtype), (right, dtype)])
    many = [(sweep.floats(dtype, 1003, seed), dtype) for seed in (1, 2)]
    assert_same_bits(BINARY, many)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integer_arithmetic_has_the_bits_of_the_reference(dtype: DType) -> None:
    left, right = every_pair(sweep.integers(dtype))
    assert_same_bits(BITS, [(left, dtype), (right, dtype)])
    many = [(sweep.integers(dtype, 501, seed), dtype) for seed in (1, 2)]
    assert_same_bits(BITS, many)


def test_bool_arithmetic_has_the_bits_of_the_reference() -> None:
    left, right = every_pair(np.array([False, True]))
    rows = [row for row in BITS if row[0] in ("and", "or", "xor", "invert", "eq", "ne", "mul")]
    assert_same_bits(rows, [(left, dtypes.bool), (right, dtypes.bool)])


@pytest.mark.parametrize("source", (*FLOATS, *INTEGERS, dtypes.bool), ids=str)
def test_casts_have_the_bits_of_the_reference(source: DType) -> None:
    targets = (*FLOATS, *INTEGERS, dtypes.bool)
    rows = [(f"to {t}", lambda x, t=t: x.cast(t)) for t in targets]
    if source.kind == "bool":
        assert_same_bits(rows, [(np.array([True, False, True]), source)])
        return
    draw = sweep.floats if source.kind == "float" else sweep.integers
    assert_same_bits(rows, [(draw(source), source)])
    assert_same_bits(rows, [(draw(source, 333), source)])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_functions_keep_their_stated_error(dtype: DType) -> None:
    """Against float64, and for float64 against NumPy's long double where that is wider."""
    rng = np.random.default_rng(3)
    for name, function, exact, limit, low, high in FUNCTIONS:
        top = min(high, 10.0) if dtype is dtypes.float16 else high
        raw = rng.uniform(max(low, -top), top, 2000)
        (found,) = sweep.on_device(sweep.DEVICE, [function], [(raw, dtype)])
        (rounded,) = sweep.on_device("REF", [lambda x: x.cast(dtypes.float64)], [(raw, dtype)])
        wanted = exact(rounded.astype(np.longdouble))
        worst = sweep.ulps(found, wanted, dtype)
        at = int(np.argmax(worst))
        assert worst[at] <= limit, f"{name}({rounded[at]!r}) = {found[at]!r}: {worst[at]} ulp"


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_functions_of_special_values(dtype: DType) -> None:
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, 1.0])
    functions = [row[1] for row in FUNCTIONS]
    found = sweep.on_device(sweep.DEVICE, functions, [(special, dtype)])
    wanted = sweep.on_device("REF", functions, [(special, dtype)])
    for row, ours, theirs in zip(FUNCTIONS, found, wanted, strict=True):
        simple = ~np.isfinite(theirs) | (theirs == 0)
        differs = sweep.bits_differ(ours, theirs) & simple
        assert not differs.any(), f"{row[0]}({special[differs]}) = {ours[differs]}"
