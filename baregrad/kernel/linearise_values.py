"""Expressions of the loop level as instructions: tile ranges become lanes and points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import Any

from baregrad.base.errors import CompilerBug
from baregrad.dtypes import DType, dtypes
from baregrad.ir.attrs import Access, Reg
from baregrad.ir.bounds import bounds
from baregrad.ir.monoid import Monoid
from baregrad.ir.node import Node, const, toposort
from baregrad.ir.op import ELEMENTWISE, Op, Ops
from baregrad.kernel.divide import divide_index, fold_integers
from baregrad.kernel.linearise_access import Address, Memory, lanes_of
from baregrad.kernel.linearise_lazy import OPAQUE, is_transparent, lazy
from baregrad.kernel.linearise_scopes import MOMENT, ZERO, Scopes

# The places of an expression without unrolled ranges.
_NOWHERE: tuple[tuple[()], ...] = ((),)
INT32 = (-(1 << 31), (1 << 31) - 1)
Parts = tuple[Node, ...]
Rule = Callable[["Values", Node, list[Any]], Any]
Step = tuple[Node, int, tuple[int, ...], Rule]


@dataclass(frozen=True, slots=True)
class Plan:
    """How an expression is evaluated.

    axes: sets of unrolled ranges, first those of the whole expression. steps: each node with the
    place in `axes` of its own set (0: not remembered), the places of its operands, and its rule.
    """

    axes: tuple[tuple[Node, ...], ...]
    steps: list[Step]


class Values:
    """Emits the instructions that compute expressions, at one point of the unrolled ranges.

    `point` gives the unrolled ranges their values, `counters` the looped ones theirs; `masks` are
    the conditions on tile ranges under which the current statement runs.
    """

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.scopes = Scopes()
        self.point: dict[Node, int] = {}
        self.counters: dict[Node, Node] = {}
        self.masks: tuple[Node, ...] = ()
        self.plan = Plan((), [])
        self._registers: dict[Any, Node] = {}
        self._plans: dict[Node, Plan] = {}
        self.shared: set[Node] = set()
        self._axes: dict[frozenset[Node], tuple[Node, ...]] = {}
        self._accesses: dict[tuple[Any, ...], Access] = {}
        self._spares = 0
        self._points: dict[Any, list[dict[Node, int]]] = {}

    # --- walking --------------------------------------------------------------------------------

    def value(self, root: Node) -> Any:
        """The linear value of an expression at the current point: a node, or parts of a tuple."""
        plan = self._plans.get(root)
        if plan is None:
            plan = self._plans[root] = self._plan(root)
        scopes, point = self.scopes, self.point
        memo = scopes.memo
        places: Sequence[tuple[int, ...]] = _NOWHERE
        if plan.axes is not _NOWHERE:
            places = [tuple([point[axis] for axis in axes]) for axes in plan.axes]
        key = (root, places[0])
        found = memo.get(key)
        if found is not None:
            return found
        before, self.plan = self.plan, plan
        known: list[Any] = []
        for node, place, children, rule in plan.steps:
            if not place:
                # It differs from point to point as the root does: nobody will ask again.
                known.append(rule(self, node, [known[child] for child in children]))
                continue
            part_key = (node, places[place])
            found = memo.get(part_key)
            if found is None:
                found = rule(self, node, [known[child] for child in children])
                scopes.remember(part_key, found)
            known.append(found)
        self.plan = before
        found = known[-1]
        scopes.remember(key, found)
        return found

    def _plan(self, root: Node) -> Plan:
        """The steps that evaluate an expression."""
        shared = self.shared
        order = toposort(
            root, enter=lambda node: is_transparent(node) and (node is root or node not in shared)
        )
        self._share(order)
        places = {node: place for place, node in enumerate(order)}
        own = self.axes_of(root.ranges)
        axes = [own]
        steps: list[Step] = []
        for node in order:
            op = node.op
            theirs = self.axes_of(node.ranges)
            kept = 0
            # Guards of one condition are found together, so one may be known when its turn comes.
            if theirs != own or op is Ops.GUARD or (node in shared and node is not root):
                if theirs not in axes[1:]:
                    axes.append(theirs)
                kept = axes.index(theirs, 1)
            children: tuple[int, ...] = ()
            rule = _RULES.get(op)
            if not op.bit & OPAQUE:
                if node.src and node.src[0] not in places:
                    rule = _known
                else:
                    children = tuple([places[child] for child in node.src])
            if rule is None:
                raise CompilerBug("not an expression of the CPU's loop level", found=node)
            if rule is _elementwise and _touches_index(node):
                rule = _index
            steps.append((node, kept, children, rule))
        return Plan(tuple(axes) if axes != [()] else _NOWHERE, steps)

    def _share(self, order: list[Node]) -> None:
        """Note what lazy guards read of the expression around them, so that it is computed once."""
        guards = [n for n in order if n.op is Ops.GUARD and n.src[1].op is not Ops.LOAD]
        if not guards:
            return
        around = {node for node in order if is_transparent(node)}

        def is_inner(node: Node) -> bool:
            return is_transparent(node) and node not in around

        for guard in guards:
            for node in toposort(*guard.src, enter=is_inner):
                if node in around and node.src:
                    self.shared.add(node)

    def axes_of(self, ranges: frozenset[Node]) -> tuple[Node, ...]:
        """The unrolled ranges among some, in the order of their ids."""
        if not ranges:
            return ()
        found = self._axes.get(ranges)
        if found is None:
            axes = [axis for axis in ranges if axis.arg.is_tile and axis.arg.bind != "vector"]
            found = self._axes[ranges] = tuple(sorted(axes, key=lambda axis: int(axis.arg.id)))
        return found

    def lanes_of(self, ranges: frozenset[Node]) -> int:
        """The extent of the vector range among some, 1 without; raises CompilerBug for two."""
        found = [axis for axis in ranges if axis.arg.bind == "vector"]
        if len(found) > 1:
            raise CompilerBug("an expression with two vector ranges", found=found)
        return lanes_of(found[0]) if found else 1

    def access(self, *fields: Any) -> Access:
        """An Access, made once."""
        found = self._accesses.get(fields)
        if found is None:
            found = self._accesses[fields] = Access(*fields)
        return found

    def points(self, axes: tuple[Node, ...]) -> list[dict[Node, int]]:
        """Every point of some unrolled ranges, from the current one, the first varying slowest."""
        if not axes:
            return [self.point]
        key = (axes, *self.point.items())
        found = self._points.get(key)
        if found is None:
            before = self.point
            found = self._points[key] = [
                {**before, **dict(zip(axes, values, strict=True))}
                for values in product(*(range(lanes_of(axis)) for axis in axes))
            ]
        return found

    # --- pieces ---------------------------------------------------------------------------------

    def splat(self, value: Node, lanes: int) -> Node:
        """`value` in every lane; constants stay as they are, an instruction takes them anywhere."""
        if lanes == 1 or value.shape or value.op is Ops.CONST:
            return value
        return self.scopes.emit(Ops.SPLAT, value.dtype, (value,), lanes)

    def vector(self, value: Node, lanes: int) -> Node:
        """`value` as a vector of `lanes`, constants too."""
        if lanes == 1 or value.shape:
            return value
        return self.scopes.emit(Ops.SPLAT, value.dtype, (value,), lanes)

    def cast(self, value: Node, dtype: DType) -> Node:
        """An integer value as another integer dtype."""
        if value.dtype is dtype:
            return value
        if value.op is Ops.CONST:
            return const(value.arg, dtype)
        return self.scopes.emit(Ops.CAST, dtype, (value,))

    def apply(self, op: Op, dtype: DType, *operands: Node) -> Node:
        """The value of an elementwise op on linear values, scalars brought to all lanes."""
        scopes = self.scopes
        depth = scopes.depth
        place = scopes.innermost.pin
        lanes = 0
        constant = True
        scalars = False
        for operand in operands:
            shape = operand.shape
            if shape:
                lanes = shape[0]
                constant = False
            elif operand.op is not Ops.CONST:
                constant = False
                scalars = True
            at = depth.get(operand, 0)
            if at > place:
                place = at
        if constant and dtype.kind != "float":
            folded = fold_integers(op, dtype, operands)
            if folded is not None:
                return folded
        if scalars and lanes:
            operands = tuple([self.splat(operand, lanes) for operand in operands])
        node = Node(op, dtype, operands)
        if node not in depth:
            scopes.put(node, place)
        return node

    def register(self, alloc: Node, at: int) -> Node:
        """The register that holds the elements of an ALLOC from `at` on."""
        found = self._registers.get((alloc, at))
        if found is None:
            width = self.memory.registers[alloc]
            found = self._registers[alloc, at] = self.fresh_register(alloc.dtype, width)
        return found

    def fresh_register(self, dtype: DType, width: int) -> Node:
        """A register that nobody else has."""
        found = Node(Ops.REG, dtype, (), Reg(len(self._registers), width))
        self._registers[found] = found
        self.scopes.depth[found] = MOMENT
        return found

    def spare(self) -> int:
        """A number that was not handed out before."""
        self._spares += 1
        return self._spares

    # --- addresses ------------------------------------------------------------------------------

    def offset(self, address: Address) -> tuple[Node, int]:
        """The offset of an access without its lanes: a scalar, and a constant to be added."""
        key = ("offset", address.fixed)
        total = self.scopes.memo.get(key)
        if total is None:
            total = self._sum(address.fixed)
            self.scopes.remember(key, total)
        constant = address.at(self.point)
        for atom, scale in address.points:
            term = self.scaled(self.value(atom), scale)
            if term.op is Ops.CONST:
                constant += int(term.arg)
            else:
                total = term if total is ZERO else self.apply(Ops.ADD, dtypes.int64, total, term)
        return total, constant

    def _sum(self, terms: Sequence[tuple[Node, int]]) -> Node:
        """The sum of scaled atoms, outer loops' first, so that each part is found once."""
        depth = self.scopes.depth
        values = []
        for place, (atom, scale) in enumerate(terms):
            value = self.value(atom)
            values.append((depth.get(value, 0), place, value, scale))
        total = ZERO
        for _, _, value, scale in sorted(values, key=lambda item: item[:2]):
            term = self.scaled(value, scale)
            total = term if total is ZERO else self.apply(Ops.ADD, dtypes.int64, total, term)
        return total

    def scaled(self, value: Node, scale: int) -> Node:
        """An offset times a constant."""
        if scale == 1:
            return value
        return self.apply(Ops.MUL, dtypes.int64, value, const(scale, dtypes.int64))

    def lane_offsets(self, address: Address) -> Node:
        """The offset of each lane of a gather or scatter, its constant included."""
        scalar, constant = self.offset(address)
        total = self.apply(Ops.ADD, dtypes.int64, scalar, const(constant, dtypes.int64))
        parts = list(address.lanes)
        if address.vector is not None and address.stride:
            parts.append((address.vector, address.stride))
        for atom, scale in parts:
            lanes = self.cast(self.value(atom), dtypes.int64)
            term = self.scaled(lanes, scale)
            total = term if total is ZERO else self.apply(Ops.ADD, dtypes.int64, total, term)
        return self.vector(total, address.width)

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
        address = self.memory.addresses[node]
        if buffer in self.memory.registers:
            return self.register(buffer, address.at(self.point))
        if mask is not None and mask.op is Ops.CONST:
            return const(0, node.dtype)
        written = buffer in self.memory.written
        constant = not written and self.memory.single
        floor = MOMENT if written or self.masks else self.scopes.innermost.floor
        lanes = 1 if address.vector is None else address.width
        width = mask.shape[0] if mask is not None and mask.shape else 1
        if lanes == 1 and width == 1:
            scalar, at = self.offset(address)
            access = self.access(1, 1, at, node.dtype.itemsize, constant)
        elif address.lanes or lanes == 1 or address.stride == 0:
            scalar, at = self.lane_offsets(address), 0
            scalar = self.vector(scalar, max(lanes, width))
            access = self.access(max(lanes, width), 1, 0, node.dtype.itemsize, constant)
        else:
            scalar, at = self.offset(address)
            access = self.access(lanes, address.stride, at, node.dtype.itemsize, constant)
        src: Parts = (buffer, scalar)
        if mask is not None:
            src += (self.vector(mask, access.width),)
        return self.scopes.emit(Ops.VLOAD, node.dtype, src, access, floor)

    # --- reductions -----------------------------------------------------------------------------

    def combine(self, monoid: Monoid, left: Parts, right: Parts) -> Parts:
        """The monoid's combination of two tuples of linear values."""
        if monoid.primitive is not None:
            return (self.apply(monoid.primitive, monoid.states[0], left[0], right[0]),)
        values: dict[Node, Node] = {}
        for node in toposort(*monoid.combine):
            if node.op is Ops.SLOT:
                values[node] = (left + right)[node.arg]
            elif node.op is Ops.CONST:
                values[node] = node
            else:
                operands = [values[child] for child in node.src]
                values[node] = self.apply(node.op, node.dtype, *operands)
        return tuple(values[part] for part in monoid.combine)

    def fold(self, monoid: Monoid, items: list[Parts]) -> Parts:
        """Items folded by halves, item i with item i + ceil(n / 2); neighbours if order counts."""
        while len(items) > 1:
            half = (len(items) + 1) // 2
            if monoid.commutative:
                pairs = zip(items, items[half:], strict=False)
                rest = items[len(items) - half : half]
            else:
                pairs = zip(items[0::2], items[1::2], strict=False)
                rest = items[len(items) & ~1 :]
            items = [self.combine(monoid, left, right) for left, right in pairs] + rest
        return items[0]

    def fold_lanes(self, monoid: Monoid, parts: Parts, lanes: int) -> Parts:
        """The lanes of vectors folded into scalars, in the order of `fold`."""
        emit = self.scopes.emit
        while monoid.commutative and lanes > 2 and lanes % 2 == 0:
            lanes //= 2
            low = tuple(emit(Ops.PART, part.dtype, (part,), (0, lanes)) for part in parts)
            high = tuple(emit(Ops.PART, part.dtype, (part,), (lanes, lanes)) for part in parts)
            parts = self.combine(monoid, low, high)
        items = [
            tuple(emit(Ops.EXTRACT, part.dtype, (part,), lane) for part in parts)
            for lane in range(lanes)
        ]
        return self.fold(monoid, items)




