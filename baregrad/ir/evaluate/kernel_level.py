"""Reference evaluator of the kernel level: each free range of a value is an axis of a NumPy array.

The axes of a value stand in order of range id. An INDEX outside its array is not an error yet: it
reads element 0 and marks the point; a GUARD clears the marks where its condition is false, and a
mark that reaches a write or a stage raises. So a kernel that would read out of bounds is found out,
whatever it then selects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from baregrad.base.errors import CompilerBug, IndexOutOfRange
from baregrad.ir.analysis.words import words_value
from baregrad.ir.core.node import Node, extent_of, toposort
from baregrad.ir.core.op import Op, Ops
from baregrad.ir.evaluate.alu import (
    SCALAR_RULES,
    Array,
    apply_scalar_op,
    constant,
    to_raw,
    working_dtype,
)
from baregrad.ir.evaluate.monoids import fold, scan, scatter
from baregrad.ir.evaluate.tensor_level import Inputs

Axes = tuple[Node, ...]
Parts = tuple[Array, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """A value over its free ranges: parts (one, but for tuple reductions) and the marked points.

    axes: the free ranges in order. parts: arrays that broadcast over them, one axis each. marked:
    None, or a bool array of points at which something was read out of bounds.
    """

    axes: Axes
    parts: Parts
    marked: Array | None = None


@dataclass(slots=True)
class _Machine(Inputs):
    """The arguments of one run, as they were when the kernel began, and what was evaluated."""

    values: dict[Node, Value] = field(default_factory=dict)

    def extent(self, axis: Node) -> int:
        return self.dim(extent_of(axis))


def evaluate_kernel(
    kernel: Node,
    params: Mapping[int, Array] | Sequence[Array],
    variables: Mapping[str, int] | None = None,
) -> None:
    """Run a kernel-level KERNEL in place on its argument arrays.

    params: stored arrays by slot, of the right size (NumPy's own dtype or raw codes); those that an
    OUT writes are changed. Every read sees what was there before the kernel. Raises IndexOutOfRange
    where an unguarded read, or any write, leaves its array.
    """
    slots = params if isinstance(params, Mapping) else dict(enumerate(params))
    machine = _Machine(slots, variables or {})
    outs = kernel.src if kernel.op is Ops.KERNEL else (kernel,)
    for out in outs:
        for operand in out.src[1:]:
            _evaluate(operand, machine)
    written: dict[int, tuple[Node, Array]] = {}
    for out in outs:
        param = out.src[0]
        if param.arg.slot not in written:
            written[param.arg.slot] = (param, np.array(machine.array(param)))
        _write(out, written[param.arg.slot][1], machine)
    for slot, (param, result) in written.items():
        target = slots[slot]
        target[...] = to_raw(result, param.dtype).view(target.dtype).reshape(target.shape)


def evaluate_value(
    node: Node,
    params: Mapping[int, Array] | Sequence[Array] = (),
    variables: Mapping[str, int] | None = None,
) -> Array:
    """The value of a kernel-level expression, one axis per free range in order of range id."""
    slots = params if isinstance(params, Mapping) else dict(enumerate(params))
    machine = _Machine(slots, variables or {})
    value = _evaluate(node, machine)
    _need_unmarked(value, node)
    if len(value.parts) != 1:
        raise CompilerBug("a tuple is not an array", found=repr(node), wanted="PROJ of it")
    return np.broadcast_to(value.parts[0], [machine.extent(axis) for axis in value.axes])


def _evaluate(root: Node, machine: _Machine) -> Value:
    values = machine.values
    for node in toposort(root, enter=lambda n: n not in values and n.op is not Ops.PARAM):
        if node in values or node.op is Ops.PARAM:
            continue
        rule = KERNEL_RULES.get(node.op)
        if rule is None:
            raise CompilerBug("no evaluator for this op at the kernel level", found=repr(node))
        values[node] = rule(node, [values.get(child, _NOTHING) for child in node.src], machine)
    return values[root]


# --- aligning axes -----------------------------------------------------------------------------


def axis_order(axis: Node) -> tuple[int, str, str]:
    """The key by which axes are ordered."""
    return (axis.arg.id, axis.arg.axis, axis.arg.bind)


def _union(values: Sequence[Value]) -> Axes:
    axes: set[Node] = set()
    for value in values:
        axes.update(value.axes)
    return tuple(sorted(axes, key=axis_order))


def _aligned(array: Array, own: Axes, wanted: Axes) -> Array:
    """`array` with an axis of extent 1 for each wanted axis that is not its own."""
    if own == wanted:
        return array
    shape = iter(array.shape)
    mine = set(own)
    return array.reshape([next(shape) if axis in mine else 1 for axis in wanted])


def _whole(array: Array, own: Axes, wanted: Axes, machine: _Machine) -> Array:
    """`array` at every point of the wanted axes."""
    shape = [machine.extent(axis) for axis in wanted]
    return np.broadcast_to(_aligned(array, own, wanted), shape)


def _marks(values: Sequence[Value], axes: Axes) -> Array | None:
    found: Array | None = None
    for value in values:
        if value.marked is not None:
            here = _aligned(value.marked, value.axes, axes)
            found = here if found is None else found | here
    return found


def _need_unmarked(value: Value, node: Node) -> None:
    if value.marked is not None and value.marked.any():
        raise IndexOutOfRange(
            "a read leaves its array and no GUARD covers it", found=f"{node!r} uses it"
        )


# --- rules -------------------------------------------------------------------------------------


def _leaf(array: Array) -> Value:
    return Value((), (array,))


def _variable(node: Node, args: list[Value], machine: _Machine) -> Value:
    return _leaf(np.asarray(machine.dim(node), working_dtype(node.dtype)))


def _range(node: Node, args: list[Value], machine: _Machine) -> Value:
    return Value((node,), (np.arange(machine.extent(node), dtype=np.int64),))


def _elementwise(node: Node, args: list[Value], machine: _Machine) -> Value:
    axes = _union(args)
    operands = [_aligned(arg.parts[0], arg.axes, axes) for arg in args]
    if node.op is Ops.WORDS:
        result = words_value(node.arg, *np.broadcast_arrays(*operands))
    else:
        result = apply_scalar_op(node, *operands)
    return Value(axes, (result,), _marks(args, axes))


def _index(node: Node, args: list[Value], machine: _Machine) -> Value:
    source, indices = node.src[0], args[1:]
    array = machine.array(source) if source.op is Ops.PARAM else args[0].parts[0]
    outer = () if source.op is Ops.PARAM else args[0].axes
    if len(indices) != array.ndim - len(outer):
        raise CompilerBug(f"{len(indices)} indices for {array.ndim} axes", found=repr(node))
    axes = tuple(sorted({*_union(indices), *outer}, key=axis_order))
    places = []
    for axis in outer:
        here = np.arange(machine.extent(axis))
        places.append(_aligned(here, (axis,), axes))
    marked = _marks(args, axes)
    for index, extent in zip(indices, array.shape[len(outer) :], strict=True):
        place = _aligned(index.parts[0], index.axes, axes)
        outside = (place < 0) | (place >= extent)
        if outside.any():
            marked = outside if marked is None else marked | outside
            place = np.where(outside, 0, place)
        places.append(place)
    if any(not extent for extent in array.shape):
        # Nothing can be read; whatever is wanted here is out of bounds.
        array = np.zeros([max(extent, 1) for extent in array.shape], array.dtype)
    return Value(axes, (np.asarray(array[tuple(places)]),), marked)


def _guard(node: Node, args: list[Value], machine: _Machine) -> Value:
    condition, value = args
    axes = _union(args)
    holds = _aligned(condition.parts[0], condition.axes, axes)
    parts = tuple(
        np.where(holds, _aligned(part, value.axes, axes), np.zeros((), part.dtype))
        for part in value.parts
    )
    marked = _marks([condition], axes)
    inner = _marks([value], axes)
    if inner is not None and (inner & holds).any():
        marked = inner & holds if marked is None else marked | (inner & holds)
    return Value(axes, parts, marked)


def split_reduce(node: Node) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """The values and the ranges of a kernel-level REDUCE or SCAN."""
    count = node.arg.monoid.arity
    return node.src[:count], node.src[count:]


def _reduce(node: Node, args: list[Value], machine: _Machine) -> Value:
    values, ranges = split_reduce(node)
    args = args[: len(values)]
    inner = tuple(sorted({*_union(args), *ranges}, key=axis_order))
    arrays = [_whole(arg.parts[0], arg.axes, inner, machine) for arg in args]
    closed = [position for position, axis in enumerate(inner) if axis in ranges]
    marked = _marks(args, inner)
    if marked is not None:
        whole = np.broadcast_to(marked, arrays[0].shape)
        marked = np.asarray(whole.any(axis=tuple(closed)))
    axes = tuple(axis for axis in inner if axis not in ranges)
    return Value(axes, fold(node.arg.monoid, arrays, closed), marked)


def _scan(node: Node, args: list[Value], machine: _Machine) -> Value:
    values, ranges = split_reduce(node)
    args = args[: len(values)]
    axes = tuple(sorted({*_union(args), *ranges}, key=axis_order))
    arrays = [_whole(arg.parts[0], arg.axes, axes, machine) for arg in args]
    along = axes.index(ranges[0])
    marked = _marks(args, axes)
    if marked is not None:
        whole = np.broadcast_to(marked, arrays[0].shape)
        marked = np.logical_or.accumulate(whole, axis=along)
    return Value(axes, scan(node.arg.monoid, arrays, along), marked)


def _project(node: Node, args: list[Value], machine: _Machine) -> Value:
    (value,) = args
    return Value(value.axes, (value.parts[node.arg],), value.marked)


def _stage(node: Node, args: list[Value], machine: _Machine) -> Value:
    """An array over the outer axes first, then over the staged ranges in their own order."""
    ranges, value = node.src[1:], args[0]
    _need_unmarked(value, node)
    outer = tuple(axis for axis in value.axes if axis not in ranges)
    wanted = tuple(sorted({*outer, *ranges}, key=axis_order))
    whole = _whole(value.parts[0], value.axes, wanted, machine)
    order = [wanted.index(axis) for axis in (*outer, *ranges)]
    return Value(outer, (whole.transpose(order),))


def _write(out: Node, target: Array, machine: _Machine) -> None:
    value, *indices = (machine.values[operand] for operand in out.src[1:])
    axes = _union([value, *indices])
    shape = tuple(machine.extent(axis) for axis in axes)
    kept = _kept(out, axes, machine)
    for operand in (value, *indices):
        if 0 not in shape:
            if kept is not None and operand.marked is not None:
                marked = _aligned(operand.marked, operand.axes, axes) & kept
                operand = Value(axes, operand.parts, marked)
            _need_unmarked(operand, out)
    if len(indices) != target.ndim:
        raise CompilerBug(f"{len(indices)} indices for {target.ndim} axes", found=repr(out))
    places = [_whole(index.parts[0], index.axes, axes, machine) for index in indices]
    whole = _whole(value.parts[0], value.axes, axes, machine)
    if kept is not None:
        here = np.broadcast_to(kept, shape)
        places, whole = [place[here] for place in places], whole[here]
    scatter(out.arg.monoid if out.arg is not None else None, target, places, whole)


def _kept(out: Node, axes: Axes, machine: _Machine) -> Array | None:
    """The points at which an OUT writes; None for all. Elsewhere its place is -1."""
    found: Array | None = None
    for place in out.src[2:]:
        if place.op is Ops.WHERE and place.src[2].op is Ops.CONST and place.src[2].arg == -1:
            condition = machine.values[place.src[0]]
            holds = _aligned(condition.parts[0], condition.axes, axes)
            found = holds if found is None else found & holds
    return found


_NOTHING = Value((), ())
KernelRule = Callable[[Node, list[Any], _Machine], Value]

KERNEL_RULES: MappingProxyType[Op, KernelRule] = MappingProxyType(
    {
        **dict.fromkeys(
            (*SCALAR_RULES, Ops.CAST, Ops.BITCAST, Ops.BITFIELD, Ops.WORDS), _elementwise
        ),
        Ops.CONST: lambda node, args, machine: _leaf(constant(node)),
        Ops.VAR: _variable,
        Ops.RANGE: _range,
        Ops.INDEX: _index,
        Ops.GUARD: _guard,
        Ops.REDUCE: _reduce,
        Ops.SCAN: _scan,
        Ops.PROJ: _project,
        Ops.STAGE: _stage,
    }
)
