"""What expressions read: addresses, masks and loads, at one point of the unrolled ranges."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from baregrad.base.errors import CompilerBug
from baregrad.dtypes import DType, dtypes
from baregrad.ir.core import index
from baregrad.ir.core.node import Node, const, instruction
from baregrad.ir.core.op import Ops, mask_of
from baregrad.ir.core.substitution import substitute
from baregrad.kernel.linearise.access import Address, MemoryUse, Terms, access_of
from baregrad.kernel.linearise.emitter import Emitter
from baregrad.kernel.linearise.scopes import MOMENT, ZERO, number
from baregrad.kernel.linearise.tile_axes import Point, TileAxes

_READS = mask_of((Ops.LOAD, Ops.REDUCE, Ops.SCAN))
_ADD, _MUL, _FMA, _CONST = Ops.ADD, Ops.MUL, Ops.FMA, Ops.CONST
# The values of a node's sources, in their order.
Operands = Sequence[Any]
Rule = Callable[["Reader", Node, Operands], Any]
# Takes the coordinates of a node from the current point; None for one without unrolled ranges.
Where = Callable[[Point], Any] | None
Step = tuple[Node, Rule, Callable[[list[Any]], Operands] | None, bool, Where]


class EvaluationPlan(NamedTuple):
    """How an expression is evaluated.

    leaves: values that are the same at all points.
    steps: each further node with its rule, what takes its operands from the values so far, whether
    it is remembered, and its coordinates.
    """

    leaves: list[Node]
    steps: list[Step]


class Reader(Emitter):
    """Reads memory at places that are expressions themselves, of which `value` is the value.

    point: the values of the unrolled ranges. counters: those of the looped ones. masks: the
    conditions under which the current statement runs at points. folds_lanes: whether a fold of
    lanes is being computed, which are not those of the statement. plan: of the expression that
    is being evaluated. shared: what lazy guards read of the expression around them. exchanges:
    shared memory in which threads show each other values. shown: that of the last fold, where
    neither a loop nor a condition is around it. unended: a STORE of a state that threads folded,
    which ends with the next statement, unless that stores another state. ahead: the statements
    behind the current one. folded: those of them whose folds are done. simplified, simplified_sums:
    conditions and parts of offsets at points.
    """

    def __init__(self, memory: MemoryUse, block: tuple[int, ...]) -> None:
        super().__init__(memory, block)
        self.tiles = TileAxes()
        self.point: Point = {}
        self.counters: dict[Node, Node] = {}
        self.masks: tuple[Node, ...] = ()
        self.folds_lanes = False
        self.plan = EvaluationPlan([], [])
        self.shared: set[Node] = set()
        self.exchanges: dict[Any, Node] = {}
        self.shown = frozenset[Node]()
        self.unended: Node | None = None
        self.ahead: deque[Node] = deque()
        self.folded: list[Node] = []
        self.simplified: dict[tuple[Any, ...], list[Node]] = {}
        self.simplified_sums: dict[tuple[Any, ...], tuple[Mapping[Node, int], int]] = {}

    @abstractmethod
    def value(self, root: Node) -> Any:
        """The linear value of an expression at the current point: a node, or parts of a tuple."""

    @abstractmethod
    def key(self, node: Node) -> Any:
        """What a node's value is remembered by at the current point."""

    def offset(self, address: Address) -> tuple[Node, int]:
        """The offset of an access without its lanes, and a constant to be added.

        A scalar, but where a part of it is read under a mask: that has a value for each lane.
        """
        total = self.base(address)
        constant = address.at(self.point) if address.unrolled else address.constant
        if not address.points:
            return total, constant
        width = self.width_of(address)
        parts = address.points
        if self.gpu:
            parts, more = self.at_point(parts)
            constant += more
        for atom, scale in parts:
            term = self.scaled(self.value(atom), scale, width)
            if term.op is Ops.CONST:
                constant += int(term.arg)
            else:
                total = term if total is ZERO else self.apply(Ops.ADD, width, total, term)
        return total, constant

    def at_point(self, parts: Terms) -> tuple[Terms, int]:
        """Scaled atoms at the current point as others, as few as there are, and a constant.

        Neighbours that are a quotient's places apart differ in the constant alone, or not at all.
        """
        found: dict[Node, int] = {}
        constant = 0
        for atom, scale in parts:
            axes = self.tiles.axes_of(atom.ranges)
            if not axes or atom.mask & _READS:
                found[atom] = found.get(atom, 0) + scale
                continue
            key = (atom, *[self.point[axis] for axis in axes])
            known = self.simplified_sums.get(key)
            if known is None:
                places = {axis: const(self.point[axis], dtypes.index) for axis in axes}
                known = self.simplified_sums[key] = index.linear(substitute(atom, places))
            for term, more in known[0].items():
                found[term] = found.get(term, 0) + more * scale
            constant += known[1] * scale
        return tuple(found.items()), constant

    def base(self, address: Address) -> Node:
        """The part of an offset that no tile range moves."""
        if not address.fixed:
            return ZERO
        narrow = self.gpu and address.is_narrow
        # Other keys are nodes and pairs: a number is a key of its own kind.
        key: Any = ~address.group if narrow else address.group
        if self.masks and any(atom.mask & _READS for atom, _ in address.fixed):
            key = (key, *[self.point[axis] for axis in self.tiles.axes_of(self.mask_ranges())])
        found: Node | None = self.scopes.memo.get(key)
        if found is None:
            found = self.total(address.fixed, self.width_of(address))
            self.scopes.remember(key, found)
        return found

    def total(self, terms: Sequence[tuple[Node, int]], width: DType = dtypes.int64) -> Node:
        """The sum of scaled atoms, outer loops' first, so that each part is found once."""
        scopes, counters = self.scopes, self.counters
        depth = scopes.depth
        values = []
        for place, (atom, scale) in enumerate(terms):
            value = counters.get(atom)
            if value is None:
                value = self.value(atom)
            values.append((depth.get(value, 0), place, value, scale))
        if len(values) > 1:
            values.sort()
        total = ZERO
        for at, _, value, scale in values:
            first = total is ZERO
            if self.gpu or value.op is _CONST or value.shape or total.shape:
                term = self.scaled(value, scale, width)
                total = term if first else self.compute(Ops.ADD, width, (total, term))
                continue
            # What is summed up so far is known no deeper than the value.
            if scale != 1:
                src = (value, number(scale)) if first else (value, number(scale), total)
                total = scopes.place_at(instruction(_MUL if first else _FMA, width, src), at)
            elif first:
                total = value
            else:
                total = scopes.place_at(instruction(_ADD, width, (total, value)), at)
        return total

    def lane_offsets(self, address: Address, place: Node, at: int, lanes: int) -> Node:
        """The offset of each lane of a gather or scatter, given the `offset` of all of them."""
        width = self.width_of(address)
        place = self.cast(place, width)
        total = self.apply(Ops.ADD, width, place, self.cast(number(at), width))
        parts = list(address.lanes)
        if address.vector is not None and address.stride:
            parts.append((address.vector, address.stride))
        for atom, scale in parts:
            term = self.scaled(self.cast(self.value(atom), width), scale, width)
            total = term if total is ZERO else self.apply(Ops.ADD, width, total, term)
        return self.vector(total, lanes)

    def mask_ranges(self) -> frozenset[Node]:
        """The ranges that the current statement's masks depend on, if it is at a point of them.

        The extent of a loop is found at none: it is the same for all.
        """
        if not self.point:
            return frozenset()
        return frozenset[Node]().union(*[mask.ranges for mask in self.masks])

    def mask(self, conditions: Sequence[Node]) -> Node | None:
        """The conjunction of conditions at the current point; None when it is plainly true.

        The first of them are `masks`. What one reads is read where those before it hold.
        """
        total: Node | None = None
        before = self.masks
        for position, condition in enumerate(conditions):
            self.masks = before[:position]
            for part in self.conjuncts(condition):
                value = self.value(part)
                if value.shape and self.folds_lanes and position < len(before):
                    raise CompilerBug("a fold of lanes under a mask of others", found=condition)
                if value.op is Ops.CONST and value.arg:
                    continue
                total = value if total is None else self.apply(Ops.AND, dtypes.bool, total, value)
        self.masks = before
        return total

    def conjuncts(self, condition: Node) -> Sequence[Node]:
        """The parts of a condition; on GPUs, as simple as they are at the current point.

        What a part says of an unrolled place it says of one number: it is often surely right, or
        what it says of another place as well.
        """
        axes = self.tiles.axes_of(condition.ranges)
        if not self.gpu or not axes or condition.mask & _READS:
            return (condition,)
        key = (condition, *[self.point[axis] for axis in axes])
        found = self.simplified.get(key)
        if found is None:
            places = {axis: const(self.point[axis], dtypes.index) for axis in axes}
            parts = [substitute(part, places) for part in index.conjuncts(condition)]
            found = self.simplified[key] = [part for part in parts if not _is_true(part)]
        return found

    def load(self, node: Node, mask: Node | None) -> Node:
        """A LOAD's value at the current point; 0 in the lanes where `mask` is false."""
        buffer = node.src[0]
        memory = self.memory
        address = memory.addresses[node]
        # What a fold along other unrolled ranges reads is the same for all rows.
        tile = self.tile
        if address.unrolled and tile is not None and not node.ranges.isdisjoint(tile.axes):
            return self.load_rows(node, mask)
        if buffer in memory.registers:
            at = address.at(self.point) if address.unrolled else address.constant
            return self.register(buffer, at)
        dtype = node.dtype
        width = 1
        if mask is not None:
            if mask.op is _CONST:
                return const(0, dtype)
            width = mask.shape[0] if mask.shape else 1
        place, at = self.offset(address)
        if mask is not None and width > 1 == address.width and not (place.shape or self.gpu):
            # One element that some lanes want: it is there if any does.
            wanted = self.scopes.emit(Ops.ANY, dtypes.bool, (mask,))
            element = self.load(node, wanted)
            return self.apply(Ops.WHERE, dtype, mask, element, const(0, dtype))
        lanes, stride = address.width, address.stride
        # An element may be several of the array's.
        unit = dtype.bits // buffer.dtype.bits
        order: tuple[int, ...] = ()
        if mask is None and not (place.shape or self.gpu):
            if address.lanes:
                first, order = address.order(unit)
                at += first
            elif lanes > 1 and stride % unit:
                order = tuple(range(0, stride * lanes, stride))
        if order:
            stride = 1
        elif lanes == 1 and width == 1:
            stride = 1
        elif place.shape or address.lanes or lanes == 1 or stride % unit or stride == 0:
            lanes = max(lanes, width)
            place, at, stride = self.lane_offsets(address, place, at, lanes), 0, 1
        else:
            stride //= unit
        size = buffer.dtype.itemsize
        align = self.alignment(buffer, address, lanes, stride, at) if self.gpu else size
        shape = (lanes,) if lanes > 1 else ()
        return self._loaded(node, place, mask, (lanes, stride, at, align), shape, order=order)

    def load_rows(self, load: Node, mask: Node | None) -> Node:
        """The value of a LOAD whose place differs from point to point, for all of them."""
        buffer = load.src[0]
        memory, tile = self.memory, self.tile
        assert tile is not None
        if buffer in memory.registers:
            return self.register_rows(buffer)
        address = memory.addresses[load]
        if mask is not None and mask.op is Ops.CONST:
            return const(0, load.dtype)
        lanes, unit = address.width, load.dtype.bits // buffer.dtype.bits
        stride = 1 if lanes == 1 else address.stride // unit
        first, order = address.order(unit) if address.lanes else (0, ())
        stride = 1 if order else stride
        where = (lanes, stride, address.constant + first, buffer.dtype.itemsize)
        rows, shape = address.places(tile.axes), (tile.rows, lanes)
        return self._loaded(load, self.base(address), mask, where, shape, rows, order)

    def _loaded(
        self,
        load: Node,
        place: Node,
        mask: Node | None,
        where: tuple[int, int, int, int],
        shape: tuple[int, ...],
        rows: tuple[int, ...] = (),
        order: tuple[int, ...] = (),
    ) -> Node:
        """The VLOAD of a LOAD at `place`; where: its lanes, their stride, begin and alignment."""
        buffer, memory, scopes = load.src[0], self.memory, self.scopes
        written = buffer in memory.written
        ahead = memory.ahead.get(load, 0) if memory.ahead else 0
        src: tuple[Node, ...] = (buffer, place)
        floor = MOMENT if written or (self.masks and self.gpu) else scopes.innermost.floor
        strays = False
        if mask is not None:
            strays = bool(mask.shape) and memory.addresses[load].strays(buffer)
            src += (self.vector(mask, where[0]),)
            if self.masks:
                floor = max(floor, len(scopes.stack) - 1)
        access = access_of(*where, memory.single and not written, ahead, rows, strays, order)
        return scopes.place(instruction(Ops.VLOAD, load.dtype, src, access, shape), floor)


def _is_true(condition: Node) -> bool:
    return condition.op is Ops.CONST and bool(condition.arg)
