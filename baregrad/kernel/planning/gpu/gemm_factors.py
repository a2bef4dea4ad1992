"""The factors of a contraction, for the planners of its tiles on a GPU."""

from __future__ import annotations

from typing import NamedTuple

from baregrad.ir.core.node import Node, extent_of
from baregrad.ir.core.op import Ops
from baregrad.kernel.facts.analysis import (
    ArrayAccess,
    Reduction,
    in_bounds,
    is_read,
    iterations,
    offset_of,
)
from baregrad.kernel.planning.gpu.gpu_plan import GpuPlan


class GemmFactors(NamedTuple):
    """The reads of a product, and its axes: of the one alone, of the other, of both, summed.

    All extents are constant.
    """

    left: ArrayAccess
    right: ArrayAccess
    rows: list[Node]
    columns: list[Node]
    shared: list[Node]
    depth: list[Node]

    def sizes(self) -> tuple[int, int, int, int]:
        """Rows, columns, steps, and how many such products there are."""
        axes = (self.rows, self.columns, self.depth, self.shared)
        m, n, k, outside = map(iterations, axes)
        return m, n, k, outside


def gemm_factors(plan: GpuPlan) -> GemmFactors | None:
    """The factors of a kernel that is one sum of products of two arrays' elements."""
    facts = plan.facts
    if len(facts.reductions) != 1 or len(facts.outs) != 1:
        return None
    reduction = facts.reductions[0]
    reads = _reads(reduction)
    if reads is None or reads[0].array is reads[1].array:
        return None
    axes = [*facts.data, *reduction.own]
    if not all(isinstance(extent_of(axis), int) for axis in axes):
        return None
    if not frozenset(facts.data) <= reduction.free:
        return None
    left, right = reads
    data = [axis for axis in facts.data if extent_of(axis) != 1]
    shared = [axis for axis in data if axis in left.axes and axis in right.axes]
    rows = [axis for axis in data if axis in left.axes and axis not in right.axes]
    columns = [axis for axis in data if axis not in left.axes]
    depth = [axis for axis in reduction.own if extent_of(axis) != 1]
    if not all(axis in read.axes for axis in depth for read in reads):
        return None
    if not rows or not columns or not depth:
        return None
    if plan.by_stride([*rows, *columns], plan.write)[-1] in rows:
        left, right, rows, columns = right, left, columns, rows
    return GemmFactors(left, right, rows, columns, shared, depth)


def _reads(reduction: Reduction) -> tuple[ArrayAccess, ArrayAccess] | None:
    """The two reads whose product is summed, if each may be copied."""
    value = reduction.node.src[0]
    sums = reduction.node.arg.monoid.primitive is Ops.ADD
    if not sums or value.dtype.kind not in ("float", "int", "uint"):
        return None
    while value.op in (Ops.CAST, Ops.GUARD):
        value = value.src[-1]
    if value.op is not Ops.MUL:
        return None
    found = []
    for side in value.src:
        while side.op is Ops.CAST:
            side = side.src[0]
        guard = side if side.op is Ops.GUARD else None
        read = side if guard is None else side.src[1]
        if not is_read(read) or (guard is None and not in_bounds(read)):
            return None
        if any(place.has(Ops.INDEX) for place in read.src[1:]):
            return None
        found.append(ArrayAccess(read.src[0], offset_of(read), side.ranges, False, guard))
    return found[0], found[1]
