"""Sine, cosine and arctangent as arithmetic, for every finite argument.

Arguments of moderate size are reduced by pi/2 in float64 with fused multiply-adds. For huge ones
the bits of 2/pi that matter are picked by the exponent and multiplied in integers (Payne and
Hanek, "Radian reduction for trigonometric functions", 1983); that part is guarded, so it only
runs where some lane needs it.
"""

from __future__ import annotations

import itertools
import math

from baregrad.dtypes import dtypes
from baregrad.ir.core.bounds import bounds
from baregrad.ir.core.node import Node, alu, cast, const
from baregrad.ir.core.op import Op, Ops
from baregrad.kernel.legalise import transcendental_tables as tables
from baregrad.kernel.legalise.divide import multiply_high
from baregrad.kernel.legalise.float_builder import FLOAT64, FloatBuilder, builder_of

I32, I64, U64, BOOL = dtypes.int32, dtypes.int64, dtypes.uint64, dtypes.bool
# pi/2 as the sum of three floats, and 2/pi.
HALF_PI = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33)
HALF_PI_F32 = (1.5707963705062866, -4.371138828673793e-08)
TWO_OVER_PI = 0.6366197723675814
# Beyond these arguments the plain reduction is not trusted.
HUGE_F32 = 2.0**40
HUGE_F64 = 2.0**30
# The bits of 2/pi behind the point, 64 to a word, after 64 zeros.
TWO_OVER_PI_WORDS = (
    0x0000000000000000, 0xA2F9836E4E441529, 0xFC2757D1F534DDC0, 0xDB6295993C439041,
    0xFE5163ABDEBBC561, 0xB7246E3A424DD2E0, 0x06492EEA09D1921C, 0xFE1DEB1CB129A73E,
    0xE88235F52EBB4484, 0xE99C7026B45F7E41, 0x3991D639835339F4, 0x9C845F8BBDF9283B,
    0x1FF897FFDE05980F, 0xEF2F118B5A0A6D1F, 0x6D367ECF27CB09B7, 0x4F463F669E5FEA2D,
    0x7527BAC7EBE5F17B, 0x3D0739F78A5292EA, 0x6BFB5FB11F8D5D08, 0x56033046FC7B6BAB,
    0xF0CFBC209AF4361D,
)


def sin(x: Node) -> Node:
    """The sine."""
    f = builder_of(x.dtype)
    size = f.abs(x)
    r, quadrant = _reduce(f, size)
    return f.with_sign_of(_by_quadrant(f, r, quadrant), x)


def cos(x: Node) -> Node:
    """The cosine."""
    f = builder_of(x.dtype)
    r, quadrant = _reduce(f, f.abs(x))
    return _by_quadrant(f, r, Node(Ops.ADD, I32, (quadrant, const(1, I32))))


def _by_quadrant(f: FloatBuilder, r: Node, quadrant: Node) -> Node:
    """sin(r + quadrant*pi/2) for |r| <= pi/4."""
    single = f.dtype.bits == 32
    z = f.mul(r, r)
    sine_table = tables.SIN_F32 if single else tables.SIN_F64
    cosine_table = tables.COS_F32 if single else tables.COS_F64
    sine = f.fma(f.mul(r, z), f.polynomial(z, sine_table), r)
    # 1 - z/2 is rounded; what was lost comes back with the small terms.
    half = f.mul(z, f.c(0.5))
    near = f.sub(f.c(1.0), half)
    lost = f.sub(f.sub(f.c(1.0), near), half)
    cosine = f.add(near, f.fma(f.mul(z, z), f.polynomial(z, cosine_table), lost))
    one, two = const(1, I32), const(2, I32)
    odd = Node(Ops.CMPNE, BOOL, (Node(Ops.AND, I32, (quadrant, one)), const(0, I32)))
    low = Node(Ops.CMPEQ, BOOL, (Node(Ops.AND, I32, (quadrant, two)), const(0, I32)))
    value = f.where(odd, cosine, sine)
    return f.where(low, value, f.neg(value))


