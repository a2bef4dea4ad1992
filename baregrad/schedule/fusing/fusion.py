"""The state of the walk that fuses: kernels in the making, and who wants what in them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from operator import itemgetter
from typing import Any, NamedTuple

from baregrad.dtypes import dtypes
from baregrad.ir.core.node import Node, cast, toposort
from baregrad.ir.core.op import ELEMENTWISE, WORD_PRODUCTS, Op, Ops, mask_of
from baregrad.schedule.drafts.access import (
    VIEW_RULES,
    VIEWS,
    ZERO,
    Idx,
    axes_of,
    taken,
    through_pad,
    to_index,
)
from baregrad.schedule.drafts.draft import (
    Draft,
    Outer,
    Part,
    Ranges,
    Request,
    make_draft,
    scope_points,
    token,
)
from baregrad.schedule.facts.packed_factors import packed_factors, row_factors
from baregrad.schedule.facts.survey import (
    Survey,
    base_of,
    held_above_zero,
    matrix_products,
    only_operand,
)
from baregrad.schedule.facts.traffic import Traffic
from baregrad.schedule.plan import Decision

_ELEMENTWISE = mask_of(ELEMENTWISE)
_FOLDS = Ops.REDUCE.bit | Ops.FOLD.bit
_READS = Ops.PARAM.bit | Ops.BUFFER.bit
# Values below an output that are compared with its siblings', on a CPU; on a GPU twice as many,
# since each kernel's arrays come from memory anew.
NEIGHBOURS = 24
# A view's op, its attribute and the shape of its source.
_View = tuple[Op, Any, tuple[Any, ...]]


class Neighbours(NamedTuple):
    """Values close below a value, and itself; those that count have at least `least` elements.

    reduced: shape and axes of what of these is reduced, once somebody has asked for them.
    """

    values: set[Node]
    least: float
    reduced: list[frozenset[tuple[Any, ...]]]


class Fusion:
    """Drafts, open requests, stored values and the decisions made."""

    def __init__(self, sink: Node, gpu: bool = False, matrix_units: bool = False) -> None:
        self.sink = sink
        self.gpu = gpu
        self.matrix_units = matrix_units
        self.order = toposort(sink)
        self.drafts: list[Draft] = []
        self.wanted: dict[Node, list[Request]] = {}
        self.tokens: dict[Node, Node] = {}
        # What views do to indices: layers look alike, so that it is asked for again and again. Of
        # views that only move axes: what takes an index and a 0 to the source's index. Of others:
        # what each index became.
        self.moved: dict[_View, Callable[[Idx], Idx] | dict[Idx, Idx]] = {}
        self.padded: dict[tuple[_View, Idx], tuple[Node, Idx]] = {}
        self.points: dict[Idx, float] = {}
        self.near: dict[Node, Neighbours] = {}
        self.sums: dict[Node, set[Node]] = {}
        self.ranges: Ranges = {}
        self.outer: Outer = {}
        self.homes: dict[Node, Draft] = {}
        # Kernels that write states of a stream for rows alone, by the reduction.
        self.streams: dict[Node, Draft] = {}
        self.aliases: dict[Node, Node] = {}
        self.before: dict[Node, Draft] = {}
        self.by_shape: dict[tuple[object, ...], list[Draft]] = {}
        self.decisions: list[Decision] = []
        self.must: dict[Node, str] = {}
        self.compared: frozenset[Node] = frozenset()
        # What is computed anew for each tile of a stream.
        self.streamed: frozenset[Node] = frozenset()
        self.outputs: list[Node] = []
        # Outputs that may be written over arguments.
        self.over: set[Node] = set()
        self.survey: Survey

    @cached_property
    def only_readers(self) -> dict[Node, Node]:
        """Of each value with one reader: that, where it reads nothing else, if only a view."""
        readers = self.survey.readers
        found = {}
        for node in self.order:
            if node.op.bit & _ELEMENTWISE:
                below = only_operand(node)
                if below is not None and readers[base := base_of(below)] == 1:
                    found[base] = node
        return found

    @cached_property
    def held_above_zero(self) -> dict[Node, Node]:
        """What each value is that is held above 0."""
        return held_above_zero(self.order)

    @cached_property
    def matrix_products(self) -> frozenset[Node]:
        """The contractions that matrix units compute, where the machine has such."""
        return matrix_products(self.survey) if self.matrix_units else frozenset()

    @cached_property
    def traffic(self) -> Traffic:
        """What memory moves for the values."""
        return Traffic(self.survey, frozenset(self.outputs), self.only_readers)

    @cached_property
    def packed(self) -> frozenset[Node]:
        """What the numbers of packed factors are made of, which is never stored."""
        found = packed_factors(self.order, self.survey, self.traffic, self.matrix_units)
        return found | self.row_factors

    @cached_property
    def row_factors(self) -> frozenset[Node]:
        """What a GPU's threads make of the rows that they multiply by packed factors."""
        return row_factors(self.order) if self.gpu else frozenset()

    def store(self, node: Node, draft: Draft, readers: list[Request]) -> None:
        """Note that `draft` writes `node`, which the other requests read from memory."""
        self.homes[node] = draft
        below = draft.dependents
        for request in readers:
            request.read = True
            request.draft.loads += 1
            request.draft.pending -= 1
            below |= 1 << request.draft.number | request.draft.dependents
        self.depend(draft, below)

    def read(self, value: Node, like: Request) -> Request:
        """A stored value read by a kernel at the index of another request of its shape."""
        draft, home = like.draft, self.homes[value]
        found = draft.requests.get((value, like.idx))
        if found is None:
            found = Request(value, draft, like.idx, like.scope, like.share, 0.0, like.above)
            draft.requests[value, like.idx] = found
            found.read = True
            draft.loads += 1
            self.depend(home, home.dependents | 1 << draft.number | draft.dependents)
        return found

    def memory_of(self, value: Node) -> Node:
        """The value whose memory `value` is written to: itself, but for scatters in place."""
        while value in self.aliases:
            value = self.aliases[value]
        return value

    def run_before(self, draft: Draft, later: Draft) -> None:
        """Let `draft` run before `later`, which writes the same memory."""
        later.after.append(draft)
        self.depend(draft, draft.dependents | 1 << later.number | later.dependents)

    def depend(self, draft: Draft, below: int) -> None:
        """Let the drafts in the set `below` depend on `draft`, and on all that it depends on."""
        if below == draft.dependents:
            return
        draft.dependents = below
        if not draft.count:
            return  # new: nothing is upstream of it yet
        bit = 1 << draft.number
        for other in self.drafts:
            if other.dependents & bit:
                other.dependents |= below

    def open_draft(self, shape: tuple[object, ...]) -> Draft:
        """A new kernel whose outputs have this shape."""
        draft = make_draft(len(self.drafts), shape, self.ranges, self.outer)
        self.drafts.append(draft)
        self.by_shape.setdefault(draft.extents, []).append(draft)
        return draft

    # --- requests
    # -----------------------------------------------------------------------------------

    def resolve(
        self,
        node: Node,
        idx: Idx,
        draft: Draft,
        scope: Idx,
        share: float = 1.0,
        evals: float | None = None,
        above: int = 0,
    ) -> Part:
        """Element `idx` of a value: views become index arithmetic, the rest a request."""
        op = node.op
        while op.bit & VIEWS:
            idx = self._below(node, idx)
            node = node.src[0]
            op = node.op
            evals = None
        if op is Ops.CONST or node.dtype is dtypes.index:
            return node
        if op is Ops.IOTA:
            return cast(idx[0], node.dtype)
        if not node.shape:
            idx = ()
            evals = None
        return self.request(node, idx, draft, scope, share, evals, above)

    def place(
        self,
        node: Node,
        idx: Idx,
        draft: Draft,
        scope: Idx,
        share: float = 1.0,
        above: int = 0,
    ) -> Node:
        """Element `idx` of an array of indices, as an index."""
        found = self.resolve(node, idx, draft, scope, share, None, above)
        if isinstance(found, Node):
            return to_index(found)
        if found.placeholder is None:
            made = self.tokens.get(found.node)
            if made is None:
                made = self.tokens[found.node] = token(found.node, len(self.tokens))
            found.placeholder = Node(Ops.INDEX, found.node.dtype, (made, *found.idx))
            draft.placeholders[found.placeholder] = found
        return to_index(found.placeholder)

    def _below(self, view: Node, idx: Idx) -> Idx:
        """Where element `idx` of a view lies in its source."""
        key = (view.op, view.arg, view.src[0].shape)
        known = self.moved.get(key)
        if known is None:
            known = self.moved[key] = _mover(view) or {}
        if not isinstance(known, dict):
            return known((*idx, ZERO))
        found = known.get(idx)
        if found is None:
            found = known[idx] = VIEW_RULES[view.op](view, idx)
        return found

    def through_pad(self, view: Node, idx: Idx) -> tuple[Node, Idx]:
        """(condition, source index) of element `idx` of a PAD."""
        key = ((view.op, view.arg, view.src[0].shape), idx)
        found = self.padded.get(key)
        if found is None:
            found = self.padded[key] = through_pad(view, idx)
        return found

    def request(
        self,
        node: Node,
        idx: Idx,
        draft: Draft,
        scope: Idx,
        share: float = 1.0,
        evals: float | None = None,
        above: int = 0,
    ) -> Request:
        """Want one element of a value, which is no view, inside a kernel.

        above: bits of the reductions in whose bodies that is.
        """
        if evals is None:
            # What is in memory is never evaluated.
            evals = 0.0
            if node.op is not Ops.PARAM:
                evals = share * scope_points(scope, idx, self.points)
        key = (node, idx)
        found = draft.requests.get(key)
        if found is not None:
            if evals > found.evals:
                found.scope, found.share, found.evals = scope, share, evals
            found.merges = found.fresh = False
            found.above |= above
            return found
        found = draft.requests[key] = Request(node, draft, idx, scope, share, evals, above)
        if node.op is Ops.PARAM:
            found.read = True
            draft.loads += 1
        else:
            draft.pending += 1
            draft.words = draft.words or node.op in WORD_PRODUCTS
            readers = self.wanted.get(node)
            if readers is None:
                self.wanted[node] = [found]
            else:
                readers.append(found)
        return found

    def is_wanted(self, node: Node, idx: Idx, draft: Draft) -> bool:
        """Whether a kernel wants a value at an index already, for something else."""
        while node.op.bit & VIEWS:
            idx = self._below(node, idx)
            node = node.src[0]
        return (node, idx) in draft.requests

    def sums_of(self, node: Node) -> set[Node]:
        """The reductions that a value is computed from, as far as they are close below it."""
        known = self.sums.get(node)
        if known is not None:
            return known
        found: set[Node] = set()
        near = [node]
        seen = {node}
        for value in near:
            if value.op.bit & _FOLDS:
                found.add(value)
            elif len(near) < 2 * NEIGHBOURS:
                for child in value.src:
                    if child.mask & _FOLDS and child not in seen:
                        seen.add(child)
                        near.append(child)
        self.sums[node] = found
        return found

    def neighbours(self, node: Node) -> Neighbours:
        """Values close below `node`, and itself."""
        known = self.near.get(node)
        if known is not None:
            return known
        found = {node}
        mark = found.add
        queue = [node]
        most = NEIGHBOURS * (2 if self.gpu else 1)
        while queue and len(found) < most:
            level, queue = queue, []
            for above in level:
                for child in above.src:
                    if child not in found and child.mask & _READS:
                        mark(child)
                        queue.append(child)
        known = self.near[node] = Neighbours(found, self.survey.size[node.shape], [])
        return known


def _mover(view: Node) -> Callable[[Idx], Idx] | None:
    """What gives the index of a view's source for (*idx, 0); None where that takes arithmetic."""
    axes = axes_of(view)
    if axes is None:
        return None
    if len(axes) > 1:
        return itemgetter(*axes)
    return partial(taken, axes)
