"""Exponentials, logarithms and powers as arithmetic on one dtype, without branches.

Each function takes a float32 or float64 node and gives one of the same dtype. Arguments are
reduced exactly with fused multiply-adds, a minimax polynomial does the rest, and special values
come out of the arithmetic itself or of a final choice. Errors are stated in the tests.
"""

from __future__ import annotations

import math

from baregrad.dtypes import dtypes
from baregrad.ir.core.node import Node, alu, cast
from baregrad.ir.core.op import Ops
from baregrad.kernel.legalise import transcendental_tables as tables
from baregrad.kernel.legalise.float_builder import FLOAT64, FloatBuilder, builder_of
from baregrad.kernel.legalise.narrow_floats import is_nan

# ln(2) and 1/ln(2) as sums of two floats.
LN2_F32 = (0.6931471824645996, -1.9046542121259336e-09)
LN2_F64 = (0.6931471805599453, 2.3190468138462996e-17)
LOG2E_F32 = (1.4426950216293335, 1.925963033500011e-08)
LOG2E_F64 = (1.4426950408889634, 2.0355273740931033e-17)
# The bits of sqrt(1/2).
SQRT_HALF_F32 = 0x3F3504F3
SQRT_HALF_F64 = 0x3FE6A09E667F3BCD


def _is_single(f: FloatBuilder) -> bool:
    return f.dtype.bits == 32


def _reduced_exp(f: FloatBuilder, x: Node, offset: int) -> tuple[Node, Node, Node]:
    """x = n*ln(2) + r as (r, n, what holds n + offset)."""
    n, held = f.round_scaled(x, LOG2E_F64[0], offset)
    high, low = LN2_F32 if _is_single(f) else LN2_F64
    r = f.fma(n, f.c(-high), x)
    return f.fma(n, f.c(-low), r), n, held


def exp(x: Node) -> Node:
    """e**x."""
    f = builder_of(x.dtype)
    low, high = (limit * math.log(2.0) for limit in f.power_limits)
    bounded = f.at_most(f.at_least(x, low), high)
    power, _, held = _split_exp(f, bounded, f.power_offset, f.power_scale)
    return f.scaled_by_power(power, held)


def exp_by_ldexp(x: Node, slow_underflow: bool) -> Node:
    """e**x by LDEXP: the bits of `exp`.

    slow_underflow: the processor takes a hundred times as long for what is rounded to 0. Where 0 is
    chosen, LDEXP is masked, and takes no longer.
    """
    f = builder_of(x.dtype)
    low, high = (limit * math.log(2.0) for limit in f.power_limits)
    bounded = f.at_most(x if slow_underflow else f.at_least(x, low), high)
    power, n, _ = _split_exp(f, bounded, 0, 1.0)
    value = f.op(Ops.LDEXP, power, n)
    return f.where(f.less(x, f.c(low)), f.c(0.0), value) if slow_underflow else value


def _split_exp(
    f: FloatBuilder, x: Node, offset: int, scale: float
) -> tuple[Node, Node, Node]:
    """e**x = p * 2**n as (p times scale, n, what holds n + offset)."""
    if _is_single(f):
        # x/ln(2) = n + r takes as many steps as x = n*ln(2) + r, and the polynomial one fewer.
        magic = f.c(f.magic + offset)
        held = f.fma(x, f.c(LOG2E_F32[0]), magic)
        n = f.sub(held, magic)
        r = f.fma(x, f.c(LOG2E_F32[1]), f.fma(x, f.c(LOG2E_F32[0]), f.neg(n)))
        return _scaled_power(f, r, scale), n, held
    r, n, held = _reduced_exp(f, x, offset)
    inner = f.fma(f.mul(r, r), f.polynomial(r, tables.EXP_F64), r)
    return f.fma(inner, f.c(scale), f.c(scale)), n, held


def _scaled_power(f: FloatBuilder, r: Node, scale: float) -> Node:
    """2**r for |r| <= 1/2, times a power of two."""
    table = tables.EXP2_F32 if _is_single(f) else tables.EXP2_F64
    slope = f.polynomial(r, [scale * coefficient for coefficient in table])
    return f.fma(r, slope, f.c(scale))


