"""The order of passes: wrong ones are refused, and those of every machine are right."""

from __future__ import annotations

import pytest

from baregrad.base.errors import CompilerBug
from baregrad.graph import passes as graph_passes
from baregrad.ir.algebra.passes import Pass, check_order
from baregrad.ir.core.node import Node
from baregrad.kernel import codegen_passes
from baregrad.schedule import passes as schedule_passes
from baregrad.target.cpu import CPU_ROWS
from baregrad.target.gpu import GPU_ROWS


def same(node: Node) -> Node:
    return node


FIRST = Pass("double", "twice as much", "tensor", "tensor", same)
SECOND = Pass("lower", "to a kernel", "tensor", "kernel", same, needs=("double",))


def test_wrong_orders_are_refused() -> None:
    check_order((FIRST, SECOND), "tensor")
    with pytest.raises(CompilerBug, match="too early"):
        check_order((SECOND,))
    with pytest.raises(CompilerBug, match="wrong place"):
        check_order((FIRST, SECOND, FIRST))
    with pytest.raises(CompilerBug, match="wrong place"):
        check_order((FIRST,), level="kernel")
    with pytest.raises(CompilerBug, match="one name"):
        check_order((FIRST, FIRST))
    with pytest.raises(CompilerBug, match="unknown level"):
        check_order((Pass("odd", "", "tensor", "cellar", same),))


@pytest.mark.parametrize("row", [*CPU_ROWS, *GPU_ROWS], ids=lambda row: row.name)
def test_the_passes_stand_in_a_legal_order(row: object) -> None:
    lower = Pass("lower", "", "kernel", "loop", same)
    found = (*graph_passes, *schedule_passes, lower, *codegen_passes(row))
    check_order(found, "tensor")
    assert found[-1].level_out == "linear"
