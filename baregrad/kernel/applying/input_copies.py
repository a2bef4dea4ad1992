"""How an input is copied to scratch memory: the loops and vectors of the copy, and its layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from baregrad.ir.analysis.words import in_word
from baregrad.ir.core import index
from baregrad.ir.core.axes import Range
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import Node, extent_of, make_node, range_node
from baregrad.kernel.applying.axes import with_parts
from baregrad.kernel.applying.axis_parts import places_in_parts
from baregrad.kernel.facts.analysis import offset_of
from baregrad.kernel.facts.axis_table import Limit, Piece

OUTER, LANES = "_copy_outer", "_copy_inner"
# Rows that are copied together: their lines stay in the first cache even if they all meet there.
BAND = 8
# Numbers in a word, where vectors of every other one are as good as such of neighbours.
HALVES = 2
# Neighbouring steps, while lanes are distant from each other, of a tile that is copied at once.
LEAST_TURNED, MOST_TURNED = 4, 16
Pieces = dict[Node, Piece]


class CopyLoops(NamedTuple):
    """The loops of a copy.

    ranges: by name of a final axis, or of a part of one. pieces: what the original axes are made of
    while copying. axes: of the copy's array, outermost first.
    """

    ranges: dict[str, Node]
    pieces: Pieces
    axes: tuple[Node, ...]


def copy_loops(
    lanes: int,
    where: Node,
    names: list[str],
    ranges: Mapping[str, Node],
    pieces: Pieces,
    first: int,
    gpu: bool,
    word: str,
    whole: bool,
    merged: Mapping[Node, tuple[str, Dim, Dim]] = MappingProxyType({}),
) -> CopyLoops:
    """The loops that copy the read `where` over the axes `names`; ids of ranges count from `first`.

    lanes: of the copy's own vectors, or 0. word: the axis of the numbers that are copied as one
    word. whole: words are read as such; else, where their numbers are adjacent, words of two are
    put together as vectors of every other number, and longer ones are copied one after the other.
    merged: axes that were collapsed, as of `AxisTable`; a GPU's threads copy in their order.

    Copies run in the order in which the input lies. With lanes of its own the axis of adjacent
    elements becomes vectors, padded with zeros. Where the copy is to have another axis innermost,
    the others are loops in its own order instead, since a few of its lines are then written over
    and over. Where that axis is innermost, steps of the axes that are unrolled are taken together:
    that many rows are then fetched at once.
    """
    strides = dict.fromkeys((*names, word), 0)
    moves = list(offset_of(where).strides.items())
    # What an axis moves in a way of its own it moves by a whole scale at least.
    moves += [(axis, each) for atom, each in offset_of(where).rest if gpu for axis in atom.ranges]
    for axis, stride in moves:
        for name, scale in pieces[axis].terms:
            if name in strides:
                strides[name] += abs(stride * _moved(scale, merged.get(axis) if gpu else None))
    if whole:
        count = in_word(where.dtype)
        strides = {name: stride // count for name, stride in strides.items()}
    # From a word to the next.
    distance = HALVES if strides[word] == 1 and in_word(where.dtype) == HALVES else 1
    near = next((name for name in names if strides[name] == distance), "")
    far = sorted(names, key=lambda name: -strides[name])
    if lanes and near and ranges[near].arg.bind != "vector":
        return _in_vectors(lanes, near, names, far, ranges, pieces, first)
    beside = "" if gpu else _beside(names, strides, ranges)
    found = {}
    for name in names:
        axis = ranges[name]
        # The threads of a block share the copying out among themselves.
        alone = gpu or strides[word] == 1
        bind = "loop" if alone else "unroll" if name == beside else axis.arg.bind
        place = Range(first + far.index(name), f"{name}_copy", bind)
        found[name] = make_node(axis.op, axis.dtype, axis.src, place)
    return CopyLoops(found, pieces, tuple(found.values()))


def _moved(scale: int, merged: tuple[str, Dim, Dim] | None) -> int:
    """By how much steps of `scale` move an axis, which may be one of several that were collapsed.

    Such an axis is a digit of the collapsed one.
    """
    if merged is None:
        return scale
    _, digit, extent = merged
    if not isinstance(digit, int) or not isinstance(extent, int):
        return scale
    return scale // digit if digit <= scale < digit * extent else 0


def _beside(names: list[str], strides: Mapping[str, int], ranges: Mapping[str, Node]) -> str:
    """The short loop of a copy whose steps are neighbours while its lanes are distant.

    Its steps are spread over registers, so that a tile is copied at once.
    """
    near = [name for name in names if strides[name] == 1]
    if len(near) != 1 or ranges[near[0]].arg.bind != "loop":
        return ""
    extent = extent_of(ranges[near[0]])
    if not isinstance(extent, int) or not LEAST_TURNED <= extent <= MOST_TURNED:
        return ""
    lanes = [name for name in names if ranges[name].arg.bind == "vector"]
    return near[0] if any(strides[name] >= extent for name in lanes) else ""


def _in_vectors(
    lanes: int,
    near: str,
    names: list[str],
    far: list[str],
    ranges: Mapping[str, Node],
    pieces: Pieces,
    first: int,
) -> CopyLoops:
    """A copy in vectors along the axis `near`; `far`: the axes, those of large strides first."""
    extents = {name: int(ranges[name].src[0].arg) for name in names}
    while lanes >= 2 * extents[near]:
        lanes //= 2
    sizes = {near: lanes}
    order, together = names, list[str]()
    last = names[-1]
    if near != last and ranges[last].arg.bind == "vector":
        # As many vectors as lanes: a tile that is transposed in registers. A few rows are read to
        # their ends before the next ones, as machines fetch ahead on few pages at a time.
        together = [last]
        order = [*[name for name in names[:-1] if name != near], near, last]
        if extents[last] > lanes and extents[last] % lanes == 0:
            sizes[last] = lanes
            order.insert(-2, f"{last}{OUTER}")
    elif near == names[-1]:
        loops = [name for name in far if name != near and ranges[name].arg.bind == "loop"]
        together = [name for name in names if name != near and name not in loops]
        order = [*loops, near, *together]
        if far != names and len(loops) > 1 and extents[loops[0]] % BAND == 0:
            # A few rows at a time, or each line of the copy would be fetched for every row.
            sizes[loops[0]] = BAND
            order = [f"{loops[0]}{OUTER}", *loops[1:], loops[0], near, *together]
    found: dict[str, Node] = {}
    axes: list[Node] = []
    for name in names:
        size = sizes.get(name, 1)
        inner = "vector" if name == near else "unroll" if name in together else "loop"
        place = first + order.index(name)
        if size > 1:
            whole = first + order.index(f"{name}{OUTER}" if name != near else name)
            parts = [(OUTER, -(-extents[name] // size), size, whole, "loop")]
            parts.append((LANES, size, 1, place + len(order) * (name == near), inner))
        else:
            parts = [("", extents[name], 1, place, inner)]
        terms: list[tuple[str, int]] = []
        for part, count, scale, position, bind in parts:
            label = f"{name}{part}" if part else f"{name}_copy"
            # A whole axis has its place in the copy, however short: a chunk may be one tile.
            if count > 1 or not part:
                axes.append(range_node(count, position, label, bind))
                found[label if part else name] = axes[-1]
                terms.append((label if part else name, scale))
        if size > 1:
            limit = Limit(0, tuple(terms), extents[name]) if extents[name] % size else None
            pieces = {
                axis: with_parts(piece, name, terms, limit) if name in dict(piece.terms) else piece
                for axis, piece in pieces.items()
            }
    return CopyLoops(found, pieces, tuple(axes))


def copied_places(
    stage: Node, names: list[str], ranges: Mapping[str, Node], parts: Sequence[str] = ()
) -> tuple[Node, ...]:
    """Where a copy holds the element at the present axes: a place for each axis of its array.

    parts: the axes as its step names them, of which some may lie in two parts.
    """
    if found := places_in_parts(parts, names, ranges):
        return found
    axes = list(stage.src[1:])
    places: list[Node] = []
    for name in names:
        place = ranges[name]
        axis = axes.pop(0)
        if axis.arg.axis == f"{name}{OUTER}" and axes and axes[0].arg.axis == f"{name}{LANES}":
            lanes = extent_of(axes.pop(0))
            vectors = index.as_node(index.floordiv(place, lanes))
            places.append(vectors)
            # Together they are the place again, whatever divisions make of a sum's terms.
            place = index.as_node(index.sub(place, index.mul(vectors, lanes)))
        places.append(place)
    return tuple(places)
