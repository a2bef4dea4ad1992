"""The passes in order: those that share a walk leave what they leave one after the other."""

from __future__ import annotations

import pytest

from baregrad.graph import canonicalise, passes, stages
from baregrad.ir.core.op import Ops
from tests.graph.graphs.canonical import one_by_one, ops_of
from tests.schedule.graphs import param, sink
from tests.schedule.whole.random_graphs import random_outputs


@pytest.mark.parametrize("part", range(4))
def test_random_graphs_come_out_the_same(part: int) -> None:
    for seed in range(part * 100, part * 100 + 60):
        root = sink(*random_outputs(seed))
        assert canonicalise(root) is one_by_one(root)


def test_what_one_pass_makes_goes_through_those_after_it() -> None:
    """A factor comes out of a long sum, and the sum that is left is cut in parts."""
    values, scale = param(0, 1 << 19), param(1)
    root = sink((values * scale).sum())
    made = canonicalise(root)
    assert made is one_by_one(root)
    top = made.src[0]
    assert top.op is Ops.MUL
    assert "CONTIGUOUS" in ops_of(top)


def test_stages_show_every_pass() -> None:
    root = sink(param(0, 4) + 1.0)
    names = [name for name, _, _ in stages(root)]
    assert names == ["input", *(one.name for one in passes)]
