"""Laws that bring integer arithmetic on positions back to index arithmetic.

Users write `arange`, masks and gathers in int32 or int64. Where bounds show that nothing wraps, the
same values are index arithmetic, which `ir.index` simplifies and which guards and loops understand.
"""

from __future__ import annotations

from baregrad.dtypes import DType, dtypes
from baregrad.ir.algebra.rewrite import Captures, Rule, integers, term, var
from baregrad.ir.core import index
from baregrad.ir.core.bounds import bounds
from baregrad.ir.core.node import Node, alu, cast, const, range_node, toposort
from baregrad.ir.core.op import Ops

_INNER = (Ops.ADD, Ops.SUB, Ops.MUL, Ops.FLOORDIV, Ops.MOD, Ops.MAX, Ops.MIN, Ops.NEG)


def _is_index(dtype: DType) -> bool:
    return dtype.kind == "index"


def as_index(node: Node) -> Node | None:
    """The index expression whose value is that of an integer node, or None where it might wrap.

    What is no arithmetic on positions, such as a loaded integer, is cast as a whole.
    """
    known: dict[Node, Node | None] = {}
    for below in toposort(node, enter=lambda n: n.op in _INNER and n.dtype.kind != "index"):
        known[below] = _one(below, known)
    return known[node]


def _one(node: Node, known: dict[Node, Node | None]) -> Node | None:
    if node.op is Ops.CONST:
        return const(int(node.arg), dtypes.index)
    if node.op is Ops.CAST and node.src[0].dtype is dtypes.index:
        inner = node.src[0]
        return inner if _fits(inner, node.dtype) else None
    if node.op not in _INNER or node.dtype.kind not in ("int", "uint"):
        return Node(Ops.CAST, dtypes.index, (node,)) if node.dtype is not dtypes.uint64 else None
    operands = [known[child] for child in node.src]
    made = _combined(node, [operand for operand in operands if operand is not None])
    return made if made is not None and _fits(made, node.dtype) else None


def _combined(node: Node, operands: list[Node]) -> Node | None:
    if len(operands) != len(node.src):
        return None
    op = node.op
    if op is Ops.NEG:
        return index.as_node(index.mul(operands[0], -1))
    a, b = operands
    if op in (Ops.FLOORDIV, Ops.MOD):
        if bounds(b)[0] <= 0:
            return None
        return index.as_node((index.floordiv if op is Ops.FLOORDIV else index.mod)(a, b))
    if op is Ops.MUL and Ops.CONST not in (a.op, b.op):
        return None
    build = {
        Ops.ADD: index.add,
        Ops.SUB: index.sub,
        Ops.MUL: index.mul,
        Ops.MAX: index.maximum,
        Ops.MIN: index.minimum,
    }[op]
    return index.as_node(build(a, b))


def _fits(node: Node, dtype: DType) -> bool:
    lo, hi = bounds(node)
    return int(dtype.min) <= lo and hi <= int(dtype.max)


def _cast_to_index(found: Captures, node: Node) -> Node | None:
    x = found["x"]
    if x.op is not Ops.CAST and x.op not in _INNER:
        return None
    made = as_index(x)
    return None if made is None or (made.op is Ops.CAST and made.src[0] is x) else made


def _compare_positions(found: Captures, node: Node) -> Node | None:
    a, b = node.src
    if not node.has(Ops.RANGE, Ops.VAR):
        return None
    left, right = as_index(a), as_index(b)
    if left is None or right is None or left.has(Ops.CAST) or right.has(Ops.CAST):
        return None
    if node.op is Ops.CMPLE:
        return index.less(left, index.add(right, 1))
    return index.less(left, right)


I, I32 = range_node(8, 0), dtypes.int32
INDEX_RULES = (
    Rule(
        "index-of-integers",
        "cast(x, index) → the same arithmetic over index, if bounds show that x never wraps",
        "gathers by computed positions become affine, and fold into their arrays' indices",
        term(Ops.CAST, var("x", integers), kinds=_is_index), _cast_to_index,
        cast(alu(Ops.ADD, cast(I, I32), const(3, I32)), dtypes.index),
        index.as_node(index.add(I, 3)),
    ),
    Rule(
        "compare-positions",
        "x < y → index x < index y, if both are positions that never wrap; x <= y likewise",
        "masks become guards whose bounds are known, and loops can be cut at them",
        term((Ops.CMPLT, Ops.CMPLE), var("x", integers), var("y", integers)), _compare_positions,
        alu(Ops.CMPLT, alu(Ops.MUL, cast(I, I32), const(2, I32)), const(6, I32)), index.less(I, 3),
    ),
)
