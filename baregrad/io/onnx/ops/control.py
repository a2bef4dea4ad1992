"""Branches, loops, sequences and optional values.

A loop whose count is known, which carries arrays of one shape on and reads none of them on the
host, is one node of the graph, whose body is planned once. Otherwise the host decides: a condition
or a trip count that depends on data is downloaded, and bodies are run step by step.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from baregrad.base.errors import FileFormatError
from baregrad.func.branches import chosen
from baregrad.func.loops import scan
from baregrad.func.stand_ins import reads_stand_ins
from baregrad.io.onnx.call import NodeCall, Result, own_axis, standard
from baregrad.io.onnx.graph import GraphDef, ValueType
from baregrad.io.onnx.values import Value, is_text
from baregrad.ir.core.node import Node
from baregrad.tensor import Tensor

MOST_STEPS = 1 << 20
# Loops of fewer steps are as well written out: they fuse with what is around them.
FEWEST_STEPS = 4


def _if(call: NodeCall) -> Result:
    decision = call.value(0)
    if isinstance(decision, Tensor) and reads_stand_ins([decision._value()]):
        # Inside the body of a loop nothing can be read.
        then, other = (
            partial(_branch, call, call.graph(name)) for name in ("then_branch", "else_branch")
        )
        found: list[Tensor] = chosen(decision.reshape(()).bool(), then, other, ())
        return tuple(found)
    taken = bool(call.number(0))
    return tuple(call.scope.subgraph(call.graph("then_branch" if taken else "else_branch"), []))


def _branch(call: NodeCall, graph: GraphDef) -> list[Tensor]:
    return [call.scope.tensor(one) for one in call.scope.subgraph(graph, [])]


def _may_be_one_node(state: Sequence[Value], length: Any) -> bool:
    """Whether a loop is worth a node, and carries nothing that the host may have to know later."""
    if isinstance(length, int) and not FEWEST_STEPS <= length <= MOST_STEPS:
        return False
    return length is not None and all(
        isinstance(one, Tensor)
        or (isinstance(one, np.ndarray) and one.dtype.kind == "f")
        for one in state
    )


def _loop_as_node(
    call: NodeCall, body: GraphDef, state: Sequence[Value], most: Any
) -> list[Value] | None:
    """A loop that ends by its count alone; None for others."""
    scope = call.scope
    if not _may_be_one_node(state, most):
        return None
    goes_on: list[Value] = []

    def step(carry: list[Tensor], at: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        going, *found = scope.subgraph(body, [at, np.array(True), *carry])
        goes_on.append(going)
        made = [scope.tensor(one) for one in found]
        return made[: len(carry)], made[len(carry) :]

    def compute() -> tuple[list[Tensor], list[Tensor]]:
        device = scope.tensor(np.zeros(1, np.int64)).device
        numbers = Tensor.arange(most, dtype="int64", device=device)
        return scan(step, [scope.tensor(one) for one in state], numbers)

    made = scope.attempted(compute)
    if made is None or not all(isinstance(one, np.ndarray) and one.all() for one in goes_on):
        return None
    return [*made[0], *made[1]]


def _loop(call: NodeCall) -> Result:
    body = call.graph("body")
    most = call.number(0)
    going = bool(call.number(1, True))
    state = [call.value(at) for at in range(2, len(call.inputs))]
    if going:
        whole = _loop_as_node(call, body, state, most)
        if whole is not None:
            return tuple(whole)
    if isinstance(most, Node):
        raise call.refuse(
            "runs as often as a symbolic extent says", found=most,
            hint="load the model without symbolic dimensions: each length is captured by itself",
        )
    outputs: list[list[Value]] = [[] for _ in range(len(body.outputs) - 1 - len(state))]
    step = 0
    condition_name = body.outputs[0].name
    while going and (most is None or step < most):
        if step >= MOST_STEPS:
            raise call.refuse("does not end", found=f"{step} steps")
        values = [np.array(step, np.int64), np.array(True), *state]
        found = call.scope.subgraph(body, values)
        going = bool(call.scope.host(found[0], condition_name).reshape(-1)[0])
        state = found[1 : 1 + len(state)]
        for kept, value in zip(outputs, found[1 + len(state) :], strict=True):
            kept.append(value)
        step += 1
    scans = [
        _stacked(call, kept, 0, declared)
        for kept, declared in zip(outputs, body.outputs[1 + len(state) :], strict=True)
    ]
    return (*state, *scans)


def _stacked(call: NodeCall, values: list[Value], axis: int, declared: ValueType) -> Value:
    if values:
        if all(isinstance(one, np.ndarray) for one in values):
            return np.stack([np.asarray(one) for one in values], axis)
        return Tensor.stack([call.scope.tensor(one) for one in values], dim=axis)
    shape = [one if isinstance(one, int) else 0 for one in declared.shape or ()]
    return np.zeros([0, *shape], declared.dtype or "float32")


def _scan(call: NodeCall) -> Result:
    if call.version < 9:
        return _scan_of_batches(call)
    body = call.graph("body")
    count = call.wanted("num_scan_inputs")
    state = [call.value(at) for at in range(len(call.inputs) - count)]
    inputs = [call[at] for at in range(len(state), len(call.inputs))]
    into = call.attribute("scan_input_axes") or [0] * count
    backward = call.attribute("scan_input_directions") or [0] * count
    results = len(body.outputs) - len(state)
    out = call.attribute("scan_output_axes") or [0] * results
    turned = call.attribute("scan_output_directions") or [0] * results
    return tuple(_scanned(call, body, state, inputs, (into, backward, out, turned)))


def _scanned(
    call: NodeCall, body: GraphDef, state: list[Value], inputs: list[Tensor],
    how: tuple[list[int], list[int], list[int], list[int]],
) -> list[Value]:
    into, backward, out, turned = how
    axes = [own_axis(axis, one.ndim) for axis, one in zip(into, inputs, strict=True)]
    length = inputs[0].shape[axes[0]]
    whole = _scan_as_node(call, body, state, inputs, (axes, backward, out, turned), length)
    if whole is not None:
        return whole
    if not isinstance(length, int):
        raise call.refuse(
            "runs as often as a symbolic extent says", found=length,
            hint="load the model without symbolic dimensions: each length is captured by itself",
        )
    kept: list[list[Value]] = [[] for _ in turned]
    for step in range(length):
        parts = [
            one.select(axis, length - 1 - step if back else step)
            for one, axis, back in zip(inputs, axes, backward, strict=True)
        ]
        found = call.scope.subgraph(body, [*state, *parts])
        state = found[: len(state)]
        for one, value in zip(kept, found[len(state) :], strict=True):
            one.append(value)
    results = []
    for values, axis, back, declared in zip(
        kept, out, turned, body.outputs[len(state) :], strict=True
    ):
        values = values[::-1] if back else values
        ndim = (call.scope.tensor(values[0]).ndim if values else len(declared.shape or ())) + 1
        results.append(_stacked(call, values, own_axis(axis, ndim), declared))
    return [*state, *results]


def _scan_as_node(
    call: NodeCall, body: GraphDef, state: Sequence[Value], inputs: Sequence[Tensor],
    how: tuple[list[int], list[int], list[int], list[int]], length: Any,
) -> list[Value] | None:
    """A Scan as one node of the graph; None where it cannot be."""
    axes, backward, out, turned = how
    scope = call.scope
    if not _may_be_one_node(state, length):
        return None

    def step(carry: list[Tensor], rows: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        made = [scope.tensor(one) for one in scope.subgraph(body, [*carry, *rows])]
        return made[: len(carry)], made[len(carry) :]

    def compute() -> tuple[list[Tensor], list[Tensor]]:
        rows = [one.movedim(axis, 0) for one, axis in zip(inputs, axes, strict=True)]
        rows = [one.flip(0) if back else one for one, back in zip(rows, backward, strict=True)]
        return scan(step, [scope.tensor(one) for one in state], rows)

    made = scope.attempted(compute)
    if made is None:
        return None
    stacks = [one.flip(0) if back else one for one, back in zip(made[1], turned, strict=True)]
    return [*made[0], *[one.movedim(0, own_axis(axis, one.ndim))
                        for one, axis in zip(stacks, out, strict=True)]]


def _scan_of_batches(call: NodeCall) -> Result:
    """The form of opset 8: a batch axis in front, and lengths of sequences."""
    body = call.graph("body")
    count = call.wanted("num_scan_inputs")
    if call.has(0):
        raise call.refuse("has sequences of several lengths")
    given = call.inputs[1:]
    states = [call[at + 1] for at in range(len(given) - count)]
    inputs = [call[at + 1] for at in range(len(states), len(given))]
    results = len(body.outputs) - len(states)
    back = call.attribute("directions") or [0] * count
    batches = []
    for at in range(inputs[0].shape[0]):
        how = ([0] * count, back, [0] * results, [0] * results)
        found = _scanned(call, body, [one[at] for one in states], [one[at] for one in inputs], how)
        batches.append([call.scope.tensor(one) for one in found])
    return tuple(Tensor.stack(list(parts)) for parts in zip(*batches, strict=True))


# --- sequences ------------------------------------------------------------------------------------


def _sequence(call: NodeCall) -> list[Value]:
    found = call.value(0)
    if not isinstance(found, list):
        raise FileFormatError(f"{call} wants a sequence", found=type(found).__name__)
    return found


def _insert(call: NodeCall) -> Result:
    found = list(_sequence(call))
    at = int(call.number(2)) if call.has(2) else len(found)
    found.insert(at if at >= 0 else at + len(found), call.value(1))
    return found


def _erase(call: NodeCall) -> Result:
    found = list(_sequence(call))
    del found[int(call.number(1, -1))]
    return found


def _split_to_sequence(call: NodeCall) -> Result:
    value = call.value(0)
    axis = own_axis(call.attribute("axis", 0), len(call.shape(0)))
    extent = call.shape(0)[axis]
    keep = bool(call.attribute("keepdims", 1))
    if not call.has(1):
        sizes: list[int] = [1] * extent
    else:
        given = call.host(1)
        keep = True
        if given.ndim:
            sizes = [int(one) for one in given]
        else:
            each = int(given)
            sizes = [each] * (extent // each) + ([extent % each] if extent % each else [])
    if is_text(value):
        assert isinstance(value, np.ndarray)
        parts: list[Any] = np.split(value, np.cumsum(sizes)[:-1], axis)
        return parts if keep else [np.squeeze(one, axis) for one in parts]
    cut = call[0].split(sizes, axis)
    return list(cut) if keep else [one.squeeze(axis) for one in cut]


def _concat_from_sequence(call: NodeCall) -> Result:
    parts = _sequence(call)
    axis, new = call.wanted("axis"), call.attribute("new_axis", 0)
    if any(is_text(one) for one in parts):
        join = np.stack if new else np.concatenate
        return join([np.asarray(one) for one in parts], axis)
    tensors = [call.scope.tensor(one) for one in parts]
    return Tensor.stack(tensors, dim=axis) if new else Tensor.cat(tensors, dim=axis)


def _sequence_map(call: NodeCall) -> Result:
    body = call.graph("body")
    first = _sequence(call)
    kept: list[list[Value]] = [[] for _ in body.outputs]
    for at in range(len(first)):
        values = [one[at] if isinstance(one, list) else one for one in call.inputs]
        for one, value in zip(kept, call.scope.subgraph(body, values), strict=True):
            one.append(value)
    return tuple(kept)


def _has_element(call: NodeCall) -> Result:
    return np.array(bool(call.inputs) and call.value(0) is not None)


OPERATORS = MappingProxyType(standard({
    "If": _if, "Loop": _loop, "Scan": _scan,
    "SequenceEmpty": lambda call: [], "SequenceConstruct": lambda call: list(call.inputs),
    "SequenceInsert": _insert, "SequenceErase": _erase,
    "SequenceAt": lambda call: _sequence(call)[int(call.number(1))],
    "SequenceLength": lambda call: np.array(len(_sequence(call)), np.int64),
    "SplitToSequence": _split_to_sequence, "ConcatFromSequence": _concat_from_sequence,
    "SequenceMap": _sequence_map,
    "Optional": lambda call: call.value(0), "OptionalHasElement": _has_element,
    "OptionalGetElement": lambda call: call.value(0),
}))  # fmt: skip
