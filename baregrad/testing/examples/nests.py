"""Small kernels, and what a schedule makes of their loops: the examples of docs/schedules.md."""

from __future__ import annotations

from typing import Any

import numpy as np

from baregrad.base.errors import CompilerBug
from baregrad.dtypes import dtypes, encode
from baregrad.ir.analysis.outline import outline
from baregrad.ir.analysis.stream import stream
from baregrad.ir.core import index
from baregrad.ir.core.attrs import KernelInfo, Out, Reduce
from baregrad.ir.core.monoid import primitive
from baregrad.ir.core.node import Node, alu, cast, const, range_node, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.kernel_level import evaluate_kernel
from baregrad.ir.evaluate.loop_level import evaluate_loop
from baregrad.kernel import Schedule, lower
from baregrad.kernel.language.schedule import Step
from baregrad.target import AnyTarget
from baregrad.testing.examples.levels import contracted, example_target, kernel_of, param


def negated(m: int, n: int) -> Node:
    """p0[i0, i1] = -p1[i0, i1]."""
    return kernel_of(Node(Ops.NEG, dtypes.float32, (param(1, m, n),)))


def row_sums(m: int, n: int) -> Node:
    """p0[i0] = sum of p1[i0, r1] over r1."""
    total = Reduce(primitive(Ops.ADD, dtypes.float32), (1,))
    return kernel_of(Node(Ops.REDUCE, dtypes.float32, (param(1, m, n),), total))


def row_shares(m: int, n: int) -> Node:
    """p0[i0, i1] = p1[i0, i1] over the sum of p1[i0, r2] over r2."""
    x = param(1, m, n)
    total = Node(Ops.REDUCE, dtypes.float32, (x,), Reduce(primitive(Ops.ADD, dtypes.float32), (1,)))
    column = Node(Ops.RESHAPE, dtypes.float32, (total,), (m, 1))
    wide = Node(Ops.EXPAND, dtypes.float32, (column,), (m, n))
    return kernel_of(Node(Ops.DIV, dtypes.float32, (x, wide)))


def product(m: int, n: int, k: int) -> Node:
    """p0[i0, i1] = sum of p1[i0, r2] * p2[i1, r2] over r2."""
    return kernel_of(contracted(param(1, m, k), param(2, n, k)))


def product_negated(m: int, n: int, k: int) -> Node:
    """The product with another sign: something that comes after the sum."""
    found = contracted(param(1, m, k), param(2, n, k))
    return kernel_of(Node(Ops.NEG, dtypes.float32, (found,)))


def byte_product(m: int, n: int, k: int) -> Node:
    """The product of two arrays of int8, summed as int32."""
    a, b = param(1, m, k, dtype=dtypes.int8), param(2, n, k, dtype=dtypes.int8)
    return kernel_of(contracted(a, b, dtypes.int32))


def brain_product(m: int, n: int, k: int) -> Node:
    """The product of two arrays of bfloat16, summed as float32."""
    a, b = param(1, m, k, dtype=dtypes.bfloat16), param(2, n, k, dtype=dtypes.bfloat16)
    return kernel_of(contracted(a, b))


def half_product(m: int, n: int, k: int) -> Node:
    """The product of two arrays of float16, summed as float32."""
    a, b = param(1, m, k, dtype=dtypes.float16), param(2, n, k, dtype=dtypes.float16)
    return kernel_of(contracted(a, b))


