"""The error function as arithmetic."""

from __future__ import annotations

from baregrad.ir.node import Node
from baregrad.kernel import transcendental_tables as tables
from baregrad.kernel.float_builder import FloatBuilder, builder_of
from baregrad.kernel.transcendental_exp import exp


def erf(x: Node) -> Node:
    """The error function: a polynomial near 0, 1 less an exponential beyond."""
    f = builder_of(x.dtype)
    single = f.dtype.bits == 32
    size = f.abs(x)
    near_limit = 0.9 if single else 1.0
    z = f.mul(size, size)
    near = f.fma(size, f.polynomial(z, tables.ERF_F32 if single else tables.ERF_F64), size)
    # Beyond the last argument the result rounds to 1.
    bounded = f.at_most(f.at_least(size, near_limit), 3.95 if single else 6.0)
    far = f.sub(f.c(1.0), _complement(f, bounded))
    return f.with_sign_of(f.where(f.less(size, f.c(near_limit)), near, far), x)


def _complement(f: FloatBuilder, x: Node) -> Node:
    """1 - erf(x) for x from about 1 on, as exact as 1 less it needs."""
    if f.dtype.bits == 32:
        return exp(f.polynomial(x, tables.LOG_ERFC_F32))
    t = f.div(f.sub(x, f.c(2.0)), f.add(x, f.c(2.0)))
    return f.mul(exp(f.neg(f.mul(x, x))), f.polynomial(t, tables.ERFCX_F64))
