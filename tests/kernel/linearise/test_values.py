"""Expressions as instructions: each is computed once, as far outside as it can be."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.node import Node, alu, cast, const, range_node
from baregrad.ir.core.op import Ops
from baregrad.kernel.linearise.access import MemoryUse
from baregrad.kernel.linearise.linearise import linearise
from baregrad.kernel.linearise.values import Values
from tests.kernel.linearise.programs import (
    ONE,
    ROUTES,
    data,
    inside_loops,
    instructions,
    matmul,
    zeros,
)
from tests.render.harness import (
    F32,
    I64,
    alloc,
    check,
    kernel,
    load,
    loop,
    lower,
    param,
    store,
    unroll,
    vector,
)

pytestmark = pytest.mark.differential


def test_a_register_tile_keeps_its_inner_loop_lean() -> None:
    program = lower(matmul(12, 32, 9, rows=6, columns=2, lanes=8))
    deepest = [node for depth, node in inside_loops(program) if depth == 3]
    loads = [node for node in deepest if node.op is Ops.VLOAD]
    assert len([node for node in loads if node.arg.width == 8]) == 2
    assert len([node for node in loads if node.arg.width == 1]) == 6
    assert len([node for node in deepest if node.op is Ops.FMA and node.dtype is F32]) == 12
    computed = (Ops.ADD, Ops.MUL, Ops.FMA)
    integer = [node for node in deepest if node.op in computed and node.dtype is I64]
    assert len(integer) <= 3, "addresses: one sum or product for each array"


def test_invariants_leave_loops() -> None:
    i, k = range_node(8, 0), range_node(8, 1)
    x, y, out = param(1, 8), param(2, 8), param(0, 8, 8)
    scaled = alu(Ops.MUL, load(x, i), const(3.0, F32))
    node = kernel(loop(i, loop(k, store(out, alu(Ops.ADD, scaled, load(y, k)), i, k))))
    depths = {node.op: depth for depth, node in inside_loops(lower(node)) if node.dtype is F32}
    assert depths[Ops.MUL] == 1
    assert depths[Ops.ADD] == 2
    check(node, [zeros(8, 8), data(8), data(8)], routes=ROUTES)


def test_equal_expressions_are_computed_once() -> None:
    i, v = range_node(2, 0), vector(8, 1)
    place = index.add(index.mul(i, 8), v)
    x, first, second = param(2, 16), param(0, 16), param(1, 16)
    root = Node(Ops.SQRT, F32, (load(x, place),))
    node = kernel(loop(i, store(first, root, place), store(second, alu(Ops.ADD, root, ONE), place)))
    program = lower(node)
    assert len(instructions(program, Ops.SQRT)) == 1
    assert len(instructions(program, Ops.VLOAD)) == 1
    check(node, [zeros(16), zeros(16), np.abs(data(16))], routes=ROUTES)


def test_a_value_is_computed_once_for_each_of_its_own_points() -> None:
    """Not for each point of the statement, which has an axis more."""
    u, w, v = unroll(3, 0), unroll(2, 1), vector(4, 2)
    x, out = param(1, 3, 4), param(0, 3, 2, 4)
    root = Node(Ops.SQRT, F32, (load(x, index.mod(index.mul(u, 2), 3), v),))
    value = alu(Ops.ADD, root, cast(cast(w, I64), F32))
    node = kernel(store(out, value, u, w, v))
    assert len(instructions(lower(node), Ops.SQRT)) == 3
    found, given = check(node, [zeros(3, 2, 4), np.abs(data(3, 4))], routes=ROUTES)
    rows = np.sqrt(given)[np.arange(3) * 2 % 3]
    np.testing.assert_array_equal(found, rows[:, None] + np.float32([0, 1])[:, None])


def test_a_deep_expression_needs_no_stack() -> None:
    i = range_node(4, 0)
    value = load(param(1, 4), i)
    for _ in range(5000):
        value = alu(Ops.ADD, value, value)
    program = linearise(kernel(loop(i, store(param(0, 4), value, i))))
    assert len(instructions(program, Ops.ADD)) == 5000


def test_the_value_of_an_expression_is_the_same_node_until_its_statement_ends() -> None:
    x, held = load(param(1, 4), 2), alloc(0)
    node = kernel(store(held, x), store(param(0, 4), load(held), 0))
    values = Values(MemoryUse(node))
    total = alu(Ops.ADD, x, ONE)
    first = values.value(total)
    assert values.value(total) is first
    assert len(values.scopes.innermost.code) == 2
    assert values.value(const(3, dtypes.index)) is const(3, I64)