def exp2(x: Node) -> Node:
    """2**x."""
    f = builder_of(x.dtype)
    r, held = _without_integer(f, x)
    return f.scaled_by_power(_scaled_power(f, r, f.power_scale), held)


def exp2_by_ldexp(x: Node, slow_underflow: bool) -> Node:
    """2**x by LDEXP: the bits of `exp2`; see `exp_by_ldexp`."""
    f = builder_of(x.dtype)
    low, high = f.power_limits
    bounded = f.at_most(x if slow_underflow else f.at_least(x, low), high)
    n, _ = f.round_scaled(bounded, 1.0)
    value = f.op(Ops.LDEXP, _scaled_power(f, f.sub(bounded, n), 1.0), n)
    return f.where(f.less(x, f.c(low)), f.c(0.0), value) if slow_underflow else value


def _without_integer(f: FloatBuilder, x: Node) -> tuple[Node, Node]:
    """x = n + r as (r, what `scaled_by_power` takes n from)."""
    low, high = f.power_limits
    x = f.at_most(f.at_least(x, low), high)
    n, held = f.round_scaled(x, 1.0, f.power_offset)
    return f.sub(x, n), held


def _exp2_of_sum(f: FloatBuilder, x: Node, rest: Node) -> Node:
    """2**(x + rest) for a rest far below x's last place."""
    r, held = _without_integer(f, x)
    slope = f.polynomial(r, tables.EXP2_F64)
    # The rest comes in before the last rounding, so powers that are exact stay exact.
    relative = f.mul(rest, f.c(math.log(2.0)))
    small = f.fma(relative, f.mul(r, slope), relative)
    scale = f.c(f.power_scale)
    return f.scaled_by_power(f.fma(f.fma(r, slope, small), scale, scale), held)


def tanh(x: Node) -> Node:
    """(e**2x - 1) / (e**2x + 1), by way of e**2x - 1, which is right near 0."""
    f = builder_of(x.dtype)
    size, grown = _grown(f, x)
    bottom = f.add(grown, f.c(2.0))
    ratio = f.div(grown, bottom)
    # With 1/bottom = (1 - ratio)/2. Near 1 that slope is known too badly, and not needed.
    slope = f.where(f.less(size, f.c(1.0)), f.fma(ratio, f.c(-0.5), f.c(0.5)), f.c(0.0))
    return f.with_sign_of(_refined(f, grown, bottom, ratio, slope), x)


def tanh_by_reciprocal(x: Node) -> Node:
    """`tanh` where 1/x is nearly known at once and a quotient takes a branch, if it is of float32.

    The last bits are others.
    """
    f = builder_of(x.dtype)
    if not _is_single(f):
        return tanh(x)
    _, grown = _grown(f, x)
    bottom = f.add(grown, f.c(2.0))
    slope = f.op(Ops.RECIPROCAL_NEAR, bottom)
    return f.with_sign_of(_refined(f, grown, bottom, f.mul(grown, slope), slope), x)


def _grown(f: FloatBuilder, x: Node) -> tuple[Node, Node]:
    """|x| up to where tanh rounds to 1, and e**2|x| - 1."""
    size = f.at_most(f.abs(x), 10.0 if _is_single(f) else 20.0)
    r, _, held = _reduced_exp(f, f.add(size, size), f.bias)
    table = tables.EXPM1_F32 if _is_single(f) else tables.EXP_F64
    less_one = f.fma(f.mul(r, r), f.polynomial(r, table), r)
    power = f.power(f.field(held))
    return size, f.fma(less_one, power, f.sub(power, f.c(1.0)))


def _refined(f: FloatBuilder, grown: Node, bottom: Node, ratio: Node, slope: Node) -> Node:
    """A step from `ratio` to grown / (grown + 2): it also makes up for the rounding of `bottom`.

    slope: about 1/bottom.
    """
    lost = f.sub(grown, f.sub(bottom, f.c(2.0)))
    rest = f.fma(f.neg(ratio), lost, f.fma(f.neg(ratio), bottom, grown))
    return f.fma(rest, slope, ratio)


