"""A factor that is dear to compute is computed once for all rows of a product, and kept.

The rows of x @ W.T all read the same row of W. Where its elements are computed, as numbers of
packed bytes are, each row would compute them anew; so a row of W is staged in scratch memory, which
the near caches hold, and the sums over all rows of x read it there. No memory outside holds W as
numbers.
"""

from __future__ import annotations

from baregrad.ir.core import index
from baregrad.ir.core.attrs import StageInfo
from baregrad.ir.core.node import Node, extent_of, range_node, rebuild, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.core.substitution import substitute
from baregrad.kernel.facts.analysis import EXPENSIVE, by_id, in_bounds, is_read, op_flops
from baregrad.kernel.loops.guards import covered_by_guards

# Operations of an element from which on keeping it pays.
LEAST_WORK = 5
# Elements of a row that the second cache holds beside what is read.
MOST_ELEMENTS = 1 << 16
LEAST_ELEMENTS = 32
_CLOSED = Ops.REDUCE.bit | Ops.STAGE.bit | Ops.SCAN.bit


def share_factors(kernel: Node) -> Node:
    """`kernel` with the dear factors of its sums of products staged."""
    if not kernel.has(Ops.REDUCE) or kernel.has(Ops.STAGE) or len(kernel.src) != 1:
        return kernel
    sums = [node for node in toposort(kernel) if node.op is Ops.REDUCE]
    if len(sums) != 1:
        return kernel
    (total,) = sums
    factor = dear_factor(total)
    if factor is None:
        return kernel
    own = by_id([child for child in total.src if child.op is Ops.RANGE])
    first = 1 + max(node.arg.id for node in toposort(kernel) if node.op is Ops.RANGE)
    fresh = [range_node(extent_of(axis), first + place) for place, axis in enumerate(own)]
    value = substitute(factor, dict(zip(own, fresh, strict=True)))
    stage = Node(Ops.STAGE, factor.dtype, (value, *fresh), StageInfo("scratch"))
    read = Node(Ops.INDEX, factor.dtype, (stage, *own))
    return rebuild(kernel, lambda node: None, memo={factor: read})


def dear_factor(total: Node) -> Node | None:
    """The factor of a sum's products that all rows of the other one would compute anew; or none."""
    if total.arg.monoid.primitive is not Ops.ADD or total.arg.monoid.arity != 1:
        return None
    own = [child for child in total.src if child.op is Ops.RANGE]
    count = index.product(extent_of(axis) for axis in own)
    if not isinstance(count, int) or not LEAST_ELEMENTS <= count <= MOST_ELEMENTS:
        return None
    product = total.src[0]
    if product.op is not Ops.MUL:
        return None
    for factor, other in (product.src, product.src[::-1]):
        rows = other.ranges - factor.ranges
        if not rows or not factor.ranges >= set(own) or factor.mask & _CLOSED:
            continue
        order = toposort(factor)
        # What is kept is computed ahead of its readers, where guards around them do not cover it.
        covered = covered_by_guards(order)
        is_safe = all(in_bounds(node) or node in covered for node in order if is_read(node))
        if is_safe and not any(node.op in EXPENSIVE for node in order):
            if _work(factor) >= LEAST_WORK:
                return factor
    return None


def _work(factor: Node) -> int:
    """Operations of a value, less those that say whether it is read: they stay at a kept one."""
    found, pending = {factor}, [factor]
    for node in pending:
        below = node.src[1:] if node.op is Ops.GUARD else node.src
        pending.extend([child for child in dict.fromkeys(below) if child not in found])
        found.update(below)
    return sum([op_flops(node) for node in found])