def _reduce(f: FloatBuilder, x: Node) -> tuple[Node, Node]:
    """x = r + n*pi/2 with |r| <= pi/4, as (r, n modulo 4 in the low bits of an int32); x >= 0."""
    d = FLOAT64
    wide = cast(x, dtypes.float64)
    n, held = d.round_scaled(wide, TWO_OVER_PI)
    r = d.fma(n, d.c(-HALF_PI[0]), wide)
    r = d.fma(n, d.c(-HALF_PI[1]), r)
    if f.dtype.bits == 64:
        r = d.fma(n, d.c(-HALF_PI[2]), r)
    quadrant = cast(d.bits(held), I32)
    if most(x) <= (HUGE_F32 if f.dtype.bits == 32 else HUGE_F64):
        return cast(r, f.dtype), quadrant
    huge = d.less(d.c(HUGE_F32 if f.dtype.bits == 32 else HUGE_F64), wide)
    # Infinity gives NaN above already, and no bits of 2/pi fit it.
    huge = Node(Ops.AND, BOOL, (huge, d.less(wide, d.c(math.inf))))
    words = 6 if f.dtype.bits == 32 else len(TWO_OVER_PI_WORDS)
    far, far_quadrant = _reduce_huge(wide, TWO_OVER_PI_WORDS[:words])
    r = d.where(huge, Node(Ops.GUARD, d.dtype, (huge, far)), r)
    quadrant = alu(Ops.WHERE, huge, Node(Ops.GUARD, I32, (huge, far_quadrant)), quadrant)
    return cast(r, f.dtype), quadrant


def most(x: Node, depth: int = 8) -> float:
    """What a float's size is at most, as far as it shows in a few steps; infinite where it is NaN.

    So the angle of a random number needs no reduction of huge arguments.
    """
    if x.op is Ops.CONST:
        return math.inf if math.isnan(x.arg) else abs(x.arg)
    if depth and x.op is Ops.CAST and x.src[0].dtype.kind in ("int", "uint"):
        return float(max(map(abs, bounds(x.src[0]))))
    if depth and x.op is Ops.CAST and x.src[0].dtype.kind == "float":
        return most(x.src[0], depth - 1)
    if depth and x.op in (Ops.ABS, Ops.NEG):
        return most(x.src[0], depth - 1)
    if depth and x.op is Ops.MUL:
        sizes = [most(factor, depth - 1) for factor in x.src]
        # A little more than the product, since that is rounded.
        return math.inf if math.inf in sizes else math.prod(sizes) * (1 + 2.0**-7)
    return math.inf


def _u(op: Op, x: Node, y: Node | int) -> Node:
    other = const(y, U64) if isinstance(y, int) else y
    return Node(op, U64, (x, other))


def _reduce_huge(x: Node, table: tuple[int, ...]) -> tuple[Node, Node]:
    """(r, quadrant) of a finite float64 of at least 2**27, from enough bits of x * 2/pi.

    x = m * 2**s. The bits of 2/pi above 2**(2 - s) give multiples of 4 and are dropped: the table
    is read from bit s - 2 on (s - 2 + 64 with its leading zeros), three words of it.
    """
    bits = Node(Ops.BITCAST, U64, (x,))
    field = _u(Ops.SHR, bits, 52)
    mantissa = _u(Ops.OR, _u(Ops.AND, bits, (1 << 52) - 1), 1 << 52)
    start = _u(Ops.SUB, field, 1023 + 52 + 2 - 64)
    word = _u(Ops.SHR, start, 6)
    shift = _u(Ops.AND, start, 63)
    back = _u(Ops.SUB, const(63, U64), shift)
    pairs = itertools.pairwise(_words_from(table, word, 4))
    a0, a1, a2 = (
        _u(Ops.OR, _u(Ops.SHL, high, shift), _u(Ops.SHR, _u(Ops.SHR, low, 1), back))
        for high, low in pairs
    )
    # x * 2/pi / 4, modulo 1, as 128 bits behind the point.
    third = multiply_high(mantissa, a2)
    low = _u(Ops.ADD, _u(Ops.MUL, mantissa, a1), third)
    carry = cast(Node(Ops.CMPLT, BOOL, (low, third)), U64)
    high = _u(Ops.ADD, _u(Ops.MUL, mantissa, a0), multiply_high(mantissa, a1))
    high = _u(Ops.ADD, high, carry)
    # Two bits of quadrant; the rest, read as a signed number, is within half a quadrant of 0.
    rest = _u(Ops.OR, _u(Ops.SHL, high, 2), _u(Ops.SHR, low, 62))
    quadrant = _u(Ops.ADD, _u(Ops.SHR, high, 62), _u(Ops.SHR, rest, 63))
    d = FLOAT64
    signed = Node(Ops.BITCAST, I64, (rest,))
    near = cast(signed, d.dtype)
    # The conversion rounds; what it lost, and the 64 bits below, make a second float.
    lost = Node(Ops.SUB, I64, (signed, cast(near, I64)))
    below = d.mul(cast(_u(Ops.SHL, low, 2), d.dtype), d.c(2.0**-64))
    tail = d.add(cast(lost, d.dtype), below)
    product = d.fma(tail, d.c(HALF_PI[0]), d.mul(near, d.c(HALF_PI[1])))
    r = d.fma(near, d.c(HALF_PI[0]), product)
    return d.mul(r, d.c(2.0**-64)), cast(quadrant, I32)


