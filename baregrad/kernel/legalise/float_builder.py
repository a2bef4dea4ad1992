"""Building blocks of floating-point functions: nodes of one dtype, spelled short."""

from __future__ import annotations

import math
from collections.abc import Sequence

from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.node import Node, const
from baregrad.ir.core.op import Op, Ops

BOOL = dtypes.bool
# Coefficients from which on a polynomial is two.
LONG = 12


class FloatBuilder:
    """Makes nodes of float32 or float64, and of the signed integers of the same size.

    `mantissa` is the number of stored mantissa bits and `bias` that of the exponent.
    """

    def __init__(self, dtype: DType) -> None:
        form = dtype.format
        assert form is not None
        self.dtype = dtype
        self.integer = dtypes.int32 if dtype.bits == 32 else dtypes.int64
        self.unsigned = dtypes.uint32 if dtype.bits == 32 else dtypes.uint64
        self.mantissa = form.mantissa_bits
        self.bias = form.bias
        self.magic = 1.5 * 2.0**form.mantissa_bits
        self.least_normal = math.ldexp(1.0, form.least_exponent)
        # See `scaled_by_power`: 2**n is 0 for n + power_offset < 4, the last that rounds to 0.
        least = form.least_exponent - self.mantissa - 1
        self.power_offset = 4 - least
        self.power_scale = 2.0 ** (2 * self.bias - self.power_offset)
        self.power_limits = (least - 3.0, self.bias + 2.0)

    # --- leaves ---------------------------------------------------------------------------------

    def c(self, value: float) -> Node:
        """A constant."""
        return const(value, self.dtype)

    def i(self, value: int) -> Node:
        """An integer constant."""
        return const(value, self.integer)

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

        Long ones are two of the square of x, of the even powers and the odd ones: half as many
        steps wait for each other, and there is one more.
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

    def field(self, x: Node) -> Node:
        """The bits as an unsigned integer."""
        return Node(Ops.BITCAST, self.unsigned, (x,))

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

    def round_scaled(self, x: Node, scale: float, offset: int = 0) -> tuple[Node, Node]:
        """x * scale rounded to an integer, and a float whose low bits hold that plus `offset`.

        Adding 1.5 * 2**mantissa leaves no room for a fraction. Right for |x * scale| + offset less
        than 2**(mantissa - 1).
        """
        magic = self.c(self.magic + offset)
        held = self.add(x, magic) if scale == 1.0 else self.fma(x, self.c(scale), magic)
        return self.sub(held, magic), held

    def scaled_by_power(self, x: Node, held: Node) -> Node:
        """x / power_scale * 2**n, where the low bits of the float `held` are n + power_offset.

        n is in `power_limits` and x / power_scale between 1/2 and 2. Two factors reach every
        binade, of which the one takes a quarter of what is held as the field of its exponent and
        the other one the rest. Only the second multiplication can round, so results below the
        normal range are right; and where n is so small that the result is 0, so is a field, and
        the factor: processors take a hundred times as long for a product that is rounded to 0.
        """
        field = self.field(held)
        quarter = Node(Ops.SHR, self.unsigned, (field, const(2, self.unsigned)))
        rest = Node(Ops.SUB, self.unsigned, (field, quarter))
        return self.mul(self.mul(x, self.power(quarter)), self.power(rest))

    def power(self, field: Node) -> Node:
        """The float whose exponent is given by the lowest bits of an integer; 0 for 0."""
        bits = Node(Ops.SHL, self.unsigned, (field, const(self.mantissa, self.unsigned)))
        return self.from_bits(bits)


FLOAT32 = FloatBuilder(dtypes.float32)
FLOAT64 = FloatBuilder(dtypes.float64)


def builder_of(dtype: DType) -> FloatBuilder:
    """The builder of float32 or float64."""
    return FLOAT32 if dtype.bits == 32 else FLOAT64
