"""Laws of choice: bool arithmetic, comparisons, WHERE and GUARD."""

from __future__ import annotations

from baregrad.dtypes import dtypes
from baregrad.ir.algebra.rewrite import (
    Captures,
    Rule,
    booleans,
    equation,
    literal,
    number,
    term,
    var,
)
from baregrad.ir.core.monoid import slot
from baregrad.ir.core.node import Node, alu, const
from baregrad.ir.core.op import COMPARE, Ops

BOOL = dtypes.bool
F32 = dtypes.float32
P, Q = slot(0, BOOL), slot(1, BOOL)
X, Y, Z = slot(1, F32), slot(2, F32), slot(3, F32)
TRUE, FALSE = const(True, BOOL), const(False, BOOL)


def _not(node: Node) -> Node:
    return node.src[0] if node.op is Ops.NOT else alu(Ops.NOT, node)


def _guard(condition: Node, value: Node) -> Node:
    return Node(Ops.GUARD, value.dtype, (condition, value))


def _compare_truth(found: Captures, node: Node) -> Node | None:
    """x == c, x != c and the like over bool, where c is known."""
    x, truth = found["x"], bool(found["c"].arg)
    if node.op is Ops.CMPEQ:
        return x if truth else _not(x)
    if node.op is Ops.CMPNE:
        return _not(x) if truth else x
    first = node.src[0] is x
    if node.op is Ops.CMPLT:
        # x < True is not x; False < x is x; nothing is below False or above True.
        if first:
            return _not(x) if truth else FALSE
        return FALSE if truth else x
    if first:
        return TRUE if truth else _not(x)
    return x if truth else TRUE


def _compare_self(found: Captures, node: Node) -> Node | None:
    if found["x"].dtype.kind == "float" and node.op is not Ops.CMPLT:
        return None
    return const(node.op in (Ops.CMPEQ, Ops.CMPLE), BOOL)


def _negated_compare(found: Captures, node: Node) -> Node | None:
    compare = found["compare"]
    a, b = compare.src
    if compare.op is Ops.CMPEQ:
        return alu(Ops.CMPNE, a, b)
    if compare.op is Ops.CMPNE:
        return alu(Ops.CMPEQ, a, b)
    if a.dtype.kind == "float":
        return None
    return alu(Ops.CMPLE if compare.op is Ops.CMPLT else Ops.CMPLT, b, a)


def _bool_unit(found: Captures, node: Node) -> Node | None:
    """x & True, x | True and their arithmetic spellings, where the constant is True."""
    return found["x"] if node.op in (Ops.AND, Ops.MUL, Ops.MIN) else TRUE


def _bool_null(found: Captures, node: Node) -> Node:
    """x | False and so on, where the constant is False."""
    return FALSE if node.op in (Ops.AND, Ops.MUL, Ops.MIN) else found["x"]


def _guard_twice(found: Captures, node: Node) -> Node | None:
    # The inner condition will be evaluated everywhere, so it must not read memory.
    if found["d"].has(Ops.INDEX, Ops.LOAD):
        return None
    both = found["c"] if found["c"] is found["d"] else alu(Ops.AND, found["c"], found["d"])
    return _guard(both, found["x"])


def _where_truth(found: Captures, node: Node) -> Node | None:
    p, x, y = found["p"], found["x"], found["y"]
    if x.op is Ops.CONST:
        if x is y:
            return x
        if y.op is Ops.CONST:
            return p if x.arg else _not(p)
        return alu(Ops.OR, p, y) if x.arg else alu(Ops.AND, _not(p), y)
    if y.op is Ops.CONST:
        return alu(Ops.OR, _not(p), x) if y.arg else alu(Ops.AND, p, x)
    return None


_BOOL_OPS = (Ops.AND, Ops.MUL, Ops.MIN, Ops.OR, Ops.ADD, Ops.MAX)

