"""Patterns, dispatch, bounded rewriting and its cost."""

from __future__ import annotations

import random
from functools import partial

import pytest

from baregrad.apps.instructions import count
from baregrad.dtypes import dtypes
from baregrad.ir.algebra.rewrite import (
    REAPPLICATIONS,
    Pattern,
    Rule,
    RuleSet,
    floats,
    integers,
    literal,
    number,
    term,
    var,
)
from baregrad.ir.algebra.rules import ALGEBRA, simplify
from baregrad.ir.core.attrs import Param
from baregrad.ir.core.monoid import slot
from baregrad.ir.core.node import Node, alu, cast, const, range_node, toposort
from baregrad.ir.core.op import Ops

F32, I32 = dtypes.float32, dtypes.int32
X, Y, Z = (slot(position, F32) for position in range(3))


def found(pattern: Pattern, node: Node) -> dict[str, Node] | None:
    captures: dict[str, Node] = {}
    return captures if pattern.matches(node, captures) else None


def test_captures_and_repeated_names() -> None:
    pattern = term(Ops.SUB, var("a"), term(Ops.MUL, var("b"), var("a")))
    assert found(pattern, alu(Ops.SUB, X, alu(Ops.MUL, Y, X))) == {"a": X, "b": Y}
    # MUL commutes, so the other order is tried.
    assert found(pattern, alu(Ops.SUB, X, alu(Ops.MUL, X, Y))) == {"a": X, "b": Y}
    assert found(pattern, alu(Ops.SUB, X, alu(Ops.MUL, Y, Z))) is None


def test_a_failed_order_leaves_no_captures_behind() -> None:
    inner = term(Ops.MUL, var("a"), literal(2.0))
    pattern = term(Ops.ADD, inner, var("b"))
    node = alu(Ops.ADD, X, alu(Ops.MUL, Y, const(2.0, F32)))
    assert found(pattern, node) == {"a": Y, "b": X}


def test_literals_tell_zeros_apart() -> None:
    assert found(literal(0.0), const(0.0, F32)) is not None
    assert found(literal(0.0), const(-0.0, F32)) is None
    assert found(literal(-0.0), const(-0.0, F32)) is not None
    assert found(literal(1), const(True, dtypes.bool)) is not None
    assert found(literal(1.0), const(float("nan"), F32)) is None


def test_dtype_predicates_and_tests_of_constants() -> None:
    assert found(var("x", integers), X) is None
    assert found(var("x", floats), X) == {"x": X}
    big = number("c", value=lambda value: value > 3)
    assert found(big, const(4, I32)) and found(big, const(3, I32)) is None
    each = Pattern((Ops.ADD, Ops.MUL), each=number(""))
    assert found(each, alu(Ops.ADD, const(1.0, F32), const(2.0, F32))) is not None
    assert found(each, alu(Ops.ADD, X, const(2.0, F32))) is None


def grow_rule(count: list[int]) -> Rule:
    def build(captures: dict[str, Node], node: Node) -> Node:
        count.append(1)
        return alu(Ops.NEG, node)

    pattern = term((Ops.NEG, Ops.EXP), var("x"))
    return Rule("grow", "x → -x", "to see it stop", pattern, build, X, X)


def test_rewriting_at_a_node_is_bounded() -> None:
    count: list[int] = []
    rules = RuleSet("endless", (grow_rule(count),))
    node = rules.rewrite(alu(Ops.EXP, X))
    assert len(count) == REAPPLICATIONS
    assert len(toposort(node)) == REAPPLICATIONS + 2


def test_subtrees_without_the_rules_ops_are_skipped() -> None:
    rule = next(r for r in ALGEBRA.rules if r.name == "divide-one")
    rules = RuleSet("one", (rule,))
    base, costs = alu(Ops.ADD, X, Y), set()
    for size in range(1, 1001):
        base = alu(Ops.ADD, base, X)
        if size in (1, 10, 1000):
            node = alu(Ops.DIV, base, const(1.0, F32))
            assert rules.rewrite(node) is base
            costs.add(count(partial(rules.rewrite, node)))
    assert len(costs) == 1


def test_index_arithmetic_is_simplified_on_the_way() -> None:
    i = range_node(8, 0)
    array = Node(Ops.PARAM, F32, (), Param(0, (8,)))
    doubled = cast(cast(i, I32), dtypes.index)
    moved = alu(Ops.FLOORDIV, alu(Ops.MUL, doubled, const(4, dtypes.index)),
                const(4, dtypes.index))  # fmt: skip
    node = Node(Ops.INDEX, F32, (array, moved))
    assert simplify(node) is Node(Ops.INDEX, F32, (array, i))


def test_a_condition_on_arrays_keeps_its_shape() -> None:
    """An AND with what was found to be false is false everywhere, not one scalar."""
    array = Node(Ops.PARAM, I32, (), Param(0, (2, 1)))
    never = alu(Ops.CMPLT, const(1, I32), const(0, I32))
    both = alu(Ops.AND, never, alu(Ops.CMPLT, array, const(0, I32)))
    found = simplify(Node(Ops.EXPAND, dtypes.bool, (both,), (2, 3)))
    assert found.shape == (2, 3)
    assert not found.has(Ops.PARAM)


def test_a_long_chain_collapses_without_recursion() -> None:
    node, one = slot(0, I32), const(1, I32)
    for _ in range(20_000):
        node = alu(Ops.ADD, node, one)
    assert simplify(node) is alu(Ops.ADD, slot(0, I32), const(20_000, I32))


def test_walking_past_what_is_simple_is_cheap() -> None:
    for size in (1_500, 3_000):
        rng = random.Random(1)
        pool = [slot(position, F32) for position in range(20)]
        for _ in range(size):
            op = rng.choice((Ops.ADD, Ops.MUL, Ops.SUB, Ops.MAX))
            pool.append(alu(op, pool[-1], rng.choice(pool[-50:-1])))
        root = simplify(Node(Ops.SINK, dtypes.token, tuple(pool[-60:])))
        assert simplify(root) is root
        # 133 instructions a node with Python 3.11, however many there are.
        assert count(partial(simplify, root)) < 150 * len(toposort(root))


def test_rules_are_called_directly_too() -> None:
    rule = next(r for r in ALGEBRA.rules if r.name == "multiply-one")
    assert rule(alu(Ops.MUL, X, const(1.0, F32))) is X
    assert rule(alu(Ops.MUL, X, Y)) is None
    with pytest.raises(AttributeError):
        rule.name = "other"  # type: ignore[misc]
