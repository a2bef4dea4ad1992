"""Floats narrower than 32 bits as float32 and integer arithmetic: decode, encode and round.

Each function builds nodes on scalars of the loop level. `code` is the raw code as an unsigned
integer of the dtype's storage; values are float32. Rounding is to nearest, ties to even, and what
is special (infinities, NaN, saturation, powers of two) follows `baregrad.dtypes.encode`; but in a
format without NaN it becomes -0, whatever its sign.
"""

from __future__ import annotations

import math

from baregrad.base.floats import TF32_CUT, FloatFormat
from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.node import Node, alu, cast, const
from baregrad.ir.core.op import Ops

U32, F32, BOOL = dtypes.uint32, dtypes.float32, dtypes.bool


def storage_dtype(dtype: DType) -> DType:
    """The unsigned integer dtype of raw codes in memory."""
    if dtype.bits == 32:
        return U32
    return dtypes.uint16 if dtype.bits == 16 else dtypes.uint8


def u32(value: int) -> Node:
    """A constant of 32 bits."""
    return const(value, U32)


def bits_of(value: Node) -> Node:
    """The bits of a float32."""
    if value.op is Ops.BITCAST and value.src[0].dtype is U32:
        return value.src[0]
    return Node(Ops.BITCAST, U32, (value,))


def float_of(bits: Node) -> Node:
    """The float32 of some bits."""
    return Node(Ops.BITCAST, F32, (bits,))


def is_nan(value: Node) -> Node:
    """Whether a float is NaN."""
    return alu(Ops.CMPNE, value, value)


def decode_float(code: Node, dtype: DType) -> Node:
    """The float32 value of a raw code, exactly."""
    if dtype is dtypes.tfloat32:
        return float_of(code)
    wide = cast(code, U32)
    form = dtype.format
    assert form is not None
    if dtype is dtypes.bfloat16:
        return float_of(alu(Ops.SHL, wide, u32(16)))
    if form.powers:
        return _decode_power(wide, form)
    size = alu(Ops.AND, wide, u32((1 << (form.bits - 1)) - 1))
    sign = alu(Ops.SHL, alu(Ops.AND, wide, u32(1 << (form.bits - 1))), u32(32 - form.bits))
    shifted = alu(Ops.SHL, size, u32(23 - form.mantissa_bits))
    # Read as a float32 the code is too small by the difference of the biases, subnormals too.
    value = alu(Ops.MUL, float_of(shifted), const(math.ldexp(1.0, 127 - form.bias), F32))
    if form.special == "ieee":
        top = ((1 << form.exponent_bits) - 1) << form.mantissa_bits
        special = float_of(alu(Ops.OR, shifted, u32(0x7F800000)))
        value = alu(Ops.WHERE, alu(Ops.CMPLT, size, u32(top)), value, special)
    elif form.special == "nan":
        ones = (1 << (form.bits - 1)) - 1
        quiet = const(math.nan, F32)
        value = alu(Ops.WHERE, alu(Ops.CMPEQ, size, u32(ones)), quiet, value)
    return float_of(alu(Ops.OR, bits_of(value), sign))


def _decode_power(code: Node, form: FloatFormat) -> Node:
    """The power of two of a code with float32's exponents: the least is no normal float32."""
    value = float_of(alu(Ops.SHL, code, u32(23)))
    none, least = alu(Ops.CMPLT, u32(form.largest_code), code), alu(Ops.CMPEQ, code, u32(0))
    value = alu(Ops.WHERE, least, const(math.ldexp(1.0, -form.bias), F32), value)
    return alu(Ops.WHERE, none, const(math.nan, F32), value)


