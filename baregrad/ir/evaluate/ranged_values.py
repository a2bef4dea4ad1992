"""Values over ranges: expressions of the kernel and the loop level on NumPy arrays.

Each free range of a value is an axis of an array; axes stand in order of range id. An access
outside its array is not an error yet: it reads element 0 and marks the point; a GUARD clears the
marks where its condition is false, and a mark that reaches a write or a stage raises. So a kernel
that would read out of bounds is found out, whatever it then selects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from baregrad.base.errors import CompilerBug, IndexOutOfRange
from baregrad.ir.analysis.words import words_value
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Op, Ops
from baregrad.ir.evaluate.alu import SCALAR_RULES, Array, apply_scalar_op, constant

Axes = tuple[Node, ...]
Parts = tuple[Array, ...]
_MEMORY = frozenset((Ops.PARAM, Ops.ALLOC))


@dataclass(frozen=True, slots=True)
class Value:
    """A value over its free ranges: parts (one, but for tuple reductions) and the marked points.

    axes: the free ranges in order. parts: arrays that broadcast over them, one axis each. marked:
    None, or a bool array of points at which something was read out of bounds.
    """

    axes: Axes
    parts: Parts
    marked: Array | None = None


class RangeScope(Protocol):
    """Where an expression is evaluated: what is known, and how far its ranges go."""

    values: dict[Node, Value]

    def extent(self, axis: Node) -> int:
        """The points of a range."""


Rule = Callable[[Node, list[Value], Any], Value]
_NOTHING = Value((), ())


def value_of(root: Node, scope: RangeScope, rules: Mapping[Op, Rule]) -> Value:
    """The value of an expression by the rules of its level, every node once."""
    values = scope.values
    leaves = _MEMORY | {Ops.RANGE}
    for node in toposort(root, enter=lambda n: n not in values and n.op not in leaves):
        if node in values or node.op in _MEMORY:
            continue
        rule = rules.get(node.op)
        if rule is None:
            raise CompilerBug("no evaluator for this op at this level", found=repr(node))
        values[node] = rule(node, [values.get(child, _NOTHING) for child in node.src], scope)
    return values[root]


# --- aligning axes -----------------------------------------------------------------------------


def axis_order(axis: Node) -> tuple[int, str, str]:
    """The key by which axes are ordered."""
    return (axis.arg.id, axis.arg.axis, axis.arg.bind)


def union(values: Sequence[Value]) -> Axes:
    """The axes of all of some values."""
    axes: set[Node] = set()
    for value in values:
        axes.update(value.axes)
    return tuple(sorted(axes, key=axis_order))


def aligned(array: Array, own: Axes, wanted: Axes) -> Array:
    """`array` with an axis of extent 1 for each wanted axis that is not its own."""
    if own == wanted:
        return array
    shape = iter(array.shape)
    mine = set(own)
    return array.reshape([next(shape) if axis in mine else 1 for axis in wanted])


def whole(value: Value, axes: Axes, scope: RangeScope) -> Array:
    """The only part of a value at every point of the wanted axes."""
    shape = [scope.extent(axis) for axis in axes]
    return np.broadcast_to(aligned(value.parts[0], value.axes, axes), shape)


def marks(values: Sequence[Value], axes: Axes) -> Array | None:
    """The points that any of some values marks, over the wanted axes."""
    found: Array | None = None
    for value in values:
        if value.marked is not None:
            here = aligned(value.marked, value.axes, axes)
            found = here if found is None else found | here
    return found


def need_unmarked(value: Value, node: Node) -> None:
    """Raise IndexOutOfRange for a marked point of a value that a node uses."""
    if value.marked is not None and value.marked.any():
        raise IndexOutOfRange(
            "an access leaves its array and no GUARD covers it", found=f"{node!r} uses it"
        )


# --- rules -------------------------------------------------------------------------------------


def leaf(array: Array) -> Value:
    """A value without ranges."""
    return Value((), (array,))


def elementwise(node: Node, args: list[Value], scope: RangeScope) -> Value:
    """The value of a node that computes point by point."""
    axes = union(args)
    operands = [aligned(arg.parts[0], arg.axes, axes) for arg in args]
    if node.op is Ops.WORDS:
        result = words_value(node.arg, *np.broadcast_arrays(*operands))
    else:
        result = apply_scalar_op(node, *operands)
    return Value(axes, (result,), marks(args, axes))


def guard(condition: Value, value: Value) -> Value:
    """A value where a condition holds, else 0 and not marked."""
    axes = union([condition, value])
    holds = aligned(condition.parts[0], condition.axes, axes)
    parts = tuple(
        np.where(holds, aligned(part, value.axes, axes), np.zeros((), part.dtype))
        for part in value.parts
    )
    marked = marks([condition], axes)
    inner = marks([value], axes)
    if inner is not None and (inner & holds).any():
        marked = inner & holds if marked is None else marked | (inner & holds)
    return Value(axes, parts, marked)


def places_of(
    indices: Sequence[Value], shape: Sequence[int], axes: Axes
) -> tuple[list[Array], Array | None]:
    """Positions along each axis of an array; those outside are 0 and marked."""
    if len(indices) != len(shape):
        raise CompilerBug(f"{len(indices)} indices for {len(shape)} axes", wanted=list(shape))
    marked = marks(indices, axes)
    places = []
    for index, extent in zip(indices, shape, strict=True):
        place = aligned(index.parts[0], index.axes, axes)
        outside = (place < 0) | (place >= extent)
        if outside.any():
            marked = outside if marked is None else marked | outside
            place = np.where(outside, 0, place)
        places.append(place)
    return places, marked


def folding(
    node: Node, args: list[Value], scope: RangeScope
) -> tuple[Axes, Axes, Parts, Array | None]:
    """The ranges of a REDUCE or SCAN, all axes, and over those its values and marked points."""
    count = node.arg.monoid.arity
    args, ranges = args[:count], node.src[count:]
    axes = tuple(sorted({*union(args), *ranges}, key=axis_order))
    arrays = tuple(whole(arg, axes, scope) for arg in args)
    marked = marks(args, axes)
    if marked is not None:
        marked = np.broadcast_to(marked, arrays[0].shape)
    return ranges, axes, arrays, marked


def reduced(
    node: Node, args: list[Value], scope: RangeScope, fold: Callable[[Parts, list[int]], Parts]
) -> Value:
    """The value of a REDUCE; `fold` closes axes of arrays at every point, by their positions."""
    ranges, inner, arrays, marked = folding(node, args, scope)
    closed = [inner.index(axis) for axis in ranges]
    if marked is not None:
        marked = np.asarray(marked.any(axis=tuple(closed)))
    axes = tuple(axis for axis in inner if axis not in ranges)
    return Value(axes, fold(arrays, closed), marked)


def scanned(
    node: Node, args: list[Value], scope: RangeScope, fold: Callable[[Parts], Parts]
) -> Value:
    """The value of a SCAN; `fold` runs along the last axis of arrays: its ranges, joined."""
    ranges, axes, arrays, marked = folding(node, args, scope)
    own = [axes.index(axis) for axis in ranges]
    order = [*[place for place in range(len(axes)) if place not in own], *own]
    shape = [arrays[0].shape[place] for place in order]
    front, back = shape[: len(axes) - len(own)], np.argsort(order)
    joined = tuple(array.transpose(order).reshape(*front, -1) for array in arrays)
    found = tuple(part.reshape(shape).transpose(back) for part in fold(joined))
    if marked is not None:
        flat = marked.transpose(order).reshape(*front, -1)
        marked = np.logical_or.accumulate(flat, axis=-1).reshape(shape).transpose(back)
    return Value(axes, found, marked)


def _project(node: Node, args: list[Value], scope: RangeScope) -> Value:
    (value,) = args
    return Value(value.axes, (value.parts[node.arg],), value.marked)


# Of both levels, and for leaves alone: each level adds its ranges, variables and accesses.
SHARED_RULES: MappingProxyType[Op, Rule] = MappingProxyType({
    **dict.fromkeys(
        (*SCALAR_RULES, Ops.CAST, Ops.BITCAST, Ops.BITFIELD, Ops.WORDS), elementwise
    ),
    Ops.CONST: lambda node, args, scope: leaf(constant(node)),
    Ops.GUARD: lambda node, args, scope: guard(*args),
    Ops.PROJ: _project,
})  # fmt: skip
