"""Where linearisation puts values: each in a block around everything that reads it."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad.ir.core import index
from baregrad.ir.core.node import Node, alu, const, range_node
from baregrad.ir.core.op import Ops
from baregrad.ir.verify.verify import verify
from baregrad.kernel.linearise.linearise import linearise
from tests.render.harness import F32, branch, check, kernel, load, loop, param, seq, store

pytestmark = pytest.mark.differential
ROUTES = ("loop", "linear", "llvm", "c")
ONE = const(1.0, F32)


def data(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def plus_one(value: Node) -> Node:
    return alu(Ops.ADD, value, ONE)


@pytest.mark.parametrize("depth", (1, 2))
def test_a_load_needed_under_a_condition_and_again_after_it(depth: int) -> None:
    """The load under the condition may not leave it; the one after it may leave the loop."""
    i, j = range_node(4, 0), range_node(3, 1)
    x, y, under, after = param(2, 3), param(3, 4), param(0, 4, 3), param(1, 4, 3)
    conditions = [index.less(i, 2), index.less(0, j)][:depth]
    value = alu(Ops.MUL, load(x, const(1, i.dtype)), load(y, i))
    first = store(under, value, i, j)
    for condition in conditions:
        first = branch(condition, first)
    node = kernel(loop(i, loop(j, seq(first, store(after, plus_one(value), i, j)))))
    program = linearise(node)
    verify(program, "linear")
    loads = [one for one in program.src if one.op is Ops.VLOAD]
    assert len(loads) == len(set(loads)) == 2, "one copy of each load, outside the condition"
    found, other, xs, ys = check(
        node, [np.zeros((4, 3), np.float32)] * 2 + [data(3), data(4)], routes=ROUTES
    )
    wanted = np.repeat(xs[1] * ys[:, None], 3, 1)
    held = np.arange(4)[:, None] < 2
    if depth == 2:
        held = held & (np.arange(3) > 0)
    np.testing.assert_array_equal(found, np.where(held, wanted, np.float32(0)))
    np.testing.assert_array_equal(other, wanted + np.float32(1))


def test_loads_of_written_memory_are_repeated_after_a_condition() -> None:
    """What a condition may have overwritten is read again, not taken from before it."""
    i = range_node(6, 0)
    total, out = param(0, 1), param(1, 6)
    zero = const(0, i.dtype)
    old = load(total, zero)
    step = branch(index.less(i, 3), store(total, plus_one(old), zero))
    node = kernel(loop(i, seq(step, store(out, plus_one(old), i))))
    verify(linearise(node), "linear")
    (_, found) = check(node, [np.zeros(n, np.float32) for n in (1, 6)], routes=ROUTES)
    np.testing.assert_array_equal(found, [2, 3, 4, 4, 4, 4])
