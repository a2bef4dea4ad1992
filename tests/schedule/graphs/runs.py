"""Plans run kernel by kernel in the reference evaluator, and checked against their graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from baregrad.graph import canonicalise
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.kernel_level import evaluate_kernel
from baregrad.ir.evaluate.tensor_level import evaluate_all, resolve, to_array, to_raw
from baregrad.schedule import Plan, make_plan
from tests.schedule.graphs.by_hand import A, sink


def dims(shape: Sequence[Any], variables: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(e if isinstance(e, int) else resolve(e, variables) for e in shape)


def run_plan(
    plan: Plan, arrays: Mapping[int, np.ndarray], variables: Mapping[str, int] | None = None
) -> list[np.ndarray]:
    """The outputs of a plan, over an arena of real bytes, each kernel evaluated in turn."""
    variables = variables or {}
    arena = np.full(int(plan.arena_nbytes), 0xA5, np.uint8)
    memory: list[np.ndarray] = []
    for buffer in plan.buffers:
        shape = dims(buffer.shape, variables)
        storage = buffer.dtype.numpy or buffer.dtype.storage
        nbytes = int(np.prod(shape, dtype=np.int64)) * storage.itemsize
        if buffer.kind == "param":
            memory.append(np.array(arrays[buffer.slot]).reshape(shape))
        elif buffer.kind == "output":
            memory.append(np.full(nbytes, 0xA5, np.uint8).view(storage).reshape(shape))
        else:
            assert buffer.offset % 64 == 0
            assert buffer.offset + nbytes <= len(arena)
            place = arena[buffer.offset : buffer.offset + nbytes]
            memory.append(place.view(storage).reshape(shape))
    for step in plan.steps:
        slots = {slot: memory[place] for slot, place in enumerate(step.buffers)}
        evaluate_kernel(step.kernel, slots, variables)
    return [memory[place] for place in plan.outputs]


def check(
    outputs: Sequence[A],
    arrays: Mapping[int, np.ndarray] | None = None,
    variables: Mapping[str, int] | None = None,
    *,
    kernels: int | None = None,
    most: int | None = None,
    donate: Mapping[int, int] | None = None,
    canonical: bool = True,
    tolerance: float = 1e-4,
    target: Any = None,
) -> Plan:
    """Schedule, run, compare with the tensor-level evaluator; the number of kernels as expected."""
    root = sink(*outputs)
    graph = canonicalise(root, target=target) if canonical else root
    plan = make_plan(graph, donate=donate or {}, target=target)
    plan = plan.written_over([output for output, _ in plan.over])
    arrays = arrays if arrays is not None else random_inputs(root, variables)
    wanted = evaluate_all(root.src, {k: v.copy() for k, v in arrays.items()}, variables)
    found = run_plan(plan, arrays, variables)
    for got, want, node in zip(found, wanted, root.src, strict=True):
        got = to_array(got, node.dtype).reshape(want.shape)
        text = plan.explain()
        np.testing.assert_allclose(got, want, tolerance, tolerance, err_msg=text)
    count = len(plan.kernels)
    if kernels is not None:
        assert count == kernels, plan.explain()
    if most is not None:
        assert count <= most, plan.explain()
    return plan


def random_inputs(root: Node, variables: Mapping[str, int] | None = None) -> dict[int, np.ndarray]:
    """Small random arrays for every PARAM below `root`; integers are 0, 1 or 2."""
    rng = np.random.default_rng(7)
    found = {}
    for node in toposort(root):
        if node.op is Ops.PARAM:
            shape = dims(node.shape, variables or {})
            if node.dtype.kind == "float":
                data = rng.standard_normal(shape)
            else:
                data = rng.integers(0, 2 if node.dtype.kind == "bool" else 3, shape)
            found[node.arg.slot] = to_raw(np.asarray(data), node.dtype)
    return found


def contractions(plan: Plan) -> list[object]:
    return [k for k in plan.kernels if any(n.op is Ops.REDUCE for n in toposort(k))]


def largest_buffer(plan: Plan) -> int:
    return max(int(b.nbytes) for b in plan.buffers)
