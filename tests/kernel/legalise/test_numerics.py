"""Errors of the transcendental functions, in units in the last place, against mpmath and NumPy.

float32 is measured against NumPy's 80-bit functions, float64 against mpmath, on samples of all
magnitudes and dense ones where the function is interesting.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest

from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.node import Node, alu
from baregrad.ir.core.op import Op, Ops
from baregrad.kernel.codegen import to_linear
from baregrad.kernel.legalise import transcendental_erf
from baregrad.kernel.legalise import transcendental_tables as tables
from baregrad.kernel.legalise.transcendental import FUNCTIONS
from baregrad.target.cpu import cpu_row_named
from tests.kernel import fit_functions
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
        (Ops.LOG, 1.5, 1.5),
        (Ops.LOG2, 1.5, 1.5),
        (Ops.SIN, 1.6, 2.0),
        (Ops.COS, 1.6, 2.0),
        (Ops.TANH, 2.0, 2.0),
        (Ops.ERF, 2.0, 2.0),
        (Ops.GELU, 4.1, 1.5),
        (Ops.ATAN, 2.0, 2.0),
        (Ops.POW, 1.5, 2.0),
    )
    for dtype, error in zip((dtypes.float32, dtypes.float64), errors, strict=True)
}
pytestmark = pytest.mark.differential
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
    Ops.EXP2: ((-155, 130), (-1080, 1030), (-1, 1)),
    Ops.LOG: ((0, 2), (0.7, 1.5), (0, 1e30)),
    Ops.LOG2: ((0, 2), (0.7, 1.5), (0, 1e30)),
    Ops.SIN: ((-4, 4), (-1e5, 1e5), (-1e15, 1e15)),
    Ops.COS: ((-4, 4), (-1e5, 1e5), (-1e15, 1e15)),
    Ops.TANH: ((-1, 1), (-12, 12), (-25, 25)),
    Ops.ATAN: ((-1, 1), (-10, 10), (-1e3, 1e3)),
}
NUMPY = {
    Ops.EXP: np.exp,
    Ops.EXP2: np.exp2,
    Ops.LOG: np.log,
    Ops.LOG2: np.log2,
    Ops.SIN: np.sin,
    Ops.COS: np.cos,
    Ops.TANH: np.tanh,
    Ops.ATAN: np.arctan,
}


@FLOATS
@pytest.mark.parametrize("op", SPANS, ids=str)
def test_error_is_as_stated(op: Op, dtype: DType) -> None:
    x = samples(dtype, *SPANS[op], count=1 << 14)
    with np.errstate(all="ignore"):
        expected = NUMPY[op](x.astype(WIDE))
        error = ulps(run(op, dtype, x), expected)
    worst = int(np.argmax(error))
    assert error[worst] <= ERRORS[op, dtype], f"{float(error[worst])} ulp at {x[worst]!r}"


@pytest.mark.parametrize("op", SPANS, ids=str)
def test_extended_precision_is_a_fair_judge(op: Op) -> None:
    """NumPy's 80-bit functions are near enough to mpmath's to measure float64 by."""
    x = samples(F64, *SPANS[op], count=64)
    function = getattr(mpmath, {"EXP2": "exp2", "LOG2": "log2"}.get(op.name, op.name.lower()), None)
    if op is Ops.EXP2:
        function = lambda v: mpmath.mpf(2) ** v  # noqa: E731
    elif op is Ops.LOG2:
        function = lambda v: mpmath.log(v, 2)  # noqa: E731
    if op in (Ops.LOG, Ops.LOG2):
        x = np.abs(x)
    x = x[np.isfinite(x) & (np.abs(x) < 1e300) & (x != 0)]
    with np.errstate(all="ignore"):
        own = NUMPY[op](x.astype(WIDE))
        true = exact(function, x)
        finite = np.isfinite(true) & (np.abs(true) > 1e-300) & (np.abs(true) < 1e300)
        apart = np.abs(own - true) / np.abs(np.where(finite, true, 1))
    assert np.max(np.where(finite, apart, 0)) < 2.0**-60


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


def test_machines_compute_gelu_by_tables_where_an_instruction_looks_in_one() -> None:
    node = elementwise([partial(alu, Ops.GELU)], 64, [F32], 16)
    for name, looks in (("x86-64-avx2", False), ("x86-64-avx512", True), ("arm64-neon", False)):
        found = [part for part in to_linear(node, cpu_row_named(name)).src if part.op is Ops.LOOKUP]
        assert bool(found) == looks, name


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


# --- special values -----------------------------------------------------------------------------


def assert_same(found: Any, expected: Any, arguments: Any) -> None:
    """Equal, signs of zeros included, NaN for NaN."""
    nan = np.isnan(found) & np.isnan(expected)
    same = nan | ((found == expected) & (np.signbit(found) == np.signbit(expected)))
    bad = np.flatnonzero(~same)
    assert not bad.size, [(np.asarray(arguments)[..., k], found[k], expected[k]) for k in bad[:5]]


@FLOATS
@pytest.mark.parametrize("op", (*SPANS, Ops.ERF), ids=str)
def test_special_values(op: Op, dtype: DType) -> None:
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


def test_every_function_states_its_error() -> None:
    missing = [
        (op, dtype) for op in FUNCTIONS for dtype in (F32, F64)
        if op is not Ops.THREEFRY and (op, dtype) not in ERRORS
    ]
    assert not missing


def test_threefry_gives_the_published_vectors() -> None:
    """Known answers of Threefry-2x32-20 from the Random123 distribution's kat_vectors."""
    vectors = (
        ((0x00000000, 0x00000000), (0x00000000, 0x00000000), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
    )
    words = np.array(vectors * 8, np.uint64)
    counter, key, expected = (words[:, k, 0] | (words[:, k, 1] << np.uint64(32)) for k in range(3))
    node = elementwise([lambda c, k: alu(Ops.THREEFRY, c, k)], 24, [dtypes.uint64] * 2)
    found = np.zeros(24, np.uint64)
    compiled(lower(node))([found, np.ascontiguousarray(counter), np.ascontiguousarray(key)])
    np.testing.assert_array_equal(found, expected)


NAMES = [
    name if name == "SIN_F32" else pytest.param(name, marks=SLOW) for name in fit_functions.NAMES
]


@pytest.mark.parametrize("name", NAMES)
def test_tables_are_what_the_fit_prints(name: str) -> None:
    text = Path(tables.__file__).read_text()
    assert fit_functions.table_text(name) in text