# --- one rule per op ----------------------------------------------------------------------------


def _const(values: Values, node: Node, operands: list[Any]) -> Node:
    return const(node.arg, dtypes.int64) if node.dtype is dtypes.index else node


def _var(values: Values, node: Node, operands: list[Any]) -> Node:
    return Node(Ops.VAR, dtypes.int64, (), node.arg)


def _range(values: Values, node: Node, operands: list[Any]) -> Node:
    if not node.arg.is_tile:
        return values.counters[node]
    if node.arg.bind != "vector":
        return const(values.point[node], dtypes.int64)
    lanes = lanes_of(node)
    if lanes == 1:
        return ZERO
    return values.scopes.emit(Ops.LANES, dtypes.int32, (), lanes)


def _load(values: Values, node: Node, operands: list[Any]) -> Node:
    return values.load(node, values.mask(values.masks))


def _guard(values: Values, node: Node, operands: list[Any]) -> Any:
    cond, inner = node.src
    if inner.op is not Ops.LOAD:
        return lazy(values, node)
    mask = values.mask((*values.masks, cond))
    if mask is not None and inner.src[0] in values.memory.registers:
        value = values.load(inner, None)
        return values.apply(Ops.WHERE, node.dtype, mask, value, const(0, node.dtype))
    return values.load(inner, mask)