_SELECTIONS = (
    Rule(
        "where-known", "where(True, x, y) → x, where(False, x, y) → y",
        "conditions fold to constants once indices are known",
        term(Ops.WHERE, number("c", booleans), var("x"), var("y")),
        lambda found, node: found["x"] if found["c"].arg else found["y"],
        alu(Ops.WHERE, TRUE, slot(0, F32), X), slot(0, F32),
    ),
    equation(
        "where-same", "where(p, x, x) → x",
        "branches become equal after other rules",
        alu(Ops.WHERE, P, X, X), X,
    ),
    equation(
        "where-not", "where(not p, x, y) → where(p, y, x)",
        "one form for a choice, and no negation",
        alu(Ops.WHERE, alu(Ops.NOT, P), X, Y), alu(Ops.WHERE, P, Y, X),
    ),
    equation(
        "where-then-where", "where(p, where(p, x, y), z) → where(p, x, z)",
        "inside the branch the condition is known",
        alu(Ops.WHERE, P, alu(Ops.WHERE, P, X, Y), Z), alu(Ops.WHERE, P, X, Z),
    ),
    equation(
        "where-else-where", "where(p, x, where(p, y, z)) → where(p, x, z)",
        "inside the branch the condition is known",
        alu(Ops.WHERE, P, X, alu(Ops.WHERE, P, Y, Z)), alu(Ops.WHERE, P, X, Z),
    ),
    Rule(
        "where-truth", "where(p, True, q) → p or q, where(p, q, False) → p and q, of bool",
        "logic is cheaper than a choice and simplifies further",
        term(Ops.WHERE, var("p"), var("x", booleans), var("y")), _where_truth,
        alu(Ops.WHERE, P, TRUE, Q), alu(Ops.OR, P, Q),
    ),
    Rule(
        "guard-known", "guard(True, x) → x, guard(False, x) → 0",
        "bounds decide most guards when shapes are known",
        term(Ops.GUARD, number("c", booleans), var("x")),
        lambda found, node: found["x"] if found["c"].arg else const(0, node.dtype),
        _guard(TRUE, slot(0, F32)), slot(0, F32),
    ),
    Rule(
        "guard-twice", "guard(p, guard(q, x)) → guard(p and q, x), if q reads no memory",
        "one test, and the reader sees the whole condition",
        term(Ops.GUARD, var("c"), term(Ops.GUARD, var("d"), var("x"))), _guard_twice,
        _guard(P, _guard(Q, Y)), _guard(alu(Ops.AND, P, Q), Y),
    ),
)


LOGIC_RULES = (
    Rule(
        "bool-unit", "p and True → p, p or True → True, of bool, and as mul, min, add and max",
        "conditions are built from parts that are often certain",
        term(_BOOL_OPS, var("x", booleans), literal(True)), _bool_unit,
        alu(Ops.AND, P, TRUE), P,
    ),
    Rule(
        "bool-null", "p and False → False, p or False → p, of bool, and as mul, min, add and max",
        "conditions are built from parts that are often certain",
        term(_BOOL_OPS, var("x", booleans), literal(False)), _bool_null,
        alu(Ops.OR, P, FALSE), P,
    ),
    Rule(
        "compare-truth",
        "p == True → p, p != True → not p, and so on for every comparison with a known bool",
        "masks are compared with constants in user code",
        term(tuple(COMPARE), var("x", booleans), number("c")), _compare_truth,
        alu(Ops.CMPNE, P, TRUE), alu(Ops.NOT, P),
    ),
    Rule(
        "compare-truth-first", "False < p → p, True < p → False, False <= p → True, True <= p → p",
        "the same, where order matters and the constant stands first",
        term((Ops.CMPLT, Ops.CMPLE), number("c"), var("x", booleans)), _compare_truth,
        alu(Ops.CMPLT, FALSE, Q), Q,
    ),
    Rule(
        "compare-self",
        "x < x → False; x == x, x <= x → True and x != x → False unless x is a float",
        "equal nodes are equal values, but for NaN",
        term(tuple(COMPARE), var("x"), var("x")), _compare_self,
        alu(Ops.CMPLT, slot(0, F32), slot(0, F32)), FALSE,
    ),
    Rule(
        "not-compare",
        "not (x == y) → x != y and back; not (x < y) → y <= x and back, unless floats",
        "comparisons come in both senses; NaN makes x < y and y <= x both false",
        term(Ops.NOT, term(tuple(COMPARE), var("a"), var("b"), name="compare")), _negated_compare,
        alu(Ops.NOT, alu(Ops.CMPEQ, slot(0, F32), X)), alu(Ops.CMPNE, slot(0, F32), X),
    ),
    *_SELECTIONS,
)
