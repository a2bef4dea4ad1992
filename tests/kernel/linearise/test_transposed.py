"""Tiles transposed in registers: far lanes whose steps are neighbours are one access each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from baregrad.dtypes import DType, dtypes
from baregrad.ir.analysis.rows import by_rows
from baregrad.ir.core import index
from baregrad.ir.core.node import alu, const, range_node
from baregrad.ir.core.op import Ops
from baregrad.kernel.linearise.linearise import linearise
from baregrad.target.cpu import CPU_ROWS, CpuTarget
from tests.render.harness import (
    F32,
    alloc,
    check,
    compiled,
    host,
    kernel,
    load,
    loop,
    param,
    seq,
    store,
    unroll,
    vector,
)

pytestmark = pytest.mark.differential
ROUTES = ("loop", "linear", "llvm", "c")
ONE = const(1.0, F32)


def data(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def zeros(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


@pytest.mark.parametrize("lanes", (4, 8, 16, 32, 64))
@pytest.mark.parametrize("steps", (3, 4, 5, 7, 8, 14, 16, 20))
def test_far_lanes_whose_steps_are_neighbours_are_stored_side_by_side(
    steps: int, lanes: int
) -> None:
    u, v = unroll(steps, 0), vector(lanes, 1)
    x, out = param(1, steps, lanes), param(0, lanes, steps)
    node = kernel(store(out, alu(Ops.ADD, load(x, u, v), ONE), v, u))
    values = data(steps, lanes)
    (found, _) = check(node, [zeros(lanes, steps), values], routes=ROUTES)
    np.testing.assert_array_equal(found, values.T + np.float32(1))
    code = by_rows(linearise(node)).src
    turns = [each for each in code if each.op is Ops.TURN]
    if 4 <= steps <= lanes:
        assert [(each.arg.width, each.arg.stride) for each in turns] == [(lanes, steps)]
        assert len(turns[0].src) == 2 + steps
    else:
        assert not turns
        assert len([each for each in code if each.op is Ops.VSTORE]) == steps


@pytest.mark.parametrize("steps", (4, 5, 8, 13, 16))
def test_far_lanes_whose_steps_are_neighbours_are_copied_at_once(steps: int) -> None:
    i, u, v = range_node(3, 0), unroll(steps, 1), vector(16, 2)
    x, out = param(1, 16, 3, steps), alloc(1, 3, steps, 16)
    total = param(0, 3, steps, 16)
    copied = loop(i, store(out, load(x, v, i, u), i, u, v))
    node = kernel(seq(copied, loop(i, store(total, load(out, i, u, v), i, u, v))))
    values = data(16, 3, steps)
    (found, _) = check(node, [zeros(3, steps, 16), values], routes=ROUTES)
    np.testing.assert_array_equal(found, values.transpose(1, 2, 0))
    loads = [each for each in by_rows(linearise(node)).src if each.op is Ops.VLOAD]
    assert {each.arg.stride for each in loads} == {1}


@pytest.mark.parametrize("row", CPU_ROWS, ids=lambda row: row.name)
@pytest.mark.parametrize("dtype", (dtypes.uint8, dtypes.int16, dtypes.float64), ids=str)
@pytest.mark.parametrize(("steps", "lanes"), ((4, 16), (7, 8), (16, 32), (27, 32)))
def test_tiles_are_right_for_each_width_of_registers(
    steps: int, lanes: int, dtype: DType, row: CpuTarget
) -> None:
    if not set(row.needs) <= set(host().features):
        pytest.skip(f"this machine does not run the code of {row.name}")
    u, v = unroll(steps, 0), vector(lanes, 1)
    x, out = param(1, steps, lanes, dtype=dtype), param(0, lanes, steps, dtype=dtype)
    value = alu(Ops.ADD, load(x, u, v), const(1, dtype))
    program = linearise(kernel(store(out, value, v, u)))
    assert any(each.op is Ops.TURN for each in program.src)
    values = np.random.default_rng(0).integers(0, 100, (steps, lanes)).astype(dtype.numpy)
    found = np.zeros((lanes, steps), dtype.numpy)
    compiled(program, row=row)([found, values])
    np.testing.assert_array_equal(found, values.T + 1)


def test_steps_that_lie_unevenly_apart_are_copied_in_several_tiles() -> None:
    i, a, b, v = range_node(3, 0), unroll(2, 1), unroll(4, 2), vector(16, 3)
    x, out, total = param(1, 16, 3, 2, 4), alloc(1, 3, 4, 2, 16), param(0, 3, 4, 2, 16)
    copied = loop(i, store(out, load(x, v, i, a, b), i, b, a, v))
    node = kernel(seq(copied, loop(i, store(total, load(out, i, b, a, v), i, b, a, v))))
    values = data(16, 3, 2, 4)
    (found, _) = check(node, [zeros(3, 4, 2, 16), values], routes=ROUTES)
    np.testing.assert_array_equal(found, values.transpose(1, 3, 2, 0))
    turns = [each for each in by_rows(linearise(node)).src if each.op is Ops.TURN]
    assert [(each.arg.width, each.arg.stride) for each in turns] == [(4, 32)] * 2


@pytest.mark.parametrize("ids", ((0, 1), (1, 0)), ids=("in order", "mixed"))
def test_neighbours_along_two_axes_are_one_store(ids: tuple[int, int]) -> None:
    # Rows stand in the order of the axes' ids, which need not be that of their places.
    a, b, v = unroll(3, ids[0]), unroll(4, ids[1]), vector(16, 2)
    x, out = param(1, 3, 4, 16), param(0, 16, 3, 4)
    node = kernel(store(out, alu(Ops.ADD, load(x, a, b, v), ONE), v, a, b))
    values = data(3, 4, 16)
    (found, _) = check(node, [zeros(16, 3, 4), values], routes=ROUTES)
    np.testing.assert_array_equal(found, values.transpose(2, 0, 1) + np.float32(1))
    program = linearise(node)
    assert not any(each.op is Ops.ROW for each in program.src)
    turns = [each for each in by_rows(program).src if each.op is Ops.TURN]
    assert [(each.arg.width, each.arg.stride, len(each.src)) for each in turns] == [(16, 12, 14)]


def test_lanes_that_meet_their_neighbours_are_stored_one_by_one() -> None:
    u, v = unroll(8, 0), vector(4, 1)
    x, out = param(1, 8, 4), param(0, 20)
    place = index.add(index.mul(v, 4), u)
    node = kernel(store(out, alu(Ops.ADD, load(x, u, v), ONE), place))
    check(node, [zeros(20), data(8, 4)], routes=ROUTES)
