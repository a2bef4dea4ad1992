"""Copies of what windows reach: axes that move an input by overlapping steps, copied as one.

An image is read at row `i + r` for each row `i` of the output and each `r` of the window. A copy
over each axis separately would hold each row as often as windows reach it; one over their sum holds
it once. Zeros around the image are part of such a copy, so that what reads it has no conditions.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Set
from typing import NamedTuple

from baregrad.ir.core import index
from baregrad.ir.core.node import Node, range_node
from baregrad.ir.core.op import Ops
from baregrad.kernel.facts.analysis import moves_of
from baregrad.kernel.facts.axis_table import Piece
from baregrad.kernel.language.schedule import StageInput, Staging


class WindowRegion(NamedTuple):
    """What some axes reach together: `extent` values of the sum of steps[axis] * axis.

    carrier: one of them that moves by single steps; in the copy it runs along all of it.
    """

    carrier: str
    steps: Mapping[str, int]
    extent: int

    def place(self, ranges: Mapping[str, Node]) -> Node:
        """Where the region is read."""
        if len(self.steps) == 1:
            return ranges[self.carrier]
        first = sum(-min(s, 0) * (_size(ranges[name]) - 1) for name, s in self.steps.items())
        return index.from_linear({ranges[name]: step for name, step in self.steps.items()}, first)


def regions_of(
    step: Staging,
    node: Node,
    pieces: Mapping[Node, Piece],
    ranges: Mapping[str, Node],
    dead: Container[str],
    chunked: Set[str],
    merged: Container[Node],
) -> list[WindowRegion] | None:
    """The regions that a copy is laid out over; None where axes do not reach one together.

    node: the read, or a guard over it. dead: axes of one element. chunked: axes that are part of no
    sum, since chunks have their parts of them. merged: what was collapsed is part of none either.
    """
    moves: list[Mapping[Node, int]] | None = None
    found: list[WindowRegion] = []
    groups = step.axes if isinstance(step, StageInput) else step.names
    for group in groups:
        summed = group.split("+")
        if len(summed) > 1 and not chunked.isdisjoint(summed):
            return None
        names = [name for name in summed if name not in dead]
        if len(names) < 2:
            found += [WindowRegion(name, {name: 1}, _size(ranges[name])) for name in names]
            continue
        if moves is None:
            moves = moves_of(node, node if node.op is Ops.INDEX else node.src[1])
            if moves is None:
                return None
        steps = _steps(names, moves, pieces, merged)
        if steps is None:
            return None
        extent = 1 + sum(abs(each) * (_size(ranges[name]) - 1) for name, each in steps.items())
        carrier = next(name for name, each in steps.items() if each == 1)
        found.append(WindowRegion(carrier, steps, extent))
    return found


def _steps(
    names: list[str],
    moves: list[Mapping[Node, int]],
    pieces: Mapping[Node, Piece],
    merged: Container[Node],
) -> Mapping[str, int] | None:
    """What axes do to all sums alike, by that of the one that moves least; None if not alike."""
    found: dict[str, int] = {}
    for place, terms in enumerate(moves):
        each = dict.fromkeys(names, 0)
        for axis, piece in pieces.items():
            stride = terms.get(axis, 0)
            for name, scale in piece.terms if stride else ():
                if name in each:
                    if piece.limits or axis in merged:
                        return None
                    each[name] += stride * scale
        if not place:
            unit = min(each.values(), key=lambda step: (abs(step), -step))
            if not unit or any(step % unit for step in each.values()):
                return None
            found = {name: step // unit for name, step in each.items()}
            continue
        first = names[0]
        if any(each[name] * found[first] != each[first] * found[name] for name in names):
            return None
    return found


def _size(axis: Node) -> int:
    size: int = axis.src[0].arg
    return size


def without_parts(
    regions: list[WindowRegion], pieces: dict[Node, Piece], ranges: Mapping[str, Node]
) -> tuple[dict[Node, Piece], Mapping[str, Node]]:
    """The pieces and ranges of a copy: carriers run along their regions, the others stand still."""
    # Where the region begins: an axis that moves it backwards is at its end.
    gone = {
        name: _size(ranges[name]) - 1 if step < 0 else 0
        for region in regions for name, step in region.steps.items() if name != region.carrier
    }
    if not gone:
        return pieces, ranges
    kept = {}
    for axis, piece in pieces.items():
        start = piece.start
        for name, scale in piece.terms:
            start = index.add(start, gone.get(name, 0) * scale)
        terms = tuple([term for term in piece.terms if term[0] not in gone])
        kept[axis] = piece._replace(start=start, terms=terms)
    wide = dict(ranges)
    for region in regions:
        if len(region.steps) > 1:
            arg = ranges[region.carrier].arg
            wide[region.carrier] = range_node(region.extent, arg.id, arg.axis, "loop")
    return kept, wide
