"""Factors that are windows of an image, as boxes of places that an engine walks along.

What a copy reads is known here by the axes of the kernel, of which a schedule joins some to one and
splits that: later there are only quotients and remainders of sums.
"""

from __future__ import annotations

from baregrad.ir.core import index
from baregrad.ir.core.node import Node, toposort
from baregrad.kernel.applying.final_axes import FinalAxes
from baregrad.kernel.applying.scope import Scope
from baregrad.kernel.facts.analysis import ArrayAccess, reads_in
from baregrad.kernel.gpu.window_boxes import WindowBox, window_box, window_of


def walked_box(
    factor: Node, axes: FinalAxes, scope: Scope, own: tuple[Node, ...]
) -> WindowBox | None:
    """The box of a window that a copy of a factor over the axes `own` is; None for none."""
    reads = reads_in(toposort(factor))
    if len(reads) != 1:
        return None
    (read,) = reads
    channels = next((axis for axis, n in read.offset.strides.items() if n == 1), None)
    if channels is None or _digit(axes, channels) != 1:
        return None
    along = _position(axes, scope, channels)
    for axis in read.axes:
        walk = _position(axes, scope, axis)
        if walk is not None and walk is not along and not walk.ranges.isdisjoint(own):
            return None if along is None else _of(read, axes, scope, own, axis, channels)
    return None


def _of(
    read: ArrayAccess, axes: FinalAxes, scope: Scope, own: tuple[Node, ...], first: Node,
    channels: Node,
) -> WindowBox | None:  # fmt: skip
    table = axes.table
    merged = table.merged.get(first)
    # Those of a group are told innermost first.
    walked = (first,) if merged is None else table.groups[merged[0]][::-1]
    window = window_of(read, walked, channels)
    walk, along = (_position(axes, scope, axis) for axis in (first, channels))
    if window is None or walk is None or along is None:
        return None
    places = {axis: axes.value(axis, scope) for axis in read.axes}
    return window_box(window, places, own, walk, along, read.array.dtype.itemsize)


def _digit(axes: FinalAxes, axis: Node) -> object:
    """How far apart the points of an axis are on the one that it was joined to."""
    merged = axes.table.merged.get(axis)
    return 1 if merged is None else merged[1]


def _position(axes: FinalAxes, scope: Scope, axis: Node) -> Node | None:
    """The place on the joined axis that an axis is a digit of."""
    start = scope.pieces[axis].start
    if not isinstance(start, int):
        return None
    return index.from_linear(dict(axes.finals(axis, scope)), start)
