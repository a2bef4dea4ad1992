"""What is read off a kernel that is one stream, and what is none."""

from __future__ import annotations

import pytest

from baregrad.ir.core.node import Node, extent_of
from baregrad.kernel.facts.stream_facts import stream_facts
from baregrad.testing.examples.nests import attended, product, row_sums


def test_the_axes_of_a_stream() -> None:
    facts = stream_facts(attended(32, 48, 16))
    assert facts is not None and facts.row is not None
    assert [extent_of(axis) for axis in (facts.row, facts.key)] == [32, 48]
    assert facts.widths == (16, 16) and facts.batch == ()
    slots = [read.src[0].arg.slot for read in (facts.left, facts.right, facts.values)]
    assert slots == [1, 2, 3]
    assert facts.weights is facts.power and facts.last_key is None


def test_the_last_key_that_a_row_sees() -> None:
    facts = stream_facts(attended(32, 48, 16, causal=True))
    assert facts is not None and facts.last_key is not None
    constant, factor = facts.last_key
    assert factor == 1 and isinstance(constant, Node) and constant.arg == 0


@pytest.mark.parametrize("kernel", (product(8, 8, 8), row_sums(4, 4)), ids=("product", "sums"))
def test_other_sums_are_no_streams(kernel: Node) -> None:
    assert stream_facts(kernel) is None
