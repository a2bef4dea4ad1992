"""Strided loads that are neighbours: one access of each lane, and the evaluator's values."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad import render
from baregrad.dtypes import DType, dtypes
from baregrad.ir.core import index
from baregrad.ir.core.node import Node, alu, const, range_node
from baregrad.ir.core.op import Ops
from baregrad.kernel import to_linear
from baregrad.render.llvm.strided_runs import runs_of
from tests.render.harness import check, host, kernel, load, loop, lower, param, store, vector

STEPS = 3
ANY = pytest.mark.parametrize(
    "dtype", [dtypes.uint8, dtypes.int16, dtypes.float16, dtypes.int32, dtypes.float32], ids=str
)


def sums(dtype: DType, lanes: int, count: int, width: int, weights: tuple[int, ...]) -> Node:
    """out[i, v] = the sum of weights[k] * x[v, i * count + k]: lanes are rows of x."""
    x, out = param(1, lanes * width, dtype=dtype), param(0, STEPS * lanes, dtype=dtype)
    i, v = range_node(STEPS, 0), vector(lanes, 1)
    total: Node | None = None
    for place, weight in enumerate(weights):
        at = index.add(index.mul(v, width), index.add(index.mul(i, count), place))
        term = alu(Ops.MUL, load(x, at), const(weight, dtype))
        total = term if total is None else alu(Ops.ADD, total, term)
    assert total is not None
    return kernel(loop(i, store(out, total, index.add(index.mul(i, lanes), v))))


@pytest.mark.few(50)
@ANY
@pytest.mark.parametrize("lanes", [2, 4, 8, 16])
@pytest.mark.parametrize("count", [1, 2, 4, 5, 7])
def test_neighbours_have_the_values_of_the_evaluator(dtype: DType, lanes: int, count: int) -> None:
    width = STEPS * count + 9
    weights = tuple(range(1, count + 1))
    x = np.random.default_rng(count).integers(0, 5, (lanes, width)).astype(dtype.numpy)
    out = np.zeros(STEPS * lanes, dtype.numpy)
    node = sums(dtype, lanes, count, width, weights)
    found = check(node, [out, x.reshape(-1)], routes=("linear", "llvm", "c"))
    parts = x[:, : STEPS * count].reshape(lanes, STEPS, count)
    wanted = (parts * np.array(weights)).sum(-1, dtype=dtype.numpy).T
    np.testing.assert_array_equal(found[0].reshape(STEPS, lanes), wanted)


@pytest.mark.parametrize(("lanes", "count", "found"), [(8, 9, 8), (8, 3, 0), (2, 8, 0)])
def test_four_words_of_each_lane_are_one_access(lanes: int, count: int, found: int) -> None:
    program = lower(sums(dtypes.int32, lanes, count, 40, tuple(range(1, count + 1))))
    assert len(runs_of(program)) == found
    text = render.get("llvm").render(program, host())
    assert text.count("load <4 x i32>") == found // 4 * lanes


def test_words_of_bytes_whose_rows_are_no_multiple_of_words() -> None:
    """Rows of 17 bytes: lanes of words lie apart by no number of words."""
    lanes, width = 8, 17
    x, out = param(1, lanes * width, dtype=dtypes.uint8), param(0, lanes, dtype=dtypes.int32)
    v = vector(lanes, 0)
    total: Node | None = None
    for word in range(4):
        read = load(x, index.add(index.mul(v, width), 4 * word)).replace(dtype=dtypes.int32)
        total = read if total is None else alu(Ops.XOR, alu(Ops.MUL, total, read), read)
    assert total is not None
    node = kernel(store(out, total, v))
    rows = np.random.default_rng(3).integers(0, 256, (lanes, width)).astype(np.uint8)
    arrays = [np.zeros(lanes, np.int32), rows.reshape(-1)]
    (got, _) = check(node, arrays, routes=("linear", "llvm", "c"))
    words = rows[:, :16].copy().view(np.int32)
    wanted = words[:, 0]
    for word in range(1, 4):
        wanted = (wanted * words[:, word]) ^ words[:, word]
    np.testing.assert_array_equal(got, wanted)
    assert len(runs_of(to_linear(node, host()))) == 4
    assert "load <4 x i32>" in render.get("llvm").render(lower(node), host())


def test_loads_of_other_blocks_are_no_neighbours() -> None:
    """Each of two loops reads half of what would be a run."""
    lanes, width = 8, 40
    x, out = param(1, lanes * width, dtype=dtypes.int32), param(0, 4 * lanes, dtype=dtypes.int32)
    loops = []
    for half in range(2):
        i, v = range_node(3, 2 * half), vector(lanes, 2 * half + 1)
        start = index.add(index.mul(v, width), index.mul(i, 4))
        places = [index.add(start, 2 * half + step) for step in range(2)]
        value = alu(Ops.ADD, *[load(x, place) for place in places])
        loops.append(loop(i, store(out, value, index.add(index.mul(i, lanes), v))))
    program = lower(kernel(*loops))
    assert not runs_of(program)
