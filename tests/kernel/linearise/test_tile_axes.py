"""The unrolled ranges and lanes of expressions, and points in order."""

from __future__ import annotations

from itertools import product

import pytest

from baregrad.base.errors import CompilerBug
from baregrad.ir.core.node import range_node
from baregrad.kernel.linearise.tile_axes import TileAxes
from tests.render.harness import unroll, vector

I, U, W, V = range_node(9, 1), unroll(3, 7), unroll(2, 4), vector(8, 2)


def test_unrolled_axes_are_in_the_order_of_their_ids() -> None:
    tiles = TileAxes()
    assert tiles.axes_of(frozenset((U, I, V, W))) == (W, U)
    assert tiles.axes_of(frozenset((I, V))) == ()
    assert tiles.axes_of(frozenset()) == ()


def test_the_vectors_extent_is_the_lanes_of_an_expression() -> None:
    tiles = TileAxes()
    assert tiles.lanes_of(frozenset((U, V))) == 8
    assert tiles.lanes_of(frozenset((U, I))) == 1
    with pytest.raises(CompilerBug, match="two vector ranges"):
        tiles.lanes_of(frozenset((V, vector(4, 9))))


def test_points_vary_fastest_along_the_last_axis() -> None:
    tiles = TileAxes()
    wanted = [dict(zip((W, U), place, strict=True)) for place in product(range(2), range(3))]
    assert tiles.points((W, U), {}) == wanted
    # From a point along other axes on.
    assert tiles.points((W,), {U: 2}) == [{U: 2, W: 0}, {U: 2, W: 1}]
    assert tiles.points((W,), {U: 1}) == [{U: 1, W: 0}, {U: 1, W: 1}]
    before = {U: 1}
    assert tiles.points((), before) == [before]
