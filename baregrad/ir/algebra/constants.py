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


def _fold_example() -> tuple[Node, Node]:
    four = const(4, dtypes.int32)
    return alu(Ops.MUL, four, const(5, dtypes.int32)), const(20, dtypes.int32)


def _swap_example() -> tuple[Node, Node]:
    x, two = slot(0, dtypes.float32), const(2.0, dtypes.float32)
    return alu(Ops.ADD, two, x), alu(Ops.ADD, x, two)


def _decided_example() -> tuple[Node, Node]:
    small = cast(slot(0, dtypes.uint8), dtypes.int32)
    return alu(Ops.CMPLT, small, const(256, dtypes.int32)), const(True, dtypes.bool)


CONSTANT_RULES = (
    Rule(
        name="fold-constants",
        law="op(c1, c2, ...) → c, if every source is a constant",
        reason="what is known now need not be computed later",
        pattern=Pattern(tuple(ELEMENTWISE - {Ops.LOOKUP}), each=number(""), kinds=values),
        build=_fold,
        example=_fold_example,
    ),
    Rule(
        name="constant-second",
        law="op(c, x) → op(x, c), if op is commutative",
        reason="one place for constants, so that equal expressions are one node",
        pattern=Pattern(
            _COMMUTATIVE,
            (number("c", values), var("x")),
            ordered=True,
        ),
        build=_swap,
        example=_swap_example,
    ),
    Rule(
        name="decided-by-bounds",
        law="x op y → c, if the bounds of x and y leave one value (op compares integers)",
        reason="guards that always hold cost a test in the innermost loop",
        pattern=term(tuple(COMPARE), var("x"), var("y")),
        build=_decided,
        example=_decided_example,
    ),
)
