"""What is read off a kernel that is one stream, and what is none."""

from __future__ import annotations

from itertools import product as pairs

import numpy as np
import pytest

from baregrad.graph import canonicalise
from baregrad.ir.core import index
from baregrad.ir.core.bounds import bounds
from baregrad.ir.core.node import Node, extent_of, range_node
from baregrad.kernel.facts.stream_facts import StreamFacts, holds_between, stream_facts
from baregrad.kernel.instructions import wgmma
from baregrad.schedule import make_plan
from baregrad.tensor import Tensor
from baregrad.testing.examples.nests import attended, product, row_sums
from tests.graph.graphs.gpu_graphs import HOPPER
from tests.graph.streams.test_passes import (
    BRAIN,
    Made,
    attention,
    by_hand,
    differentiated,
    graph_of,
    inputs,
)


def test_the_axes_of_a_stream() -> None:
    facts = stream_facts(attended(32, 48, 16))
    assert facts is not None and facts.row is not None
    assert [extent_of(axis) for axis in (facts.row, facts.key)] == [32, 48]
    assert facts.widths == (16, 16) and facts.batch == ()
    assert facts.states == 3
    (scores,) = facts.products
    slots = [read.src[0].arg.slot for read in (scores.left, scores.right, *facts.values)]
    assert slots == [1, 2, 3]
    assert facts.weights == (facts.near,) and not facts.limits


def test_the_last_key_that_a_row_sees() -> None:
    facts = stream_facts(attended(32, 48, 16, causal=True))
    assert facts is not None
    ((constant, factor, sign),) = facts.limits
    assert (factor, sign) == (1, 1) and isinstance(constant, Node) and constant.arg == 0


def test_gradients_are_plain_sums_of_weights_that_rows_or_keys_pass() -> None:
    given, results = differentiated(BRAIN, 32, 48, 16, attention(is_causal=True))
    made = canonicalise(graph_of(results, given), None, HOPPER)
    found = [stream_facts(kernel) for kernel in make_plan(made, target=HOPPER).kernels]
    kinds = sorted(
        (facts.states, len(facts.products), len(facts.values), facts.limits[0].sign)
        for facts in found if facts is not None and facts.limits
    )
    # Gradients of two products: of keys and values at once, which queries pass, and of queries.
    assert kinds == [(0, 2, 1, 1), (0, 2, 2, -1), (3, 1, 1, 1)]


def facts_by_hand(make: Made) -> list[StreamFacts]:
    given, results = differentiated(BRAIN, 32, 48, 16, make)
    made = canonicalise(graph_of(results, given), None, HOPPER)
    found = [stream_facts(kernel) for kernel in make_plan(made, target=HOPPER).kernels]
    return [facts for facts in found if facts is not None]


def test_attention_by_hand_is_states_and_sums_with_and_without_values() -> None:
    found = facts_by_hand(by_hand())
    kinds = sorted((one.states, len(one.products), len(one.values)) for one in found)
    # The result; a sum for each row; gradients of queries, and of keys and values at once; states.
    assert kinds == [(0, 1, 1), (0, 2, 0), (0, 2, 1), (0, 2, 2), (2, 1, 0)]
    assert not any(one.exponent_reads & one.read_beside(one.exponent) for one in found)


def attended_with(hidden: Tensor) -> Made:
    return lambda q, k, v: (q @ k.mT).masked_fill(hidden, float("-inf")).softmax(-1) @ v


