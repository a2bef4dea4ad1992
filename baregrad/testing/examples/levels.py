"""What the worked examples share: the four levels of one kernel, and short words to write them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from baregrad.dtypes import DType, dtypes
from baregrad.graph import canonicalise
from baregrad.ir.core import index
from baregrad.ir.core.attrs import KernelInfo, Out, Param, Reduce
from baregrad.ir.core.index import Dim
from baregrad.ir.core.monoid import primitive
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Op, Ops
from baregrad.ir.verify.verify import verify
from baregrad.kernel import Schedule, lower, to_linear
from baregrad.schedule import Launch, make_plan
from baregrad.target.cpu import CpuTarget, cpu_row_named


@dataclass(frozen=True, slots=True)
class Levels:
    """One kernel at the four levels; `schedule` is the text of what was decided by hand."""

    name: str
    tensor: Node
    kernel: Node
    schedule: str
    loop: Node
    linear: Node

    def verify(self) -> None:
        """Check each level against its grammar; raises VerifyError."""
        verify(self.tensor, "tensor")
        verify(self.kernel, "kernel")
        verify(self.loop, "loop")
        verify(self.linear, "linear")


def example_target() -> CpuTarget:
    """The CPU row for which the examples are lowered: 16 float32 in a vector, products of words."""
    row = cpu_row_named("x86-64-avx512")
    return replace(row, features=(*row.features, "avx512vnni", "avx512bf16"))


def param(slot: int, *shape: int, dtype: DType = dtypes.float32, name: str = "") -> Node:
    """The argument array `slot`."""
    return Node(Ops.PARAM, dtype, (), Param(slot, shape, name))


def at(array: Node, *indices: Dim) -> Node:
    """One element of an array at the kernel level."""
    return Node(Ops.INDEX, array.dtype, (array, *map(index.as_node, indices)))


def out(array: Node, value: Node, *indices: Dim) -> Node:
    """A write of the kernel level."""
    places = tuple(map(index.as_node, indices))
    return Node(Ops.OUT, dtypes.token, (array, value, *places), Out())


def fold(op: Op, value: Node, *axes: Node) -> Node:
    """A reduction of the kernel level by one op."""
    return Node(Ops.REDUCE, value.dtype, (value, *axes), Reduce(primitive(op, value.dtype)))


def kernel(name: str, *outs: Node) -> Node:
    """A KERNEL of the kernel level."""
    return Node(Ops.KERNEL, dtypes.token, outs, KernelInfo(name))


def kernel_of(tensor: Node) -> Node:
    """The one kernel that the graph and schedule rooms make of a tensor-level value."""
    plan = make_plan(canonicalise(Node(Ops.SINK, dtypes.token, (tensor,))))
    (launch,) = (step for step in plan.steps if isinstance(step, Launch))
    return launch.kernel


def lowered(name: str, tensor: Node, kernel_level: Node, schedule: Schedule) -> Levels:
    """The levels below a kernel, by the CPU's own passes under a schedule given by hand."""
    target = example_target()
    loop = lower(kernel_level, target, schedule)
    linear = to_linear(loop, target)
    return Levels(name, tensor, kernel_level, str(schedule), loop, linear)


# --- tensor level --------------------------------------------------------------------------------


def reduced(op: Op, value: Node, axis: int) -> Node:
    """A reduction of the tensor level that keeps its axis, with extent 1."""
    folded = Node(Ops.REDUCE, value.dtype, (value,), Reduce(primitive(op, value.dtype), (axis,)))
    shape: tuple[Any, ...] = (*value.shape[:axis], 1, *value.shape[axis + 1 :])
    return Node(Ops.RESHAPE, value.dtype, (folded,), shape)


def expanded(value: Node, *shape: int) -> Node:
    """Axes of extent 1 repeated."""
    return Node(Ops.EXPAND, value.dtype, (value,), shape)


def reshaped(value: Node, *shape: int) -> Node:
    """A new shape, row-major order."""
    return Node(Ops.RESHAPE, value.dtype, (value,), shape)


def contracted(a: Node, b: Node, wide: DType = dtypes.float32) -> Node:
    """(M, K), (N, K) -> (M, N): the sum over k of a[m, k] * b[n, k], in the dtype `wide`."""
    (m, k), (n, _) = a.shape, b.shape
    left = expanded(reshaped(a, m, 1, k), m, n, k)
    right = expanded(reshaped(b, 1, n, k), m, n, k)
    if a.dtype is not wide:
        left = Node(Ops.CAST, wide, (left,))
        right = Node(Ops.CAST, wide, (right,))
    product = Node(Ops.MUL, wide, (left, right))
    return Node(Ops.REDUCE, wide, (product,), Reduce(primitive(Ops.ADD, wide), (2,)))
