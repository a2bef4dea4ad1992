"""Loop-level kernels for the tests of linearisation, and what is asked of their instructions."""

from __future__ import annotations

from typing import Any

import numpy as np

from baregrad.ir.core import index
from baregrad.ir.core.node import Node, const, range_node
from baregrad.ir.core.op import Ops
from baregrad.kernel import codegen_passes, lower, parse_schedule
from tests.kernel.gpu_kernels import HOPPER
from tests.render.harness import (
    F32,
    alloc,
    kernel,
    load,
    loop,
    param,
    store,
    unroll,
    vector,
)

ROUTES = ("loop", "linear", "llvm", "c")
ONE = const(1.0, F32)


def data(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def zeros(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


def instructions(program: Node, op: Any) -> list[Node]:
    return [node for node in program.src if node.op is op]


def inside_loops(program: Node) -> list[tuple[int, Node]]:
    """Each instruction with the number of loops around it."""
    depth = 0
    opened: list[bool] = []
    found = []
    for node in program.src:
        if node.op is Ops.END:
            depth -= opened.pop()
        found.append((depth, node))
        if node.op is Ops.BEGIN or node.op is Ops.TEST:
            opened.append(node.op is Ops.BEGIN)
            depth += opened[-1]
    return found


def matmul(m: int, n: int, k: int, rows: int, columns: int, lanes: int) -> Node:
    """A register tile of rows x (columns * lanes) accumulators."""
    a, b, c = param(1, m, k), param(2, k, n), param(0, m, n)
    i, j, r = range_node(m // rows, 0), range_node(n // (columns * lanes), 1), range_node(k, 2)
    u, w, v = unroll(rows, 3), unroll(columns, 4), vector(lanes, 5)
    row = index.add(index.mul(i, rows), u)
    column = index.total((index.mul(j, columns * lanes), index.mul(w, lanes), v))
    acc = alloc(0, rows, columns, lanes)
    step = Node(Ops.FMA, F32, (load(a, row, r), load(b, r, column), load(acc, u, w, v)))
    body = (
        store(acc, const(0.0, F32), u, w, v),
        loop(r, store(acc, step, u, w, v)),
        store(c, load(acc, u, w, v), row, column),
    )
    return kernel(loop(i, loop(j, *body)), name="matmul")


def thread_level(kernel: Node, schedule: str) -> Node:
    """What one thread of a block runs, at the loop level, before it is instructions."""
    node = lower(kernel, HOPPER, parse_schedule(schedule))
    for item in codegen_passes(HOPPER):
        if item.name == "linearise":
            break
        node = item.run(node)
    return node


def machines(program: Node, name: str) -> list[Node]:
    """The machine instructions of a name, in order."""
    return [one for one in program.src if one.op is Ops.MACHINE and one.arg.name == name]
