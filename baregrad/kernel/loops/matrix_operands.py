"""Factors of 8-bit floats as the 16-bit floats that a matrix unit multiplies.

Every 8-bit float is a float16, and a bfloat16 as well, so products and sums stay as they are. What
is kept in shared memory is converted on its way there.
"""

from __future__ import annotations

from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.node import Node, rebuild, toposort
from baregrad.ir.core.op import Ops
from baregrad.target import AnyTarget

# Of which a machine has units, if it has any: steps of one instruction.
_DEPTH = 16


def fit_factors(kernel: Node, target: AnyTarget) -> Node:
    """`kernel` with factors of 8-bit floats, in sums of products, cast to 16-bit ones first."""
    if target.kind != "gpu" or (dtypes.float16.name, _DEPTH) not in target.warp_products:
        return kernel
    replaced: dict[Node, Node] = {}
    for node in toposort(kernel):
        if node.op is not Ops.REDUCE or node.arg.monoid.primitive is not Ops.ADD:
            continue
        product = node.src[0]
        if product.op is Ops.MUL and product.dtype is dtypes.float32:
            fitted = tuple(map(_fitted, product.src, reversed(product.src)))
            if fitted != product.src:
                replaced[product] = Node(Ops.MUL, product.dtype, fitted, product.arg)
    return rebuild(kernel, replaced.get) if replaced else kernel


def _fitted(factor: Node, other: Node) -> Node:
    """A factor, with a cast to the 16-bit dtype that suits both where it is an 8-bit float."""
    dtype, beside = _narrow(factor), _narrow(other)
    if dtype is None or beside is None or dtype.bits != 8:
        return factor
    middle = dtypes.float16 if beside.bits == 8 else beside
    narrow = Node(Ops.CAST, middle, factor.src)
    return Node(Ops.CAST, factor.dtype, (narrow,))


def _narrow(factor: Node) -> DType | None:
    """The dtype of at most 16 bits that a factor was widened from, None for none."""
    if factor.op is not Ops.CAST:
        return None
    dtype = factor.src[0].dtype
    return dtype if dtype.is_float and dtype.bits in (8, 16) else None
