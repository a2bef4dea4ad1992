"""Expressions of the loop level as instructions: tile ranges become lanes and points."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from operator import itemgetter
from typing import Any, NamedTuple

from baregrad.base.errors import CompilerBug
from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.attrs import TILE_BINDS
from baregrad.ir.core.node import Node, const, instruction, toposort
from baregrad.ir.core.op import Op, Ops
from baregrad.kernel.facts.analysis import by_id
from baregrad.kernel.legalise.divide import fold_integers
from baregrad.kernel.linearise import access as linearise_access
from baregrad.kernel.linearise.access import Address, Memory, lanes_of
from baregrad.kernel.linearise.lazy import OPAQUE, is_transparent, shared_by_guards
from baregrad.kernel.linearise.rules import (
    COMPUTED,
    RULES,
    Operands,
    Rule,
    direct_rule,
    known,
    rule_of,
)
from baregrad.kernel.linearise.scopes import MOMENT, ZERO, Scopes, number
from baregrad.kernel.linearise.statement_rows import (
    Layout,
    Tile,
    in_rows,
    load_rows,
    row_of,
    splatted,
)

_ADD, _MUL, _FMA, _CONST = Ops.ADD, Ops.MUL, Ops.FMA, Ops.CONST
_LOAD = Ops.LOAD
_INDEX = dtypes.index
_LEAVES = frozenset((Ops.CONST, Ops.VAR))
Parts = tuple[Node, ...]
# Takes the coordinates of a node from the current point; None for one without unrolled ranges.
Where = Callable[[dict[Node, int]], Any] | None
Step = tuple[Node, Rule, Callable[[list[Any]], Operands] | None, bool, Where]


class Plan(NamedTuple):
    """How an expression is evaluated.

    where: the coordinates of the whole expression. leaves: values that are the same at all points.
    steps: each further node with its rule, what takes its operands from the values so far, whether
    it is remembered, and its coordinates.
    """

    where: Where
    leaves: list[Node]
    steps: list[Step]


class Values:
    """Emits the instructions that compute expressions, at one point of the unrolled ranges.

    `point` gives the unrolled ranges their values, `counters` the looped ones theirs; `masks` are
    the conditions on tile ranges under which the current statement runs.
    """

    def __init__(self, memory: Memory, block: tuple[int, ...] = ()) -> None:
        self.memory = memory
        # Of a GPU: the threads of a block. Its integers of 32 bits are cheaper than those of 64.
        self.block = block
        self.gpu = bool(block)
        self.exchanges: dict[Any, Node] = {}
        self.scopes = Scopes()
        self.point: dict[Node, int] = {}
        self.counters: dict[Node, Node] = {}
        self.masks: tuple[Node, ...] = ()
        # The points of the statement that is done for all of them at once, and registers of such.
        self.tile: Tile | None = None
        self.layouts: dict[Node, Layout] = {}
        self.plan = Plan(None, [], [])
        self.registers: dict[Any, Node] = {}
        self._plans: dict[Node, Plan] = {}
        self.shared: set[Node] = set()
        self._tiles: dict[frozenset[Node], tuple[tuple[Node, ...], int]] = {}
        self._wheres: dict[tuple[Node, ...], Where] = {(): None}
        self._spares = 0
        self._points: dict[Any, list[dict[Node, int]]] = {}

    # --- walking --------------------------------------------------------------------------------

    def value(self, root: Node) -> Any:
        """The linear value of an expression at the current point: a node, or parts of a tuple."""
        rule = direct_rule(root.op)
        if rule is not None:
            return rule(self, root, ())
        if self._is_single(root):
            found = self.scopes.memo.get(root)
            if found is None:
                found = self.once(root)
                self.scopes.remember(root, found)
            return found
        plan = self._plans.get(root) or self._plan(root)
        key = root if plan.where is None else (root, plan.where(self.point))
        found = self.scopes.memo.get(key)
        if found is None:
            found = self._evaluate(plan)
            self.scopes.remember(key, found)
        return found

    def fresh(self, root: Node) -> Any:
        """`value` of an expression that is not asked for again at this point."""
        rule = direct_rule(root.op)
        if rule is not None:
            return rule(self, root, ())
        if self._is_single(root):
            return self.once(root)
        return self._evaluate(self._plans.get(root) or self._plan(root))

    def _is_single(self, root: Node) -> bool:
        """Whether an expression is the same at all points, without guards: it needs no plan."""
        return not (root.mask & Ops.GUARD.bit or self.shared or self.axes_of(root.ranges))

    def once(self, root: Node) -> Any:
        """The value of an expression that is the same at all points, or is wanted for all."""
        if root.op in OPAQUE:
            return rule_of(root)(self, root, ())
        # As `toposort` walks, sources first: what is walked is computed at once.
        done: dict[Node, Any] = {}
        value_of = done.__getitem__
        compute = self.compute
        path: list[tuple[Node, Iterator[Node]]] = []
        node, sources = root, iter(root.src)
        while True:
            for child in sources:
                if child in done:
                    continue
                if child.src and child.op not in OPAQUE:
                    path.append((node, sources))
                    node, sources = child, iter(child.src)
                    break
                op = child.op
                if op is _LOAD and not self.masks:
                    done[child] = self.load(child, None)
                elif op is _CONST and child.dtype is not _INDEX:
                    done[child] = child
                else:
                    done[child] = rule_of(child)(self, child, ())
            else:
                op, dtype, src = node.op, node.dtype, node.src
                operands = tuple(map(value_of, src))
                if op in COMPUTED and dtype is not _INDEX and src[-1].dtype is not _INDEX:
                    found = compute(op, dtype, operands, node.arg)
                else:
                    found = rule_of(node)(self, node, operands)
                if not path:
                    return found
                done[node] = found
                node, sources = path.pop()

    def _evaluate(self, plan: Plan) -> Any:
        """The value of a plan's expression."""
        scopes, point = self.scopes, self.point
        memo = scopes.memo
        before, self.plan = self.plan, plan
        done: list[Any] = [*plan.leaves]
        for node, rule, operands, kept, where in plan.steps:
            if not kept:
                # It differs from point to point as the root does: nobody will ask again.
                done.append(rule(self, node, () if operands is None else operands(done)))
                continue
            key = node if where is None else (node, where(point))
            found = memo.get(key)
            if found is None:
                found = rule(self, node, () if operands is None else operands(done))
                scopes.remember(key, found)
            done.append(found)
        self.plan = before
        return done[-1]

    def key(self, node: Node) -> Any:
        """What a node's value is remembered by at the current point."""
        where = self._where(self.axes_of(node.ranges))
        return node if where is None else (node, where(self.point))

    def _where(self, axes: tuple[Node, ...]) -> Where:
        """What takes the coordinates along some axes from a point."""
        if axes not in self._wheres:
            self._wheres[axes] = itemgetter(*axes)
        return self._wheres[axes]

    def _plan(self, root: Node) -> Plan:
        """The steps that evaluate an expression."""
        shared = self.shared
        if shared:
            order = toposort(
                root, enter=lambda n: is_transparent(n) and (n is root or n not in shared)
            )
        else:
            order = toposort(root, enter=is_transparent)
        if root.mask & Ops.GUARD.bit:
            self.shared.update(shared_by_guards(order))
        own = self.axes_of(root.ranges)
        places: dict[Node, int] = {}
        values: list[Any] = []
        for node in order:
            if node.op in _LEAVES:
                places[node] = len(values)
                values.append(RULES[node.op](self, node, ()))
        steps: list[Step] = []
        for node in order:
            op = node.op
            if op in _LEAVES:
                continue
            theirs = own if node.ranges is root.ranges else self.axes_of(node.ranges)
            # Guards of one condition are found together, so one may be known when its turn comes.
            kept = theirs != own or op is Ops.GUARD or (node in shared and node is not root)
            operands = None
            rule = rule_of(node)
            if op not in OPAQUE:
                try:
                    operands = _picker([places[child] for child in node.src])
                except KeyError:
                    rule = known
            places[node] = len(places)
            steps.append((node, rule, operands, kept, self._where(theirs) if kept else None))
        found = self._plans[root] = Plan(self._where(own), values, steps)
        return found

    def axes_of(self, ranges: frozenset[Node]) -> tuple[Node, ...]:
        """The unrolled ranges among some, in the order of their ids."""
        return (self._tiles.get(ranges) or self._tiles_of(ranges))[0] if ranges else ()

    def lanes_of(self, ranges: frozenset[Node]) -> int:
        """The extent of the vector range among some, 1 without; raises CompilerBug for two."""
        lanes = (self._tiles.get(ranges) or self._tiles_of(ranges))[1]
        if not lanes:
            raise CompilerBug("an expression with two vector ranges", found=list(ranges))
        return lanes

    def _tiles_of(self, ranges: frozenset[Node]) -> tuple[tuple[Node, ...], int]:
        """The unrolled ranges among some, and the extent of the vector range, 0 for several."""
        axes: list[Node] = []
        vectors: list[Node] = []
        for axis in ranges:
            bind = axis.arg.bind
            if bind in TILE_BINDS:
                (vectors if bind == "vector" else axes).append(axis)
        lanes = 1
        if vectors:
            lanes = lanes_of(vectors[0]) if len(vectors) == 1 else 0
        found = self._tiles[ranges] = by_id(axes), lanes
        return found

    def points(self, axes: tuple[Node, ...]) -> list[dict[Node, int]]:
        """Every point of some unrolled ranges, from the current one, the first varying slowest."""
        if not axes:
            return [self.point]
        before = self.point
        key = (axes, *before.items()) if before else axes
        found = self._points.get(key)
        if found is None:
            places = product(*[range(lanes_of(axis)) for axis in axes])
            found = [dict(zip(axes, place, strict=True)) for place in places]
            if before:
                found = [before | point for point in found]
            self._points[key] = found
        return found

    # --- pieces ---------------------------------------------------------------------------------

    def vector(self, value: Node, lanes: int) -> Node:
        """`value` as a vector of `lanes`, constants too."""
        shape = value.shape
        if lanes == 1 or (shape and shape[-1] > 1):
            return value
        if shape:
            node = instruction(Ops.SPLAT, value.dtype, (value,), lanes, (shape[0], lanes))
            return self.scopes.place(node)
        return self.scopes.emit(Ops.SPLAT, value.dtype, (value,), lanes, 0, lanes)

    def cast(self, value: Node, dtype: DType) -> Node:
        """An integer value as another integer dtype."""
        if value.dtype is dtype:
            return value
        if value.op is Ops.CONST:
            return const(value.arg, dtype)
        return self.scopes.emit(Ops.CAST, dtype, (value,))

    def apply(self, op: Op, dtype: DType, *operands: Node) -> Node:
        """The value of an elementwise op on linear values, scalars brought to all lanes."""
        return self.compute(op, dtype, operands)

    def compute(self, op: Op, dtype: DType, operands: Sequence[Node], arg: Any = None) -> Node:
        """`apply` to a sequence of operands, with an attribute."""
        scopes = self.scopes
        depth = scopes.depth
        place = scopes.innermost.pin
        lanes: tuple[int, ...] = ()
        scalars = mixed = False
        for operand in operands:
            shape = operand.shape
            if shape:
                if lanes and shape != lanes:
                    mixed = True
                else:
                    lanes = shape
            elif operand.op is _CONST:
                continue
            else:
                scalars = True
            at = depth.get(operand, 0)
            if at > place:
                place = at
        if mixed or (scalars and len(lanes) == 2):
            operands, lanes = in_rows(self, operands)
        elif scalars:
            if lanes:
                operands = splatted(self, operands, lanes[0])
        elif not lanes and dtype.kind != "float":
            folded = fold_integers(op, dtype, operands)
            if folded is not None:
                return folded
        node = instruction(op, dtype, tuple(operands), arg, lanes)
        if node not in depth:
            scopes.put(node, place)
        return node

    def register(self, alloc: Node, at: int) -> Node:
        """The register that holds the elements of an ALLOC from `at` on."""
        found = self.registers.get((alloc, at))
        if found is None:
            if alloc in self.layouts:
                return row_of(self, alloc, at)
            width = self.memory.registers[alloc]
            found = self.registers[alloc, at] = self.fresh_register(alloc.dtype, width)
        return found

    def fresh_register(self, dtype: DType, width: int, rows: int = 0) -> Node:
        """A register that nobody else has; a tile of `rows` of them."""
        found = linearise_access.register_of(len(self.registers), dtype, width, rows)
        self.registers[found] = found
        self.scopes.depth[found] = MOMENT
        return found

    def spare(self) -> int:
        """A number that was not handed out before."""
        self._spares += 1
        return self._spares

    # --- addresses ------------------------------------------------------------------------------

    def offset(self, address: Address) -> tuple[Node, int]:
        """The offset of an access without its lanes, and a constant to be added.

        A scalar, but where a part of it is read under a mask: that has a value for each lane.
        """
        total = self.base(address)
        constant = address.at(self.point) if address.unrolled else address.constant
        if not address.points:
            return total, constant
        width = self.width_of(address)
        for atom, scale in address.points:
            term = self.scaled(self.value(atom), scale, width)
            if term.op is Ops.CONST:
                constant += int(term.arg)
            else:
                total = term if total is ZERO else self.apply(Ops.ADD, width, total, term)
        return total, constant

    def base(self, address: Address) -> Node:
        """The part of an offset that no tile range moves."""
        if not address.fixed:
            return ZERO
        narrow = self.gpu and address.is_narrow
        # Other keys are nodes and pairs: a number is a key of its own kind.
        key = ~address.group if narrow else address.group
        found: Node | None = self.scopes.memo.get(key)
        if found is None:
            found = self.total(address.fixed, self.width_of(address))
            self.scopes.remember(key, found)
        return found

    def width_of(self, address: Address) -> DType:
        """The integers in which an offset is summed up: on GPUs of 32 bits, if all parts fit."""
        return dtypes.int32 if self.gpu and address.is_narrow else dtypes.int64

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

    def scaled(self, value: Node, scale: int, width: DType = dtypes.int64) -> Node:
        """An offset times a constant."""
        if self.gpu:
            value = self.cast(value, width)
            if scale == 1:
                return value
            return self.compute(Ops.MUL, width, (value, const(scale, width)))
        if scale == 1:
            return value
        return self.compute(Ops.MUL, dtypes.int64, (value, number(scale)))

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

    def mask(self, conditions: Sequence[Node]) -> Node | None:
        """The conjunction of conditions at the current point; None when it is plainly true.

        The first of them are `masks`. What one reads is read where those before it hold.
        """
        total: Node | None = None
        before = self.masks
        for position, condition in enumerate(conditions):
            self.masks = before[:position]
            value = self.value(condition)
            if value.op is Ops.CONST and value.arg:
                continue
            total = value if total is None else self.apply(Ops.AND, dtypes.bool, total, value)
        self.masks = before
        return total

    def load(self, node: Node, mask: Node | None) -> Node:
        """A LOAD's value at the current point; 0 in the lanes where `mask` is false."""
        buffer = node.src[0]
        memory = self.memory
        address = memory.addresses[node]
        if address.unrolled and self.tile is not None:
            return load_rows(self, node, mask)
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
        if lanes == 1 and width == 1:
            stride = 1
        elif place.shape or address.lanes or lanes == 1 or stride == 0:
            lanes = max(lanes, width)
            place, at, stride = self.lane_offsets(address, place, at, lanes), 0, 1
        written = buffer in memory.written
        align = self.alignment(address, lanes, stride, at, dtype) if self.gpu else dtype.itemsize
        ahead = memory.ahead.get(node, 0) if memory.ahead else 0
        constant = memory.single and not written
        strays = mask is not None and bool(mask.shape) and address.strays(buffer)
        access = linearise_access.access_of(
            lanes, stride, at, align, constant, ahead, strays=strays
        )
        src: Parts = (buffer, place)
        if mask is not None:
            src += (self.vector(mask, lanes),)
        floor = MOMENT if written or (self.masks and self.gpu) else self.scopes.innermost.floor
        if self.masks and mask is not None:
            floor = max(floor, len(self.scopes.stack) - 1)
        node = instruction(Ops.VLOAD, dtype, src, access, (lanes,) if lanes > 1 else ())
        return self.scopes.place(node, floor)

    def alignment(
        self, address: Address, lanes: int, stride: int, at: int, dtype: DType
    ) -> int:
        """Bytes that an access's addresses are multiples of, arrays being aligned to vectors.

        Only GPUs care for more than those of an element.
        """
        if self.gpu and lanes > 1 and stride == 1 and not at % lanes and address.is_even(lanes):
            return lanes * dtype.itemsize
        return dtype.itemsize


def _picker(places: list[int]) -> Callable[[list[Any]], Operands]:
    """What takes the items at some places; a slice, since itemgetter makes no sequence of one."""
    if len(places) == 1:
        return itemgetter(slice(places[0], places[0] + 1))
    return itemgetter(*places)
