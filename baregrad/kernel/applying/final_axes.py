"""The original axes of a kernel in terms of the final ones that a schedule leaves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product

from baregrad.base.errors import CompilerBug
from baregrad.ir.core import index
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import Node, extent_of, range_node
from baregrad.kernel.applying.scope import Pieces, Scope, chunks_of, is_chunks
from baregrad.kernel.facts.analysis import by_id
from baregrad.kernel.facts.axis_table import Axis, AxisTable, Piece, Terms


class FinalAxes:
    """The final axes of a table as ranges, and what each original axis is a sum of.

    chunked: the parallel axis is a loop of chunks with one inside, as `scheduled` says. ranges: by
    name. chunk: the name of an axis that is cut into chunks, and the loop over those. grain: the
    iterations of a single loop that are a chunk. empty, dead: axes without any element, and those
    that are never more than 0.
    """

    def __init__(self, table: AxisTable, chunked: bool) -> None:
        self.table = table
        self.chunk: tuple[str, Node] | None = None
        self.grain = 1
        self.ranges: dict[str, Node] = {}
        self.empty: set[str] = set()
        self.dead: set[str] = set()
        for position, name in enumerate(table.order):
            axis = table.axes[name]
            if name in table.tensorized:
                self.ranges[name] = range_node(1, position, name)
                self.dead.add(name)
            elif axis.unit == "pool" and chunked:
                self.ranges[name] = self.pool_axis(axis, position)
            else:
                self.ranges[name] = range_node(axis.extent, position, name, axis.unit)
            if axis.extent == 0:
                self.empty.add(name)
            elif extent_of(self.ranges[name]) == 1:
                # So is the loop inside a chunk of one iteration.
                self.dead.add(name)
        # The parts of each original axis that are ever run.
        self.choices = {node: self.pieces(node) for node in table.names}
        # How many copies have had ids for their axes.
        self.taken = 0

    def pool_axis(self, axis: Axis, position: int) -> Node:
        """The loop that threads share, or that inside a chunk, whose own loop is noted."""
        table, name = self.table, axis.name
        if is_chunks(table, name):
            self.grain = table.grain
        elif table.grain > 1 or not isinstance(axis.extent, int) or name in table.staged:
            chunk, inner = chunks_of(axis, table.grain, position)
            self.chunk = (name, chunk)
            return inner
        return range_node(axis.extent, position, name, "pool")

    def pieces(self, node: Node) -> tuple[Piece, ...]:
        """The parts of an original axis that are ever run; at least one."""
        merged = self.table.merged.get(node)
        every = self.table.pieces[merged[0] if merged else self.table.names[node]]
        if self.empty:
            live = [p for p in every if not any(n in self.empty for n, _ in p.terms)]
            every = live or every[:1]
        return tuple(every)

    def combinations(self, axes: Sequence[Node]) -> Iterable[Pieces]:
        """Every choice of one piece per axis; axes that were collapsed choose together."""
        choices = self.choices
        if self.table.several and any(len(choices[node]) > 1 for node in axes):
            return self.products(axes)
        return ({node: choices[node][0] for node in axes},)

    def products(self, axes: Sequence[Node]) -> Iterable[Pieces]:
        """The choices where an axis has several pieces."""
        groups: dict[str, list[Node]] = {}
        for node in axes:
            merged = self.table.merged.get(node)
            groups.setdefault(merged[0] if merged else self.table.names[node], []).append(node)
        for chosen in product(*[self.choices[nodes[0]] for nodes in groups.values()]):
            pairs = zip(groups.values(), chosen, strict=True)
            yield {node: piece for nodes, piece in pairs for node in nodes}

    def value(self, node: Node, scope: Scope, extent: Dim | None = None) -> Node:
        """What an original axis is in terms of the final ones.

        extent: of it and of those around it in a collapsed axis, together, where they are one.
        """
        piece = scope.pieces.get(node)
        if piece is None:
            raise CompilerBug("an axis is used outside its scope", found=node)
        terms = dict(self.finals(node, scope))
        value: Dim
        if isinstance(piece.start, int):
            value = index.from_linear(terms, piece.start)
        else:
            value = index.total((index.from_linear(terms, 0), piece.start))
        if node in self.table.merged:
            _, stride, own = self.table.merged[node]
            value = index.mod(index.floordiv(value, stride), own if extent is None else extent)
        return index.as_node(value)

    def finals(self, node: Node, scope: Scope) -> list[tuple[Node, int]]:
        """The final axes that an original axis is a sum of, with their scales."""
        found = scope.finals.get(node)
        if found is None:
            found = scope.finals[node] = self.finals_of(scope.pieces[node].terms, scope)
        return found

    def finals_of(self, terms: Terms, scope: Scope) -> list[tuple[Node, int]]:
        """The final axes of named ones that are ever more than 0, with their scales."""
        found = []
        for name, scale in terms:
            if name not in self.dead:
                found.append((scope.ranges[name], scale))
            if self.chunk is not None and name == self.chunk[0]:
                # Of an axis of one element there is neither.
                chunk = self.chunk[1]
                if name not in self.dead or extent_of(chunk) != 1:
                    found.append((chunk, scale * self.table.grain))
        return found

    def of_pieces(self, choice: Pieces) -> tuple[Node, ...]:
        """The final axes of a reduction's pieces, in loop order; at least one."""
        names = {name for piece in choice.values() for name, _ in piece.terms}
        chosen = (names - self.dead) or sorted(names)[:1]
        return by_id({self.ranges[name] for name in chosen})

    def parts_of(self, axis: Node) -> list[Node]:
        """The axes that a stage's axis was split into, outermost first."""
        piece = self.choices[axis][0]
        terms = sorted(piece.terms, key=lambda term: -term[1])
        return [self.ranges[name] for name, _ in terms if name not in self.dead]

    def first_id(self) -> int:
        """From where on ids are free for the axes of one more copy."""
        self.taken += 1
        return len(self.table.order) * 2 * self.taken
