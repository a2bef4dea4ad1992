"""Points of a tile take turns: in order, and after what they read."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from baregrad.dtypes import dtypes
from baregrad.ir.analysis.rows import TOGETHER
from baregrad.ir.core.node import Node, alu, const
from baregrad.ir.core.op import Ops
from baregrad.kernel import lower, parse_schedule
from baregrad.kernel.linearise.points import interleave
from tests.kernel import kernels as k
from tests.render.harness import compiled, host
from tests.render.harness import lower as linearised


def chain(seed: int, length: int) -> list[Node]:
    """Instructions of which each reads the one before."""
    found = [const(float(seed), dtypes.float32)]
    for step in range(length):
        found.append(alu(Ops.ADD, found[-1], const(step + 0.5, dtypes.float32)))
    return found[1:]


def in_order(code: list[Node], known: set[Node]) -> bool:
    for node in code:
        if any(child.op is not Ops.CONST and child not in known for child in node.src):
            return False
        known.add(node)
    return True


def test_points_take_turns() -> None:
    parts = [chain(seed, 20) for seed in range(TOGETHER)]
    code = [node for part in parts for node in part]
    interleave(code, [20 * place for place in range(TOGETHER)])
    assert code[:TOGETHER] == [part[0] for part in parts]
    assert in_order(code, set())
    assert len(set(code)) == 20 * TOGETHER


def test_what_a_point_reads_of_another_comes_first() -> None:
    first = chain(1, 30)
    second = [alu(Ops.MUL, node, first[25]) for node in chain(2, 15)]
    second = [node for pair in zip(chain(2, 15), second, strict=True) for node in pair]
    code = [*first, *second]
    interleave(code, [0, 30])
    assert in_order(code, set())
    assert set(code) == {*first, *second}
    assert code != [*first, *second]


def test_blocks_and_short_points_stay() -> None:
    block: Callable[[], Node] = lambda: Node(Ops.END, dtypes.token)  # noqa: E731
    code = [*chain(1, 20), block(), *chain(2, 20), block()]
    before = list(code)
    interleave(code, [0, 21])
    assert code == before
    code = [*chain(1, 3), *chain(2, 3)]
    before = list(code)
    interleave(code, [0, 3])
    assert code == before


def test_turns_change_no_bit() -> None:
    """Functions of many instructions, four vectors at a time, against one at a time."""
    x = np.random.default_rng(0).normal(size=256).astype(np.float32)
    i = k.range_node(256, 0)
    value = k.at(k.param(1, 256), i)
    for op in (Ops.EXP, Ops.ERF, Ops.GELU, Ops.TANH, Ops.SIN):
        kernel = k.kernel(k.out(k.param(0, 256), alu(op, value), i))
        found = []
        for parts in ("u=4, v=16", "u=1, v=16"):
            binds = "bind('u', 'unroll'), bind('v', 'vector')"
            text = f"Schedule(split('i0', outer='o', {parts}), {binds})"
            result = np.zeros(256, np.float32)
            loop = lower(kernel, host(), parse_schedule(text))
            compiled(linearised(loop))([result, x])
            found.append(result)
        np.testing.assert_array_equal(*found)
