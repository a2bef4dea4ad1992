"""What every arithmetic op computes, exactly, on NumPy arrays: the table all evaluators share.

Arrays hold values in a dtype's *working* type: NumPy's own, int64 for `index`, and float32 for
every float narrower than that (float16, bfloat16, 8 and 4 bits), whose values are then exactly
representable. An op on narrow floats computes in float32 and rounds its result; transcendental
functions of floats up to 32 bits are computed in float64 and rounded, so they are right to within
rounding. Which zero MAX and MIN return for zeros of both signs is not defined.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from baregrad.base.errors import CompilerBug, DTypeError
from baregrad.dtypes import DType, decode, dtypes, encode
from baregrad.ir.analysis.words import flushed, numbers_of
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Op, Ops

Array = npt.NDArray[Any]
Rule = Callable[..., Any]

# --- values and bits ---------------------------------------------------------------------------


def working_dtype(dtype: DType) -> np.dtype[Any]:
    """The NumPy dtype in which evaluators hold values of `dtype`."""
    if dtype is dtypes.index:
        return np.dtype(np.int64)
    if dtype.is_narrow:
        return np.dtype(np.float32)
    if dtype.numpy is not None:
        return dtype.numpy
    if dtype.kind in ("int", "uint"):
        return np.dtype(np.int8 if dtype.kind == "int" else np.uint8)
    raise DTypeError(f"{dtype} has no values", wanted="a dtype of elements, or index")


def to_array(raw: npt.ArrayLike, dtype: DType) -> Array:
    """Working values of a stored array.

    raw: elements of NumPy's own dtype, or raw codes (`DType.storage`); others raise DTypeError.
    """
    array = np.asarray(raw)
    if dtype is dtypes.index:
        return array.astype(np.int64)
    if dtype.numpy is not None and array.dtype == dtype.numpy:
        return array.astype(working_dtype(dtype), copy=False)
    return decode(array, dtype).astype(working_dtype(dtype), copy=False)


def wide_count(node: Node, array: Node) -> int:
    """How many neighbours in an array a read of it puts together as one element."""
    return max(node.dtype.bits // array.dtype.bits, 1) if array.dtype.bits else 1


def read_raw(memory: Array, places: Array, count: int, dtype: DType) -> Array:
    """The raw elements of `dtype` that `count` neighbours are from each place on."""
    if count == 1:
        return np.asarray(memory[places])
    assert dtype.storage is not None
    near = np.ascontiguousarray(memory[places[..., None] + np.arange(count)])
    return near.view(dtype.storage)[..., 0]


def to_raw(values: npt.ArrayLike, dtype: DType) -> Array:
    """The stored form of working values: NumPy's own dtype, or raw codes where NumPy has none.

    Values that `dtype` represents keep their bits, a NaN's payload included.
    """
    array = np.asarray(values, working_dtype(dtype))
    if dtype is dtypes.bfloat16:
        bits = np.ascontiguousarray(array).view(np.uint32).reshape(array.shape)
        codes = (bits >> np.uint32(16)).astype(np.uint16)
        exact = (bits & np.uint32(0xFFFF)) == 0
        return np.where(exact, codes, encode(array, dtype))
    if dtype.numpy is None:
        return encode(array, dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        return array.astype(dtype.numpy, copy=False)


def round_to(values: npt.ArrayLike, dtype: DType) -> Array:
    """Floats rounded to `dtype` (by way of float32 when it is narrower), in the working type."""
    with np.errstate(over="ignore", invalid="ignore"):
        array = np.asarray(values).astype(working_dtype(dtype), copy=False)
    if dtype.is_narrow:
        return decode(encode(array, dtype), dtype)
    return array


# --- floats ------------------------------------------------------------------------------------


def _array(values: Any) -> Array:
    return np.asarray(values)


def _wide(function: Callable[..., Any]) -> Rule:
    """A rule that computes in float64, so that narrower results are right to within rounding."""

    def rule(dtype: DType, *values: Array) -> Any:
        return function(*(np.asarray(value, np.float64) for value in values))

    return rule


def _own(function: Callable[..., Any]) -> Rule:
    """A rule that computes in the working type itself."""

    def rule(dtype: DType, *values: Array) -> Any:
        return function(*values)

    return rule


def _for_floats(function: Callable[[Array], Any]) -> Rule:
    """Rounding to integers: nothing to do unless the values are floats."""

    def rule(dtype: DType, value: Array) -> Any:
        return function(value) if dtype.kind == "float" else value

    return rule


def _erf(values: Array) -> Array:
    flat = np.fromiter(map(math.erf, values.reshape(-1).tolist()), np.float64, values.size)
    return flat.reshape(values.shape)


def _gelu(values: Array) -> Array:
    arguments = (values * -math.sqrt(0.5)).reshape(-1).tolist()
    parts = np.fromiter(map(math.erfc, arguments), np.float64, values.size)
    # The limit at minus infinity, where the product is of an infinity and a zero.
    bounded = np.maximum(values, -1e300)
    return np.asarray(bounded * 0.5 * parts.reshape(values.shape))


def _fma(dtype: DType, x: Array, y: Array, z: Array) -> Any:
    if dtype.kind != "float":
        return x * y + z
    if dtype.bits <= 32:
        return _fma_float32(*(np.asarray(value, np.float64) for value in (x, y, z)))
    return np.vectorize(_fma_exact, otypes=[np.float64])(x, y, z)


def _dot_bytes(dtype: DType, x: Array, y: Array, z: Array) -> Array:
    """z + the products of the unsigned bytes of x and the signed bytes of y, modulo 2**32."""
    total = np.asarray(z, np.int64)
    for place in range(0, 32, 8):
        unsigned = (np.asarray(x, np.int64) >> place) & 255
        signed = (np.asarray(y, np.int64) << (56 - place)) >> 56
        total = total + unsigned * signed
    return total.astype(np.int32)


def _dot_pairs(dtype: DType, x: Array, y: Array, z: Array, first: int) -> Array:
    """z + the products of two unsigned bytes of x, from bit `first` on, and the halves of y."""
    total = np.asarray(z, np.int64)
    for place in range(2):
        unsigned = (np.asarray(x, np.int64) >> (first + 8 * place)) & 255
        signed = (np.asarray(y, np.int64) << (48 - 16 * place)) >> 48
        total = total + unsigned * signed
    return total.astype(np.int32)


def _dot_halves(dtype: DType, x: Array, y: Array, z: Array) -> Array:
    """z + the products of two words' bfloat16, the upper first, each fused with its addition."""
    words = np.broadcast_arrays(np.asarray(x, np.int32), np.asarray(y, np.int32))
    left, right = (flushed(numbers_of(each, dtypes.bfloat16)) for each in words)
    total = flushed(np.asarray(z, np.float32))
    for part in (1, 0):
        a, b, c = (np.asarray(v, np.float64) for v in (left[..., part], right[..., part], total))
        total = flushed(_fma_float32(a, b, c))
    return total