def test_a_mask_by_places_is_found_behind_a_rounding() -> None:
    """It is left aside where all that is summed is 0 behind it, and only there."""
    found = facts_by_hand(by_hand())
    assert sorted(one.limits[0].sign for one in found if one.limits) == [-1, 1, 1, 1, 1]

    def shifted(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = (q @ k.mT).masked_fill(Tensor.ones(32, 48).tril() == 0, float("-inf")).softmax(-1)
        return (weights + 0.5) @ v

    # Of rows that see no key the powers are NaNs, in all columns.
    hidden = attended_with(Tensor.ones(32, 48).tril(-1) == 0)
    assert not any(one.limits for one in facts_by_hand(hidden))
    by_values = [one for one in facts_by_hand(shifted) if one.values]
    # Every row takes all values in; their gradient, and with it the keys', sums all rows.
    assert sorted(not one.limits for one in by_values) == [False, True, True]


def test_scores_that_a_gradient_reads_beside_their_exponent_stay() -> None:
    found = facts_by_hand(by_hand(cap=2.0))
    beside = [one.exponent_reads & one.read_beside(one.exponent) for one in found]
    assert sum(map(bool, beside)) == 2


@pytest.mark.parametrize("kernel", (product(8, 8, 8), row_sums(4, 4)), ids=("product", "sums"))
def test_other_sums_are_no_streams(kernel: Node) -> None:
    assert stream_facts(kernel) is None


def test_only_places_that_rise_with_a_key_are_known_by_their_ends() -> None:
    """A key plus three of its remainders by 4 does not: its greatest is not the last one's."""
    key = range_node(16, 1)
    ends = index.as_node(0), index.as_node(6)
    for place in (index.mod(key, 4), index.mul(index.floordiv(key, 4), -8)):
        hidden = index.less(index.add(key, index.mul(place, 3)), 12)
        assert holds_between(hidden, key, ends) is None
    last = holds_between(index.less(index.add(key, 5), 12), key, ends)
    assert last is not None and last.arg is True


@pytest.mark.parametrize(("apart", "size", "rises"), [
    (256, 32, True), (32, 32, True), (31, 32, True), (30, 32, False), (8, 4, True), (2, 4, False),
])  # fmt: skip
def test_places_of_tiles_that_are_apart_rise(apart: int, size: int, rises: bool) -> None:
    """A tile's first and last place tell of all between, unless a tile begins before it ends."""
    key = range_node(128, 1)
    quotient, rest = index.floordiv(key, size), index.mod(key, size)
    place = index.add(index.add(index.mul(quotient, apart), rest), 7)
    ends = index.as_node(8), index.as_node(75)
    every = [each // size * apart + each % size + 7 for each in range(128)]
    for wanted, bound in pairs((True, False), range(min(every) + 1, max(every) + 1, 5)):
        found = holds_between(index.less(place, bound), key, ends, wanted)
        if not rises:
            assert found is None
            continue
        holds = {(each < bound) is wanted for each in every[8:76]}
        assert found is not None and bounds(found) == (holds == {True},) * 2


def test_a_window_limits_keys_at_both_ends_and_lengths_leave_tiles_out() -> None:
    """Whatever else hides keys: each condition alone says which tiles nobody sees."""
    given = inputs(BRAIN, *[(2, 2, 96, 64)] * 4)
    lengths = Tensor(np.array([20, 96])).realize()
    row, key = Tensor.arange(96).reshape(96, 1), Tensor.arange(96).reshape(1, 96)
    inside = key < lengths.reshape(2, 1, 1, 1)
    masks = ((key <= row) & (key > row - 30), inside & (key <= row), inside)
    found = []
    for mask in masks:
        leaves = [x.detach().requires_grad_() for x in given[:3]]
        out = leaves[0].scaled_dot_product_attention(*leaves[1:], mask)
        out.backward(given[3])
        sink = graph_of([out, *[x.grad for x in leaves]], [*given, lengths])  # type: ignore[misc]
        kernels = make_plan(canonicalise(sink, None, HOPPER), target=HOPPER).kernels
        facts = [one for one in map(stream_facts, kernels) if one is not None]
        assert len(facts) == 3 and all(wgmma.suits_stream(one) for one in facts)
        found.append([(sorted(limit.sign for limit in one.limits), one.leaves_out)
                      for one in facts])  # fmt: skip
    assert all(one == ([-1, 1], False) for one in found[0])
    # Where queries pass keys, a block of keys past the length has none to see.
    assert all(len(signs) == 1 and leaves_out for signs, leaves_out in found[1])
    assert all(not signs and leaves_out for signs, leaves_out in found[2])
