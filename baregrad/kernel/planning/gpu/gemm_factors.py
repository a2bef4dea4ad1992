"""The factors of a contraction, for the planners of its tiles on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from baregrad.ir.core import index
from baregrad.ir.core.node import Node, extent_of, toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel.facts.analysis import (
    ArrayAccess,
    Reduction,
    in_bounds,
    is_read,
    out_axes,
    reads_in,
)
from baregrad.kernel.gpu.boxes import is_rounded
from baregrad.kernel.instructions.instruction import scaled_bits, scaled_product
from baregrad.kernel.planning.gpu.gpu_plan import GpuPlan

_FOLDED = (Ops.REDUCE, Ops.SCAN, Ops.STAGE)
# How much smaller each of the sizes is that a plan for symbolic ones is judged by.
SHARE = 8
# How many times as long as its sides a product is whose sums may be cut between blocks,
# as `partials_gpu.py` has it: results of others do not hang on how many rows there are.
DEEP = 5
# Rows, columns, steps, products.
Sizes = tuple[int, int, int, int]


@dataclass(eq=False, slots=True)
class Factor:
    """A factor of a product: its place in it, its value, its axes, and the reads it is made of.

    Those that tell where others read are among them.
    """

    place: int
    value: Node
    axes: frozenset[Node]
    reads: list[ArrayAccess]

    @property
    def element(self) -> ArrayAccess | None:
        """The read that a plain or rounded factor is; the others say where it reads."""
        node = self._inside
        node = node.src[0] if is_rounded(node) else node
        return next((read for read in self.reads if read.read is node), None)

    @property
    def _inside(self) -> Node:
        """What is cast and guarded at most."""
        value = self.value.src[0] if self.value.op is Ops.CAST else self.value
        return value.src[1] if value.op is Ops.GUARD else value

    @property
    def is_plain(self) -> bool:
        """Whether it is an element of an array, cast once and guarded at most."""
        return is_read(self._inside)

    @property
    def is_rounded(self) -> bool:
        """Whether it is an element of an array of float32, rounded to tfloat32."""
        return is_rounded(self._inside) and is_read(self._inside.src[0])

    @property
    def slot(self) -> int:
        """The argument that a plain factor is an element of."""
        element = self.element
        assert element is not None
        slot: int = element.array.arg.slot
        return slot


@dataclass(eq=False, slots=True)
class GemmFactors:
    """The factors of a product, and its axes: of the one alone, of the other, of both, summed.

    scale: what sums of whole panels are multiplied by before they are added up, if anything.
    """

    left: Factor
    right: Factor
    rows: list[Node]
    columns: list[Node]
    shared: list[Node]
    depth: list[Node]
    scale: Node | None = None

    def sizes(self, share: int = 1) -> Sizes:
        """Rows, columns, steps, and how many such products there are.

        At most, and where extents are symbolic, with one part in `share` of their bounds.
        """
        axes = (self.rows, self.columns, self.depth, self.shared)
        m, n, k, outside = (prod([_extent(axis, share) for axis in each]) for each in axes)
        return m, n, k, outside

    @property
    def may_cut(self) -> bool:
        """Whether sums may be cut by how many tiles there are, in which other rows have a say.

        Those may that are as deep as the gradients of weights are, and no batch's rows; nor where
        sizes are not known.
        """
        axes = (*self.rows, *self.columns, *self.depth, *self.shared)
        m, n, k, _ = self.sizes()
        is_known = all(isinstance(extent_of(axis), int) for axis in axes)
        return is_known and k >= DEEP * max(m, n)

    def all_sizes(self) -> list[Sizes]:
        """The sizes that a plan is judged by: the most, with a share of the bounds, and so on."""
        found = [self.sizes()]
        share = SHARE
        while (sizes := self.sizes(share)) != found[-1]:
            found.append(sizes)
            share *= SHARE
        return found


def _extent(axis: Node, share: int) -> int:
    """The points of an axis: of a symbolic one so small a share of those that it may have."""
    extent = extent_of(axis)
    if isinstance(extent, int):
        return extent
    return max(-(-index.upper(extent) // share), index.lower(extent), 1)


def gemm_factors(plan: GpuPlan) -> GemmFactors | None:
    """The factors of a kernel that is one sum of products, at all places of all its outputs."""
    facts = plan.facts
    if len(facts.reductions) != 1:
        return None
    reduction = facts.reductions[0]
    bits = scaled_bits(plan.target)
    factors = _factors(reduction, bits)
    if factors is None:
        return None
    every = frozenset(facts.data)
    if every != reduction.free or any(out_axes(out) != every for out in facts.outs):
        return None
    left, right = factors
    data = [axis for axis in facts.data if extent_of(axis) != 1]
    shared = [axis for axis in data if axis in left.axes and axis in right.axes]
    rows = [axis for axis in data if axis in left.axes and axis not in right.axes]
    columns = [axis for axis in data if axis not in left.axes]
    depth = [axis for axis in reduction.own if extent_of(axis) != 1]
    if not all(axis in factor.axes for axis in depth for factor in factors):
        return None
    if not rows or not columns or not depth:
        return None
    if plan.by_stride([*rows, *columns], plan.write)[-1] in rows:
        left, right, rows, columns = right, left, columns, rows
    return GemmFactors(
        left, right, rows, columns, shared, depth, scaled_product(reduction.node, bits)[1]
    )


def _factors(reduction: Reduction, bits: int) -> tuple[Factor, Factor] | None:
    """The two factors whose product is summed, if each may be copied."""
    value = reduction.node.src[0]
    sums = reduction.node.arg.monoid.primitive is Ops.ADD
    if not sums or value.dtype.kind not in ("float", "int", "uint"):
        return None
    value, _ = scaled_product(reduction.node, bits)
    if value.op is not Ops.MUL:
        return None
    found = []
    for place, side in enumerate(value.src):
        reads = reads_in(toposort(side))
        if not reads or side.has(*_FOLDED) or not _stays_inside(side):
            return None
        found.append(Factor(place, side, side.ranges, reads))
    return found[0], found[1]


def _stays_inside(factor: Node) -> bool:
    """Whether what a factor reads is in its arrays, as far as no guard around it says so."""
    conditions = [node.src[0] for node in toposort(factor) if node.op is Ops.GUARD]
    free = toposort(factor, *conditions, enter=lambda node: node.op is not Ops.GUARD)
    return all(in_bounds(node) for node in free if is_read(node))