def _known(values: Values, node: Node, operands: list[Any]) -> Any:
    """A value that has steps of its own, since several expressions read it."""
    return values.value(node)


def _elementwise(values: Values, node: Node, operands: list[Any]) -> Node:
    return values.apply(node.op, node.dtype, *operands)


def _cast(values: Values, node: Node, operands: list[Any]) -> Node:
    (operand,) = operands
    if node.dtype is dtypes.index:
        return values.cast(operand, dtypes.int64)
    if node.src[0].dtype is dtypes.index and operand.op is Ops.CONST:
        value = operand.arg
        return const(bool(value) if node.dtype.kind == "bool" else value, node.dtype)
    if operand.dtype is node.dtype:
        same: Node = operand
        return same
    return values.apply(Ops.CAST, node.dtype, operand)


def _index(values: Values, node: Node, operands: list[Any]) -> Node:
    """Arithmetic on indices: 64 bits, or 32 where it is a vector that surely fits."""
    width = dtypes.int64
    if any(operand.shape for operand in operands):
        held = [*node.src] if node.dtype.kind == "bool" else [node, *node.src]
        spans = [bounds(child) for child in held if child.dtype is dtypes.index]
        if all(INT32[0] <= low and high <= INT32[1] for low, high in spans):
            width = dtypes.int32
    operands = [
        values.cast(operand, width) if child.dtype is dtypes.index else operand
        for child, operand in zip(node.src, operands, strict=True)
    ]
    if node.op is Ops.FLOORDIV or node.op is Ops.MOD:
        return divide_index(values.apply, node, operands, width)
    dtype = node.dtype if node.dtype is not dtypes.index else width
    return values.apply(node.op, dtype, *operands)