def _ldexp(x: Array, y: Array) -> Array:
    """x * 2**y for a whole y of any size; a NaN in either gives NaN."""
    steps = np.clip(np.nan_to_num(y), -5000, 5000).astype(np.int32)
    return np.asarray(np.where(np.isnan(y), y, np.ldexp(x, steps)))


def _fma_float32(x: Array, y: Array, z: Array) -> Array:
    """x*y + z rounded once to float32: the product is exact in float64, the sum rounds to odd.

    Source: Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008.
    """
    product = x * y
    near = product + z
    part = near - product
    error = (product - (near - part)) + (z - part)
    bits = np.ascontiguousarray(near).view(np.int64).reshape(near.shape)
    inexact = np.isfinite(near) & (error != 0) & ((bits & 1) == 0)
    away = (error > 0) == (near > 0)
    odd = np.where(inexact, bits + np.where(away, 1, -1), bits)
    return odd.view(np.float64).astype(np.float32)


def _fma_exact(x: float, y: float, z: float) -> float:
    if not (math.isfinite(x) and math.isfinite(y) and math.isfinite(z)):
        if math.isfinite(x) and math.isfinite(y):
            return z
        return float(np.float64(x) * np.float64(y) + np.float64(z))
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    if exact == 0:
        return x * y + z if (x == 0 or y == 0) else 0.0
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def _mod(dtype: DType, x: Array, y: Array) -> Any:
    if dtype.kind != "float":
        return np.where(y == 0, np.zeros_like(x), np.mod(x, np.where(y == 0, np.ones_like(y), y)))
    rest = np.fmod(x, y)
    return np.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)


# --- integers ----------------------------------------------------------------------------------


def _floordiv(dtype: DType, x: Array, y: Array) -> Any:
    one = np.ones_like(y)
    return np.where(y == 0, np.zeros_like(x), np.floor_divide(x, np.where(y == 0, one, y)))


