"""The order of passes, what observers see, and where the verifier stands."""

from __future__ import annotations

import pytest

from baregrad.base.errors import CompilerBug, VerifyError
from baregrad.dtypes import dtypes
from baregrad.ir.attrs import KernelInfo, Out, Param
from baregrad.ir.node import Node, alu, const, range_node
from baregrad.ir.op import Ops
from baregrad.ir.passes import Pass, Stage, check_order, run_passes

F32, TOKEN = dtypes.float32, dtypes.token
X = Node(Ops.PARAM, F32, (), Param(1, (4,)))
START = alu(Ops.ADD, X, const(1.0, F32))


def double(node: Node) -> Node:
    return alu(Ops.MUL, node, const(2.0, F32))


def lower(node: Node) -> Node:
    i = range_node(4, 0)
    value = double(Node(Ops.INDEX, F32, (X, i)))
    target = Node(Ops.PARAM, F32, (), Param(0, (4,)))
    return Node(Ops.KERNEL, TOKEN, (Node(Ops.OUT, TOKEN, (target, value, i), Out()),), KernelInfo())


FIRST = Pass("double", "twice as much", "tensor", "tensor", double)
SECOND = Pass("lower", "to a kernel", "tensor", "kernel", lower, needs=("double",))


def test_passes_run_in_order_and_are_seen() -> None:
    seen: list[Stage] = []
    result = run_passes(START, (FIRST, SECOND), observe=seen.append, verify=True)
    assert result.op is Ops.KERNEL
    assert [(s.name, s.level) for s in seen] == [
        ("input", "tensor"), ("double", "tensor"), ("lower", "kernel"),
    ]  # fmt: skip
    assert seen[0].root is START and seen[1].root is double(START) and seen[2].root is result
    assert seen[0].made_by is None and seen[2].made_by is SECOND
    assert all(s.seconds >= 0 for s in seen)
    assert run_passes(START, ()) is START


def test_wrong_orders_are_refused() -> None:
    with pytest.raises(CompilerBug, match="too early"):
        check_order((SECOND,))
    with pytest.raises(CompilerBug, match="wrong place"):
        check_order((FIRST, SECOND, FIRST))
    with pytest.raises(CompilerBug, match="wrong place"):
        check_order((FIRST,), level="kernel")
    with pytest.raises(CompilerBug, match="one name"):
        check_order((FIRST, FIRST))
    with pytest.raises(CompilerBug, match="unknown level"):
        check_order((Pass("odd", "", "tensor", "cellar", double),))


def test_a_pass_that_breaks_the_grammar_is_named() -> None:
    def spoil(node: Node) -> Node:
        return alu(Ops.AND, node, node)

    broken = Pass("spoil", "to see it fail", "tensor", "kernel", spoil)
    with pytest.raises(VerifyError, match="after pass spoil"):
        run_passes(START, (broken,), verify=True)
    assert run_passes(START, (broken,)).op is Ops.AND
    with pytest.raises(VerifyError, match="before the first pass"):
        run_passes(spoil(START), (FIRST,), verify=True)
