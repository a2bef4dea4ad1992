"""Copies that have an axis in two parts, with others between: rows of it and which of these it is.

So a factor's rows that are longer than what lies in one line of shared memory are panels of it.
These are whole, also where the axis ends inside one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from baregrad.base.bits import round_up
from baregrad.ir.core import index
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import Node, range_node
from baregrad.ir.core.substitution import substitute
from baregrad.kernel.language.schedule import part_of_axis

# From the id of an axis to that of the outer of its two parts.
OUTER_ID = 1 << 19


def in_parts(
    parts: Sequence[str], value: Node, names: Sequence[str], axes: tuple[Node, ...]
) -> tuple[Node, tuple[Node, ...]]:
    """A copy's value, and its axes, whose names they are, where some are to lie in two parts."""
    kept = _parts_of(parts, names)
    if not kept:
        return value, axes
    ranges = dict(zip(names, axes, strict=True))
    found, moved = list[Node](), dict[Node, Node]()
    for part in kept:
        name, sign, size = part_of_axis(part)
        whole = ranges[name]
        number, bind = whole.arg.id, whole.arg.bind
        if sign == "%":
            found.append(range_node(size, number, f"{name}_inner", bind))
            outer = found[kept.index(f"{name}/{size}")]
            moved[whole] = index.as_node(index.add(index.mul(outer, size), found[-1]))
        elif sign:
            count = int(whole.src[0].arg) // size
            found.append(range_node(count, number + OUTER_ID, f"{name}_outer", bind))
        else:
            found.append(whole)
    return substitute(value, moved), tuple(found)


def with_whole_parts(parts: Sequence[str], ranges: Mapping[str, Node]) -> Mapping[str, Node]:
    """The ranges of a copy, where an axis in two parts goes on to the end of the last inner one.

    Nobody reads what is copied past the axis' own end.
    """
    longer = dict[str, Node]()
    for name, sign, size in map(part_of_axis, parts):
        if sign == "/" and name in ranges:
            where = ranges[name].arg
            extent = round_up(int(ranges[name].src[0].arg), size)
            longer[name] = range_node(extent, where.id, where.axis, where.bind)
    return {**ranges, **longer} if longer else ranges


def places_in_parts(
    parts: Sequence[str], names: Sequence[str], places: Mapping[str, Node]
) -> tuple[Node, ...]:
    """Where a copy of axes in parts holds the element at some places; () for one without parts."""
    found = []
    for part in _parts_of(parts, names):
        name, sign, size = part_of_axis(part)
        place: Dim = places[name]
        if sign:
            place = index.floordiv(place, size) if sign == "/" else index.mod(place, size)
        found.append(index.as_node(place))
    return tuple(found)


def _parts_of(parts: Sequence[str], names: Sequence[str]) -> list[str]:
    """The axes that a copy has, if some of them lie in two parts: else none."""
    if not any("/" in part for part in parts):
        return []
    return [part for part in parts if part_of_axis(part)[0] in names]