def _touches_index(node: Node) -> bool:
    return node.dtype is dtypes.index or node.src[-1].dtype is dtypes.index


def _reduce(values: Values, node: Node, operands: list[Any]) -> Any:
    monoid: Monoid = node.arg.monoid
    inner = [child for child in node.src if child.op is Ops.RANGE]
    parts = node.src[: len(node.src) - len(inner)]
    unrolled = [axis for axis in inner if axis.arg.bind != "vector"]
    vectors = [axis for axis in inner if axis.arg.bind == "vector" and lanes_of(axis) > 1]
    if len(vectors) > 1:
        raise CompilerBug("a reduction over two vector ranges", found=node)
    # The first range varies slowest; folding it first means folding columns of the others.
    items: list[Parts] = []
    before = values.point
    for point in values.points(tuple(unrolled)):
        values.point = point
        items.append(tuple(values.value(part) for part in parts))
    values.point = before
    for axis in unrolled:
        count = lanes_of(axis)
        stride = len(items) // count
        items = [values.fold(monoid, items[place::stride]) for place in range(stride)]
    result = items[0]
    if vectors:
        lanes = lanes_of(vectors[0])
        result = tuple(values.vector(part, lanes) for part in result)
        result = values.fold_lanes(monoid, result, lanes)
    return result if monoid.arity > 1 else result[0]


def _proj(values: Values, node: Node, operands: list[Any]) -> Node:
    part: Node = operands[0][node.arg]
    return part


_RULES: MappingProxyType[Op, Rule] = MappingProxyType(
    {
        **dict.fromkeys(ELEMENTWISE, _elementwise),
        Ops.CONST: _const,
        Ops.VAR: _var,
        Ops.RANGE: _range,
        Ops.CAST: _cast,
        Ops.LOAD: _load,
        Ops.GUARD: _guard,
        Ops.REDUCE: _reduce,
        Ops.PROJ: _proj,
    }
)
