"""The unrolled ranges and the lanes of expressions, and the points of unrolled ranges."""

from __future__ import annotations

from itertools import product
from typing import Any

from baregrad.base.errors import CompilerBug
from baregrad.ir.core.axes import THREAD_BINDS, TILE_BINDS
from baregrad.ir.core.node import Node
from baregrad.kernel.facts.analysis import by_id
from baregrad.kernel.linearise.access import lanes_of

Point = dict[Node, int]


class TileAxes:
    """What is known of sets of ranges: each is sorted once."""

    def __init__(self) -> None:
        self._tiles: dict[frozenset[Node], tuple[tuple[Node, ...], int]] = {}
        self._points: dict[Any, list[Point]] = {}

    def axes_of(self, ranges: frozenset[Node]) -> tuple[Node, ...]:
        """The unrolled ranges among some, in the order of their ids."""
        return (self._tiles.get(ranges) or self._tiles_of(ranges))[0] if ranges else ()

    def lanes_of(self, ranges: frozenset[Node]) -> int:
        """The extent of the vector range among some, 1 without; raises CompilerBug for two."""
        lanes = (self._tiles.get(ranges) or self._tiles_of(ranges))[1]
        if not lanes:
            raise CompilerBug("an expression with two vector ranges", found=list(ranges))
        return lanes

    def _tiles_of(self, ranges: frozenset[Node]) -> tuple[tuple[Node, ...], int]:
        """The unrolled ranges among some, and the extent of the vector range, 0 for several."""
        axes: list[Node] = []
        vectors: list[Node] = []
        for axis in ranges:
            bind = axis.arg.bind
            # Threads are named by folds alone, which all of them run once.
            if bind in TILE_BINDS and bind not in THREAD_BINDS:
                (vectors if bind == "vector" else axes).append(axis)
        lanes = 1
        if vectors:
            lanes = lanes_of(vectors[0]) if len(vectors) == 1 else 0
        found = self._tiles[ranges] = by_id(axes), lanes
        return found

    def points(self, axes: tuple[Node, ...], before: Point) -> list[Point]:
        """Every point of some unrolled ranges, from `before`, the first varying slowest."""
        if not axes:
            return [before]
        key = (axes, *before.items()) if before else axes
        found = self._points.get(key)
        if found is None:
            places = product(*[range(lanes_of(axis)) for axis in axes])
            found = [dict(zip(axes, place, strict=True)) for place in places]
            if before:
                found = [before | point for point in found]
            self._points[key] = found
        return found
