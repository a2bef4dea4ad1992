"""Softmaxes that become one reduction with their values, and those that do not."""

from __future__ import annotations

import pytest

from baregrad.dtypes import DType, dtypes
from baregrad.graph import canonicalise
from baregrad.schedule import make_plan
from tests.graph.graphs.gpu_graphs import HOPPER
from tests.graph.streams.test_passes import (
    BRAIN,
    attention,
    graph_of,
    inputs,
    streams,
    thinned,
)


def test_what_dropout_leaves_is_drawn_in_the_same_kernel() -> None:
    given = inputs(BRAIN, (1, 2, 16, 16), (1, 2, 16, 16), (1, 2, 16, 16))
    made = canonicalise(graph_of(thinned(*given), given), None, HOPPER)
    assert streams(made) == 1
    assert len(make_plan(made, target=HOPPER).kernels) == 1


@pytest.mark.parametrize("dtype", (dtypes.float32, dtypes.float64), ids=str)
def test_other_floats_stay_as_they_are(dtype: DType) -> None:
    given = inputs(dtype, *[(1, 2, 16, 16)] * 3)
    assert streams(canonicalise(graph_of(attention()(*given), given), None, HOPPER)) == 0


def test_widths_that_tiles_do_not_divide_stay_as_they_are() -> None:
    for width in (24, 272):
        given = inputs(BRAIN, *[(1, 2, 16, width)] * 3)
        assert streams(canonicalise(graph_of(attention()(*given), given), None, HOPPER)) == 0
