"""The error function, and x times the normal distribution's integral, as arithmetic."""

from __future__ import annotations

import math

from baregrad.ir.node import Node
from baregrad.kernel import transcendental_tables as tables
from baregrad.kernel.float_builder import FLOAT32, FLOAT64, builder_of
from baregrad.kernel.transcendental_exp import exp


def erf(x: Node) -> Node:
    """The error function."""
    f = builder_of(x.dtype)
    size = f.abs(x)
    return f.with_sign_of(_single(size) if f is FLOAT32 else _double(size), x)


def gelu(x: Node) -> Node:
    """x * (1 + erf(x / sqrt(2))) / 2.

    The negative of that is computed and negated, so that a result of zero has the sign of x.
    """
    f = builder_of(x.dtype)
    half = f.mul(x, f.c(-0.5))
    if f is FLOAT64:
        return f.neg(f.fma(half, erf(f.mul(x, f.c(math.sqrt(0.5)))), half))
    # erf changes its sign with x: what is added to x/2 is |x| times half of it at |x|. Found as in
    # `_single`, where 2*s is computed at first; beyond the limit it rounds to 1/2.
    size = f.abs(x)
    bounded = f.at_most(size, 5.586)
    s = f.mul(bounded, f.polynomial(bounded, tables.GELU_ROOT_F32))
    s = f.fma(f.mul(s, f.c(-0.25)), s, s)
    s = f.fma(f.mul(s, f.c(-0.5)), s, s)
    return f.neg(f.fma(f.neg(size), s, half))


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
