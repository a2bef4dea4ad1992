"""Factors of floats of 8 and 4 bits as the 16-bit floats that a matrix unit multiplies.

Each of these is a float16, or where it has larger exponents a bfloat16, so products and sums stay
as they are. What
is kept in shared memory is converted on its way there. Where both lie along what is summed, groups
of warps multiply the 8-bit floats themselves, if the machine has such.
"""

from __future__ import annotations

from collections.abc import Sequence

from baregrad.dtypes import DType, dtypes
from baregrad.ir.algebra.casts import halves_for
from baregrad.ir.core import index
from baregrad.ir.core.node import Node, rebuild, toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel.facts.analysis import iterations
from baregrad.target import AnyTarget
from baregrad.target.gpu import GpuTarget

# Of which a machine has units, if it has any: steps of one instruction.
_DEPTH = 16
# Of groups of warps: steps of an instruction; rows and columns, and steps, that are worth it.
_STEPS, _LEAST_SIDE, _LEAST_DEPTH = 32, 64, 128
_UNITS_FLOATS = (dtypes.float8_e4m3fn, dtypes.float8_e5m2)


def fit_factors(kernel: Node, target: AnyTarget) -> Node:
    """`kernel` with factors of narrower floats, in sums of products, cast to 16-bit ones first."""
    if target.kind != "gpu" or (dtypes.float16.name, _DEPTH) not in target.warp_products:
        return kernel
    replaced: dict[Node, Node] = {}
    for node in toposort(kernel):
        if node.op is not Ops.REDUCE or node.arg.monoid.primitive is not Ops.ADD:
            continue
        product = node.src[0]
        if product.op is Ops.MUL and product.dtype is dtypes.float32 and not _suits(node, target):
            fitted = tuple(map(_fitted, product.src, reversed(product.src)))
            if fitted != product.src:
                replaced[product] = Node(Ops.MUL, product.dtype, fitted, product.arg)
    return rebuild(kernel, replaced.get) if replaced else kernel


def _suits(total: Node, target: GpuTarget) -> bool:
    """Whether groups of warps, or single ones, sum products of 8-bit floats as they lie."""
    product, *axes = total.src
    factors = product.src
    kinds = [_narrow(factor) for factor in factors]
    if any(kind not in _UNITS_FLOATS for kind in kinds) or kinds[0] is None:
        return False
    own = [factors[0].ranges - factors[1].ranges, factors[1].ranges - factors[0].ranges]
    least = min([iterations(each) for each in own])
    depth = iterations(axes)
    return (
        (
            target.multiplies_in_groups(kinds[0].name, _STEPS)
            or (kinds[0] is kinds[1] and (kinds[0].name, _STEPS) in target.warp_products)
        )
        and least >= _LEAST_SIDE and depth >= _LEAST_DEPTH and depth % _STEPS == 0
        and all(_lies_along(factor.src[0], axes) for factor in factors)
    )


def _lies_along(read: Node, axes: Sequence[Node]) -> bool:
    """Whether a factor is an element of an array that has some axis innermost."""
    read = read.src[1] if read.op is Ops.GUARD else read
    if read.op is not Ops.INDEX:
        return False
    terms, _ = index.flat_terms(read.src[1:], read.src[0].shape)
    return any(terms.get(axis) == 1 for axis in axes)


def _fitted(factor: Node, other: Node) -> Node:
    """A factor, with a cast to the 16-bit dtype that suits both where it is a narrower float."""
    dtype, beside = _narrow(factor), _narrow(other)
    if dtype is None or beside is None or dtype.bits == 16:
        return factor
    middle = halves_for(dtype, beside)
    if middle is None:
        return factor
    narrow = Node(Ops.CAST, middle, factor.src)
    return Node(Ops.CAST, factor.dtype, (narrow,))


def _narrow(factor: Node) -> DType | None:
    """The dtype of at most 16 bits that a factor was widened from, None for none."""
    if factor.op is not Ops.CAST:
        return None
    dtype = factor.src[0].dtype
    return dtype if dtype.is_float and dtype.bits <= 16 else None
