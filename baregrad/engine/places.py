"""Programs that differ in the places of their views alone: one plan does for all of them.

A loop that reads or writes one row after the other makes another graph for each row, and each would
be compiled by itself. From the third such graph on the places that differ are symbolic integers of
one program, bound to this graph's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from baregrad.dtypes import dtypes
from baregrad.engine.canonical import Canonical
from baregrad.ir import index
from baregrad.ir.attrs import Pad, Slice, Var
from baregrad.ir.node import Node, make_node, rebuild
from baregrad.ir.op import Ops

# How many of a kind are compiled by themselves: what is done once or twice stays as it is written.
ALONE = 2
KINDS_KEPT = 512
MOST_PLACES = 64
_VIEWS = Ops.SHRINK.bit | Ops.PAD.bit
# Sums over windows are made in an order that depends on where their array lies: they would not have
# the bits that they have by themselves.
_WINDOWED = Ops.WINDOW.bit | Ops.FOLD.bit


class Place(NamedTuple):
    """Where `size` neighbours among `extent` begin: those that a SHRINK takes, or a PAD places."""

    extent: int
    size: int
    start: int


@dataclass(slots=True)
class _Kind:
    """Programs that are the same but for places: the first one's, and which others differed in."""

    first: tuple[Place, ...]
    seen: int = 0
    varied: set[int] = field(default_factory=set)


class Places:
    """Remembers the programs that were planned, to tell those that differ in places alone."""

    def __init__(self) -> None:
        self._kinds: OrderedDict[Any, _Kind] = OrderedDict()

    def alike(self, program: Canonical, setting: Any) -> Canonical | None:
        """A program for all places of a kind; None before several of it were met.

        setting: what plans depend on beside the program.
        """
        if program.sink.mask & _WINDOWED:
            return None
        found = tuple(dict.fromkeys(_places(program.order())))
        if not 0 < len(found) <= MOST_PLACES:
            return None
        names = _names(program, len(found))
        key = (_anywhere(program.sink, dict(zip(found, names, strict=True)), {}), setting)
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = _Kind(found)
            if len(self._kinds) > KINDS_KEPT:
                self._kinds.popitem(last=False)
        self._kinds.move_to_end(key)
        kind.seen += 1
        kind.varied.update(k for k, place in enumerate(found) if place != kind.first[k])
        if kind.seen <= ALONE:
            return None
        bound = {found[k]: names[k] for k in sorted(kind.varied)}
        done: dict[Node, Node] = {}
        sink = _anywhere(program.sink, bound, done)
        values = {name: place.start for place, name in bound.items()}
        return replace(
            program, sink=sink, variables={**program.variables, **values}, whole=False,
            made={old: done.get(new, new) for old, new in program.made.items()},
        )


def _places(order: Iterable[Node]) -> Iterable[Place]:
    for node in order:
        if node.op.bit & _VIEWS:
            for extent, part in zip(node.src[0].shape, node.arg, strict=True):
                place = _place(extent, part)
                if place is not None:
                    yield place


def _place(extent: Any, part: Slice | Pad) -> Place | None:
    """The place that one axis of a view has, if there are others and all is constant."""
    if isinstance(part, Slice):
        start, stop = part.start, part.stop
        if part.step != 1 or not all(isinstance(each, int) for each in (extent, start, stop)):
            return None
        found = Place(extent, stop - start, start)  # type: ignore[operator, arg-type]
    else:
        lo, hi = part.lo, part.hi
        if part.interior or not all(isinstance(each, int) for each in (extent, lo, hi)):
            return None
        found = Place(extent + lo + hi, extent, lo)  # type: ignore[arg-type]
    return found if 0 < found.size < found.extent else None


def _names(program: Canonical, count: int) -> list[str]:
    """Names for places: nobody's else."""
    names: list[str] = []
    number = 0
    while len(names) < count:
        name = f"place{number}"
        if name not in program.variables:
            names.append(name)
        number += 1
    return names


def _anywhere(sink: Node, bound: dict[Place, str], done: dict[Node, Node]) -> Node:
    """The program with some places as symbolic integers; `done` is filled with what became what."""

    def visit(node: Node) -> Node | None:
        if not node.op.bit & _VIEWS:
            return None
        pairs = zip(node.src[0].shape, node.arg, strict=True)
        parts = tuple(_moved(extent, part, bound) for extent, part in pairs)
        return None if parts == node.arg else make_node(node.op, node.dtype, node.src, parts)

    return rebuild(sink, visit, memo=done)


def _moved(extent: Any, part: Slice | Pad, bound: dict[Place, str]) -> Slice | Pad:
    place = _place(extent, part)
    if place is None or place not in bound:
        return part
    last = place.extent - place.size
    at = Node(Ops.VAR, dtypes.index, (), Var(bound[place], 0, last))
    if isinstance(part, Slice):
        return Slice(at, index.add(at, place.size))
    return Pad(at, index.sub(last, at))


