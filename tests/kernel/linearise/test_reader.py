"""What expressions read: masks and guards of loads, and loads that stay where they are."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad.ir.core import index
from baregrad.ir.core.node import alu, const, range_node
from baregrad.ir.core.op import Ops
from baregrad.kernel.legalise.lower_dtypes import lower_dtypes
from baregrad.kernel.linearise.linearise import linearise
from tests.kernel.linearise.programs import (
    ONE,
    ROUTES,
    data,
    inside_loops,
    instructions,
    zeros,
)
from tests.render.harness import (
    I64,
    branch,
    check,
    guard,
    kernel,
    load,
    loop,
    lower,
    param,
    store,
    vector,
)

pytestmark = pytest.mark.differential


def test_loads_do_not_leave_loops_that_may_not_run() -> None:
    n = index.variable("n", 0, 8)
    k = range_node(n, 1)
    x, out = param(1, 1), param(0, 8)
    node = kernel(loop(k, store(out, load(x, 0), k)))
    program = lower(node)
    assert [depth for depth, node in inside_loops(program) if node.op is Ops.VLOAD] == [1]
    for count in (0, 3):
        check(node, [zeros(8), data(1)], {"n": count}, routes=ROUTES)


def test_loads_of_written_memory_stay_where_they_are() -> None:
    i = range_node(6, 0)
    x = param(0, 7)
    step = alu(Ops.ADD, load(x, i), load(x, index.add(i, 1)))
    node = kernel(loop(i, store(x, step, index.add(i, 1))))
    (found,) = check(node, [np.arange(7, dtype=np.float32)], routes=ROUTES)
    np.testing.assert_array_equal(found, np.cumsum(np.arange(7)))


@pytest.mark.parametrize("lanes", (1, 8))
def test_guarded_loads_of_a_padded_row(lanes: int) -> None:
    i, v = range_node(24 // lanes, 0), vector(lanes, 1)
    place = index.add(index.mul(i, lanes), v)
    x, out = param(1, 15), param(0, 24)
    source = index.add(place, -4)
    inside = index.inside(source, 15)
    value = alu(Ops.ADD, guard(inside, load(x, source)), ONE)
    node = kernel(loop(i, store(out, value, place)))
    found, row = check(node, [zeros(24), data(15)], routes=ROUTES)
    np.testing.assert_array_equal(found, np.pad(row, (4, 5)) + 1)


def test_a_guard_over_an_expression_guards_its_loads() -> None:
    i, v = range_node(3, 0), vector(8, 1)
    place = index.add(index.mul(i, 8), v)
    x, out = param(1, 20), param(0, 24)
    inner = alu(Ops.ADD, alu(Ops.MUL, load(x, place), load(x, place)), ONE)
    node = kernel(loop(i, store(out, guard(index.less(place, 20), inner), place)))
    found, row = check(node, [zeros(24), data(20)], routes=ROUTES)
    np.testing.assert_allclose(found, np.pad(row * row + 1, (0, 4)), rtol=1e-6)


def test_one_element_that_some_lanes_want_is_read_once_if_any_does() -> None:
    i, v = range_node(3, 0), vector(8, 1)
    x, out = param(1, 3), param(0, 3, 8)
    value = guard(index.less(index.add(v, index.mul(i, 4)), 6), load(x, i))
    node = kernel(loop(i, store(out, value, i, v)))
    program = linearise(lower_dtypes(node, frozenset()))
    (read,) = instructions(program, Ops.VLOAD)
    assert read.shape == ()
    assert read.src[2].op is Ops.ANY
    found, given = check(node, [zeros(3, 8), data(3)], routes=ROUTES)
    lanes = np.arange(8) + 4 * np.arange(3)[:, None] < 6
    np.testing.assert_array_equal(found, np.where(lanes, given[:, None], 0))


@pytest.mark.parametrize("stride", [1, 2, 5])
def test_lanes_at_a_distance_are_one_access(stride: int) -> None:
    v = vector(8, 0)
    node = kernel(store(param(0, 8), load(param(1, 50), index.add(index.mul(v, stride), 3)), v))
    (read,) = instructions(linearise(node), Ops.VLOAD)
    assert (read.arg.width, read.arg.stride, read.arg.at) == (8, stride, 3)


def test_a_condition_is_read_where_those_before_it_hold() -> None:
    """The second condition looks up what the first keeps inside its array."""
    v = vector(8, 0)
    x, places, out = param(1, 8), param(2, 5, dtype=I64), param(0, 8)
    first = index.less(v, 5)
    looked = guard(first, load(places, v))
    second = alu(Ops.CMPLT, looked, const(3, I64))
    node = kernel(branch(first, branch(second, store(out, load(x, v), v))))
    order = np.array([0, 9, 2, 1, 7])
    found, given, _ = check(node, [zeros(8), data(8), order], routes=ROUTES)
    wanted = np.where(np.concatenate([order < 3, [False] * 3]), given, 0)
    np.testing.assert_array_equal(found, wanted)


def test_the_parts_of_an_address_are_summed_up_outside_of_inner_loops() -> None:
    i, j = range_node(6, 0), range_node(7, 1)
    n = index.variable("n", 1, 9)
    x, out = param(1, 60, n), param(0, 6, 7)
    node = kernel(loop(i, loop(j, store(out, load(x, index.mul(i, 10), 0), i, j))))
    scaled = [depth for depth, one in inside_loops(lower(node)) if one.op is Ops.MUL]
    assert scaled and max(scaled) == 1
