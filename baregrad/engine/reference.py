"""The REF device's work: a canonical program evaluated at one of the four levels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from baregrad.base.errors import CompilerBug
from baregrad.dtypes import DType
from baregrad.engine.canonical import Canonical
from baregrad.engine.launch import launch_expr
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Ops
from baregrad.program import evaluate as evaluate_expr

Array = np.ndarray[Any, Any]


def storage_of(dtype: DType) -> np.dtype[Any]:
    """The NumPy dtype of a dtype's raw codes. Raises CompilerBug for one that is never stored."""
    if dtype.storage is None:
        raise CompilerBug(f"{dtype} has no storage")
    return dtype.storage


def _params(sink: Node) -> dict[int, Node]:
    return {node.arg.slot: node for node in toposort(sink) if node.op is Ops.PARAM}


def _dims(shape: tuple[Any, ...], variables: Any) -> tuple[int, ...]:
    return tuple(
        extent if isinstance(extent, int) else evaluate_expr(launch_expr(extent), variables)
        for extent in shape
    )


def evaluate_program(
    program: Canonical, raw: Sequence[Array], rules: Mapping[Any, Any] | None = None
) -> list[Array]:
    """The outputs of a program as raw storage, evaluated whole array by whole array.

    rules: of `ir.evaluate.tensor_level`, where others than its own are to be followed.
    """
    from baregrad.ir.evaluate.tensor_level import evaluate_all, to_raw

    params = {}
    for slot, node in _params(program.sink).items():
        shape = _dims(node.shape, program.variables)
        count = int(np.prod(shape, dtype=np.int64))
        data = raw[slot].view(storage_of(node.dtype))[:count].reshape(shape)
        params[slot] = data
    values = evaluate_all(program.sink.src, params, dict(program.variables), rules=rules)
    return [to_raw(value, node.dtype) for value, node in zip(values, program.sink.src, strict=True)]


def evaluate_plan(
    plan: Any, program: Canonical, raw: list[Array], level: str, target: Any
) -> list[Array]:
    """The outputs of a plan as raw storage, each of its kernels evaluated at `level`."""
    memory: list[Array] = []
    for buffer in plan.buffers:
        shape = _dims(buffer.shape, program.variables)
        count = int(np.prod(shape, dtype=np.int64))
        if buffer.kind == "param":
            data = raw[buffer.slot].view(storage_of(buffer.dtype))[:count].reshape(shape)
        else:
            data = np.zeros(shape, buffer.dtype.storage)
        memory.append(data)
    for step in plan.steps:
        arrays = {slot: memory[index] for slot, index in enumerate(step.buffers)}
        _run_kernel(step.kernel, arrays, dict(program.variables), level, target)
    return [memory[index] for index in plan.outputs]


def _run_kernel(
    kernel: Node, arrays: dict[int, Array], variables: dict[str, int], level: str, target: Any
) -> None:
    """Run one kernel over raw arrays, in place."""
    if level == "kernel":
        from baregrad.ir.evaluate.kernel_level import evaluate_kernel

        evaluate_kernel(kernel, arrays, variables)
        return
    from baregrad.kernel import lower, to_linear

    node = lower(kernel, target)
    if level == "loop":
        from baregrad.ir.evaluate.loop_level import evaluate_loop

        evaluate_loop(node, arrays, variables)
        return
    from baregrad.ir.evaluate.linear_level import evaluate_linear

    evaluate_linear(to_linear(node, target), arrays, variables)
