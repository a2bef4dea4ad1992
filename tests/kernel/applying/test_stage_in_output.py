"""A row's values wait in the output where they have room there, and in scratch memory elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.node import Node, alu, cast, range_node, toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel import choose_schedule, lower
from tests.kernel import kernels as k
from tests.render.harness import compiled, host
from tests.render.harness import lower as linearised

F32, F64 = dtypes.float32, dtypes.float64


def rows(m: int, n: int, finish: Callable[..., Node], out_dtype: DType = F32) -> Node:
    """A kernel of exponentials and their sums: `finish` of one of them, the sum, i and j."""
    i, j, b = range_node(m, 0), range_node(n, 1), range_node(n, 2)
    x = k.param(1, m, n)
    total = k.reduce(Ops.ADD, alu(Ops.EXP, k.at(x, i, b)), b)
    value = finish(alu(Ops.EXP, k.at(x, i, j)), total, i, j)
    return k.kernel(k.out(k.param(0, m, n, dtype=out_dtype), value, i, j))


def share(e: Node, total: Node, i: Node, j: Node) -> Node:
    return alu(Ops.DIV, e, total)


def added(e: Node, total: Node, i: Node, j: Node) -> Node:
    return alu(Ops.ADD, share(e, total, i, j), k.at(k.param(2, *SHAPE), i, j))


def scaled(e: Node, total: Node, i: Node, j: Node) -> Node:
    return alu(Ops.MUL, share(e, total, i, j), k.at(k.param(2, SHAPE[1]), j))


def narrow(e: Node, total: Node, i: Node, j: Node) -> Node:
    return cast(share(e, total, i, j), dtypes.float64)


def in_scratch(node: Node, small: bool = False) -> bool:
    """Whether the kernel, as it is lowered first, keeps anything in scratch memory."""
    target = replace(host(), l2_bytes=1024, l3_bytes=4096) if small else host()
    loop = lower(node, target, choose_schedule(node, target))
    return any(one.op is Ops.ALLOC and one.arg.space == "scratch" for one in toposort(loop))


SHAPE = (6, 64)


@pytest.mark.parametrize(
    ("node", "waits"),
    [
        (k.softmax(*SHAPE), True),
        (rows(*SHAPE, share), True),
        # A vector is no array that the output could lie over.
        (rows(*SHAPE, scaled), True),
        # It may lie over this one, which is read afterwards.
        (rows(*SHAPE, added), False),
        # Elements of another size.
        (rows(*SHAPE, narrow, F64), False),
        # A row that is kept to whole vectors would reach into the next one.
        (k.softmax(6, 67), False),
    ],
    ids=("softmax", "share", "scaled", "added", "wider", "odd"),
)
def test_a_row_waits_where_it_has_room(node: Node, waits: bool) -> None:
    assert in_scratch(node) != waits
    arrays = k.arguments(node)
    wanted = k.run_kernel(node, arrays)
    found = [np.array(arrays[slot]) for slot in sorted(arrays)]
    found[0][...] = np.nan
    compiled(linearised(lower(node, host(), choose_schedule(node, host()))))(found)
    k.assert_equal(wanted, dict(enumerate(found)))


def test_what_passes_the_caches_by_is_not_read_again() -> None:
    assert in_scratch(k.softmax(64, 64), small=True)


def test_an_output_over_an_argument_that_is_read_last() -> None:
    """As a plan may lay it out, since that argument is read for the element alone."""
    node = rows(*SHAPE, added)
    arrays = k.arguments(node)
    x, y = arrays[1].astype(np.float64), np.array(arrays[2])
    high = np.exp(x)
    wanted = high / high.sum(1, keepdims=True) + y
    compiled(linearised(lower(node, host(), choose_schedule(node, host()))))([y, arrays[1], y])
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("half", [0, 1])
def test_rows_of_other_chunks_are_left_alone(half: int) -> None:
    node = k.softmax(64, 1024)
    loop = lower(node, host(), choose_schedule(node, host()))
    (pool,) = [one for one in toposort(loop) if one.op is Ops.RANGE and one.arg.bind == "pool"]
    count = int(pool.src[0].arg)
    found = [np.full((64, 1024), 7.0, np.float32), k.arguments(node)[1]]
    compiled(linearised(loop))(found, chunks=(half * count // 2, (half + 1) * count // 2))
    done, rest = np.split(found[0], 2) if half == 0 else reversed(np.split(found[0], 2))
    assert np.all(rest == 7.0)
    np.testing.assert_allclose(done.sum(1), 1.0, rtol=1e-5)


def loops_of(node: Node) -> int:
    """How many loops a kernel has, as it is lowered first."""
    loop = lower(node, host(), choose_schedule(node, host()))
    return sum(one.op is Ops.LOOP for one in toposort(loop))


def exponentials_of(node: Node) -> int:
    """How many places of a kernel compute exponentials."""
    loop = lower(node, host(), choose_schedule(node, host()))
    return sum(one.op is Ops.EXP for one in toposort(loop))


@pytest.mark.parametrize(("columns", "together"), ((1024, True), (960, True), (1000, False)))
def test_a_row_is_summed_while_it_is_computed(columns: int, together: bool) -> None:
    """Where vectors divide a row: its chunks, its rows, the maximum, the sum and the output."""
    node = k.softmax(512, columns)
    assert exponentials_of(node) == 1
    assert loops_of(node) == (5 if together else 6)


def twice(m: int, n: int) -> Node:
    """Two sums of exponentials along one axis, and their sum with other factors along two axes."""
    i, j, b = range_node(m, 0), range_node(n, 1), range_node(n, 2)
    c, d = range_node(n, 3), range_node(m, 4)
    x, y = k.param(1, m, n), k.param(2, m, n)
    first = k.reduce(Ops.ADD, alu(Ops.EXP, k.at(x, i, b)), b)
    second = k.reduce(Ops.ADD, alu(Ops.MUL, alu(Ops.EXP, k.at(x, i, b)), k.at(y, i, b)), b)
    third = k.reduce(Ops.ADD, alu(Ops.MUL, alu(Ops.EXP, k.at(x, i, c)), k.at(y, d, c)), c, d)
    value = alu(Ops.DIV, alu(Ops.EXP, k.at(x, i, j)), alu(Ops.ADD, first, second))
    return k.kernel(k.out(k.param(0, m, n), alu(Ops.ADD, value, third), i, j))


@pytest.mark.parametrize("columns", (64, 128, 192, 200))
def test_several_sums_of_kept_values(columns: int) -> None:
    """They are in step with what they sum, or wait for all of it."""
    node = twice(4, columns)
    arrays = k.arguments(node)
    wanted = k.run_kernel(node, arrays)
    found = [np.array(arrays[slot]) for slot in sorted(arrays)]
    found[0][...] = np.nan
    compiled(linearised(lower(node, host(), choose_schedule(node, host()))))(found)
    k.assert_equal(wanted, dict(enumerate(found)), scale=8.0)
