"""The error function, and x times the normal distribution's integral, as arithmetic."""

from __future__ import annotations

import math

from baregrad.ir.core.node import Node, const
from baregrad.ir.core.op import Ops
from baregrad.kernel.legalise import transcendental_tables as tables
from baregrad.kernel.legalise.float_builder import FLOAT32, FLOAT64, builder_of
from baregrad.kernel.legalise.transcendental_exp import exp


def erf(x: Node) -> Node:
    """The error function."""
    f = builder_of(x.dtype)
    size = f.abs(x)
    return f.with_sign_of(_single(size) if f is FLOAT32 else _double(size), x)


def gelu(x: Node) -> Node:
    """x * (1 + erf(x / sqrt(2))) / 2; -0 for minus infinity."""
    f = builder_of(x.dtype)
    if f is FLOAT32:
        return _gelu_single(x)
    # Below the limit the sum is 0 exactly. The negative result is computed and negated, so that a
    # result of zero has the sign of x.
    x = f.at_least(x, -40.0)
    half = f.mul(x, f.c(-0.5))
    return f.neg(f.fma(half, erf(f.mul(x, f.c(math.sqrt(0.5)))), half))


def _gelu_single(x: Node) -> Node:
    """The larger of x and -0, less |x| times the normal distribution's integral beyond |x|.

    The integral is 1/2 - u * (c - u) with u = t * (b - t) and t = s * (a - s), where a, b and c are
    near those that make it (1 - s / s0)**8 / 2, and a polynomial is near s. Near 0 no digit is lost
    by that, and far from it errors vanish. The polynomial's last steps raise its degree by two with
    a product and a sum each, not two products, which leaves about as many products here as sums:
    processors have units for both.
    """
    f = FLOAT32
    bounded = f.at_most(f.abs(x), tables.GELU_END_F32)
    (first, low), (second, high) = tables.GELU_STEPS_F32
    z = f.fma(bounded, f.add(bounded, f.c(tables.GELU_SHIFT_F32)), f.c(first))
    s = f.fma(f.polynomial(bounded, tables.GELU_BASE_F32), z, f.c(low))
    s = f.mul(bounded, f.fma(s, f.add(z, f.c(second)), f.c(high)))
    *turns, last = tables.GELU_TURNS_F32
    for turn in turns:
        s = f.mul(s, f.sub(f.c(turn), s))
    # At the limit this is not above 0.
    integral = f.at_least(f.fma(s, f.sub(s, f.c(last)), f.c(0.5)), 0.0)
    return _less_part(x, bounded, integral)


def _less_part(x: Node, bounded: Node, integral: Node) -> Node:
    """The larger of x and -0, less a product."""
    f = FLOAT32
    # As an unsigned integer -0 is less than what is negative, and more than what is not.
    positive = f.from_bits(Node(Ops.MIN, f.unsigned, (f.field(x), const(1 << 31, f.unsigned))))
    return f.fma(f.neg(bounded), integral, positive)


def gelu_by_lookup(x: Node) -> Node:
    """`gelu` with a polynomial for each of 16 parts of the integral, if it is of float32.

    A part is what is nearest to a multiple of the width, and the last one's polynomial is 0. They
    are polynomials of |x| itself, not of the distance to the multiple: far from 0 terms cancel, but
    there the integral is small beside |x|, of whose last place the result's error is a part.
    """
    f = builder_of(x.dtype)
    if f is not FLOAT32:
        return gelu(x)
    width = tables.GELU_WIDTH_F32
    bounded = f.at_most(f.abs(x), width * (len(tables.GELU_PARTS_F32[0]) - 1))
    # The lowest bits of this sum are the part's number.
    held = f.fma(bounded, f.c(1.0 / width), f.c(f.magic))
    place = f.field(held)
    integral, *rest = [
        Node(Ops.LOOKUP, f.dtype, (place,), table) for table in reversed(tables.GELU_PARTS_F32)
    ]
    for found in rest:
        integral = f.fma(integral, bounded, found)
    return _less_part(x, bounded, integral)


def gelu_by_power(x: Node) -> Node:
    """`gelu` near enough for 16 bits, if it is of float32: by an instruction for powers of two.

    The logarithm of the normal distribution's integral beyond |x| is near a polynomial. At the end
    of that the integral is 0.
    """
    f = builder_of(x.dtype)
    if f is not FLOAT32:
        return gelu(x)
    bounded = f.at_most(f.abs(x), tables.GELU_NEAR_END_F32)
    power = f.polynomial(bounded, tables.GELU_NEAR_F32)
    return _less_part(x, bounded, Node(Ops.EXP2_NEAR, f.dtype, (power,)))


def _single(x: Node) -> Node:
    """erf(x) for x >= 0, by way of s = 1 - (1 - erf(x))**(1/4), of which a polynomial is near.

    Squaring 1 - s takes s to 2*s - s**2: near 0 no digit is lost, and near 1 errors vanish. What is
    computed is 4*s, then 2*s of the first square, so that the doublings cost nothing.
    """
    f = FLOAT32
    # Beyond this the result rounds to 1.
    x = f.at_most(x, 3.95)
    slope = f.c(tables.ERFC_SLOPE_F32)
    # The line through 0 by itself, so that neither its rounding nor the first square's shows.
    curve = f.mul(x, f.polynomial(x, tables.ERFC_ROOT_F32))
    s = f.fma(x, slope, curve)
    curve = f.fma(f.mul(s, f.c(-0.125)), s, curve)
    s = f.fma(x, slope, curve)
    return f.fma(f.mul(s, f.c(-0.25)), s, s)


def _double(x: Node) -> Node:
    """erf(x) for x >= 0: a polynomial near 0, 1 less an exponential beyond."""
    f = FLOAT64
    near = f.fma(x, f.polynomial(f.mul(x, x), tables.ERF_F64), x)
    # Beyond the last argument the result rounds to 1.
    bounded = f.at_most(f.at_least(x, 1.0), 6.0)
    t = f.div(f.sub(bounded, f.c(2.0)), f.add(bounded, f.c(2.0)))
    rest = f.mul(exp(f.neg(f.mul(bounded, bounded))), f.polynomial(t, tables.ERFCX_F64))
    far = f.sub(f.c(1.0), rest)
    return f.where(f.less(x, f.c(1.0)), near, far)
