"""A function of tensors as an ONNX model: the graph of what it computes, op by op.

Sums of products become Einsum, sliding windows Gather. The model computes what the graph says in
full; other runtimes round at other places.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from baregrad.base.errors import ArgumentError, UnsupportedError
from baregrad.engine.session import current_session
from baregrad.io.files import write_atomically
from baregrad.io.onnx.node_writing import OPSET, GraphWriter, declared, write_all
from baregrad.io.onnx.packages import onnx_package
from baregrad.ir.core.node import Node
from baregrad.tensor import Tensor
from baregrad.tensor.array.grad_mode import no_grad

Path = str | os.PathLike[str]


def save_onnx(
    function: Callable[..., Any],
    inputs: Sequence[Tensor] | Mapping[str, Tensor],
    path: Path,
) -> None:
    """Write what a function of tensors computes as an ONNX model, which appears whole or not.

    inputs: examples, which say shapes and dtypes; by name, or called x0, x1 and so on. What the
    function returns, one tensor, several, or some by name, are the outputs. Tensors that it reads
    besides are weights of the model. Raises UnsupportedError with every op that has no counterpart,
    ShapeError for symbolic shapes, ArgumentError for a function that computes values itself.
    """
    named = dict(inputs) if isinstance(inputs, Mapping) else {
        f"x{at}": one for at, one in enumerate(inputs)
    }
    for name, one in named.items():
        if not isinstance(one, Tensor):
            raise ArgumentError("an example is a tensor", found=f"{name}: {type(one).__name__}")
    # Of their own, so that no weight and no other input is the same array.
    leaves = {name: Tensor(one).realize() for name, one in named.items()}
    outputs = _traced(function, leaves, isinstance(inputs, Mapping))
    data = _written(leaves, outputs).SerializeToString()
    write_atomically(path, [memoryview(data)])


def _traced(
    function: Callable[..., Any], leaves: Mapping[str, Tensor], by_name: bool
) -> dict[str, Tensor]:
    """The outputs by name, as the graphs that compute them."""
    runs: list[Any] = []
    session = current_session()
    watching = session.watching
    watching.observers.append(runs.append)
    held, watching.keeps_choices = watching.keeps_choices, True
    try:
        with no_grad():
            result = function(**leaves) if by_name else function(*leaves.values())
            if isinstance(result, Tensor):
                result = (result,)
            found = dict(result) if isinstance(result, Mapping) else {
                f"y{at}": one for at, one in enumerate(result)
            }
            for name, one in found.items():
                if not isinstance(one, Tensor):
                    raise ArgumentError("a result is a tensor", found=f"{name}: {one!r:.60}")
                _ = one.node
    finally:
        watching.observers.remove(runs.append)
        watching.keeps_choices = held
    given = {id(one._ref().handle) for one in leaves.values()}
    if any(id(ref.handle) in given for run in runs for ref in run.program.inputs):
        raise ArgumentError(
            "the function computes values of its inputs itself, which is not in the model",
            hint="leave out item(), numpy(), realize() and branches on values",
        )
    return {str(name): one for name, one in found.items()}


def _written(leaves: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> Any:
    onnx = onnx_package()
    devices = {one.device for one in (*leaves.values(), *outputs.values())}
    writer = GraphWriter(onnx, next(iter(devices)))
    for name, one in leaves.items():
        writer.names[one.node] = name
    missing = write_all(writer, [one.node for one in outputs.values()])
    if missing:
        raise UnsupportedError(
            "the function has ops that are not exported",
            found=", ".join(f"{name} ({count})" for name, count in missing.items()),
        )
    for name, one in outputs.items():
        _expose(writer, one.node, name)
    graph = onnx.helper.make_graph(
        writer.nodes, "baregrad", [declared(onnx, n, t.node) for n, t in leaves.items()],
        [declared(onnx, name, one.node) for name, one in outputs.items()], writer.constants,
    )  # fmt: skip
    imports = [onnx.helper.make_opsetid("", OPSET)]
    model = onnx.helper.make_model(
        graph, opset_imports=imports, producer_name="baregrad", ir_version=9
    )
    onnx.checker.check_model(model)
    return model


def _expose(writer: GraphWriter, node: Node, name: str) -> None:
    """Give a value the name of an output, in the whole shape that a broadcast one stands for."""
    shape = writer.constant(np.array(node.shape, np.int64))
    writer.node("Expand", [writer.name(node), shape], output=name)
