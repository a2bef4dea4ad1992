"""Loops of a sum run where its terms are not zero: conditions on outer loops become their bounds.

The gradient of a strided convolution's input has, for each residue of a place, taps of its own. A
filter whose taps are filled up with zeros says by a condition which they are. A condition that is
true from one step of a loop on, or up to one, is where the loop begins or ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from baregrad.ir.core import index
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import NO_RANGES, Node, extent_of, range_node
from baregrad.ir.core.op import Ops
from baregrad.ir.core.substitution import substitute
from baregrad.kernel.facts.axis_table import Piece, Terms

# A loop around it has so few iterations that its bounds are the same for many tiles.
MOST_RESIDUES = 4
Finals = Callable[[Terms], list[tuple[Node, int]]]


def narrowed(
    node: Node,
    own: list[Node],
    pieces: Mapping[Node, Piece],
    finals_of: Finals,
    values: tuple[Node, ...],
    axes: tuple[Node, ...],
) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """A sum's values and axes, its loops without the steps at which a condition makes it zero.

    node: the REDUCE before it was rewritten, over `own`. pieces: of original axes. finals_of: the
    final axes that terms are a sum of, chunks among them.
    """
    if node.arg.monoid.primitive is not Ops.ADD or len(values) > 1:
        return values, axes
    found = _bounds_of_loops(node.src[0], own, pieces, finals_of)
    if not found or any(loop not in axes for loop in found):
        return values, axes
    value = substitute(values[0], {loop: place for loop, (_, place) in found.items()})
    bounds = NO_RANGES.union(*[short.src[0].ranges for short, _ in found.values()])
    if not bounds <= value.ranges:
        # A sum stands where its terms are known: that may be outside of what bounds its loops.
        return values, axes
    return (value,), tuple([found[axis][0] if axis in found else axis for axis in axes])


def _bounds_of_loops(
    value: Node, own: list[Node], pieces: Mapping[Node, Piece], finals_of: Finals
) -> dict[Node, tuple[Node, Node]]:
    """Loop -> (the shorter loop, where it runs), for a sum of `value` over the axes `own`."""
    factors = value.src if value.op is Ops.MUL else (value,)
    conditions = [
        part for factor in factors if factor.op is Ops.GUARD
        for part in index.conjuncts(factor.src[0]) if part.op is Ops.CMPLT
    ]
    limits: dict[Node, tuple[Dim, Dim]] = {}
    for condition in conditions:
        terms, constant = index.linear(index.sub(*condition.src))
        inner = [axis for axis in own if axis in terms]
        loop = _loop(inner[0], pieces, finals_of) if len(inner) == 1 else None
        if loop is None:
            continue
        scale = terms.pop(inner[0])
        rest = _outside(terms, constant, loop, pieces, finals_of)
        if rest is None:
            continue
        first, stop = limits.get(loop, (0, extent_of(loop)))
        if scale > 0:
            # scale*r + rest < 0
            limit = index.floordiv(index.sub(scale - 1, rest), scale)
            stop = index.minimum(stop, limit)
        else:
            first = index.maximum(first, index.add(index.floordiv(rest, -scale), 1))
        limits[loop] = (first, stop)
    found = {}
    for loop, (first, stop) in limits.items():
        extent = index.maximum(index.sub(stop, first), 0)
        short = range_node(extent, loop.arg.id, loop.arg.axis)
        found[loop] = (short, index.as_node(index.add(short, first)))
    return found


def _loop(axis: Node, pieces: Mapping[Node, Piece], finals_of: Finals) -> Node | None:
    """The one loop that an axis is; None where it was split or bound."""
    piece = pieces[axis]
    if piece.start != 0 or piece.limits or len(piece.terms) != 1 or piece.terms[0][1] != 1:
        return None
    loops = [loop for loop, _ in finals_of(piece.terms)]
    extent = extent_of(loops[0]) if len(loops) == 1 and loops[0].arg.bind == "loop" else 1
    return loops[0] if isinstance(extent, int) and extent > 1 else None


def _outside(
    terms: Mapping[Node, int],
    constant: int,
    loop: Node,
    pieces: Mapping[Node, Piece],
    finals_of: Finals,
) -> Dim | None:
    """A sum of axes in terms of loops around `loop`; None where it is none of these."""
    found: dict[Node, int] = {}
    for axis, scale in terms.items():
        piece = pieces.get(axis)
        if piece is None or piece.limits or not isinstance(piece.start, int):
            return None
        constant += scale * piece.start
        for around, step in finals_of(piece.terms):
            if extent_of(around) == 1:
                continue
            if around.arg.bind != "loop" or around.arg.id >= loop.arg.id:
                return None
            # Bounds that change with each tile would be guessed wrong.
            if index.upper(extent_of(around)) > MOST_RESIDUES:
                return None
            found[around] = found.get(around, 0) + scale * step
    return index.from_linear(found, constant)