def _power_code(bits: Node, form: FloatFormat) -> Node:
    """The code of the power of two nearest to a float32, given by its bits."""
    half = 1 << 22
    # Of those that are no normal float32 three quarters of the least normal one round to it.
    small = alu(Ops.CMPLT, bits, u32(1 << 23))
    up = cast(alu(Ops.CMPLT, u32(3 * half // 2 - 1), bits), U32)
    code = alu(Ops.WHERE, small, up, alu(Ops.SHR, alu(Ops.ADD, bits, u32(half)), u32(23)))
    # Positive and finite; zero becomes the largest integer here.
    holds = alu(Ops.CMPLT, alu(Ops.SUB, bits, u32(1)), u32(0x7F7FFFFF))
    return alu(Ops.WHERE, holds, code, u32(form.largest_code + 1))


def round_bfloat16(value: Node) -> Node:
    """A float32 rounded to bfloat16, as float32; NaN becomes the quiet NaN of its sign."""
    return _cut_float(value, 16)


def _cut_float(value: Node, cut: int) -> Node:
    """A float32 rounded to one without so many low digits."""
    bits = bits_of(value)
    odd = alu(Ops.AND, alu(Ops.SHR, bits, u32(cut)), u32(1))
    rounded = alu(Ops.ADD, bits, alu(Ops.ADD, odd, u32((1 << (cut - 1)) - 1)))
    quiet = alu(Ops.OR, bits, u32(0x7FC00000))
    chosen = alu(Ops.WHERE, is_nan(value), alu(Ops.AND, quiet, u32(0xFFC00000)), rounded)
    return float_of(alu(Ops.AND, chosen, u32((1 << 32) - (1 << cut))))


def encode_float(value: Node, dtype: DType, exact: bool) -> Node:
    """The raw code of a float32; `exact` when it was rounded to `dtype` already."""
    storage = storage_dtype(dtype)
    if dtype is dtypes.tfloat32:
        return bits_of(value if exact else _cut_float(value, TF32_CUT))
    if dtype is dtypes.bfloat16:
        if not exact:
            value = round_bfloat16(value)
        return cast(alu(Ops.SHR, bits_of(value), u32(16)), storage)
    form = dtype.format
    assert form is not None
    bits = bits_of(value)
    if form.powers:
        return cast(_power_code(bits, form), storage)
    size = alu(Ops.AND, bits, u32(0x7FFFFFFF))
    code = _size_code(size, form)
    sign = alu(Ops.AND, alu(Ops.SHR, bits, u32(32 - form.bits)), u32(1 << (form.bits - 1)))
    nan = {
        "ieee": form.largest_code + 1 + (1 << (form.mantissa_bits - 1)),
        "nan": (1 << (form.bits - 1)) - 1,
        "none": 0,
    }[form.special]
    code = alu(Ops.WHERE, is_nan(value), u32(nan), code)
    if form.special == "none":
        sign = alu(Ops.WHERE, is_nan(value), u32(1 << (form.bits - 1)), sign)
    return cast(alu(Ops.OR, code, sign), storage)


def _size_code(size: Node, form: FloatFormat) -> Node:
    """The code of a magnitude that is a number, given as the bits of a float32."""
    drop = 23 - form.mantissa_bits
    odd = alu(Ops.AND, alu(Ops.SHR, size, u32(drop)), u32(1))
    rounded = alu(Ops.ADD, size, alu(Ops.ADD, odd, u32((1 << (drop - 1)) - 1)))
    rebased = alu(Ops.SUB, rounded, u32((127 - form.bias) << 23))
    normal = alu(Ops.SHR, rebased, u32(drop))
    # In this binade the last bit of a float32 is the format's smallest step, so adding rounds.
    magic = math.ldexp(1.0, form.least_exponent + drop)
    magic_bits = (127 + form.least_exponent + drop) << 23
    sum_bits = bits_of(alu(Ops.ADD, float_of(size), const(magic, F32)))
    small = alu(Ops.SUB, sum_bits, u32(magic_bits))
    least_normal = (127 + form.least_exponent) << 23
    code = alu(Ops.WHERE, alu(Ops.CMPLT, size, u32(least_normal)), small, normal)
    beyond = form.largest_code if form.special == "none" else form.largest_code + 1
    # Far beyond the range the rebased code wraps around, so it is the size that decides.
    limit = alu(Ops.CMPLT, u32(_rounding_limit(form)), size)
    return alu(Ops.WHERE, limit, u32(beyond), code)


def _rounding_limit(form: FloatFormat) -> int:
    """The bits of the largest float32 that rounds to a finite code."""
    exponent = (form.largest_code >> form.mantissa_bits) - form.bias
    mantissa = form.largest_code & ((1 << form.mantissa_bits) - 1)
    drop = 23 - form.mantissa_bits
    half = 1 << (drop - 1)
    bits = ((exponent + 127) << 23) | (mantissa << drop)
    # A tie goes to the even neighbour: it stays below only if the largest code is even.
    return bits + half - (form.largest_code & 1)
