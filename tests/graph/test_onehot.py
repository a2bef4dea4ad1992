"""One-hot sums become indexed reads."""

from __future__ import annotations

from baregrad.graph import canonicalise
from tests.graph.graphs.canonical import one_by_one, ops_of
from tests.schedule.graphs import I64, iota_along, param, sink


def test_a_scaled_one_hot_sum_is_a_scaled_read() -> None:
    values, place, scale = param(0, 40), param(1, dtype=I64), param(2)
    hot = iota_along((40,), 0).eq(place)
    root = sink((hot.where(values, 0.0) * scale).sum())
    made = canonicalise(root)
    assert made is one_by_one(root)
    assert "GATHER" in ops_of(made)
    assert "REDUCE" not in ops_of(made)
