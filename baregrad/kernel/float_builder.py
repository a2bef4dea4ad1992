"""Building blocks of floating-point functions: nodes of one dtype, spelled short."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

from baregrad.dtypes import DType, dtypes
from baregrad.ir.node import Node, const
from baregrad.ir.op import Op, Ops

BOOL = dtypes.bool
# Coefficients from which on a polynomial is two.
LONG = 5


class FloatBuilder:
    """Makes nodes of float32 or float64, and of the signed integers of the same size.

    `mantissa` is the number of stored mantissa bits and `bias` that of the exponent.
    """

    def __init__(self, dtype: DType) -> None:
        form = dtype.format
        assert form is not None
        self.dtype = dtype
        self.integer = dtypes.int32 if dtype.bits == 32 else dtypes.int64
        self.mantissa = form.mantissa_bits
        self.bias = form.bias
        self.magic = 1.5 * 2.0**form.mantissa_bits
        self.least_normal = math.ldexp(1.0, form.least_exponent)

    # --- leaves ---------------------------------------------------------------------------------

    def c(self, value: float) -> Node:
        """A constant."""
        return const(value, self.dtype)

    def i(self, value: int) -> Node:
        """An integer constant."""
        return const(value, self.integer)

    def bits_of_constant(self, value: float) -> int:
        """The bits of a constant, as a signed integer."""
        letters = ("<f", "<i") if self.dtype.bits == 32 else ("<d", "<q")
        found: int = struct.unpack(letters[1], struct.pack(letters[0], value))[0]
        return found

    # --- arithmetic -----------------------------------------------------------------------------

    def op(self, op: Op, *src: Node) -> Node:
        """An op of floats."""
        return Node(op, self.dtype, src)

    def add(self, x: Node, y: Node) -> Node:
        """x + y."""
        return Node(Ops.ADD, self.dtype, (x, y))

    def sub(self, x: Node, y: Node) -> Node:
        """x - y."""
        return Node(Ops.SUB, self.dtype, (x, y))

    def mul(self, x: Node, y: Node) -> Node:
        """x * y."""
        return Node(Ops.MUL, self.dtype, (x, y))

    def div(self, x: Node, y: Node) -> Node:
        """x / y."""
        return Node(Ops.DIV, self.dtype, (x, y))

    def fma(self, x: Node, y: Node, z: Node) -> Node:
        """x * y + z, rounded once."""
        return Node(Ops.FMA, self.dtype, (x, y, z))

    def neg(self, x: Node) -> Node:
        """-x."""
        return Node(Ops.NEG, self.dtype, (x,))

    def abs(self, x: Node) -> Node:
        """|x|."""
        return Node(Ops.ABS, self.dtype, (x,))

    def polynomial(self, x: Node, coefficients: Sequence[float]) -> Node:
        """c0 + c1*x + c2*x**2 + ..., by Horner's scheme in fused steps.

        Long ones are two of the square of x, of the even powers and the odd ones: as many steps, of
        which half wait for each other.
        """
        if len(coefficients) >= LONG:
            square = self.mul(x, x)
            even = self.polynomial(square, coefficients[0::2])
            return self.fma(self.polynomial(square, coefficients[1::2]), x, even)
        *rest, last = coefficients
        total = self.c(last)
        for coefficient in reversed(rest):
            total = self.fma(total, x, self.c(coefficient))
        return total

    # --- choices --------------------------------------------------------------------------------

    def less(self, x: Node, y: Node) -> Node:
        """x < y."""
        return Node(Ops.CMPLT, BOOL, (x, y))

    def equal(self, x: Node, y: Node) -> Node:
        """x == y."""
        return Node(Ops.CMPEQ, BOOL, (x, y))

    def where(self, cond: Node, x: Node, y: Node) -> Node:
        """x where cond, else y."""
        return Node(Ops.WHERE, x.dtype, (cond, x, y))

    def at_most(self, x: Node, limit: float) -> Node:
        """The smaller of x and a constant; a NaN stays."""
        return Node(Ops.MIN, self.dtype, (x, self.c(limit)))

    def at_least(self, x: Node, limit: float) -> Node:
        """The larger of x and a constant; a NaN stays."""
        return Node(Ops.MAX, self.dtype, (x, self.c(limit)))

    # --- bits -----------------------------------------------------------------------------------

    def bits(self, x: Node) -> Node:
        """The bits as a signed integer."""
        return Node(Ops.BITCAST, self.integer, (x,))

    def from_bits(self, x: Node) -> Node:
        """The float of some bits."""
        return Node(Ops.BITCAST, self.dtype, (x,))

    def iop(self, op: Op, x: Node, y: Node | int) -> Node:
        """An op of integers."""
        other = self.i(y) if isinstance(y, int) else y
        return Node(op, self.integer, (x, other))

    def with_sign_of(self, size: Node, x: Node) -> Node:
        """A value that is not negative, with its sign flipped where x is negative."""
        sign = self.iop(Ops.AND, self.bits(x), -(1 << (self.dtype.bits - 1)))
        return self.from_bits(self.iop(Ops.XOR, self.bits(size), sign))

    def round_scaled(self, x: Node, scale: float) -> tuple[Node, Node]:
        """x * scale rounded to an integer, as (float, what holds it in its low bits).

        Adding 1.5 * 2**mantissa leaves no room for a fraction. Right for |x * scale| less than
        2**(mantissa - 1).
        """
        if scale == 1.0:
            held = self.add(x, self.c(self.magic))
        else:
            held = self.fma(x, self.c(scale), self.c(self.magic))
        return self.sub(held, self.c(self.magic)), self.bits(held)

    def scaled_by_power(self, x: Node, held: Node) -> Node:
        """x * 2**n with n as `round_scaled` holds it: two factors reach every binade.

        Only the second multiplication can round, so results below the normal range are right.
        """
        first = self.iop(Ops.SHR, held, 1)
        second = self.iop(Ops.SUB, held, first)
        return self.mul(self.mul(x, self.power(first)), self.power(second))

    def power(self, n: Node) -> Node:
        """2**n for an n in the normal range, an integer or as `round_scaled` holds it.

        The field of the exponent takes the lowest bits alone, and there what holds n has nothing
        beside it: neither has its half, nor what is left without its half.
        """
        field = self.iop(Ops.ADD, n, self.bias)
        return self.from_bits(self.iop(Ops.SHL, field, self.mantissa))

    # --- two floats for one number --------------------------------------------------------------

    def quick_sum(self, x: Node, y: Node) -> tuple[Node, Node]:
        """x + y exactly, as (sum, error), for |x| >= |y|."""
        total = self.add(x, y)
        return total, self.sub(y, self.sub(total, x))

    def product(self, x: Node, y: Node) -> tuple[Node, Node]:
        """x * y exactly, as (product, error)."""
        total = self.mul(x, y)
        return total, self.fma(x, y, self.neg(total))


FLOAT32 = FloatBuilder(dtypes.float32)
FLOAT64 = FloatBuilder(dtypes.float64)


def builder_of(dtype: DType) -> FloatBuilder:
    """The builder of float32 or float64."""
    return FLOAT32 if dtype.bits == 32 else FLOAT64
