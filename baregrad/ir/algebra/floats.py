"""Laws of floats that hold bit for bit, with NaN, infinities and both zeros.

Most of what holds for real numbers does not hold here: x + 0.0 is not x for -0.0, x * 0.0 is not 0
for infinities and NaN, and sums do not associate.
"""

from __future__ import annotations

import math
from typing import Any

from baregrad.dtypes import DType, dtypes
from baregrad.ir.algebra.constants import fold
from baregrad.ir.algebra.rewrite import Captures, Rule, equation, floats, number, term, var
from baregrad.ir.core.monoid import slot
from baregrad.ir.core.node import Node, alu, const
from baregrad.ir.core.op import Ops

F32 = dtypes.float32
X, Y = slot(0, F32), slot(1, F32)
_ROUNDING = (Ops.FLOOR, Ops.CEIL, Ops.TRUNC, Ops.RINT)


def _c(value: float) -> Node:
    return const(value, F32)


def _is_power_of_two(value: Any) -> bool:
    return math.isfinite(value) and value != 0 and abs(math.frexp(value)[0]) == 0.5


def _up_to_float32(dtype: DType) -> bool:
    return dtype.kind == "float" and dtype.bits <= 32


def _reciprocal_exactly(found: Captures, node: Node) -> Node | None:
    inverse = fold(Ops.RECIPROCAL, node.dtype, found["c"])
    if not _is_power_of_two(inverse.arg):
        return None
    return alu(Ops.MUL, found["x"], inverse)


FLOAT_RULES = (
    equation(
        "add-negative-zero", "x + -0.0 → x",
        "-0.0 is the identity of float addition; 0.0 is not, since -0.0 + 0.0 is 0.0",
        alu(Ops.ADD, X, _c(-0.0)), X, floats,
    ),
    equation(
        "subtract-zero", "x - 0.0 → x",
        "the same identity, written as a difference",
        alu(Ops.SUB, X, _c(0.0)), X, floats,
    ),
    equation(
        "multiply-one", "x * 1.0 → x",
        "gradients and normalisations multiply by one",
        alu(Ops.MUL, X, _c(1.0)), X, floats,
    ),
    equation(
        "divide-one", "x / 1.0 → x",
        "means over one element divide by one",
        alu(Ops.DIV, X, _c(1.0)), X, floats,
    ),
    equation(
        "multiply-minus-one", "x * -1.0 → -x",
        "a sign flip is cheaper than a product and fuses into sums",
        alu(Ops.MUL, X, _c(-1.0)), alu(Ops.NEG, X), floats,
    ),
    Rule(
        "divide-power-of-two", "x / c → x * (1/c), if c is a power of two and so is 1/c",
        "a product is many times faster than a quotient, and here exact",
        term(Ops.DIV, var("x", floats), number("c", floats, _is_power_of_two)), _reciprocal_exactly,
        alu(Ops.DIV, X, _c(8.0)), alu(Ops.MUL, X, _c(0.125)),
    ),
    equation(
        "one-over", "1.0 / x → reciprocal(x)",
        "one name for one function",
        alu(Ops.DIV, _c(1.0), X), alu(Ops.RECIPROCAL, X), floats,
    ),
    equation(
        "power-of-one", "pow(x, 1.0) → x",
        "a power is the dearest of the elementary functions",
        alu(Ops.POW, X, _c(1.0)), X, floats,
    ),
    equation(
        "square", "pow(x, 2.0) → x * x, if x has at most 32 bits",
        "squares are common; a float64 power may differ from the product in its last bit",
        alu(Ops.POW, X, _c(2.0)), alu(Ops.MUL, X, X), _up_to_float32,
    ),
    equation(
        "power-of-minus-one", "pow(x, -1.0) → reciprocal(x), if x has at most 32 bits",
        "x ** -1 is how reciprocals are written",
        alu(Ops.POW, X, _c(-1.0)), alu(Ops.RECIPROCAL, X), _up_to_float32,
    ),
    equation(
        "add-negated", "x + -y → x - y",
        "one operation instead of two",
        alu(Ops.ADD, X, alu(Ops.NEG, Y)), alu(Ops.SUB, X, Y), floats,
    ),
    equation(
        "subtract-negated", "x - -y → x + y",
        "one operation instead of two",
        alu(Ops.SUB, X, alu(Ops.NEG, Y)), alu(Ops.ADD, X, Y), floats,
    ),
    equation(
        "negated-factors", "-x * -y → x * y",
        "gradients of differences carry pairs of signs",
        alu(Ops.MUL, alu(Ops.NEG, X), alu(Ops.NEG, Y)), alu(Ops.MUL, X, Y), floats,
    ),
    Rule(
        "round-twice",
        "round(round(x)) → round(x), for floor, ceil, trunc and rint, whichever comes second",
        "rounding an integer changes nothing",
        term(_ROUNDING, term(_ROUNDING, var("y"), name="x", kinds=floats)),
        lambda found, node: found["x"],
        alu(Ops.CEIL, alu(Ops.FLOOR, X)), alu(Ops.FLOOR, X),
    ),
)
