"""The schedule of a kernel with reductions in the making: the largest one decides."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from baregrad.ir.core import index
from baregrad.ir.core.node import Node, toposort, toposort_having
from baregrad.ir.core.op import Ops
from baregrad.kernel.facts.analysis import ArrayAccess, Reduction, reads_in
from baregrad.kernel.language.schedule import Split
from baregrad.kernel.planning.common.tiling import CpuPlan, PlannedAxis

# What a step costs beside its products and loads: the loop, and what does not overlap.
STEP_CYCLES = 0.5
# For broadcasts under way: with one alone, LLVM spills accumulators.
SPARE_REGISTERS = 2
_READ = Ops.INDEX.bit
_LOOPS = Ops.REDUCE.bit | Ops.STAGE.bit


@dataclass(slots=True)
class SumPlan(CpuPlan):
    """A plan of which `main` is the largest reduction, and `reads` what that reads."""

    main: Reduction = field(init=False)
    reads: list[ArrayAccess] = field(init=False)

    def __post_init__(self) -> None:
        CpuPlan.__post_init__(self)
        points = self.facts.points
        self.main = max(self.facts.reductions, key=lambda r: points(r.free.union(r.own)))
        self.reads = accesses_below(self.main.node)

    @property
    def registers(self) -> int:
        """The registers that each state of the main reduction may have."""
        return self.target.vector_registers // len(self.main.node.arg.monoid.states)

    def lanes_of(self, node: Node) -> int:
        """The lanes of a register of a reduction's sums; the kernel's where order does not count.

        Floats are added in an order that depends on nothing but their own dtype and number, so
        that what is moved beside them, as numbers of columns of 8 bytes, makes no difference.
        """
        if not counts_order(node):
            return self.lanes
        states = node.arg.monoid.states
        return max(self.target.lanes(max(4, *[dtype.itemsize for dtype in states])), 2)

    def cycles(self, products: int, loads: int, held: int) -> float:
        """Cycles of one step of a tile; infinite if it does not fit the registers."""
        if products + held + SPARE_REGISTERS > self.registers:
            return float("inf")
        target = self.target
        bound = max(products / target.fma_per_cycle, loads / target.loads_per_cycle)
        return max(bound, target.fma_latency) + STEP_CYCLES

    def own(self) -> list[PlannedAxis]:
        """The axes that the main reduction folds, but those of one element."""
        return [axis for axis in self.axes if axis.inside(self.main.own) and axis.size > 1]

    def reused(self, reads: Iterable[ArrayAccess], lane: PlannedAxis) -> list[PlannedAxis]:
        """The axes of the main reduction's results, but `lane`, along which a read stands still."""
        return [
            axis
            for axis in self.axes
            if axis is not lane
            and axis.inside(self.main.free)
            and axis.size > 1
            and any(axis.stride(access) == 0 for access in reads)
        ]


def cut_rows(
    plan: CpuPlan, axis: PlannedAxis, block: int, spread: Callable[[PlannedAxis], None]
) -> PlannedAxis:
    """Cut an axis into blocks, and `spread` the rows of one, and what is left; the blocks' loop."""
    outer, inner, rest = f"{axis.name}b", f"{axis.name}r", f"{axis.name}s"
    left = index.mod(axis.extent, block)
    plan.steps.append(Split(axis.name, ((outer, 0), (inner, block)), rest if left != 0 else ""))
    # One trip as far as sharing goes: threads share what is kept, or each would make all of it.
    found = PlannedAxis(outer, 1, axis.nodes, False, 1, [(outer, 1)], planned=True)
    axis.planned, axis.loops = True, []
    for name, extent in ((inner, block), (rest, left)) if left != 0 else ((inner, block),):
        size = extent if isinstance(extent, int) else block
        part = PlannedAxis(name, extent, axis.nodes, False, size)
        spread(part)
        axis.loops += part.loops
        axis.tiles += part.tiles
    return found


Parts = tuple[tuple[int, int], ...]


def cycles_of_tiles(
    lanes: Parts, steps: Parts, cycles: Callable[[int, int], float], width: int = 1
) -> float:
    """Cycles of all tiles of two axes that are made of such parts, a step being `width` wide."""
    total = 0.0
    for vectors, times in lanes:
        for each, repeats in steps:
            total += times * repeats * cycles(vectors, each * width)
    return total


def counts_order(node: Node) -> bool:
    """Whether the bits of a reduction depend on the order in which its elements are taken."""
    monoid = node.arg.monoid
    ordered = monoid.primitive in (None, Ops.ADD, Ops.MUL)
    return ordered and all(dtype.is_float for dtype in monoid.states)


def accesses_below(node: Node) -> list[ArrayAccess]:
    """The array reads in a reduction's values, without those of loops inside it."""
    values = tuple([child for child in node.src if child.op is not Ops.RANGE])
    # Addresses read no arrays but where one is looked up in another.
    if any(value.mask & _LOOPS for value in values):
        order = toposort(*values, enter=lambda n: bool(n.mask & _READ) and not n.op.bit & _LOOPS)
    else:
        order = toposort_having(_READ, *values)
    return reads_in(order)
