"""Laws of floats that hold bit for bit, with NaN, infinities and both zeros.

Most of what holds for real numbers does not hold here: x + 0.0 is not x for -0.0, x * 0.0 is not 0
for infinities and NaN, and sums do not associate.
"""

from __future__ import annotations

import math
from typing import Any

from baregrad.dtypes import DType, dtypes
from baregrad.ir.algebra.constants import fold
from baregrad.ir.algebra.rewrite import Captures, Rule, floats, literal, number, term, var
from baregrad.ir.core.monoid import slot
from baregrad.ir.core.node import Node, alu, const
from baregrad.ir.core.op import Ops

F32 = dtypes.float32


def _x() -> Node:
    return slot(0, F32)


def _c(value: float) -> Node:
    return const(value, F32)


def _take_x(found: Captures, node: Node) -> Node:
    return found["x"]


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
    Rule(
        name="add-negative-zero",
        law="x + -0.0 → x",
        reason="-0.0 is the identity of float addition; 0.0 is not, since -0.0 + 0.0 is 0.0",
        pattern=term(Ops.ADD, var("x", floats), literal(-0.0)),
        build=_take_x,
        example=lambda: (alu(Ops.ADD, _x(), _c(-0.0)), _x()),
    ),
    Rule(
        name="subtract-zero",
        law="x - 0.0 → x",
        reason="the same identity, written as a difference",
        pattern=term(Ops.SUB, var("x", floats), literal(0.0)),
        build=_take_x,
        example=lambda: (alu(Ops.SUB, _x(), _c(0.0)), _x()),
    ),
    Rule(
        name="multiply-one",
        law="x * 1.0 → x",
        reason="gradients and normalisations multiply by one",
        pattern=term(Ops.MUL, var("x", floats), literal(1.0)),
        build=_take_x,
        example=lambda: (alu(Ops.MUL, _x(), _c(1.0)), _x()),
    ),
    Rule(
        name="divide-one",
        law="x / 1.0 → x",
        reason="means over one element divide by one",
        pattern=term(Ops.DIV, var("x", floats), literal(1.0)),
        build=_take_x,
        example=lambda: (alu(Ops.DIV, _x(), _c(1.0)), _x()),
    ),
    Rule(
        name="multiply-minus-one",
        law="x * -1.0 → -x",
        reason="a sign flip is cheaper than a product and fuses into sums",
        pattern=term(Ops.MUL, var("x", floats), literal(-1.0)),
        build=lambda found, node: alu(Ops.NEG, found["x"]),
        example=lambda: (alu(Ops.MUL, _x(), _c(-1.0)), alu(Ops.NEG, _x())),
    ),
    Rule(
        name="divide-power-of-two",
        law="x / c → x * (1/c), if c is a power of two and so is 1/c",
        reason="a product is many times faster than a quotient, and here exact",
        pattern=term(Ops.DIV, var("x", floats), number("c", floats, _is_power_of_two)),
        build=_reciprocal_exactly,
        example=lambda: (alu(Ops.DIV, _x(), _c(8.0)), alu(Ops.MUL, _x(), _c(0.125))),
    ),
    Rule(
        name="one-over",
        law="1.0 / x → reciprocal(x)",
        reason="one name for one function",
        pattern=term(Ops.DIV, literal(1.0), var("x", floats)),
        build=lambda found, node: alu(Ops.RECIPROCAL, found["x"]),
        example=lambda: (alu(Ops.DIV, _c(1.0), _x()), alu(Ops.RECIPROCAL, _x())),
    ),
    Rule(
        name="power-of-one",
        law="pow(x, 1.0) → x",
        reason="a power is the dearest of the elementary functions",
        pattern=term(Ops.POW, var("x", floats), literal(1.0)),
        build=_take_x,
        example=lambda: (alu(Ops.POW, _x(), _c(1.0)), _x()),
    ),
    Rule(
        name="square",
        law="pow(x, 2.0) → x * x, if x has at most 32 bits",
        reason="squares are common; a float64 power may differ from the product in its last bit",
        pattern=term(Ops.POW, var("x", _up_to_float32), literal(2.0)),
        build=lambda found, node: alu(Ops.MUL, found["x"], found["x"]),
        example=lambda: (alu(Ops.POW, _x(), _c(2.0)), alu(Ops.MUL, _x(), _x())),
    ),
    Rule(
        name="power-of-minus-one",
        law="pow(x, -1.0) → reciprocal(x), if x has at most 32 bits",
        reason="x ** -1 is how reciprocals are written",
        pattern=term(Ops.POW, var("x", _up_to_float32), literal(-1.0)),
        build=lambda found, node: alu(Ops.RECIPROCAL, found["x"]),
        example=lambda: (alu(Ops.POW, _x(), _c(-1.0)), alu(Ops.RECIPROCAL, _x())),
    ),
    Rule(
        name="add-negated",
        law="x + -y → x - y",
        reason="one operation instead of two",
        pattern=term(Ops.ADD, var("x", floats), term(Ops.NEG, var("y"))),
        build=lambda found, node: alu(Ops.SUB, found["x"], found["y"]),
        example=lambda: (
            alu(Ops.ADD, _x(), alu(Ops.NEG, slot(1, F32))),
            alu(Ops.SUB, _x(), slot(1, F32)),
        ),
    ),
    Rule(
        name="subtract-negated",
        law="x - -y → x + y",
        reason="one operation instead of two",
        pattern=term(Ops.SUB, var("x", floats), term(Ops.NEG, var("y"))),
        build=lambda found, node: alu(Ops.ADD, found["x"], found["y"]),
        example=lambda: (
            alu(Ops.SUB, _x(), alu(Ops.NEG, slot(1, F32))),
            alu(Ops.ADD, _x(), slot(1, F32)),
        ),
    ),
    Rule(
        name="negated-factors",
        law="-x * -y → x * y",
        reason="gradients of differences carry pairs of signs",
        pattern=term(Ops.MUL, term(Ops.NEG, var("x", floats)), term(Ops.NEG, var("y"))),
        build=lambda found, node: alu(Ops.MUL, found["x"], found["y"]),
        example=lambda: (
            alu(Ops.MUL, alu(Ops.NEG, _x()), alu(Ops.NEG, slot(1, F32))),
            alu(Ops.MUL, _x(), slot(1, F32)),
        ),
    ),
    Rule(
        name="round-twice",
        law="round(round(x)) → round(x), for floor, ceil, trunc and rint, whichever comes second",
        reason="rounding an integer changes nothing",
        pattern=term(
            (Ops.FLOOR, Ops.CEIL, Ops.TRUNC, Ops.RINT),
            term((Ops.FLOOR, Ops.CEIL, Ops.TRUNC, Ops.RINT), var("y"), name="x", kinds=floats),
        ),
        build=_take_x,
        example=lambda: (alu(Ops.CEIL, alu(Ops.FLOOR, _x())), alu(Ops.FLOOR, _x())),
    ),
)
