"""Reference evaluator of the tensor level: whole arrays in NumPy, node by node.

It is the oracle that every back end is compared with, so it prefers plain NumPy to speed. Values
are held in working types (see `alu.py`); `to_array` and `to_raw` convert at the boundary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from baregrad.base.errors import (
    CompilerBug,
    IndexOutOfRange,
    OutOfMemory,
    ShapeError,
    UnsupportedLayout,
)
from baregrad.ir.core.attrs import BufferRef
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import Node, count_uses, toposort
from baregrad.ir.core.op import Op, Ops
from baregrad.ir.core.requirements import exact_value
from baregrad.ir.evaluate.alu import (
    SCALAR_RULES,
    Array,
    apply_scalar_op,
    constant,
    round_to,
    to_array,
    to_raw,
    working_dtype,
)
from baregrad.ir.evaluate.monoids import are_inside, check_indices, fold, scan, scatter

Value = Array | tuple[Array, ...]
Read = Callable[[BufferRef], Array]

__all__ = ["evaluate", "evaluate_all", "resolve", "to_array", "to_raw"]


@dataclass(slots=True)
class Inputs:
    """What leaves stand for: arguments by slot, variables by name, and how a BUFFER is read."""

    params: Mapping[int, Array]
    variables: Mapping[str, int]
    read: Read | None = None
    arrays: dict[int, Array] = field(default_factory=dict)
    dims: dict[Node, int] = field(default_factory=dict)

    def dim(self, extent: Dim) -> int:
        """The value of an extent."""
        return extent if isinstance(extent, int) else resolve(extent, self.variables, self.dims)

    def shape(self, extents: Sequence[Dim]) -> tuple[int, ...]:
        """The values of several extents."""
        return tuple(self.dim(extent) for extent in extents)

    def array(self, param: Node) -> Array:
        """The argument of a PARAM, as it was when it was first asked for, in its shape."""
        slot = param.arg.slot
        if slot not in self.arrays:
            if slot not in self.params:
                raise CompilerBug(f"argument {slot} is missing", found=sorted(self.params))
            self.arrays[slot] = to_array(self.params[slot], param.dtype)
        return self.shaped(self.arrays[slot], param, f"argument {slot}")

    def shaped(self, array: Array, node: Node, what: str) -> Array:
        """An array in the shape of a node; raises ShapeError for one of the wrong size."""
        shape = self.shape(node.shape)
        if array.size != int(np.prod(shape, dtype=np.int64)):
            found = list(array.shape)
            raise ShapeError(f"{what} has the wrong size", found=found, wanted=list(shape))
        return array.reshape(shape)


def evaluate(
    node: Node,
    params: Mapping[int, Array] | None = None,
    variables: Mapping[str, int] | None = None,
    read: Read | None = None,
) -> Array:
    """The value of a tensor-level node, in the working type of its dtype.

    params: stored arrays by slot, of the right size (NumPy's own dtype or raw codes). variables:
    values of VARs by name. read: gives the stored array of a BUFFER. Raises ShapeError for an
    argument of the wrong size, IndexOutOfRange where an index leaves its axis.
    """
    (value,) = evaluate_all((node,), params, variables, read)
    return value


def evaluate_all(
    nodes: Sequence[Node],
    params: Mapping[int, Array] | None = None,
    variables: Mapping[str, int] | None = None,
    read: Read | None = None,
    rules: Mapping[Op, TensorRule] | None = None,
) -> list[Array]:
    """The values of several nodes, which share work; intermediates are dropped after last use.

    rules: others than `TENSOR_RULES`, as of another library's functions.
    """
    inputs = Inputs(params or {}, variables or {}, read)
    uses = count_uses(nodes)
    for node in nodes:
        uses[node] += 1
    values: dict[Node, Value] = {}
    for node in toposort(*nodes):
        operands = [values[child] for child in node.src]
        values[node] = _evaluate_node(node, operands, inputs, rules or TENSOR_RULES)
        for child in node.src:
            uses[child] -= 1
            if not uses[child]:
                del values[child]
    results: list[Array] = []
    for node in nodes:
        value = values[node]
        if isinstance(value, tuple):
            raise CompilerBug("a tuple is not an array", found=repr(node), wanted="PROJ of it")
        shape = inputs.shape(node.shape)
        results.append(value if value.shape == shape else np.broadcast_to(value, shape))
    return results


def resolve(
    extent: Node, variables: Mapping[str, int], known: dict[Node, int] | None = None
) -> int:
    """The value of an index node without ranges, exactly, given the values of its variables."""
    values: dict[Node, int] = {} if known is None else known
    for node in toposort(extent, enter=lambda n: n not in values):
        if node.op is Ops.VAR:
            values[node] = _variable(node, variables)
    return exact_value(extent, values)


def _variable(node: Node, variables: Mapping[str, int]) -> int:
    variable = node.arg
    value = variables.get(variable.name)
    if value is None:
        raise CompilerBug(f"the variable {variable.name} has no value", wanted="a value by name")
    if not variable.lo <= value <= variable.hi:
        raise IndexOutOfRange(
            f"the variable {variable.name} leaves its bounds",
            found=value,
            wanted=f"{variable.lo} to {variable.hi}",
        )
    return int(value)


def _evaluate_node(
    node: Node, operands: list[Any], inputs: Inputs, rules: Mapping[Op, TensorRule]
) -> Value:
    rule = rules.get(node.op)
    if rule is None:
        raise CompilerBug("no evaluator for this op at the tensor level", found=repr(node))
    with _naming(node):
        return rule(node, operands, inputs)


# NumPy's iterators, and windows over them, go no further.
_MOST_AXES = 32


@contextmanager
def _naming(node: Node) -> Iterator[None]:
    """Says which node NumPy choked on. Raises OutOfMemory for what no memory holds."""
    try:
        yield
    except (MemoryError, ValueError, TypeError, RuntimeError) as problem:
        if isinstance(problem, ShapeError | OutOfMemory):
            raise
        extents = [abs(extent) or 1 for extent in node.shape if isinstance(extent, int)]
        if isinstance(problem, MemoryError) or math.prod(extents) >> 48:
            raise OutOfMemory("no room for a value", found=f"shape {list(node.shape)}") from problem
        if any(len(source.shape) > _MOST_AXES for source in (node, *node.src)):
            raise UnsupportedLayout(
                "the reference device computes over few axes", found=f"{len(node.shape)} or more",
                wanted=f"at most {_MOST_AXES}", hint="join some of them: flatten()",
            ) from problem
        raise CompilerBug("the evaluator failed", found=f"{node!r}: {problem}") from problem


# --- leaves ------------------------------------------------------------------------------------


def _buffer(node: Node, operands: list[Array], inputs: Inputs) -> Array:
    if inputs.read is None:
        raise CompilerBug("a BUFFER needs a way to read it", found=repr(node), wanted="read=...")
    return inputs.shaped(to_array(inputs.read(node.arg), node.dtype), node, "a buffer")


def _iota(node: Node, operands: list[Array], inputs: Inputs) -> Array:
    count = inputs.dim(node.shape[0])
    return round_to(np.arange(count).astype(working_dtype(node.dtype)), node.dtype)


# --- movement ----------------------------------------------------------------------------------


def _pad(node: Node, operands: list[Array], inputs: Inputs) -> Array:
    result = np.zeros(inputs.shape(node.shape), operands[0].dtype)
    places = []
    for extent, pad in zip(operands[0].shape, node.arg, strict=True):
        lo, step = inputs.dim(pad.lo), pad.interior + 1
        places.append(slice(lo, lo + max((extent - 1) * step + 1, 0), step))
    result[tuple(places)] = operands[0]
    return result


def _shrink(node: Node, operands: list[Array], inputs: Inputs) -> Array:
    places = []
    for extent, cut in zip(operands[0].shape, node.arg, strict=True):
        start, stop = inputs.dim(cut.start), inputs.dim(cut.stop)
        if not 0 <= start <= stop <= extent:
            raise IndexOutOfRange(f"SHRINK {start}:{stop} of an axis of extent {extent}")
        places.append(slice(start, stop, cut.step))
    return operands[0][tuple(places)]


def _window(node: Node, operands: list[Array], inputs: Inputs) -> Array:
    window = node.arg
    span = window.dilation * (window.taps - 1) + 1
    views = np.lib.stride_tricks.sliding_window_view(operands[0], span, axis=window.axis)
    positions = [slice(None)] * operands[0].ndim
    positions[window.axis] = slice(None, None, window.stride)
    return np.asarray(views[(*positions, slice(None, None, window.dilation))])


def _fold(node: Node, operands: list[Array], inputs: Inputs) -> Array:
    window = node.arg
    taps = operands[0]
    positions = taps.shape[window.axis]
    wide = np.float64 if node.dtype.kind == "float" else taps.dtype
    result = np.zeros(inputs.shape(node.shape), wide)
    with np.errstate(all="ignore"):
        for tap in range(window.taps):
            begin = tap * window.dilation
            place = [slice(None)] * result.ndim
            end = begin + max((positions - 1) * window.stride + 1, 0)
            place[window.axis] = slice(begin, end, window.stride)
            here = result[tuple(place)]
            here += taps[..., tap]
    return round_to(result, node.dtype)


# --- structure ---------------------------------------------------------------------------------


def _fold_axes(node: Node, operands: list[Array], inputs: Inputs) -> Value:
    """A REDUCE or SCAN of values at the full shape: a scalar operand stands for every element."""
    shape = inputs.shape(node.src[0].shape)
    values = [np.broadcast_to(value, shape) for value in operands]
    monoid = node.arg.monoid
    if node.op is Ops.REDUCE:
        states = fold(monoid, values, node.arg.axes)
    else:
        states = scan(monoid, values, node.arg.axis)
    return states[0] if len(states) == 1 else states


def _project(node: Node, operands: list[Any], inputs: Inputs) -> Array:
    parts = operands[0]
    chosen: Array = parts[node.arg] if isinstance(parts, tuple) else parts
    return chosen


def _gather(node: Node, operands: list[Array], inputs: Inputs) -> Array:
    array, *indices = operands
    shape = inputs.shape(node.shape)
    whole = [np.broadcast_to(index, shape) for index in indices]
    if node.arg:
        inside = are_inside(whole, array.shape)
        whole = [np.where(inside, index, 0) for index in whole]
        found = array[tuple(whole)] if array.size else np.zeros(shape, array.dtype)
        return np.asarray(np.where(inside, found, np.zeros((), array.dtype)))
    check_indices(whole, array.shape, "GATHER")
    return np.asarray(array[tuple(whole)]).reshape(shape)


def _scatter(node: Node, operands: list[Array], inputs: Inputs) -> Array:
    base, values, *indices = operands
    narrow = node.arg.monoid is not None and node.dtype.kind == "float"
    wide = np.float64 if narrow else base.dtype
    result = np.array(np.broadcast_to(base, inputs.shape(node.shape)), wide)
    scatter(node.arg.monoid, result, indices, values, node.arg.apart or node.arg.atomic)
    return round_to(result, node.dtype)


def _sort(node: Node, operands: list[Array], inputs: Inputs) -> Array:
    shape = inputs.shape(node.shape)
    words = [np.broadcast_to(word, shape) for word in operands]
    # The last key counts most there.
    order = np.lexsort(words[::-1], axis=-1)
    return np.take_along_axis(words[-1], order, -1)


# --- loops and choices -------------------------------------------------------------------------


def _repeat(node: Node, operands: list[Array], inputs: Inputs) -> Array:
    form = node.arg
    if form.adjoint is not None:
        raise CompilerBug("a loop that ends by a condition is not run backwards", found=repr(node))
    shape = inputs.shape(node.shape)
    length = None if form.length is None else inputs.dim(form.length)
    first, last = form.carried, form.carried + form.read
    carry: list[Array] = operands[:first]
    part: int = form.part
    made: Array = np.zeros(shape, working_dtype(node.dtype))
    taken = 0
    while length is None or taken < length:
        if form.conditional and not carry[-1].reshape(-1)[0]:
            break
        step = taken if length is None or not form.backwards else length - 1 - taken
        rows = [x[step] for x in operands[first:last]]
        found = _body(form.body, node, [*carry, *rows, *operands[last:]], inputs)
        if part >= first:
            made[step] = found[part] if part < len(found) else carry[part - len(found)]
        carry = found[:first]
        taken += 1
    return np.broadcast_to(carry[part], shape) if part < first else made


def _choose(node: Node, operands: list[Array], inputs: Inputs) -> Array:
    form = node.arg
    body = form.body if operands[0].reshape(-1)[0] else form.other
    found: Array = _body(body, node, operands, inputs)[form.part]
    return found


def _call(node: Node, operands: list[Array], inputs: Inputs) -> Array:
    """What a kernel of text is to compute: its reference says it."""
    found: Array = _body(node.arg.body, node, operands, inputs)[node.arg.part]
    return found


def _body(body: Node, node: Node, values: list[Array], inputs: Inputs) -> list[Array]:
    """The results of a form's body over values."""
    params = {slot: to_raw(value, source.dtype)
              for slot, (value, source) in enumerate(zip(values, node.src, strict=True))}
    return evaluate_all(body.src, params, inputs.variables, inputs.read)


TensorRule = Callable[[Node, list[Any], Inputs], Value]

TENSOR_RULES: MappingProxyType[Op, TensorRule] = MappingProxyType({
    **dict.fromkeys(
        [op for op in (*SCALAR_RULES, Ops.CAST, Ops.BITCAST) if "tensor" in op.levels],
        lambda node, operands, inputs: apply_scalar_op(node, *operands),
    ),
    **dict.fromkeys(
        (Ops.CONTIGUOUS, Ops.DETACH, Ops.COPY), lambda node, operands, inputs: operands[0]
    ),
    Ops.CONST: lambda node, operands, inputs: constant(node),
    Ops.BUFFER: _buffer,
    Ops.PARAM: lambda node, operands, inputs: inputs.array(node),
    Ops.VAR: lambda node, operands, inputs: np.asarray(
        _variable(node, inputs.variables), working_dtype(node.dtype)
    ),
    Ops.IOTA: _iota,
    Ops.RESHAPE: lambda node, operands, inputs: operands[0].reshape(inputs.shape(node.shape)),
    Ops.PERMUTE: lambda node, operands, inputs: operands[0].transpose(node.arg),
    Ops.EXPAND: lambda node, operands, inputs: np.broadcast_to(
        operands[0], inputs.shape(node.shape)
    ),
    Ops.PAD: _pad,
    Ops.SHRINK: _shrink,
    Ops.FLIP: lambda node, operands, inputs: np.flip(operands[0], node.arg),
    Ops.WINDOW: _window,
    Ops.FOLD: _fold,
    Ops.REDUCE: _fold_axes,
    Ops.PROJ: _project,
    Ops.SCAN: _fold_axes,
    Ops.GATHER: _gather,
    Ops.SCATTER: _scatter,
    Ops.SORT: _sort,
    Ops.REPEAT: _repeat,
    Ops.CHOOSE: _choose,
    Ops.CALL: _call,
    Ops.SINK: lambda node, operands, inputs: tuple(operands),
})  # fmt: skip
