"""Laws of integers that wrap around, and laws that integers share with other dtypes."""

from __future__ import annotations

from baregrad.dtypes import DType, dtypes
from baregrad.ir.algebra.constants import fold
from baregrad.ir.algebra.rewrite import (
    Captures,
    Rule,
    equation,
    exact,
    integers,
    number,
    term,
    values,
    var,
)
from baregrad.ir.core.monoid import slot
from baregrad.ir.core.node import Node, alu, const
from baregrad.ir.core.op import Op, Ops

I32 = dtypes.int32
X, Y = slot(0, I32), slot(1, I32)


def _c(value: int) -> Node:
    return const(value, I32)


def _signed(dtype: DType) -> bool:
    return dtype.kind in ("int", "float")


def _regroup(found: Captures, node: Node) -> Node:
    both = fold(node.op, node.dtype, found["c"], found["d"])
    return alu(node.op, found["x"], both)


def _regroup_rule(op: Op, sign: str, reason: str) -> Rule:
    return Rule(
        f"regroup-{op.name.lower()}",
        f"(x {sign} c) {sign} d → x {sign} (c {sign} d), for integers and bool",
        reason,
        term(op, term(op, var("x", exact), number("c")), number("d")), _regroup,
        alu(op, alu(op, X, _c(6)), _c(3)), alu(op, X, fold(op, I32, _c(6), _c(3))),
    )


def _all_ones(found: Captures, node: Node) -> Node | None:
    ones = const(-1, node.dtype)
    if found["c"] is not ones:
        return None
    return found["x"] if node.op is Ops.AND else ones


def _beyond_limit(found: Captures, node: Node) -> Node | None:
    dtype, c = node.dtype, found["c"]
    lowest, highest = const(dtype.lowest, dtype), const(dtype.highest, dtype)
    least, most = (lowest, highest) if node.op is Ops.MAX else (highest, lowest)
    if c is least:
        return found["x"]
    # A float may be NaN, which stays.
    return c if c is most and integers(dtype) else None


def _beside_limit(found: Captures, node: Node) -> Node | None:
    x, c = found["x"], found["c"]
    is_less = node.op is Ops.CMPLT
    limit = x.dtype.lowest if (node.src[0] is x) is is_less else x.dtype.highest
    return const(not is_less, dtypes.bool) if c is const(limit, x.dtype) else None


def _opposite(found: Captures, node: Node) -> Node:
    return alu(Ops.SUB if node.op is Ops.ADD else Ops.ADD, found["x"], found["y"])


_ADDITIVE = (Ops.ADD, Ops.SUB, Ops.OR, Ops.XOR, Ops.SHL, Ops.SHR)
_DIVISIONS = (Ops.MUL, Ops.FLOORDIV, Ops.TRUNCDIV)