def _split_log(f: FloatBuilder, x: Node) -> tuple[Node, Node]:
    """x = 2**e * (1 + g) with sqrt(1/2) <= 1 + g < sqrt(2), as (e, g), for positive finite x."""
    shift = f.mantissa + 2
    tiny = f.less(x, f.c(f.least_normal))
    bits = f.bits(f.where(tiny, f.mul(x, f.c(2.0**shift)), x))
    base = SQRT_HALF_F32 if _is_single(f) else SQRT_HALF_F64
    exponent = f.iop(Ops.SHR, f.iop(Ops.SUB, bits, base), f.mantissa)
    mantissa = f.from_bits(f.iop(Ops.SUB, bits, f.iop(Ops.SHL, exponent, f.mantissa)))
    whole = f.iop(Ops.SUB, exponent, f.where(tiny, f.i(shift), f.i(0)))
    small = whole if _is_single(f) else Node(Ops.CAST, dtypes.int32, (whole,))
    return Node(Ops.CAST, f.dtype, (small,)), f.sub(mantissa, f.c(1.0))


def _special_log(f: FloatBuilder, x: Node, result: Node) -> Node:
    """The logarithm of anything, where `result` is that of a positive finite x."""
    infinity = f.c(math.inf)
    result = f.where(f.equal(x, infinity), infinity, result)
    otherwise = f.where(f.equal(x, f.c(0.0)), f.c(-math.inf), f.c(math.nan))
    return f.where(f.less(f.c(0.0), x), result, otherwise)


def _log_tail(f: FloatBuilder, g: Node) -> Node:
    """log(1 + g) - g."""
    square = f.mul(g, g)
    if _is_single(f):
        cubic = f.mul(f.mul(g, square), f.polynomial(g, tables.LOG_F32))
        return f.fma(square, f.c(-0.5), cubic)
    half = f.mul(square, f.c(0.5))
    s = f.div(g, f.add(g, f.c(2.0)))
    z = f.mul(s, s)
    inner = f.fma(z, f.polynomial(z, tables.LOG_F64), half)
    return f.fma(s, inner, f.neg(half))


def log(x: Node) -> Node:
    """The natural logarithm."""
    f = builder_of(x.dtype)
    exponent, g = _split_log(f, x)
    high, low = LN2_F32 if _is_single(f) else LN2_F64
    tail = f.fma(exponent, f.c(low), _log_tail(f, g))
    result = f.fma(exponent, f.c(high), f.add(g, tail))
    return _special_log(f, x, result)


def log2(x: Node) -> Node:
    """The logarithm to base 2."""
    f = builder_of(x.dtype)
    exponent, g = _split_log(f, x)
    high, low = LOG2E_F32 if _is_single(f) else LOG2E_F64
    tail = f.fma(_log_tail(f, g), f.c(high), f.mul(g, f.c(low)))
    result = f.add(exponent, f.fma(g, f.c(high), tail))
    return _special_log(f, x, result)


# --- powers -------------------------------------------------------------------------------------


def _quick_sum(f: FloatBuilder, x: Node, y: Node) -> tuple[Node, Node]:
    """x + y exactly, as (sum, error), for |x| >= |y|."""
    total = f.add(x, y)
    return total, f.sub(y, f.sub(total, x))


def _product(f: FloatBuilder, x: Node, y: Node) -> tuple[Node, Node]:
    """x * y exactly, as (product, error)."""
    total = f.mul(x, y)
    return total, f.fma(x, y, f.neg(total))


def power(x: Node, y: Node) -> Node:
    """x**y with C's special values."""
    f = builder_of(x.dtype)
    size = f.abs(x)
    if _is_single(f):
        # Twice the precision is at hand: the product of logarithm and exponent may be rounded.
        logarithm = log2(cast(size, dtypes.float64))
        product = FLOAT64.mul(cast(y, dtypes.float64), logarithm)
        result = cast(exp2(product), f.dtype)
    else:
        result = _power_of_positive(size, y)
    return _special_power(f, x, y, result)


def power_of_few_digits(x: Node, y: Node) -> Node:
    """x**y of float32 with C's special values, for results that are rounded to 16 bits.

    A logarithm of up to 128 is off by 2**-17 in a product of float32, and so is the power: by one
    part in 2**6 of what rounding to float16 is at most, where logarithms are less than 16.
    """
    f = builder_of(x.dtype)
    product = f.mul(y, log2(f.abs(x)))
    return _special_power(f, x, y, exp2(product))