def attended(
    rows: int, keys: int, width: int, causal: bool = False, factor: float | None = None
) -> Node:
    """p0[i0, i1] = softmax(p1 @ p2.T) @ p3 of float16, by powers of 2: one stream over r2.

    causal: row i sees the first i + 1 keys. factor: what scores are multiplied by.
    """
    i, d, j, c = (range_node(size, place) for place, size in enumerate((rows, width, keys, width)))
    half, single = dtypes.float16, dtypes.float32

    def read(slot: int, size: int, place: Node, along: Node) -> Node:
        array = param(slot, size, width, dtype=half)
        return cast(Node(Ops.INDEX, half, (array, place, along)), single)

    score = alu(Ops.MUL, read(1, rows, i, c), read(2, keys, j, c))
    x = Node(Ops.REDUCE, single, (score, c), Reduce(primitive(Ops.ADD, single)))
    if factor is not None:
        x = alu(Ops.MUL, x, const(factor, single))
    if causal:
        x = alu(Ops.WHERE, index.less(i, j), const(float("-inf"), single), x)
    whole = Node(Ops.CEIL, single, (x,))
    power = Node(Ops.EXP2_NEAR, single, (alu(Ops.SUB, x, whole),))
    weight = cast(cast(power, half), single)
    value = alu(Ops.MUL, weight, read(3, keys, j, d))
    fold = Node(Ops.REDUCE, single, (whole, weight, value, j), Reduce(stream(single, 2, Ops.EXP2)))
    total, summed = (Node(Ops.PROJ, single, (fold,), part) for part in (1, 2))
    result = alu(Ops.DIV, summed, total)
    out = Node(Ops.OUT, dtypes.token, (param(0, rows, width), result, i, d), Out())
    return Node(Ops.KERNEL, dtypes.token, (out,), KernelInfo("attended"))


def rounded_product(m: int, n: int, k: int) -> Node:
    """The product of an array of float32, rounded to float16, and one of float16, as float32."""
    i, j, r = range_node(m, 0), range_node(n, 1), range_node(k, 2)
    half, single = dtypes.float16, dtypes.float32
    left = cast(Node(Ops.INDEX, single, (param(1, m, k), i, r)), half)
    right = Node(Ops.INDEX, half, (param(2, n, k, dtype=half), j, r))
    value = alu(Ops.MUL, cast(left, single), cast(right, single))
    total = Node(Ops.REDUCE, single, (value, r), Reduce(primitive(Ops.ADD, single)))
    out = Node(Ops.OUT, dtypes.token, (param(0, m, n), total, i, j), Out())
    return Node(Ops.KERNEL, dtypes.token, (out,), KernelInfo("rounded"))


def smoothed(n: int, taps: int) -> Node:
    """p0[i0, i1] = sum of p1[i1 + r2 - taps//2] * p2[i0, r2] over r2; p1 has zeros around it."""
    f, i, r = range_node(4, 0), range_node(n, 1), range_node(taps, 2)
    place = index.as_node(index.sub(index.add(i, r), taps // 2))
    value = Node(Ops.INDEX, dtypes.float32, (param(1, n), place))
    padded = Node(Ops.GUARD, dtypes.float32, (index.inside(place, n), value))
    tap = Node(Ops.INDEX, dtypes.float32, (param(2, 4, taps), f, r))
    product = Node(Ops.MUL, dtypes.float32, (padded, tap))
    how = Reduce(primitive(Ops.ADD, dtypes.float32))
    total = Node(Ops.REDUCE, dtypes.float32, (product, r), how)
    out = Node(Ops.OUT, dtypes.token, (param(0, 4, n), total, f, i), Out())
    return Node(Ops.KERNEL, dtypes.token, (out,), KernelInfo("smoothed"))


def nest(kernel: Node, *steps: Step, target: AnyTarget | None = None) -> None:
    """Print the loops of a kernel under a schedule, having compared what they compute.

    Raises ScheduleError where a step is not legal, CompilerBug where the loops compute something
    else than the kernel does without a schedule.
    """
    loop = lower(kernel, target or example_target(), Schedule(steps))
    arrays = _arguments(kernel)
    wanted = {slot: np.array(array) for slot, array in arrays.items()}
    evaluate_kernel(kernel, wanted)
    evaluate_loop(loop, [arrays[slot] for slot in sorted(arrays)])
    for slot, array in wanted.items():
        if not np.allclose(arrays[slot], array, rtol=1e-4, atol=1e-5):
            raise CompilerBug(f"the loops of {Schedule(steps)} compute something else")
    print(outline(loop))


def _arguments(kernel: Node) -> dict[int, Any]:
    random = np.random.default_rng(0)
    found = {}
    for node in toposort(kernel):
        if node.op is Ops.PARAM:
            values = random.standard_normal(node.arg.shape)
            # What NumPy has no dtype for is stored as codes.
            plain = node.dtype.numpy
            found[node.arg.slot] = (
                encode(values, node.dtype) if plain is None else values.astype(plain)
            )
    return found