def _truncdiv(dtype: DType, x: Array, y: Array) -> Any:
    floor = _floordiv(dtype, x, y)
    toward_zero = (x - floor * y != 0) & ((x < 0) != (y < 0)) & (y != 0)
    return np.where(toward_zero, floor + np.ones_like(floor), floor)


def _shift_limit(dtype: DType) -> int:
    return dtype.bits or 64


def _shl(dtype: DType, x: Array, y: Array) -> Any:
    fits = (y >= 0) & (y < _shift_limit(dtype))
    return np.where(fits, np.left_shift(x, np.where(fits, y, 0).astype(x.dtype)), np.zeros_like(x))


def _shr(dtype: DType, x: Array, y: Array) -> Any:
    fits = (y >= 0) & (y < _shift_limit(dtype))
    shifted = np.right_shift(x, np.where(fits, y, 0).astype(x.dtype))
    return np.where(fits, shifted, np.where(x < 0, -np.ones_like(x), np.zeros_like(x)))


_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
_PARITY = 0x1BD11BDA


def threefry2x32(counter: Array, key: Array) -> Array:
    """Threefry-2x32 with 20 rounds; the low half of each uint64 is word 0.

    Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    low = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    keys = [(key & low).astype(np.uint32), (key >> half).astype(np.uint32)]
    keys.append(keys[0] ^ keys[1] ^ np.uint32(_PARITY))
    x = (counter & low).astype(np.uint32) + keys[0]
    y = (counter >> half).astype(np.uint32) + keys[1]
    for turn in range(20):
        rotation = _ROTATIONS[turn % 8]
        x = x + y
        y = ((y << np.uint32(rotation)) | (y >> np.uint32(32 - rotation))) ^ x
        if turn % 4 == 3:
            step = turn // 4 + 1
            x = x + keys[step % 3]
            y = y + keys[(step + 1) % 3] + np.uint32(step)
    return x.astype(np.uint64) | (y.astype(np.uint64) << half)


# --- conversions -------------------------------------------------------------------------------


def cast_array(values: npt.ArrayLike, source: DType, target: DType) -> Array:
    """Values of `source` as values of `target`.

    Floats become integers by truncation, saturating, NaN as 0; integers wrap; anything but zero is
    True; floats narrower than 32 bits are rounded from float32.
    """
    array = np.asarray(values)
    if target.kind == "bool":
        return _array(array != 0)
    if target.kind == "float":
        return round_to(array, target)
    working = working_dtype(target)
    signed = target.kind != "uint"
    if source.kind != "float":
        wrapped = array.astype(working)
        if target.bits == 4:
            low = wrapped & np.array(15, working)
            return _array(np.where(low > 7, low - np.array(16, working), low) if signed else low)
        return _array(wrapped)
    bits = target.bits or 64
    least, most = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    whole = np.trunc(array.astype(np.float64))
    # most + 1 is a power of two, exact as a float, which most itself need not be.
    above, below = whole >= float(most + 1), whole < float(least)
    result = np.where(above | below | np.isnan(whole), 0.0, whole).astype(working)
    result = np.where(above, np.array(most, working), result)
    return _array(np.where(below, np.array(least, working), result))


def bitcast_array(values: npt.ArrayLike, source: DType, target: DType) -> Array:
    """The values of `target` that have the same bits; both have one size."""
    raw = to_raw(values, source)
    assert target.storage is not None
    codes = np.ascontiguousarray(raw).view(target.storage).reshape(raw.shape)
    if target.kind == "bool":
        return _array(codes != 0)
    return decode(codes, target).astype(working_dtype(target), copy=False)


# --- the table ---------------------------------------------------------------------------------

# The NumPy functions that fold an axis as well.
REDUCED_BY: MappingProxyType[Op | None, np.ufunc] = MappingProxyType({
    Ops.ADD: np.add,
    Ops.MUL: np.multiply,
    Ops.MAX: np.maximum,
    Ops.MIN: np.minimum,
    Ops.AND: np.bitwise_and,
    Ops.OR: np.bitwise_or,
    Ops.XOR: np.bitwise_xor,
})  # fmt: skip

_OWN: MappingProxyType[Op, Callable[..., Any]] = MappingProxyType({
    Ops.NEG: np.negative, Ops.NOT: np.invert, Ops.ABS: np.abs, Ops.SQRT: np.sqrt,
    **dict.fromkeys((Ops.RECIPROCAL, Ops.RECIPROCAL_NEAR), lambda x: np.ones_like(x) / x),
    Ops.SUB: np.subtract, Ops.DIV: np.divide,
    Ops.CMPLT: np.less, Ops.CMPLE: np.less_equal, Ops.CMPEQ: np.equal, Ops.CMPNE: np.not_equal,
    Ops.THREEFRY: threefry2x32, Ops.WHERE: np.where, Ops.LDEXP: _ldexp,
})  # fmt: skip
_WIDE: MappingProxyType[Op, Callable[..., Any]] = MappingProxyType({
    Ops.EXP: np.exp, Ops.EXP_NEAR: np.exp, Ops.EXP2: np.exp2, Ops.EXP2_NEAR: np.exp2,
    Ops.LOG: np.log,
    Ops.LOG2: np.log2, Ops.SIN: np.sin, Ops.COS: np.cos, Ops.TANH: np.tanh, Ops.ERF: _erf,
    Ops.GELU: _gelu, Ops.GELU_NEAR: _gelu, Ops.ATAN: np.arctan, Ops.POW: np.power,
})  # fmt: skip
_WHOLE: MappingProxyType[Op, Callable[..., Any]] = MappingProxyType(
    {Ops.FLOOR: np.floor, Ops.CEIL: np.ceil, Ops.TRUNC: np.trunc, Ops.RINT: np.rint}
)
# Each rule takes the dtype of its operands, then the operands; the result is then brought to the
# node's dtype. CAST and BITCAST need two dtypes and are handled by `apply`.
SCALAR_RULES: MappingProxyType[Op, Rule] = MappingProxyType({
    **{op: _own(function) for op, function in REDUCED_BY.items() if op is not None},
    **{op: _own(function) for op, function in _OWN.items()},
    **{op: _wide(function) for op, function in _WIDE.items()},
    **{op: _for_floats(function) for op, function in _WHOLE.items()},
    Ops.FLOORDIV: _floordiv,
    Ops.MOD: _mod,
    Ops.TRUNCDIV: _truncdiv,
    Ops.SHL: _shl,
    Ops.SHR: _shr,
    Ops.FMA: _fma,
    Ops.DOT4: _dot_bytes,
    Ops.DOT2LO: partial(_dot_pairs, first=0),
    Ops.DOT2HI: partial(_dot_pairs, first=16),
    Ops.DOT2: _dot_halves,
})  # fmt: skip


def apply(
    op: Op,
    dtype: DType,
    operand_dtypes: Sequence[DType],
    operands: Sequence[npt.ArrayLike],
    *,
    round_narrow: bool = True,
) -> Array:
    """The result of one elementwise op, in the working type of `dtype`.

    op: an ALU op, CAST or BITCAST. operands: in their working types, of shapes that broadcast.
    round_narrow: False leaves the result of an op on narrow floats in float32, as accumulators are.
    """
    values = [np.asarray(value) for value in operands]
    with np.errstate(all="ignore"):
        if op is Ops.CAST:
            return cast_array(values[0], operand_dtypes[0], dtype)
        if op is Ops.BITCAST:
            return bitcast_array(values[0], operand_dtypes[0], dtype)
        rule = SCALAR_RULES.get(op)
        if rule is None:
            raise CompilerBug("not an elementwise op", found=op.name)
        result = np.asarray(rule(operand_dtypes[-1], *values))
        if dtype.kind == "float" and (round_narrow or dtype.bits >= 32):
            return round_to(result, dtype)
        return result.astype(working_dtype(dtype), copy=False)


def apply_scalar_op(node: Node, *operands: npt.ArrayLike) -> Array:
    """The value of an elementwise node or BITFIELD, given the values of its sources."""
    if node.op is Ops.LOOKUP:
        table = round_to(np.array(node.arg, np.float64), node.dtype)
        return np.asarray(table[np.asarray(operands[0]) & (len(node.arg) - 1)])
    if node.op is Ops.BITFIELD:
        word, offset = (np.asarray(operand).astype(np.uint64) for operand in operands)
        found = word >> offset & np.uint64((1 << node.arg) - 1)
        return np.asarray(found.astype(working_dtype(node.dtype)))
    return apply(node.op, node.dtype, [child.dtype for child in node.src], operands)


def constant(node: Node) -> Array:
    """The value of a CONST node as an array of shape ()."""
    value = node.arg
    if node.dtype.kind == "float":
        return round_to(np.float64(value), node.dtype)
    return np.asarray(value, working_dtype(node.dtype))
