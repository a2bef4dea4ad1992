"""Kernels that multiply a few rows by packed weights whose fields lie apart, for the tests."""

from __future__ import annotations

from baregrad import Tensor, dtypes
from baregrad.base.options import options
from baregrad.engine.session import Session, use_session
from baregrad.io.gguf import PackedWeight, by_name
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops


def packed_product(
    name: str, rows: int, out: int, width: int, dtype: object = dtypes.float32
) -> Node:
    """The kernel of `rows` vectors of `width` times `out` rows of a type, as a GPU runs it."""
    row = by_name(name)
    kernels: list[Node] = []
    with use_session(Session()) as session, options.override(device="NULL", cache=False):
        packed = Tensor.zeros(out, row.row_nbytes(width), dtype=dtypes.uint8).contiguous()
        weight = PackedWeight(row, (out, width), packed).in_planes()
        x = Tensor.ones(rows, width, dtype=dtype).contiguous().realize()
        session.watching.observers.append(
            lambda run: kernels.extend(one.kernel for one in run.executable.plan.steps)
        )
        weight.linear(x).realize()
        session.close()
    (found,) = [kernel for kernel in kernels if kernel.has(Ops.REDUCE)]
    return found
