"""What reads scores decides whether they are computed anew or stored."""

from __future__ import annotations

from baregrad.graph import canonicalise
from baregrad.ir.analysis.stream import is_chained
from baregrad.ir.core.node import toposort
from baregrad.ir.core.op import Ops
from tests.graph.graphs.gpu_graphs import HOPPER
from tests.graph.streams.test_passes import BRAIN, attention, by_hand, graph_of, inputs, streams


def test_weights_that_are_wanted_themselves_are_stored() -> None:
    given = inputs(BRAIN, *[(1, 2, 16, 16)] * 3)
    weights = (given[0] @ given[1].mT).softmax(-1)
    sink = graph_of([weights @ given[2], weights], given)
    made = canonicalise(sink, None, HOPPER)
    assert streams(made) == 0 and not any(map(is_chained, toposort(made)))


def test_few_rows_by_hand_stay_as_they_are() -> None:
    for rows, count in ((1, 0), (15, 0), (16, 1)):
        given = inputs(BRAIN, (1, 2, rows, 16), (1, 2, 64, 16), (1, 2, 64, 16))
        assert streams(canonicalise(graph_of(by_hand()(*given), given), None, HOPPER)) == count


def test_products_of_many_steps_stay_as_they_are() -> None:
    for width in (24, 272):
        given = inputs(BRAIN, (1, 2, 16, width), (1, 2, 16, width), (1, 2, 16, 16))
        assert streams(canonicalise(graph_of(by_hand()(*given), given), None, HOPPER)) == 0


def test_scores_that_something_else_reads_are_stored() -> None:
    """Powers that are asked for are computed once, and attention reads them."""
    given = inputs(BRAIN, *[(1, 2, 16, 16)] * 3)
    result = attention()(*given)
    (power,) = [node for node in toposort(result.node) if node.op is Ops.EXP2_NEAR]
    sink = graph_of([result], given, power)
    assert streams(canonicalise(sink, None, HOPPER)) == 0
