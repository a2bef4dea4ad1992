"""The results of a stream: what is made of a row's states, by the warps that have the row.

Warps that share the keys of the same rows have a state each, of keys of their own. They leave them
in shared memory, and all threads of the block put them together, in the order of the warps: sums
are relative to the largest maximum then, as they are where parts of keys are stored.
"""

from __future__ import annotations

from functools import reduce

from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Alloc
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import Node, alu, extent_of, make_node, rebuild
from baregrad.ir.core.op import Ops
from baregrad.kernel.applying.stream_panels import axis_of, flat, whole, width_of
from baregrad.kernel.applying.stream_states import LOWEST, ZERO, RowStates
from baregrad.kernel.facts.stream_facts import StreamFacts
from baregrad.kernel.loops.loop_pieces import guarded, load, store

F32 = dtypes.float32
# Columns that a thread puts together at once, and by how many rows lie apart beside them: four rows
# of a warp's eight are in banks of their own.
TOGETHER, APART = 4, 8
# Names of arrays, beyond those of a stream's tiles.
FIRST_ARRAY = 60


def written(
    facts: StreamFacts, out: Node, states: list[Node], places: dict[Node, Node], there: Node
) -> Node:
    """What an OUT makes of the states, written where that is there.

    places: where a thread is along the kernel's axes.
    """
    places = dict(places)
    if len(facts.fold.src) == 2:
        places[facts.fold] = states[0]

    def visit(node: Node) -> Node | None:
        if node.op is Ops.PROJ and node.src[0] is facts.fold:
            number: int = node.arg
            return states[number]
        if node.op is Ops.INDEX:
            array, *indices = node.src
            place = index.flatten(indices, array.shape)
            return guarded(there, load(flat(array), whole((place,))))
        return index.resimplify(node)

    array, value, *indices = out.src
    if facts.column is not None and not any(facts.column in one.ranges for one in indices):
        there = index.both(there, index.less(places[facts.column], 1))
    found = rebuild(value, visit, memo=places, enter=lambda node: node is not facts.fold)
    at = [rebuild(place, visit, memo=places) for place in indices]
    done = store(flat(array), found, whole((index.flatten(at, array.shape),)))
    return _where(there, done)


class SharedStates:
    """Warps whose states are put together: their axis, a row's place, of so many, and lanes."""

    def __init__(
        self, states: RowStates, warp: Node, place: Dim, rows: int, lanes: Node
    ) -> None:
        self.states, self.warp, self.place, self.rows, self.lanes = states, warp, place, rows, lanes

    def results(
        self, states: list[Node], places: dict[Node, Node], start: Dim
    ) -> list[Node]:
        """All OUTs, of each warp's states; `start` is the first row of the block."""
        facts = self.states.facts
        assert facts.column is not None
        length: Dim = 1 if facts.row is None else extent_of(facts.row)
        rows, wide, warps = min(self.rows, index.upper(length)), width_of(facts.column), self._warps
        shapes = (warps, rows), (warps, rows), (warps, rows, wide + APART)
        arrays = [
            make_node(Ops.ALLOC, F32, (), Alloc(FIRST_ARRAY + n, "shared", shape, name=f"j{n}"))
            for n, shape in enumerate(shapes)
        ]
        column = places[facts.column]
        is_row, is_first = index.less(self.place, rows), index.less(column, 1)
        own = self.warp, index.as_node(self.place)
        both = index.both(is_row, is_first)
        left = [
            _where(both, store(arrays[0], states[0], own)),
            _where(both, store(arrays[1], states[1], own)),
            _where(is_row, store(arrays[2], states[2], (*own, column))),
        ]
        threads = warps * int(self.lanes.src[0].arg)
        count = rows * wide // TOGETHER
        near, each = axis_of(95, TOGETHER, "vector"), axis_of(96, -(-count // threads), "unroll")
        first = index.mul(self.warp, threads // warps)
        at = index.add(index.add(first, self.lanes), index.mul(each, threads))
        row = index.floordiv(at, wide // TOGETHER)
        columns = index.add(index.mul(index.mod(at, wide // TOGETHER), TOGETHER), near)
        whole_row = index.add(start, row)
        there = index.both(index.less(at, count), index.less(whole_row, length))
        places = {**places, facts.column: index.as_node(columns)}
        if facts.row is not None:
            places[facts.row] = index.as_node(whole_row)
        made = self._together(arrays, row, columns)
        return [*left, *[written(facts, out, made, places, there) for out in facts.kernel.src]]

    @property
    def _warps(self) -> int:
        return width_of(self.warp)

    def _together(self, arrays: list[Node], row: Dim, column: Dim) -> list[Node]:
        """The states of all warps, added up in order."""
        tops = [load(arrays[0], whole((warp, row))) for warp in range(self._warps)]
        top = reduce(lambda one, other: alu(Ops.MAX, one, other), tops)
        shift = alu(Ops.WHERE, alu(Ops.CMPEQ, top, LOWEST), ZERO, top)
        factors = [self.states.factor(one, shift) for one in tops]
        found = [top]
        for array, place in ((arrays[1], (row,)), (arrays[2], (row, column))):
            total = ZERO
            for warp, factor in enumerate(factors):
                total = Node(Ops.FMA, F32, (load(array, whole((warp, *place))), factor, total))
            found.append(total)
        return found


def _where(condition: Node, statement: Node) -> Node:
    if condition.op is Ops.CONST:
        return statement
    return make_node(Ops.IF, dtypes.token, (condition, statement))
