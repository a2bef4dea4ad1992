"""Programs that differ in the places of their views, or numbers they write: one plan for all.

A loop that reads or writes one row after the other makes another graph for each row, and each would
be compiled by itself, as would one that writes another Python number each time. From the third such
graph on the places and numbers that differ are symbolic integers of one program, bound to this
graph's. Numbers that are computed with stay: simplifying is what constants are for.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from baregrad.dtypes import DType, as_dtype, dtypes, encode
from baregrad.engine.canonical import Canonical
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Pad, Slice
from baregrad.ir.core.axes import Var
from baregrad.ir.core.node import Node, cast, make_node, rebuild
from baregrad.ir.core.op import MOVEMENT, Ops, mask_of

# How many of a kind are compiled by themselves: what is done once or twice stays as it is written.
ALONE = 2
KINDS_KEPT = 512
MOST_PLACES = 64
_VIEWS = Ops.SHRINK.bit | Ops.PAD.bit
# Sums over windows are made in an order that depends on where their array lies: they would not have
# the bits that they have by themselves.
_WINDOWED = Ops.WINDOW.bit | Ops.FOLD.bit


# What passes values on as they are; a choice does so too, but for what it chooses by.
_CARRYING = mask_of((*MOVEMENT, Ops.CONTIGUOUS, Ops.WHERE, Ops.SINK))
_LEAST, _MOST = int(dtypes.int64.min), int(dtypes.int64.max)


class WindowOffset(NamedTuple):
    """Where `size` neighbours among `extent` begin: those that a SHRINK takes, or a PAD places."""

    extent: int
    size: int
    start: int


class Number(NamedTuple):
    """A constant that is passed on as it is, and the integer that stands for it."""

    constant: Node
    start: int


@dataclass(slots=True)
class _Kind:
    """Programs that are the same but for places and numbers: the first one's, and what differed."""

    first: tuple[WindowOffset | Number, ...]
    seen: int = 0
    varied: set[int] = field(default_factory=set)


class GeneralPrograms:
    """Remembers the programs that were planned, to find those alike but for offsets and numbers."""

    def __init__(self) -> None:
        self._kinds: OrderedDict[Any, _Kind] = OrderedDict()

    def alike(self, program: Canonical, setting: Any) -> Canonical | None:
        """A program for all places and numbers of a kind; None before several of it were met.

        setting: what plans depend on beside the program.
        """
        if program.sink.mask & _WINDOWED:
            return None
        order = program.order()
        found: tuple[WindowOffset | Number, ...] = tuple(
            dict.fromkeys((*_places(order), *_numbers(order)))
        )
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
        values = {name: one.start for one, name in bound.items()}
        return replace(
            program, sink=sink, variables={**program.variables, **values}, whole=False,
            made={old: done.get(new, new) for old, new in program.made.items()},
        )


def _places(order: Iterable[Node]) -> Iterable[WindowOffset]:
    for node in order:
        if node.op.bit & _VIEWS:
            for extent, part in zip(node.src[0].shape, node.arg, strict=True):
                place = _place(extent, part)
                if place is not None:
                    yield place


def _numbers(order: list[Node]) -> Iterable[Number]:
    """The constants that are nothing but passed on, from where they stand to the results."""
    computed: set[Node] = set()
    for node in reversed(order):
        if not node.op.bit & _CARRYING or node in computed:
            computed.update(node.src)
        elif node.op is Ops.WHERE:
            computed.add(node.src[0])
    for node in order:
        if node.op is Ops.CONST and node not in computed:
            found = _number(node)
            if found is not None:
                yield found


def _number(node: Node) -> Number | None:
    """A constant as an integer, which for a float is its code."""
    value, dtype = node.arg, node.dtype
    if dtype.bits < 8 or dtype.kind == "bool":
        return None
    if dtype.is_float:
        value = int(encode(value, dtype).view(f"int{dtype.bits}"))
    return Number(node, value) if _LEAST <= value <= _MOST else None


def _place(extent: Any, part: Slice | Pad) -> WindowOffset | None:
    """The place that one axis of a view has, if there are others and all is constant."""
    if isinstance(part, Slice):
        start, stop = part.start, part.stop
        if part.step != 1 or not all(isinstance(each, int) for each in (extent, start, stop)):
            return None
        found = WindowOffset(extent, stop - start, start)  # type: ignore[operator, arg-type]
    else:
        lo, hi = part.lo, part.hi
        if part.interior or not all(isinstance(each, int) for each in (extent, lo, hi)):
            return None
        found = WindowOffset(extent + lo + hi, extent, lo)  # type: ignore[arg-type]
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


def _anywhere(sink: Node, bound: Mapping[Any, str], done: dict[Node, Node]) -> Node:
    """The program with some places and numbers as symbolic integers.

    `done` is filled with what became what.
    """
    numbers = {one.constant: name for one, name in bound.items() if isinstance(one, Number)}

    def visit(node: Node) -> Node | None:
        if node.op is Ops.CONST:
            name = numbers.get(node)
            return None if name is None else _read_number(node.dtype, name)
        if not node.op.bit & _VIEWS:
            return None
        pairs = zip(node.src[0].shape, node.arg, strict=True)
        parts = tuple(_moved(extent, part, bound) for extent, part in pairs)
        return None if parts == node.arg else make_node(node.op, node.dtype, node.src, parts)

    return rebuild(sink, visit, memo=done)


def _read_number(dtype: DType, name: str) -> Node:
    whole = cast(Node(Ops.VAR, dtypes.index, (), Var(name, _LEAST, _MOST)), dtypes.int64)
    if dtype.is_int:
        return cast(whole, dtype)
    return Node(Ops.BITCAST, dtype, (cast(whole, as_dtype(f"int{dtype.bits}")),))


def _moved(extent: Any, part: Slice | Pad, bound: Mapping[Any, str]) -> Slice | Pad:
    place = _place(extent, part)
    if place is None or place not in bound:
        return part
    last = place.extent - place.size
    at = Node(Ops.VAR, dtypes.index, (), Var(bound[place], 0, last))
    if isinstance(part, Slice):
        return Slice(at, index.add(at, place.size))
    return Pad(at, index.sub(last, at))


