"""Loop level: a choice between elements of one array is an element at a chosen place.

What is padded with itself, or rolled, reads one place or another of an array. Where all lanes of a
vector make the same choice, as for which row is read, there is one load that way, not one for each
side; the lanes of both must lie alike. What guards the sides is chosen as well. Choices and places
that are read themselves are left alone: they are only there where their own guards hold.
"""

from __future__ import annotations

from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.node import Node, alu, const, rebuild
from baregrad.ir.core.op import Ops

_BOTH = Ops.WHERE.bit | Ops.LOAD.bit
_TRUE = const(True, dtypes.bool)


def join_reads(loop: Node) -> Node:
    """A loop-level KERNEL with such choices joined."""
    if loop.mask & _BOTH != _BOTH:
        return loop
    return rebuild(loop, _visit, enter=lambda node: node.mask & _BOTH == _BOTH)


def _visit(node: Node) -> Node | None:
    if node.op is Ops.GUARD:
        return _guarded_once(node)
    if node.op is not Ops.WHERE or _is_read(node.src[0]) or _moves_in_tile(node.src[0]):
        return None
    condition, *sides = node.src
    (guard, load), (other_guard, other) = map(_read, sides)
    if load is None or other is None or load.src[0] is not other.src[0]:
        return None
    places = [
        _chosen_place(condition, *both)
        for both in zip(load.src[1:], other.src[1:], strict=True)
    ]
    if None in places:
        return None
    joined = load.replace(src=(load.src[0], *places))
    if guard is _TRUE and other_guard is _TRUE:
        return joined
    chosen = alu(Ops.WHERE, condition, guard, other_guard)
    return Node(Ops.GUARD, node.dtype, (chosen, joined))


def _guarded_once(node: Node) -> Node | None:
    """A guard of a guarded load as one, unless a condition reads what the other one guards."""
    condition, inner = node.src
    if inner.op is not Ops.GUARD or inner.src[1].op is not Ops.LOAD:
        return None
    if _is_read(inner.src[0]):
        return None
    both = index.both(condition, inner.src[0])
    return node.replace(src=(both, inner.src[1]))


def _read(value: Node) -> tuple[Node, Node | None]:
    """The condition under which a value is read, and its LOAD from an argument; None otherwise."""
    condition = _TRUE
    if value.op is Ops.GUARD:
        condition, value = value.src
    if value.op is not Ops.LOAD or value.src[0].op is not Ops.PARAM:
        return condition, None
    if any(_is_read(each) for each in (condition, *value.src[1:])):
        return condition, None
    return condition, value


def _chosen_place(condition: Node, place: Node, other: Node) -> Node | None:
    """One index or the other; None where they do not move alike within tiles."""
    if place is other:
        return place
    (terms, constant), (others, offset) = index.linear(place), index.linear(other)
    common = {atom: scale for atom, scale in terms.items() if others.get(atom) == scale}
    differing = [
        {atom: scale for atom, scale in each.items() if atom not in common}
        for each in (terms, others)
    ]
    if any(_moves_in_tile(atom) for each in differing for atom in each):
        return None
    sides = [
        index.from_linear(each, at) for each, at in zip(differing, (constant, offset), strict=True)
    ]
    chosen = alu(Ops.WHERE, condition, *sides)
    return index.as_node(index.add(index.from_linear(common, 0), chosen))


def _is_read(node: Node) -> bool:
    """Whether a condition or a place comes from memory."""
    return bool(node.mask & Ops.LOAD.bit)


def _moves_in_tile(node: Node) -> bool:
    return any(axis.arg.is_tile for axis in node.ranges)