def _words_from(table: tuple[int, ...], place: Node, count: int) -> list[Node]:
    """table[place], ..., table[place + count - 1]: one choice per bit of `place`."""
    words = [const(word, U64) for word in table]
    step = 1
    while step * 2 <= len(table) - count:
        step *= 2
    while step:
        taken = Node(Ops.CMPNE, BOOL, (_u(Ops.AND, place, step), const(0, U64)))
        kept = min(len(words), count + step - 1)
        # A place beyond the table does not occur, so its last words may be anything.
        words = [
            Node(Ops.WHERE, U64, (taken, words[min(k + step, len(words) - 1)], words[k]))
            for k in range(kept)
        ]
        step //= 2
    return words[:count]


# --- arctangent ---------------------------------------------------------------------------------

# Arguments near c are turned by it: atan(x) = atan(c) + atan((x - c) / (1 + c*x)).
TURNS = (
    # from, c, atan(c) as the sum of two floats
    (0.4140625, 0.5, (0.4636476090008061, 2.2698777452961687e-17)),
    (0.6875, 1.0, (0.7853981633974483, 3.061616997868383e-17)),
    (1.1875, 1.5, (0.982793723247329, 1.3903311031230998e-17)),
    (2.4375, math.inf, (1.5707963267948966, 6.123233995736766e-17)),
)


def atan(x: Node) -> Node:
    """The inverse tangent."""
    f = builder_of(x.dtype)
    size = f.abs(x)
    value = _atan_single(f, size) if f.dtype.bits == 32 else _atan_double(f, size)
    return f.with_sign_of(value, x)


def _atan_single(f: FloatBuilder, size: Node) -> Node:
    above = f.less(f.c(1.0), size)
    t = f.where(above, f.op(Ops.RECIPROCAL, size), size)
    z = f.mul(t, t)
    turned = f.fma(f.mul(t, z), f.polynomial(z, tables.ATAN_F32), t)
    high, low = HALF_PI_F32
    complement = f.sub(f.c(high), f.sub(turned, f.c(low)))
    return f.where(above, complement, turned)


def _atan_double(f: FloatBuilder, size: Node) -> Node:
    top, bottom = size, f.c(1.0)
    high = low = f.c(0.0)
    for start, c, (angle, rest) in TURNS:
        beyond = f.less(f.c(start), size)
        if math.isinf(c):
            turned_top, turned_bottom = f.c(-1.0), size
        else:
            turned_top = f.sub(size, f.c(c))
            turned_bottom = f.fma(size, f.c(c), f.c(1.0))
        top, bottom = f.where(beyond, turned_top, top), f.where(beyond, turned_bottom, bottom)
        high, low = f.where(beyond, f.c(angle), high), f.where(beyond, f.c(rest), low)
    t = f.div(top, bottom)
    z = f.mul(t, t)
    tail = f.fma(f.mul(t, z), f.polynomial(z, tables.ATAN_F64), low)
    return f.add(high, f.add(t, tail))