def _power_of_positive(x: Node, y: Node) -> Node:
    """x**y for positive float64 x, with the logarithm in two floats."""
    f = FLOAT64
    exponent, g = _split_log(f, x)
    high, low = _log2_pair(f, exponent, g)
    high = f.where(f.equal(x, f.c(math.inf)), f.c(math.inf), high)
    high = f.where(f.equal(x, f.c(0.0)), f.c(-math.inf), high)
    total, rest = _product(f, y, high)
    rest = f.fma(y, low, rest)
    # Of an infinite or huge product the rest may be no number, and does not count.
    near = f.less(f.abs(total), f.c(1100.0))
    return _exp2_of_sum(f, total, f.where(near, rest, f.c(0.0)))


def _log2_pair(f: FloatBuilder, exponent: Node, g: Node) -> tuple[Node, Node]:
    """exponent + log2(1 + g) as the sum of two floats, by 2*atanh(g / (2 + g)) / ln(2)."""
    bottom, bottom_rest = _quick_sum(f, f.c(2.0), g)
    s = f.div(g, bottom)
    s_rest = f.fma(f.neg(s), bottom, g)
    s_rest = f.div(f.fma(f.neg(s), bottom_rest, s_rest), bottom)
    z, z_rest = _product(f, s, s)
    z_rest = f.fma(f.add(s, s), s_rest, z_rest)
    # atanh(s)/s - 1 = z/3 + z**2 * polynomial: the first term in two floats.
    third, third_rest = f.c(1.0 / 3.0), f.c(1.850371707708594e-17)
    first, first_rest = _product(f, z, third)
    first_rest = f.add(first_rest, f.fma(z, third_rest, f.mul(z_rest, third)))
    rest = f.fma(f.mul(z, z), f.polynomial(z, tables.ATANH_F64), first_rest)
    factor, factor_rest = _quick_sum(f, first, rest)
    tail, tail_rest = _product(f, s, factor)
    tail_rest = f.add(f.fma(s, factor_rest, f.mul(s_rest, factor)), tail_rest)
    total, total_rest = _quick_sum(f, s, tail)
    total_rest = f.add(total_rest, f.add(tail_rest, s_rest))
    total, total_rest = _quick_sum(f, total, total_rest)
    # Times 2/ln(2), in two floats.
    scale, scale_rest = f.c(2.0 * LOG2E_F64[0]), f.c(2.0 * LOG2E_F64[1])
    high, low = _product(f, total, scale)
    low = f.add(low, f.fma(total, scale_rest, f.mul(total_rest, scale)))
    high, low = _quick_sum(f, high, low)
    both, both_rest = _quick_sum(f, exponent, high)
    # An exponent of 0 is the smaller of the two; then the sum is exact as it stands.
    none = f.equal(exponent, f.c(0.0))
    return f.where(none, high, both), f.where(none, low, f.add(both_rest, low))


def _special_power(f: FloatBuilder, x: Node, y: Node, result: Node) -> Node:
    """Signs, zeros, infinities and NaNs of x**y, where `result` is |x|**y."""
    zero, one = f.c(0.0), f.c(1.0)
    half = f.mul(y, f.c(0.5))
    is_integer = f.equal(f.op(Ops.TRUNC, y), y)
    is_even = f.equal(f.op(Ops.TRUNC, half), half)
    is_odd = alu(Ops.AND, is_integer, alu(Ops.NOT, is_even))
    signed = f.where(is_odd, f.with_sign_of(result, x), result)
    # A negative finite base needs an integer exponent.
    negative = f.less(x, zero)
    finite = f.less(f.c(-math.inf), x)
    lost = alu(Ops.AND, negative, finite)
    lost = alu(Ops.AND, lost, alu(Ops.NOT, is_integer))
    nan = f.c(math.nan)
    signed = f.where(lost, nan, signed)
    either = alu(Ops.OR, is_nan(x), is_nan(y))
    signed = f.where(either, nan, signed)
    # (-1)**(+-inf) is 1, as is anything to the power 0 and 1 to any power.
    endless = f.equal(f.abs(y), f.c(math.inf))
    unit = alu(Ops.AND, f.equal(f.abs(x), one), endless)
    certain = alu(Ops.OR, f.equal(y, zero), f.equal(x, one))
    return f.where(alu(Ops.OR, certain, unit), one, signed)
