"""What every arithmetic op computes, against NumPy, mpmath, PyTorch and Python's integers."""

from __future__ import annotations

import itertools
import math
import random
import struct
from fractions import Fraction

import ml_dtypes
import mpmath
import numpy as np
import pytest
import torch

from baregrad.base.errors import CompilerBug, DTypeError
from baregrad.dtypes import ALL, COMPUTED, DType, dtypes
from baregrad.ir.core.op import ALU, ELEMENTWISE, Op, Ops, all_ops
from baregrad.ir.evaluate.alu import (
    SCALAR_RULES,
    apply,
    bitcast_array,
    cast_array,
    threefry2x32,
    to_array,
    to_raw,
    working_dtype,
)
from baregrad.ir.evaluate.kernel_level import KERNEL_RULES
from baregrad.ir.evaluate.tensor_level import TENSOR_RULES

INTS = tuple(dtype for dtype in COMPUTED if dtype.is_int)
FLOATS = tuple(dtype for dtype in COMPUTED if dtype.is_float)
UNUSUAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    2.5,
    -2.5,
    3.5,
    1e-30,
    math.inf,
    -math.inf,
    math.nan,
    88.7,
    -104.0,
]


def run(op: Op, dtype: DType, *operands) -> np.ndarray:
    out = dtypes.bool if op in (Ops.CMPLT, Ops.CMPLE, Ops.CMPEQ, Ops.CMPNE) else dtype
    kinds = [dtype] * len(operands)
    if op is Ops.WHERE:
        kinds[0] = dtypes.bool
    return apply(op, out, kinds, operands)


