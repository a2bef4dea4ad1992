"""What is read off a kernel that is one stream, and what is none."""

from __future__ import annotations

import pytest

from baregrad.graph import canonicalise
from baregrad.ir.core.node import Node, extent_of
from baregrad.kernel.facts.stream_facts import stream_facts
from baregrad.schedule import make_plan
from baregrad.testing.examples.nests import attended, product, row_sums
from tests.graph.graphs.gpu_graphs import HOPPER
from tests.graph.test_streams import BRAIN, attention, differentiated, graph_of


def test_the_axes_of_a_stream() -> None:
    facts = stream_facts(attended(32, 48, 16))
    assert facts is not None and facts.row is not None
    assert [extent_of(axis) for axis in (facts.row, facts.key)] == [32, 48]
    assert facts.widths == (16, 16) and facts.batch == ()
    assert facts.values is not None and facts.states == 3
    (scores,) = facts.products
    slots = [read.src[0].arg.slot for read in (scores.left, scores.right, facts.values)]
    assert slots == [1, 2, 3]
    assert facts.weights is facts.power and facts.limit is None


def test_the_last_key_that_a_row_sees() -> None:
    facts = stream_facts(attended(32, 48, 16, causal=True))
    assert facts is not None and facts.limit is not None
    constant, factor, sign = facts.limit
    assert (factor, sign) == (1, 1) and isinstance(constant, Node) and constant.arg == 0


def test_gradients_are_plain_sums_of_weights_that_rows_or_keys_pass() -> None:
    given, results = differentiated(BRAIN, 32, 48, 16, attention(is_causal=True))
    made = canonicalise(graph_of(results, given), None, HOPPER)
    found = [stream_facts(kernel) for kernel in make_plan(made, target=HOPPER).kernels]
    kinds = sorted(
        (facts.states, len(facts.products), facts.limit[2])
        for facts in found if facts is not None and facts.limit is not None
    )
    # Values' gradient: one product, queries pass. Those of queries and keys: two products.
    assert kinds == [(0, 1, -1), (0, 2, -1), (0, 2, 1), (2, 1, 1), (3, 1, 1)]


@pytest.mark.parametrize("kernel", (product(8, 8, 8), row_sums(4, 4)), ids=("product", "sums"))
def test_other_sums_are_no_streams(kernel: Node) -> None:
    assert stream_facts(kernel) is None
