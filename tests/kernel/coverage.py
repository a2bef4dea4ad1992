"""Which elements of an axis the loops of a schedule reach, and how often, by enumeration."""

from __future__ import annotations

from collections import Counter
from itertools import product

from baregrad.ir.core.index import upper
from baregrad.kernel.facts.axis_table import AxisTable, Piece, Terms


def reached(table: AxisTable, pieces: list[Piece]) -> Counter[int]:
    """How often each place of an axis is reached by its pieces, partial tiles not counted."""
    found: Counter[int] = Counter()
    for piece in pieces:
        names = [name for name, _ in piece.terms]
        extents = [upper(table.axes[name].extent) for name in names]
        for place in product(*map(range, extents)):
            at = dict(zip(names, place, strict=True))
            if all(upper(one.start) + total(one.terms, at) < upper(one.extent)
                   for one in piece.limits):
                found[upper(piece.start) + total(piece.terms, at)] += 1
    return found


def total(terms: Terms, at: dict[str, int]) -> int:
    return sum(scale * at[name] for name, scale in terms)


def once(extent: int) -> Counter[int]:
    """Every place of an axis, once."""
    return Counter(range(extent))
