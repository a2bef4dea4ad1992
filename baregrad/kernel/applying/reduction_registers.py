"""The results of reductions as what comes after them reads them, known before their loops are made.

What reads a reduction is then written once: for the loop level at once, instead of for the kernel
level first. That is for kernels of plain reductions: of one state that is not narrowed, neither
staged nor scanned nor in pieces, and without guards, which ask what they guard.
"""

from __future__ import annotations

from functools import lru_cache

from baregrad.dtypes import DType
from baregrad.ir.core.attrs import Alloc
from baregrad.ir.core.node import Node, instruction
from baregrad.ir.core.op import Ops
from baregrad.kernel.facts.analysis import Facts, by_id
from baregrad.kernel.loops.loop_pieces import PLAIN, load, register_places, store

_ALLOC = Ops.ALLOC.bit


class ReductionResults:
    """The register arrays of the results of REDUCEs, and what is read of them.

    reads: the LOAD of each REDUCE's result. reductions: the REDUCE of each such LOAD. count: of the
    arrays: where lanes are folded, the number before a result's is left to what is folded.
    """

    def __init__(self) -> None:
        self.reads: dict[Node, Node] = {}
        self.reductions: dict[Node, Node] = {}
        self.count = 0
        self._below: dict[Node, tuple[Node, ...]] = {}

    def stores(self) -> list[Node]:
        """The STORE of each REDUCE's result, as `results_of` reads them."""
        return [store(read.src[0], node, read.src[1:]) for node, read in self.reads.items()]

    def read(self, reduction: Node) -> Node:
        """What reads the result of a REDUCE whose axes are final."""
        found = self.reads.get(reduction)
        if found is None:
            tiles = register_places(by_id({a for a in reduction.ranges if a.arg.is_tile}))
            lanes = [axis for axis in reduction.src[1:] if axis.arg.is_tile]
            self.count += 2 if lanes else 1
            array = register_array(self.count, reduction.dtype, tiles)
            found = self.reads[reduction] = load(array, tiles)
            self.reductions[found] = reduction
        return found

    def lanes_of(self, reduction: Node, places: tuple[Node, ...]) -> Node:
        """The array whose lanes are folded into the result of a REDUCE."""
        number = self.reads[reduction].src[0].arg.id - 1
        return register_array(number, reduction.dtype, places)

    def below(self, roots: tuple[Node, ...]) -> tuple[Node, ...]:
        """Every REDUCE that `roots` read the results of, and those that these need, first."""
        found: dict[Node, None] = {}
        for root in roots:
            if root.mask & _ALLOC:
                found.update(dict.fromkeys(self._needed(root)))
        return tuple(found)

    def _needed(self, root: Node) -> tuple[Node, ...]:
        known = self._below.get(root)
        if known is None:
            found: dict[Node, None] = {}
            seen: set[Node] = set()
            stack = [root]
            while stack:
                node = stack.pop()
                if node in seen:
                    continue
                seen.add(node)
                reduction = self.reductions.get(node)
                if reduction is None:
                    stack.extend([one for one in node.src[::-1] if one.mask & _ALLOC])
                    continue
                value = reduction.src[0]
                if value.mask & _ALLOC:
                    found.update(dict.fromkeys(self._needed(value)))
                found[reduction] = None
            known = self._below[root] = tuple(found)
        return known


def results_of(kernel: Node) -> ReductionResults:
    """The results that a KERNEL has STOREs of, beside its OUTs."""
    found = ReductionResults()
    for each in kernel.src:
        if each.op is Ops.STORE:
            array, reduction, *places = each.src
            read = found.reads[reduction] = load(array, tuple(places))
            found.reductions[read] = reduction
            found.count = array.arg.id
    return found


def register_array(number: int, dtype: DType, places: tuple[Node, ...]) -> Node:
    """An array of the kernel's own, as long as some tile axes."""
    return in_registers(number, dtype, tuple([int(axis.src[0].arg) for axis in places]))


@lru_cache(1 << 10)
def in_registers(number: int, dtype: DType, shape: tuple[int, ...]) -> Node:
    """The `number`-th array of a kernel: those of kernels are alike."""
    where = Alloc(number, "register", shape, name=f"a{number}")
    return instruction(Ops.ALLOC, dtype, (), where, shape)


_ELSEWHERE = Ops.GUARD.bit | Ops.SCAN.bit | Ops.STAGE.bit | Ops.PROJ.bit


def are_plain(facts: Facts) -> bool:
    """Whether the results of a kernel's reductions are known before their loops are made."""
    for out in facts.outs:
        if out.mask & _ELSEWHERE or out.arg.monoid is not None:
            return False
    for reduction in facts.reductions:
        node = reduction.node
        if node.arg.monoid.primitive is None or node.dtype not in PLAIN:
            return False
    return bool(facts.reductions)
