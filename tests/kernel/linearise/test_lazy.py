"""Guarded values without loads: computed only where they are wanted."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad.ir.core import index
from baregrad.ir.core.node import Node, alu, const, range_node, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.linear_level import evaluate_linear
from baregrad.ir.evaluate.loop_level import evaluate_loop
from baregrad.kernel.linearise.lazy import LONG, is_lazy, is_transparent, shared_by_guards
from baregrad.kernel.linearise.linearise import linearise
from tests.kernel.linearise.programs import (
    ONE,
    data,
    instructions,
    zeros,
)
from tests.render.harness import (
    F32,
    compiled,
    guard,
    kernel,
    load,
    loop,
    param,
    store,
    vector,
)

pytestmark = pytest.mark.differential


def test_a_guard_without_loads_is_computed_on_demand() -> None:
    """What a lowering guards by itself runs only where some lane needs it."""
    i, v = range_node(4, 0), vector(8, 1)
    x, out = param(1, 32), param(0, 32)
    place = index.add(index.mul(i, 8), v)
    value = load(x, place)
    big = alu(Ops.CMPLT, const(1.0, F32), value)
    root = guard(big, Node(Ops.SQRT, F32, (alu(Ops.SUB, value, ONE),)))
    square = guard(big, alu(Ops.MUL, value, value))
    node = kernel(loop(i, store(out, alu(Ops.ADD, root, square), place)))
    program = linearise(node)
    assert len(instructions(program, Ops.TEST)) == 1, "equal conditions share a branch"
    first, second = [zeros(32), data(32)], [zeros(32), data(32)]
    evaluate_loop(node, first)
    evaluate_linear(program, second)
    np.testing.assert_array_equal(first[0], second[0])
    third = [zeros(32), data(32)]
    compiled(program)(third)
    np.testing.assert_array_equal(first[0], third[0])


def deep(value: Node, steps: int) -> Node:
    """A value of many ops, each of which reads the one before."""
    for step in range(steps):
        value = alu(Ops.ADD, alu(Ops.MUL, value, const(0.5, F32)), const(float(step), F32))
    return value


@pytest.mark.parametrize(("steps", "loops"), [(4, 0), (LONG, 1)])
def test_long_values_are_computed_lane_by_lane_in_a_loop(steps: int, loops: int) -> None:
    v = vector(8, 0)
    value = alu(Ops.ADD, load(param(1, 8), v), ONE)
    wanted = alu(Ops.CMPLT, const(1.5, F32), value)
    total = alu(Ops.SUB, value, guard(wanted, deep(value, steps)))
    node = kernel(store(param(0, 8), total, v))
    program = linearise(node)
    assert len(instructions(program, Ops.BEGIN)) == loops
    # Not at all where no lane wants it: everything stands under one condition.
    ops = [one.op for one in program.src]
    first = ops.index(Ops.MUL)
    assert Ops.ANY in ops[:first] and Ops.TEST in ops[:first]
    given = data(8)
    exact = start = given + np.float32(1)
    for step in range(steps):
        exact = exact * np.float32(0.5) + np.float32(step)
    exact = start - np.where(start > 1.5, exact, 0)
    for run in (evaluate_linear, lambda program, arrays: compiled(program)(arrays)):
        found = [zeros(8), given]
        run(program, found)
        np.testing.assert_array_equal(found[0], exact)


@pytest.mark.parametrize(("stride", "tests"), [(1, 0), (7, 1)])
def test_scattered_lanes_under_one_condition_are_a_branch(stride: int, tests: int) -> None:
    """Of adjacent lanes the access is masked, which costs less."""
    i, v = range_node(4, 0), vector(8, 1)
    x, out = param(1, 3, 60), param(0, 4, 8)
    value = guard(index.less(i, 3), load(x, i, index.mul(v, stride)))
    node = kernel(loop(i, store(out, value, i, v)))
    program = linearise(node)
    assert len(instructions(program, Ops.TEST)) == tests
    given = data(3, 60)
    found = [zeros(4, 8) + 1, given]
    evaluate_linear(program, found)
    wanted = np.concatenate([given[:, : 8 * stride : stride], zeros(1, 8)])
    np.testing.assert_array_equal(found[0], wanted)


def test_what_guards_read_of_the_expression_around_them_is_found() -> None:
    value = load(param(1, 8), vector(8, 0))
    root = Node(Ops.SQRT, F32, (value,))
    lazy_part = guard(alu(Ops.CMPLT, ONE, root), alu(Ops.MUL, root, ONE))
    total = alu(Ops.ADD, root, lazy_part)
    order = toposort(total, enter=is_transparent)
    assert root in shared_by_guards(order)
    assert is_lazy(lazy_part) and not is_lazy(guard(alu(Ops.CMPLT, ONE, root), value))
    # A guard of a load shares nothing.
    plain = alu(Ops.ADD, root, guard(alu(Ops.CMPLT, ONE, root), value))
    assert shared_by_guards(toposort(plain, enter=is_transparent)) == []
