"""Constants: folding through the reference evaluator, one place for them, and known values."""

from __future__ import annotations

from baregrad.dtypes import DType, dtypes
from baregrad.ir.algebra.rewrite import Captures, Pattern, Rule, number, term, values, var
from baregrad.ir.core.bounds import bounds
from baregrad.ir.core.monoid import slot
from baregrad.ir.core.node import Node, alu, cast, const
from baregrad.ir.core.op import BINARY, COMPARE, ELEMENTWISE, Op, Ops
from baregrad.ir.evaluate.alu import apply, constant

_COMMUTATIVE = tuple(op for op in BINARY if op.commutative)
_PLAIN = (Ops.ADD, Ops.MUL)
I32 = dtypes.int32
X, TWO = slot(0, dtypes.float32), const(2.0, dtypes.float32)


def fold(op: Op, dtype: DType, *operands: Node) -> Node:
    """The constant that `op` gives for constant operands, by the reference evaluator."""
    if op in _PLAIN and dtype.kind in ("int", "uint"):
        # Chains of additions are common, and Python's integers are quick; `const` wraps.
        a, b = (int(operand.arg) for operand in operands)
        return const(a + b if op is Ops.ADD else a * b, dtype)
    kinds = [operand.dtype for operand in operands]
    result = apply(op, dtype, kinds, [constant(operand) for operand in operands])
    return const(result.item(), dtype)


def _fold(found: Captures, node: Node) -> Node | None:
    if node.dtype.storage_only or any(child.dtype.storage_only for child in node.src):
        return None
    return fold(node.op, node.dtype, *node.src)


def _swap(found: Captures, node: Node) -> Node | None:
    if found["x"].op is Ops.CONST:
        return None
    return Node(node.op, node.dtype, (node.src[1], node.src[0]))


def _decided(found: Captures, node: Node) -> Node | None:
    if node.src[0].dtype.kind == "float":
        return None
    lo, hi = bounds(node)
    return const(lo, node.dtype) if lo == hi else None


CONSTANT_RULES = (
    Rule(
        "fold-constants", "op(c1, c2, ...) → c, if every source is a constant",
        "what is known now need not be computed later",
        Pattern(tuple(ELEMENTWISE - {Ops.LOOKUP}), each=number(""), kinds=values), _fold,
        alu(Ops.MUL, const(4, I32), const(5, I32)), const(20, I32),
    ),
    Rule(
        "constant-second", "op(c, x) → op(x, c), if op is commutative",
        "one place for constants, so that equal expressions are one node",
        Pattern(_COMMUTATIVE, (number("c", values), var("x")), ordered=True), _swap,
        alu(Ops.ADD, TWO, X), alu(Ops.ADD, X, TWO),
    ),
    Rule(
        "decided-by-bounds",
        "x op y → c, if the bounds of x and y leave one value (op compares integers)",
        "guards that always hold cost a test in the innermost loop",
        term(tuple(COMPARE), var("x"), var("y")), _decided,
        alu(Ops.CMPLT, cast(slot(0, dtypes.uint8), I32), const(256, I32)), const(True, dtypes.bool),
    ),
)
