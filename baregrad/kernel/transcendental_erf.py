"""The error function as arithmetic."""

from __future__ import annotations

from baregrad.ir.node import Node
from baregrad.kernel import transcendental_tables as tables
from baregrad.kernel.float_builder import FLOAT32, FLOAT64, builder_of
from baregrad.kernel.transcendental_exp import exp, power_complement


def erf(x: Node) -> Node:
    """The error function."""
    f = builder_of(x.dtype)
    size = f.abs(x)
    return f.with_sign_of(_single(size) if f is FLOAT32 else _double(size), x)


def _single(x: Node) -> Node:
    """erf(x) for x >= 0: 1 less 2 to the power of a polynomial, which is 0 at 0."""
    f = FLOAT32
    # Beyond this the result rounds to 1.
    x = f.at_most(x, 3.95)
    first, *rest = tables.LOG2_ERFC_F32
    # The first term by itself, so that near 0 the others' roundings do not show.
    power = f.fma(x, f.c(first), f.mul(f.mul(x, x), f.polynomial(x, rest)))
    return power_complement(power)


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
