"""Reference evaluator of the kernel level: each free range of a value is an axis of a NumPy array.

What an access outside its array does is said in `ranged_values.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from baregrad.base.errors import CompilerBug
from baregrad.ir.core.attrs import Out
from baregrad.ir.core.node import Node, extent_of
from baregrad.ir.core.op import Op, Ops
from baregrad.ir.evaluate.alu import Array, to_raw, working_dtype
from baregrad.ir.evaluate.monoids import fold, scan, scatter
from baregrad.ir.evaluate.ranged_values import (
    SHARED_RULES,
    Axes,
    Rule,
    Value,
    aligned,
    axis_order,
    leaf,
    need_unmarked,
    places_of,
    reduced,
    scanned,
    union,
    value_of,
    whole,
)
from baregrad.ir.evaluate.tensor_level import Inputs


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
            value_of(operand, machine, KERNEL_RULES)
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
    value = value_of(node, machine, KERNEL_RULES)
    need_unmarked(value, node)
    if len(value.parts) != 1:
        raise CompilerBug("a tuple is not an array", found=repr(node), wanted="PROJ of it")
    return np.broadcast_to(value.parts[0], [machine.extent(axis) for axis in value.axes])


def _variable(node: Node, args: list[Value], machine: _Machine) -> Value:
    return leaf(np.asarray(machine.dim(node), working_dtype(node.dtype)))


def _range(node: Node, args: list[Value], machine: _Machine) -> Value:
    return Value((node,), (np.arange(machine.extent(node), dtype=np.int64),))


def _index(node: Node, args: list[Value], machine: _Machine) -> Value:
    source, indices = node.src[0], args[1:]
    array = machine.array(source) if source.op is Ops.PARAM else args[0].parts[0]
    outer = () if source.op is Ops.PARAM else args[0].axes
    axes = tuple(sorted({*union(indices), *outer}, key=axis_order))
    here = [aligned(np.arange(machine.extent(axis)), (axis,), axes) for axis in outer]
    places, marked = places_of(indices, array.shape[len(outer) :], axes)
    if any(not extent for extent in array.shape):
        # Nothing can be read; whatever is wanted here is out of bounds.
        array = np.zeros([max(extent, 1) for extent in array.shape], array.dtype)
    return Value(axes, (np.asarray(array[(*here, *places)]),), marked)


def _reduce(node: Node, args: list[Value], machine: _Machine) -> Value:
    monoid = node.arg.monoid
    return reduced(node, args, machine, lambda arrays, closed: fold(monoid, arrays, closed))


def _scan(node: Node, args: list[Value], machine: _Machine) -> Value:
    return scanned(node, args, machine, lambda arrays: scan(node.arg.monoid, arrays, -1))


def _stage(node: Node, args: list[Value], machine: _Machine) -> Value:
    """An array over the outer axes first, then over the staged ranges in their own order."""
    ranges, value = node.src[1:], args[0]
    need_unmarked(value, node)
    outer = tuple(axis for axis in value.axes if axis not in ranges)
    wanted = tuple(sorted({*outer, *ranges}, key=axis_order))
    every = whole(value, wanted, machine)
    order = [wanted.index(axis) for axis in (*outer, *ranges)]
    return Value(outer, (every.transpose(order),))


def _write(out: Node, target: Array, machine: _Machine) -> None:
    value, *indices = (machine.values[operand] for operand in out.src[1:])
    axes = union([value, *indices])
    shape = tuple(machine.extent(axis) for axis in axes)
    kept = _kept(out, axes, machine)
    for operand in (value, *indices):
        if 0 not in shape:
            if kept is not None and operand.marked is not None:
                marked = aligned(operand.marked, operand.axes, axes) & kept
                operand = Value(axes, operand.parts, marked)
            need_unmarked(operand, out)
    if len(indices) != target.ndim:
        raise CompilerBug(f"{len(indices)} indices for {target.ndim} axes", found=repr(out))
    places = [whole(index, axes, machine) for index in indices]
    data = whole(value, axes, machine)
    if kept is not None:
        here = np.broadcast_to(kept, shape)
        places, data = [place[here] for place in places], data[here]
    how = out.arg or Out()
    scatter(how.monoid, target, places, data, how.apart or how.atomic)


def _kept(out: Node, axes: Axes, machine: _Machine) -> Array | None:
    """The points at which an OUT writes; None for all. Elsewhere its place is -1."""
    found: Array | None = None
    for place in out.src[2:]:
        if place.op is Ops.WHERE and place.src[2].op is Ops.CONST and place.src[2].arg == -1:
            condition = machine.values[place.src[0]]
            holds = aligned(condition.parts[0], condition.axes, axes)
            found = holds if found is None else found & holds
    return found


KERNEL_RULES: MappingProxyType[Op, Rule] = MappingProxyType({
    **SHARED_RULES,
    Ops.VAR: _variable,
    Ops.RANGE: _range,
    Ops.INDEX: _index,
    Ops.REDUCE: _reduce,
    Ops.SCAN: _scan,
    Ops.STAGE: _stage,
})  # fmt: skip
