"""Loops of which only the last step is masked."""

from __future__ import annotations

import pytest

from baregrad.ir.core.node import Node, extent_of, range_node, toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel import choose_schedule, lower
from baregrad.kernel.loops.last_steps import part_last_steps
from baregrad.target.cpu import cpu_row_named
from tests.kernel import kernels as k

AVX512 = cpu_row_named("x86-64-avx512")


def row_sums(rows: int, extent: int) -> Node:
    i, j = range_node(rows, 0), range_node(extent, 1)
    total = k.reduce(Ops.ADD, k.at(k.param(1, rows, extent), i, j), j)
    return k.kernel(k.out(k.param(0, rows), total, i))


def conditions(node: Node) -> list[Node]:
    return [one.src[0] for one in toposort(node) if one.op is Ops.IF]


@pytest.mark.parametrize(("extent", "steps", "left"), [(300, 4, 44), (129, 8, 1)])
def test_a_row_is_masked_at_its_end_alone(extent: int, steps: int, left: int) -> None:
    kernel = row_sums(8, extent)
    loop = lower(kernel, AVX512, choose_schedule(kernel, AVX512))
    inner = [one for one in toposort(loop) if one.op is Ops.LOOP and one.src[0].arg.axis == "r1o"]
    assert [extent_of(one.src[0]) for one in inner] == [steps]
    masks = [one for one in conditions(loop) if one.op is not Ops.CONST]
    assert len(masks) == 1
    assert masks[0].src[1].arg == left
    assert not any(one.op is not Ops.CONST for one in conditions(inner[0]))


def test_whole_tiles_stay_as_they_are() -> None:
    kernel = row_sums(8, 640)
    loop = lower(kernel, AVX512, choose_schedule(kernel, AVX512))
    assert not conditions(loop)
    assert part_last_steps(loop) is loop
