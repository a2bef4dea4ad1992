"""Small pieces of the loop level: accesses, guards, and what accumulators are made of."""

from __future__ import annotations

import math
from collections.abc import Iterable

from baregrad.dtypes import dtypes
from baregrad.ir.monoid import Monoid, primitive
from baregrad.ir.node import Node, cast, const, make_node
from baregrad.ir.op import Ops


def widened(monoid: Monoid, values: tuple[Node, ...]) -> tuple[Monoid, tuple[Node, ...]]:
    """Sums and products of narrow floats are accumulated in float32."""
    op = monoid.primitive
    if op not in (Ops.ADD, Ops.MUL) or monoid.states[0].kind != "float":
        return monoid, values
    if monoid.states[0].bits >= 32:
        return monoid, values
    return primitive(op, dtypes.float32), (cast(values[0], dtypes.float32),)


def narrowed(parts: tuple[Node, ...], monoid: Monoid) -> tuple[Node, ...]:
    """Finished states in the monoid's own dtypes."""
    return tuple(cast(part, dtype) for part, dtype in zip(parts, monoid.states, strict=True))


def register_places(tiles: tuple[Node, ...]) -> tuple[Node, ...]:
    """Tile axes as the axes of a register array: a vector lies in adjacent elements."""
    if len(tiles) < 2:
        return tiles
    return tuple(sorted(tiles, key=lambda axis: bool(axis.arg.bind == "vector")))


def looped(axes: Iterable[Node]) -> list[Node]:
    """The axes that are no tile axes."""
    return [axis for axis in axes if not axis.arg.is_tile]


def load(buffer: Node, places: tuple[Node, ...]) -> Node:
    """One element of a buffer."""
    return make_node(Ops.LOAD, buffer.dtype, (buffer, *places))


def store(buffer: Node, value: Node, places: tuple[Node, ...]) -> Node:
    """Write one element of a buffer."""
    return make_node(Ops.STORE, dtypes.token, (buffer, value, *places))


def factor_where(condition: Node, factor: Node) -> Node:
    """A factor that is 0 where the condition is false; a finite constant needs no guard."""
    if factor.op is Ops.CONST and math.isfinite(factor.arg):
        return factor
    return guarded(condition, factor)


def guarded(condition: Node, value: Node) -> Node:
    """`value` where the condition holds, else 0; constants need no guard."""
    if condition.op is Ops.CONST:
        return value if condition.arg else const(0, value.dtype)
    return make_node(Ops.GUARD, value.dtype, (condition, value))
