"""Kernels that multiply a few rows by packed weights whose fields lie apart, for the tests."""

from __future__ import annotations

from baregrad import Tensor, dtypes, variable
from baregrad.base.options import options
from baregrad.graph import canonicalise
from baregrad.io.gguf import PackedWeight, by_name
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.schedule import make_plan
from tests.graph.streams.test_passes import graph_of
from tests.kernel.gpu_kernels import HOPPER


def packed_product(
    name: str, rows: int, out: int, width: int, dtype: object = dtypes.float32, *,
    symbolic: bool = False, least: int = 1,
) -> Node:  # fmt: skip
    """The kernel of `rows` vectors of `width` times `out` rows of a type, as a GPU runs it.

    The first one, where a sum is made of parts. symbolic: of as many vectors, or fewer, `least` at
    least.
    """
    row = by_name(name)
    with options.override(device="NULL", cache=False):
        packed = Tensor.zeros(out, row.row_nbytes(width), dtype=dtypes.uint8).contiguous()
        weight = PackedWeight(row, (out, width), packed).in_planes()
        x = Tensor.ones(rows, width, dtype=dtype).contiguous().realize()
        read = x[: variable("rows", least, rows)] if symbolic else x
        sink = graph_of(weight.linear(read), [x])
    plan = make_plan(canonicalise(sink, None, HOPPER), target=HOPPER)
    return next(kernel for kernel in plan.kernels if kernel.has(Ops.REDUCE))


def unpacked(name: str, out: int, width: int) -> Node:
    """The kernel that stores the numbers of a packed matrix as bfloat16."""
    row = by_name(name)
    with options.override(device="NULL", cache=False):
        packed = Tensor.zeros(out, row.row_nbytes(width), dtype=dtypes.uint8).contiguous()
        weight = PackedWeight(row, (out, width), packed).in_planes()
        sink = graph_of(weight.dense(dtypes.bfloat16), [])
    (kernel,) = make_plan(canonicalise(sink, None, HOPPER), target=HOPPER).kernels
    return kernel
