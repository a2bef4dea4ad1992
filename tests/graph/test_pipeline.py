"""The passes in order: those that share a walk leave what they leave one after the other."""

from __future__ import annotations

import pytest

from baregrad.graph import canonicalise, stages
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Ops
from tests.schedule.graphs import I64, iota_along, param, sink
from tests.schedule.random_graphs import random_outputs


def one_by_one(root: Node) -> Node:
    *_, (_, _, last) = stages(root)
    return last


@pytest.mark.parametrize("part", range(4))
def test_random_graphs_come_out_the_same(part: int) -> None:
    for seed in range(part * 100, part * 100 + 60):
        root = sink(*random_outputs(seed))
        assert canonicalise(root) is one_by_one(root)


def ops_of(root: Node) -> set[str]:
    return {node.op.name for node in toposort(root)}


def test_what_one_pass_makes_goes_through_those_after_it() -> None:
    """A factor comes out of a long sum, and the sum that is left is cut in parts."""
    values, scale = param(0, 1 << 19), param(1)
    root = sink((values * scale).sum())
    made = canonicalise(root)
    assert made is one_by_one(root)
    top = made.src[0]
    assert top.op is Ops.MUL
    assert "CONTIGUOUS" in ops_of(top)


def test_a_scaled_one_hot_sum_is_a_scaled_read() -> None:
    values, place, scale = param(0, 40), param(1, dtype=I64), param(2)
    hot = iota_along((40,), 0).eq(place)
    root = sink((hot.where(values, 0.0) * scale).sum())
    made = canonicalise(root)
    assert made is one_by_one(root)
    assert "GATHER" in ops_of(made)
    assert "REDUCE" not in ops_of(made)


@pytest.mark.parametrize(
    ("shape", "parts"),
    (((1 << 19,), 64), ((1 << 23,), 128), ((1 << 12, 1 << 12), 256), ((1 << 26,), 256)),
)
def test_longer_sums_have_more_parts(shape: tuple[int, ...], parts: int) -> None:
    """Threads wait for the last part to end, so it is a smaller share of what takes longer."""
    made = canonicalise(sink(param(0, *shape).sum()))
    (stored,) = [node for node in toposort(made) if node.op is Ops.CONTIGUOUS]
    assert stored.shape == (parts,)