def integers(dtype: DType) -> np.ndarray:
    low, high = int(dtype.min), int(dtype.max)
    values = [0, 1, 2, 3, 7, 8, 63, 64, low, low + 1, low + 2, high, high - 1, high // 3]
    values += [-1, -2, -7, -8] if low else []
    rng = random.Random(1)
    values += [rng.randint(low, high) for _ in range(12)]
    return np.array(values, working_dtype(dtype))


def wrap(value: int, dtype: DType) -> int:
    low = int(dtype.min)
    return (value - low) % (1 << dtype.bits) + low


# --- the tables are whole ----------------------------------------------------------------------


def test_every_arithmetic_op_has_a_rule_and_kinds() -> None:
    assert {op for op in ALU if op not in SCALAR_RULES} == set()
    assert set(SCALAR_RULES) <= ALU
    assert {op for op in ALU if not op.kinds} == set()


def test_every_op_of_the_tensor_level_has_a_rule() -> None:
    # SLOT stands in monoids only, which have an evaluator of their own.
    wanted = {op for op in all_ops() if "tensor" in op.levels} - {Ops.SLOT}
    assert wanted - set(TENSOR_RULES) == set()
    assert set(TENSOR_RULES) - wanted == set()


def test_every_op_of_the_kernel_level_has_a_rule() -> None:
    # What is not a value: arrays, which INDEX reads, and the writes, which the runner executes.
    apart = {Ops.SLOT, Ops.PARAM, Ops.OUT, Ops.KERNEL, Ops.SINK}
    wanted = {op for op in all_ops() if "kernel" in op.levels} - apart
    assert wanted == set(KERNEL_RULES)


# --- integers, against Python's ----------------------------------------------------------------


def trunc_div(x: int, y: int) -> int:
    return (abs(x) // abs(y)) * (1 if (x < 0) == (y < 0) else -1) if y else 0


def shift_left(x: int, y: int, dtype: DType) -> int:
    return x << y if 0 <= y < dtype.bits else 0


def shift_right(x: int, y: int, dtype: DType) -> int:
    return x >> y if 0 <= y < dtype.bits else (-1 if x < 0 else 0)


BINARY_ORACLES = {
    Ops.ADD: lambda x, y, d: x + y,
    Ops.SUB: lambda x, y, d: x - y,
    Ops.MUL: lambda x, y, d: x * y,
    Ops.FLOORDIV: lambda x, y, d: x // y if y else 0,
    Ops.MOD: lambda x, y, d: x % y if y else 0,
    Ops.TRUNCDIV: lambda x, y, d: trunc_div(x, y),
    Ops.MAX: lambda x, y, d: max(x, y),
    Ops.MIN: lambda x, y, d: min(x, y),
    Ops.AND: lambda x, y, d: x & y,
    Ops.OR: lambda x, y, d: x | y,
    Ops.XOR: lambda x, y, d: x ^ y,
    Ops.SHL: shift_left,
    Ops.SHR: shift_right,
    Ops.CMPLT: lambda x, y, d: x < y,
    Ops.CMPLE: lambda x, y, d: x <= y,
    Ops.CMPEQ: lambda x, y, d: x == y,
    Ops.CMPNE: lambda x, y, d: x != y,
}


@pytest.mark.parametrize("dtype", INTS, ids=str)
@pytest.mark.parametrize("op", BINARY_ORACLES, ids=str)
def test_integer_ops_wrap_like_python_modulo_their_width(op: Op, dtype: DType) -> None:
    values = integers(dtype)
    x, y = (grid.reshape(-1) for grid in np.meshgrid(values, values))
    found = run(op, dtype, x, y)
    for a, b, value in zip(x.tolist(), y.tolist(), found.tolist(), strict=True):
        wanted = BINARY_ORACLES[op](a, b, dtype)
        assert value == (wanted if isinstance(wanted, bool) else wrap(wanted, dtype)), (a, b)


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_unary_integer_ops(dtype: DType) -> None:
    values = integers(dtype)
    for op, oracle in ((Ops.NEG, lambda x: -x), (Ops.ABS, abs), (Ops.NOT, lambda x: ~x)):
        found = run(op, dtype, values)
        assert found.dtype == values.dtype
        assert found.tolist() == [wrap(oracle(v), dtype) for v in values.tolist()]
    product = run(Ops.FMA, dtype, values, values[::-1], values)
    for x, y, z in zip(values.tolist(), values[::-1].tolist(), product.tolist(), strict=True):
        assert z == wrap(x * y + x, dtype)


def test_dot4_multiplies_unsigned_bytes_by_signed_ones() -> None:
    values = integers(dtypes.int32)
    x, y = (grid.reshape(-1) for grid in np.meshgrid(values, values))
    z = np.roll(x, 5)
    found = run(Ops.DOT4, dtypes.int32, x, y, z)
    for a, b, c, value in zip(x.tolist(), y.tolist(), z.tolist(), found.tolist(), strict=True):
        unsigned = (a & 0xFFFFFFFF).to_bytes(4, "little")
        signed = [byte - 256 * (byte > 127) for byte in (b & 0xFFFFFFFF).to_bytes(4, "little")]
        wanted = c + sum(p * q for p, q in zip(unsigned, signed, strict=True))
        assert value == wrap(wanted, dtypes.int32), (a, b, c)


@pytest.mark.parametrize(("op", "first"), [(Ops.DOT2LO, 0), (Ops.DOT2HI, 2)], ids=str)
def test_dot2_multiplies_unsigned_bytes_by_signed_halves(op: Op, first: int) -> None:
    values = integers(dtypes.int32)
    x, y = (grid.reshape(-1) for grid in np.meshgrid(values, values))
    z = np.roll(x, 5)
    found = run(op, dtypes.int32, x, y, z)
    for a, b, c, value in zip(x.tolist(), y.tolist(), z.tolist(), found.tolist(), strict=True):
        unsigned = struct.pack("<i", a)[first : first + 2]
        halves = struct.unpack("<2h", struct.pack("<i", b))
        wanted = c + sum(p * q for p, q in zip(unsigned, halves, strict=True))
        assert value == wrap(wanted, dtypes.int32), (a, b, c)


def test_bool_arithmetic_is_logic() -> None:
    p, q = np.array([False, False, True, True]), np.array([False, True, False, True])
    for op in (Ops.ADD, Ops.OR, Ops.MAX):
        assert run(op, dtypes.bool, p, q).tolist() == [False, True, True, True]
    for op in (Ops.MUL, Ops.AND, Ops.MIN):
        assert run(op, dtypes.bool, p, q).tolist() == [False, False, False, True]
    assert run(Ops.XOR, dtypes.bool, p, q).tolist() == [False, True, True, False]
    assert run(Ops.NOT, dtypes.bool, p).tolist() == [True, True, False, False]
    assert run(Ops.CMPLT, dtypes.bool, p, q).tolist() == [False, True, False, False]


# --- floats ------------------------------------------------------------------------------------

MPMATH = {
    Ops.EXP: mpmath.exp,
    Ops.EXP2: lambda x: mpmath.mpf(2) ** x,
    Ops.LOG: mpmath.log,
    Ops.LOG2: lambda x: mpmath.log(x, 2),
    Ops.SIN: mpmath.sin,
    Ops.COS: mpmath.cos,
    Ops.TANH: mpmath.tanh,
    Ops.ERF: mpmath.erf,
    Ops.ATAN: mpmath.atan,
    Ops.SQRT: mpmath.sqrt,
    Ops.RECIPROCAL: lambda x: 1 / x,
}


@pytest.mark.parametrize("dtype", (dtypes.float32, dtypes.float64), ids=str)
@pytest.mark.parametrize("op", MPMATH, ids=str)
def test_functions_are_as_good_as_rounding(op: Op, dtype: DType) -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate((rng.uniform(1e-6, 20, 150), rng.uniform(-20, 20, 150), [1e-20, 3e4]))
    if op in (Ops.LOG, Ops.LOG2, Ops.SQRT):
        values = np.abs(values)
    if op in (Ops.EXP, Ops.EXP2):
        values = values[values < 80]
    values = values.astype(dtype.numpy)
    found = run(op, dtype, values)
    limit = 0.501 if dtype is dtypes.float32 else 1.5
    with mpmath.workdps(40):
        for x, y in zip(values.tolist(), found, strict=True):
            wanted = MPMATH[op](mpmath.mpf(x))
            step = mpmath.mpf(float(np.spacing(np.abs(np.asarray(float(wanted), dtype.numpy)))))
            assert abs(mpmath.mpf(float(y)) - wanted) / step <= limit, (x, y, wanted)


def test_gelu_is_right_far_below_zero() -> None:
    values = np.random.default_rng(1).uniform(-12, 6, 300)
    found = run(Ops.GELU, dtypes.float64, values)
    with mpmath.workdps(40):
        true = [x * mpmath.erfc(-x / mpmath.sqrt(2)) / 2 for x in map(mpmath.mpf, values.tolist())]
        wanted = [float(value) for value in true]
    np.testing.assert_allclose(found, wanted, rtol=1e-13)


TORCH = {
    Ops.NEG: torch.neg, Ops.ABS: torch.abs, Ops.RECIPROCAL: torch.reciprocal,
    Ops.SQRT: torch.sqrt, Ops.EXP: torch.exp, Ops.EXP2: torch.exp2, Ops.LOG: torch.log,
    Ops.LOG2: torch.log2, Ops.SIN: torch.sin, Ops.COS: torch.cos, Ops.TANH: torch.tanh,
    Ops.ERF: torch.erf, Ops.ATAN: torch.atan, Ops.FLOOR: torch.floor, Ops.CEIL: torch.ceil,
    Ops.TRUNC: torch.trunc, Ops.RINT: torch.round, Ops.ADD: torch.add, Ops.SUB: torch.sub,
    Ops.MUL: torch.mul, Ops.DIV: torch.div, Ops.MOD: torch.remainder, Ops.POW: torch.pow,
    Ops.MAX: torch.maximum, Ops.MIN: torch.minimum, Ops.CMPLT: torch.lt, Ops.CMPLE: torch.le,
    Ops.CMPEQ: torch.eq, Ops.CMPNE: torch.ne,
}  # fmt: skip


def as_torch(values: np.ndarray, dtype: DType) -> torch.Tensor:
    return torch.from_numpy(np.array(values)).to(getattr(torch, dtype.name))


@pytest.mark.differential
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", TORCH, ids=str)
def test_special_values_are_pytorch_s(op: Op, dtype: DType) -> None:
    values = cast_array(np.array(UNUSUAL), dtypes.float64, dtype)
    operands = (
        [values] if op.arity[0] == 1 else [g.reshape(-1) for g in np.meshgrid(values, values)]
    )
    found = run(op, dtype, *operands)
    wanted = TORCH[op](*(as_torch(v, dtype) for v in operands))
    wanted = wanted.numpy() if wanted.dtype == torch.bool else wanted.to(torch.float64).numpy()
    found = found.astype(wanted.dtype)
    assert np.array_equal(np.isnan(found), np.isnan(wanted)) if found.dtype.kind == "f" else True
    # Functions differ in the last place; PyTorch's remainder is inexact on bfloat16 and float16.
    rtol = {16: 2.0**-6, 32: 1e-5, 64: 1e-13}[dtype.bits]
    exact = op not in MPMATH and op not in (Ops.POW, Ops.MOD)
    for operand, x, y in zip(zip(*operands, strict=True), found, wanted, strict=True):
        if exact or not math.isfinite(y):
            assert x == y or (x != x and y != y), (op, operand, x, y)
        else:
            assert math.isclose(x, y, rel_tol=rtol, abs_tol=1e-6), (op, operand, x, y)


def test_fma_rounds_once() -> None:
    rng = np.random.default_rng(2)

    def draw(dtype):
        return (rng.standard_normal(3000) * 2.0 ** rng.integers(-30, 30, 3000)).astype(dtype)

    for kind in (np.float32, np.float64):
        x, y = draw(kind), draw(kind)
        z = draw(kind)
        # Sums that nearly cancel, where a second rounding would show.
        z[::2] = -(x[::2].astype(np.float64) * y[::2]).astype(kind)
        dtype = dtypes.float32 if kind is np.float32 else dtypes.float64
        found = run(Ops.FMA, dtype, x, y, z)
        for a, b, c, value in zip(x, y, z, found, strict=True):
            exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
            wanted = _nearest(exact, kind)
            assert value == wanted, (a, b, c)
    special = np.array([0.0, -0.0, 1.0, math.inf, -math.inf, math.nan, 1e300])
    grid = [g.reshape(-1) for g in np.meshgrid(special, special, special)]
    found = run(Ops.FMA, dtypes.float64, *grid)
    with np.errstate(all="ignore"):
        product = grid[0] * grid[1]
        wanted = product + grid[2]
    clear = ~np.isinf(product) | np.isinf(grid[0]) | np.isinf(grid[1])
    assert np.array_equal(found[clear], wanted[clear], equal_nan=True)


def _nearest(exact: Fraction, kind) -> float:
    """The float32 or float64 nearest to a fraction, ties to even."""
    if exact == 0:
        return 0.0
    if kind is np.float64:
        return float(exact)
    near = np.float32(float(exact))
    candidates = [np.nextafter(near, np.float32(-np.inf)), near,
                  np.nextafter(near, np.float32(np.inf))]  # fmt: skip

    def key(c):
        return abs(Fraction(float(c)) - exact), int(np.asarray(c).view(np.int32)) & 1

    return float(min(candidates, key=key))


def test_where_takes_values_as_they_are() -> None:
    p = np.array([True, False, True])
    x, y = np.float32([math.nan, 1, -0.0]), np.float32([2, math.inf, 3])
    found = run(Ops.WHERE, dtypes.float32, p, x, y)
    assert math.isnan(found[0]) and found[1] == math.inf and math.copysign(1, found[2]) == -1


@pytest.mark.parametrize("dtype", (dtypes.float16, dtypes.bfloat16), ids=str)
def test_narrow_floats_round_each_result_like_ml_dtypes(dtype: DType) -> None:
    kind = np.float16 if dtype is dtypes.float16 else ml_dtypes.bfloat16
    rng = np.random.default_rng(5)
    x, y = ((rng.standard_normal(4000) * 100).astype(kind) for _ in range(2))
    with np.errstate(all="ignore"):
        for op, oracle in ((Ops.ADD, np.add), (Ops.MUL, np.multiply), (Ops.DIV, np.divide)):
            wide = oracle(x.astype(np.float32), y.astype(np.float32))
            found = run(op, dtype, x.astype(np.float32), y.astype(np.float32))
            assert found.dtype == np.float32
            assert np.array_equal(found, wide.astype(kind).astype(np.float32), equal_nan=True)


# --- randomness --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counter", "key", "wanted"),
    [
        # Published with Random123 (tests/kat_vectors, threefry2x32 with 20 rounds).
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 2, (0x1CB996FC, 0xBB002BE7)),
        ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry_s_published_vectors(counter, key, wanted) -> None:
    x, k = (np.array([low | high << 32], np.uint64) for low, high in (counter, key))
    found = int(threefry2x32(x, k)[0])
    assert (found & 0xFFFFFFFF, found >> 32) == wanted
    assert int(run(Ops.THREEFRY, dtypes.uint64, x, k)[0]) == found


# --- conversions -------------------------------------------------------------------------------


def cast_oracle(value, source: DType, target: DType):
    """The cast of one Python value, by exact arithmetic."""
    if target.kind == "bool":
        return value != 0
    if target.kind == "float":
        return None
    if source.kind != "float":
        return wrap(int(value), target)
    if math.isnan(value):
        return 0
    low, high = int(target.min), int(target.max)
    if math.isinf(value):
        return high if value > 0 else low
    return min(max(math.trunc(value), low), high)


@pytest.mark.parametrize("source", COMPUTED, ids=str)
def test_casts_to_integers_and_bool(source: DType) -> None:
    if source.kind == "float":
        edges = [s * (2.0**b + d) for b in (7, 8, 15, 16, 31, 32, 63, 64) for d in (-1, -0.5, 0, 1)
                 for s in (1, -1)]  # fmt: skip
        values = cast_array(np.array([*UNUSUAL, *edges]), dtypes.float64, source)
    else:
        values = np.array([0, 1]) != 0 if source.kind == "bool" else integers(source)
    for target in COMPUTED:
        found = cast_array(values, source, target)
        assert found.dtype == working_dtype(target)
        for x, y in zip(values.tolist(), found.tolist(), strict=True):
            wanted = cast_oracle(x, source, target)
            assert wanted is None or y == wanted, (source, target, x)


@pytest.mark.parametrize("source", INTS, ids=str)
def test_integers_become_the_nearest_float(source: DType) -> None:
    values = integers(source)
    assert (cast_array(values, source, dtypes.float64) == values.astype(np.float64)).all()
    assert (cast_array(values, source, dtypes.float32) == values.astype(np.float32)).all()
    by_way = values.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)
    assert (cast_array(values, source, dtypes.bfloat16) == by_way).all()


def test_narrowing_goes_by_way_of_float32() -> None:
    # 1 + 2**-8 + 2**-40 rounds up to bfloat16 in one step, but is a tie after float32.
    value = np.array([1 + 2.0**-8 + 2.0**-40])
    assert cast_array(value, dtypes.float64, dtypes.bfloat16)[0] == 1.0


@pytest.mark.parametrize("dtype", [d for d in ALL if d.bits and d.kind != "token"], ids=str)
def test_stored_and_working_forms_agree(dtype: DType) -> None:
    if dtype.bits > 16:
        codes = np.random.default_rng(1).integers(0, 1 << 32, 500).astype(dtype.storage)
        if dtype is dtypes.tfloat32:
            codes &= 0xFFFFE000  # in memory the others are zero
    else:
        top = 2 if dtype.kind == "bool" else 1 << dtype.bits
        codes = np.arange(top).astype(dtype.storage)
    values = to_array(codes, dtype)
    assert values.dtype == working_dtype(dtype)
    back = to_raw(values, dtype)
    assert back.dtype == (dtype.numpy or dtype.storage)
    again = back.view(dtype.storage)
    if dtype is dtypes.tfloat32 or (dtype.kind == "float" and dtype.bits <= 8):
        # Different NaN codes are one value.
        assert np.array_equal(to_array(again, dtype), values, equal_nan=True)
    elif dtype is dtypes.float16:
        quiet = again | np.where(np.isnan(values), 0x200, 0).astype(np.uint16)
        assert (quiet == (codes | np.where(np.isnan(values), 0x200, 0).astype(np.uint16))).all()
    else:
        assert (again == codes).all()


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_bitcasts_keep_bits(bits: int) -> None:
    same = [d for d in COMPUTED if d.bits == bits and d.kind != "bool"]
    rng = np.random.default_rng(bits)
    for source, target in itertools.product(same, same):
        codes = rng.integers(0, 256, 400 * bits // 8).astype(np.uint8).view(source.storage)
        if source.kind == "float" or target.kind == "float":
            # Signalling NaNs may be made quiet by the processor.
            kind = source if source.kind == "float" else target
            codes = codes[~np.isnan(to_array(codes.view(kind.storage), kind))]
        values = to_array(codes, source)
        found = to_raw(bitcast_array(values, source, target), target).view(target.storage)
        assert (found == codes.view(target.storage)).all()


def test_stored_arrays_of_a_wrong_type_are_refused() -> None:
    with pytest.raises(DTypeError, match="raw codes of float32"):
        to_array(np.zeros(3, np.float64), dtypes.float32)
    with pytest.raises(DTypeError, match="no values"):
        working_dtype(dtypes.token)
    with pytest.raises(CompilerBug, match="not an elementwise op"):
        apply(Ops.REDUCE, dtypes.float32, [dtypes.float32], [np.zeros(1)])


def test_zero_dimensional_operands() -> None:
    for op in sorted(ELEMENTWISE - {Ops.CAST, Ops.BITCAST, Ops.LOOKUP}, key=str):
        kind = next(d for d in COMPUTED[::-1] if d.kind in op.kinds)
        kind = dtypes.uint64 if op is Ops.THREEFRY else kind
        ones = [np.ones((), working_dtype(kind))] * op.arity[0]
        if op is Ops.WHERE:
            ones[0] = np.ones((), np.bool_)
        assert run(op, kind, *ones).shape == ()
