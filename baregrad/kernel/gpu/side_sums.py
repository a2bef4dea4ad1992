"""Sums of what a product stores, made of its results while threads have them in registers.

A warp has whole parts of neighbouring columns of its rows, so a part's sum is a fold over registers
and over the lanes that share a row: nothing waits for other warps. It is of the rounded values that
are stored, added up in one order.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import NamedTuple

from baregrad.ir.core import index
from baregrad.ir.core.attrs import Reduce
from baregrad.ir.core.node import Node, make_node, rebuild, toposort
from baregrad.ir.core.op import STATEMENTS, Ops, mask_of
from baregrad.kernel.facts.analysis import by_id
from baregrad.kernel.gpu.barriers import sequence
from baregrad.kernel.language.schedule import (
    Bind,
    Collapse,
    Schedule,
    Split,
    StageOutput,
    Tensorize,
    illegal,
)
from baregrad.kernel.loops.loop_blocks import in_registers
from baregrad.kernel.loops.loop_pieces import load, register_places, shape_of, store

# Neighbouring columns that are added up.
PART = 64
_STATEMENTS = mask_of(STATEMENTS)
_THREADS = ("thread", "thread_y", "thread_z", "grid", "cluster")


class TileSide(NamedTuple):
    """A side of a product's tiles: the axes that it is made of, and its digits, outermost first.

    The size of the first digit is 0: it takes what is left.
    """

    axes: tuple[str, ...]
    digits: tuple[tuple[str, int], ...]


class Tiles(NamedTuple):
    """The tiles of a product by groups of four warps; `inner`: the digits of a part's columns."""

    rows: TileSide
    columns: TileSide
    inner: tuple[str, ...]


def tiles_of(schedule: Schedule) -> Tiles | None:
    """The tiles of such a product, of which a warp has whole parts of columns; None for others."""
    product = [step for step in schedule.steps if isinstance(step, Tensorize)]
    if len(product) != 1 or product[0].instruction != "wgmma":
        return None
    if any(isinstance(step, StageOutput) for step in schedule.steps):
        return None
    bound = {step.axis: step.unit for step in schedule.steps if isinstance(step, Bind)}
    rows, columns = (_side(schedule, axis) for axis in product[0].axes[:2])
    if rows is None or columns is None:
        return None
    inner: list[str] = []
    width = 1
    for name, size in reversed(columns.digits[1:]):
        if width >= PART:
            break
        if bound.get(name) in _THREADS and size != 1:
            return None
        inner.append(name)
        width *= size
    return Tiles(rows, columns, tuple(inner)) if width == PART else None


def _side(schedule: Schedule, axis: str) -> TileSide | None:
    """The side of a product that one axis of its instruction is part of."""
    joined = {step.name: step.axes for step in schedule.steps if isinstance(step, Collapse)}
    for step in schedule.steps:
        if isinstance(step, Split) and axis in [name for name, _ in step.parts]:
            if step.tail:
                return None
            return TileSide(joined.get(step.axis, (step.axis,)), step.parts)
    return None


def fills(side: TileSide, extent: int) -> bool:
    """Whether whole tiles are an axis of this extent."""
    return extent % prod([size for _, size in side.digits[1:]]) == 0


def add_sums(kernel: Node, sums: tuple[Node, ...], schedule: Schedule) -> Node:
    """The loop-level KERNEL of a product that stores `sums`, its OUTs for that, as well.

    Raises ScheduleError where warps do not have whole parts of columns, by a schedule that is not
    the one that they were chosen for.
    """
    tiles = tiles_of(schedule)
    found = [
        node for node in toposort(kernel)
        if node.op is Ops.STORE and node.src[0].op is Ops.PARAM
    ]
    if tiles is None or len(found) != 1 or found[0].arg is not None:
        raise illegal(
            None, "sums of what a product stores are of tiles of groups of four warps",
            found=str(schedule), wanted=f"tiles of whole parts of {PART} columns of a warp",
        )
    made = _Sums(kernel, found[0], tiles)
    for out in sums:
        made.add(out)
    whole = sequence([found[0], *made.statements])
    return rebuild(
        kernel, lambda node: whole if node is found[0] else None,
        enter=lambda node: bool(node.mask & _STATEMENTS),
    )


class _Sums:
    """The statements that make sums of the values of one store."""

    def __init__(self, kernel: Node, stored: Node, tiles: Tiles) -> None:
        nodes = toposort(kernel)
        self.value = stored.src[1]
        self.tiles = tiles
        self.axes = {n.arg.axis: n for n in nodes if n.op is Ops.RANGE and n.arg.axis}
        self.number = 1 + max([n.arg.id for n in nodes if n.op is Ops.ALLOC], default=0)
        self.inner = tuple([self.axes[name] for name in tiles.inner if name in self.axes])
        around = self.value.ranges | stored.src[2].ranges
        own = {axis for axis in around if axis.arg.is_tile and axis not in self.inner}
        self.places = register_places(by_id(own))
        self.known: dict[Node, Node] = {}
        self.statements: list[Node] = []

    def add(self, out: Node) -> None:
        """Store what an OUT says; its array has a row of all the product's rows for each part."""
        array, value = out.src[:2]
        size = array.shape[1]
        shape = (array.shape[0] * size,)
        flat = array.replace(arg=array.arg._replace(shape=shape))
        outer = [digit for digit in self.tiles.columns.digits if digit[0] not in self.tiles.inner]
        place = index.add(index.mul(self._place(outer), size), self._place(self.tiles.rows.digits))
        self.statements.append(store(flat, self._lowered(value), (index.as_node(place),)))

    def _place(self, digits: Iterable[tuple[str, int]]) -> index.Dim:
        place: index.Dim = 0
        for name, size in digits:
            axis = self.axes.get(name)
            place = index.mul(place, size or 1)
            place = place if axis is None else index.add(place, axis)
        return place

    def _lowered(self, node: Node) -> Node:
        """A value of an OUT made of the product's results."""
        if node.dtype is self.value.dtype:
            return self.value
        if node.op is Ops.CONST:
            return node
        if node.op is not Ops.REDUCE:
            return make_node(
                node.op, node.dtype, tuple([self._lowered(one) for one in node.src]), node.arg
            )
        fold = make_node(
            Ops.REDUCE, node.dtype, (self._lowered(node.src[0]), *self.inner),
            Reduce(node.arg.monoid),
        )
        held = self.known.get(fold)
        if held is None:
            held = in_registers(self.number, node.dtype, shape_of(self.places))
            self.number += 1
            self.known[fold] = held
            self.statements.append(store(held, fold, self.places))
        return load(held, self.places)
