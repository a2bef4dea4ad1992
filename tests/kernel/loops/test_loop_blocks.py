"""Blocks of statements: the order in which they come out, whenever they were put in."""

from __future__ import annotations

from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.node import Node, const, range_node
from baregrad.ir.core.op import Ops
from baregrad.kernel.loops.loop_blocks import (
    StatementBlock,
    in_registers,
    nest_position,
    statement,
)
from tests.kernel.kernels import F32
from tests.render.harness import alloc, branch, loop, param, seq, store

I, J = range_node(4, 0), range_node(5, 1)
AXES = frozenset[Node]()


def writes(number: int) -> Node:
    return store(param(0, 9), const(float(number), F32), number)


def test_statements_are_in_order_and_one_is_no_sequence() -> None:
    block = StatementBlock(AXES)
    block.items.append(writes(0))
    assert statement(block) is writes(0)
    block.items.append(writes(1))
    assert statement(block) is seq(writes(0), writes(1))


def test_nests_are_loops_or_conditions() -> None:
    block = StatementBlock(AXES)
    rows = StatementBlock(frozenset((I,)), I, [writes(1)])
    held = StatementBlock(frozenset((I,)), index.less(I, 3), [writes(2)])
    rows.items.append(held)
    block.items += [writes(0), rows]
    wanted = seq(writes(0), loop(I, writes(1), branch(index.less(I, 3), writes(2))))
    assert statement(block) is wanted


def test_what_surely_holds_is_no_condition() -> None:
    always = StatementBlock(AXES, const(True, dtypes.bool), [writes(1), writes(2)])
    block = StatementBlock(AXES, None, [always])
    assert statement(block) is seq(writes(1), writes(2))


def test_what_is_put_before_a_nest_later_on_runs_ahead_of_it() -> None:
    inner = StatementBlock(frozenset((I,)), I, [writes(3)])
    block = StatementBlock(AXES, None, [writes(0), inner])
    inner.before.append(writes(1))
    inner.before.append(StatementBlock(frozenset((J,)), J, [writes(2)]))
    assert statement(block) is seq(writes(0), writes(1), loop(J, writes(2)), loop(I, writes(3)))


def test_the_first_and_the_last_are_around_what_is_put_in_later() -> None:
    block = StatementBlock(frozenset((I,)), I, first=(writes(0),), last=(writes(9 - 1),))
    block.items.append(writes(4))
    block.items.append(writes(5))
    around = StatementBlock(AXES, None, [block])
    assert statement(around) is loop(I, writes(0), writes(4), writes(5), writes(8))


def test_the_place_of_a_nest_is_that_of_the_loops_opened_in_it() -> None:
    inner, other = StatementBlock(frozenset((I,)), I), StatementBlock(frozenset((J,)), J)
    block = StatementBlock(AXES, None, [writes(0), inner, writes(1), other])
    assert nest_position(block, [block, inner], [block]) == 1
    assert nest_position(block, [block, other], [block]) == 3
    assert nest_position(block, [block], [block]) == 3


def test_register_arrays_of_kernels_are_alike() -> None:
    first = in_registers(2, F32, (3, 8))
    assert first is in_registers(2, F32, (3, 8))
    assert first is not in_registers(3, F32, (3, 8))
    assert (first.op, first.arg.space, first.shape) == (Ops.ALLOC, "register", (3, 8))
    assert first is not alloc(2, 3, 8)