INTEGER_RULES = (
    equation(
        "neutral-zero",
        "x op 0 → x, for add, sub, or, xor, shl and shr of integers, or and xor of bool",
        "zeros come from unrolled indices and default arguments",
        alu(Ops.ADD, X, _c(0)), X, exact, ops=_ADDITIVE,
    ),
    equation(
        "neutral-one", "x op 1 → x, for mul, floordiv and truncdiv of integers",
        "strides of one are the commonest strides",
        alu(Ops.FLOORDIV, X, _c(1)), X, integers, ops=_DIVISIONS,
    ),
    equation(
        "multiply-zero", "x * 0 → 0, for integers and bool",
        "integers have no NaN that a zero would hide",
        alu(Ops.MUL, X, _c(0)), _c(0), exact, ops=(Ops.MUL, Ops.AND),
    ),
    equation(
        "divide-zero", "x op 0 → 0, for floordiv, truncdiv and mod of integers",
        "so the ops are defined, and what reads the quotient folds early",
        alu(Ops.FLOORDIV, X, _c(0)), _c(0), integers, ops=(*_DIVISIONS[1:], Ops.MOD),
    ),
    equation(
        "modulo-one", "x % 1 → 0, for integers",
        "an axis of one element has one index",
        alu(Ops.MOD, X, _c(1)), _c(0), integers,
    ),
    Rule(
        "all-ones", "x & -1 → x, x | -1 → -1, for integers",
        "masks of whole words select everything",
        term((Ops.AND, Ops.OR), var("x", integers), number("c", integers)), _all_ones,
        alu(Ops.AND, X, _c(-1)), X,
    ),
    equation(
        "same-operands", "x op x → x, for max, min, and, or",
        "clamps and masks meet themselves when graphs share nodes",
        alu(Ops.MAX, X, X), X, values, ops=(Ops.MAX, Ops.MIN, Ops.AND, Ops.OR),
    ),
    equation(
        "self-cancels", "x - x → 0 and x ^ x → 0, for integers and bool",
        "differences of equal indices vanish; floats would give NaN for infinities",
        alu(Ops.SUB, X, X), _c(0), exact, ops=(Ops.SUB, Ops.XOR),
    ),
    Rule(
        "extreme-limit",
        "max(x, lowest) → x, min(x, highest) → x; max(x, highest) → highest, min(x, lowest) → "
        "lowest for integers",
        "reductions start from these limits",
        term((Ops.MAX, Ops.MIN), var("x", values), number("c")), _beyond_limit,
        alu(Ops.MAX, X, _c(-(1 << 31))), X,
    ),
    Rule(
        "compare-limit", "x < lowest → False, x <= highest → True, for integers",
        "no unsigned integer is negative",
        term((Ops.CMPLT, Ops.CMPLE), var("x", integers), number("c")), _beside_limit,
        alu(Ops.CMPLT, X, _c(-(1 << 31))), const(False, dtypes.bool),
    ),
    Rule(
        "compare-limit-first", "highest < x → False, lowest <= x → True, for integers",
        "the same, where the constant stands first",
        term((Ops.CMPLT, Ops.CMPLE), number("c"), var("x", integers)), _beside_limit,
        alu(Ops.CMPLE, _c(-(1 << 31)), X), const(True, dtypes.bool),
    ),
    Rule(
        "double-negation", "--x → x, ~~x → x",
        "gradients of gradients flip signs twice",
        term((Ops.NEG, Ops.NOT), term((Ops.NEG, Ops.NOT), var("x", values), name="inner")),
        lambda found, node: found["x"] if found["inner"].op is node.op else None,
        alu(Ops.NEG, alu(Ops.NEG, X)), X,
    ),
    Rule(
        "absolute-of-sign", "abs(-x) → abs(x), abs(abs(x)) → abs(x), if x has a sign",
        "the sign is dropped anyway",
        term(Ops.ABS, term((Ops.NEG, Ops.ABS), var("x", _signed))),
        lambda found, node: alu(Ops.ABS, found["x"]),
        alu(Ops.ABS, alu(Ops.NEG, X)), alu(Ops.ABS, X),
    ),
    Rule(
        "subtract-constant", "x - c → x + (-c), for integers",
        "sums with constants regroup, differences do not",
        term(Ops.SUB, var("x", integers), number("c")),
        lambda found, node: alu(Ops.ADD, found["x"], fold(Ops.NEG, node.dtype, found["c"])),
        alu(Ops.SUB, X, _c(7)), alu(Ops.ADD, X, _c(-7)),
    ),
    Rule(
        "integer-negated", "x + -y → x - y, x - -y → x + y, for integers",
        "one operation instead of two",
        term((Ops.ADD, Ops.SUB), var("x", integers), term(Ops.NEG, var("y"))), _opposite,
        alu(Ops.ADD, X, alu(Ops.NEG, Y)), alu(Ops.SUB, X, Y),
    ),
    _regroup_rule(Ops.ADD, "+", "index arithmetic adds constants one at a time"),
    _regroup_rule(Ops.MUL, "*", "strides multiply up from the innermost axis"),
    _regroup_rule(Ops.AND, "&", "bit fields are masked more than once"),
    _regroup_rule(Ops.OR, "|", "bit fields are assembled piece by piece"),
    _regroup_rule(Ops.XOR, "^", "hashes mix constants in turn"),
)
