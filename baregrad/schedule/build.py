"""Drafts put together: placeholders replaced by expressions, views and requests gone, OUTs made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from baregrad.dtypes import DType, dtypes
from baregrad.ir import index
from baregrad.ir.attrs import Param, Reduce, Scan
from baregrad.ir.monoid import Monoid, primitive
from baregrad.ir.node import Node, alu, const, substitute, toposort
from baregrad.ir.op import ELEMENTWISE, Op, Ops
from baregrad.schedule.access import Idx, replace_inside, to_index
from baregrad.schedule.draft import Draft, Request, Written

_SAME = frozenset((Ops.CONTIGUOUS, Ops.COPY))
_ORDERED = frozenset((Ops.CMPLT, Ops.CMPLE))
_DATA = Ops.INDEX.bit | Ops.REDUCE.bit | Ops.SCAN.bit


# The PARAMs of one plan by slot, dtype and shape: many kernels have the same.
Arrays = dict[tuple[int, DType, tuple[Any, ...]], Node]


def array(known: Arrays, slot: int, value: Node) -> Node:
    """The PARAM of a kernel's `slot` for a stored value."""
    key = (slot, value.dtype, value.shape)
    found = known.get(key)
    if found is None:
        found = known[key] = Node(Ops.PARAM, value.dtype, (), Param(slot, value.shape))
    return found


@dataclass(slots=True, eq=False)
class Built:
    """A draft's OUT nodes and the values behind its PARAM slots: written ones, then read ones."""

    draft: Draft
    outs: tuple[Node, ...]
    written: tuple[Node, ...]
    read: tuple[Node, ...]


@dataclass(slots=True, eq=False)
class _Assembly:
    """One draft being put together."""

    draft: Draft
    arrays: Arrays
    exprs: dict[Node, Node] = field(default_factory=dict)
    params: dict[Node, Node] = field(default_factory=dict)
    first_slot: int = 0

    def param(self, node: Node) -> Node:
        """The PARAM of a stored value that is read; slots in first-use order."""
        found = self.params.get(node)
        if found is None:
            slot = self.first_slot + len(self.params)
            found = self.params[node] = array(self.arrays, slot, node)
        return found

    def finish(self, expression: Node) -> Node:
        """`expression` with its placeholders replaced."""
        found = self.exprs.get(expression)
        if found is not None:
            return found
        if expression.mask & Ops.INDEX.bit:
            return replace_inside(expression, self.exprs)
        return expression

    def complete(self, roots: list[Node]) -> None:
        """Give every placeholder below `roots` its expression."""
        exprs, requests = self.exprs, self.draft.requests
        # None stands on a placeholder whose needs come before it.
        stack: list[Node | None] = []
        for root in reversed(roots):
            stack.extend(reversed(self.places(root)))
        while stack:
            place = stack.pop()
            if place is None:
                place = stack.pop()
                assert place is not None
            elif place in exprs:
                continue
            else:
                missing = [one for one in self.needs(requests[place]) if one not in exprs]
                if missing:
                    stack.append(place)
                    stack.append(None)
                    stack.extend(reversed(missing))
                    continue
            exprs[place] = self.assemble(requests[place])

    def needs(self, request: Request) -> list[Node]:
        """The placeholders that a request's expression is made of."""
        found: list[Node] = []
        requests = self.draft.requests
        for part in request.idx if request.read else request.parts:
            if part in requests:
                found.append(part)
            elif part.mask & Ops.INDEX.bit:
                found.extend(self.places(part))
        if request.read:
            return found
        extra = request.extra
        if extra.__class__ is Node and extra.mask & Ops.INDEX.bit:
            found.extend(self.places(extra))
        elif request.node.op is Ops.FOLD:
            found.extend(self.places(extra[1]))
        return found

    def places(self, expression: Node) -> list[Node]:
        """The outermost placeholders in an expression."""
        requests = self.draft.requests
        if expression in requests:
            return [expression]
        if not expression.mask & Ops.INDEX.bit:
            return []
        nodes = toposort(expression, enter=lambda node: node not in requests)
        return [node for node in nodes if node in requests]

    def assemble(self, request: Request) -> Node:
        """The expression of one request whose sources have theirs."""
        node = request.node
        if request.read:
            data = Ops.INDEX.bit
            idx = [self.finish(at) if at.mask & data else at for at in request.idx]
            return Node(Ops.INDEX, node.dtype, (self.param(node), *idx))
        exprs = self.exprs
        parts = tuple([exprs[one] if one in exprs else self.finish(one) for one in request.parts])
        return ASSEMBLERS[node.op](self, request, parts)


def build(draft: Draft, outs: list[Written], arrays: Arrays) -> Built:
    """The OUT nodes of a draft, in the order of `outs`; arrays: PARAMs that are there already."""
    assembly = _Assembly(draft, arrays)
    slots: dict[Node, Node] = {}
    for written in outs:
        if written.target not in slots:
            slots[written.target] = array(arrays, len(slots), written.target)
    assembly.first_slot = len(slots)
    roots = [expr for written in outs for expr in (written.value, *written.idx)]
    assembly.complete(roots)
    made = []
    for written in outs:
        idx = tuple(assembly.finish(place) for place in written.idx)
        value = assembly.finish(written.value)
        if written.how.monoid is not None:
            value = repeated(written.how.monoid, value, idx, draft.outer)
        src = (slots[written.target], value, *idx)
        made.append(Node(Ops.OUT, dtypes.token, src, written.how))
    return Built(draft, tuple(made), tuple(slots), tuple(assembly.params))


def repeated(monoid: Monoid, value: Node, idx: Idx, axes: Idx) -> Node:
    """A scattered value, combined over the axes that neither it nor its place depends on.

    An OUT runs over the ranges that it mentions, so a constant put into one place many times would
    count once.
    """
    mentioned = value.ranges.union(*(place.ranges for place in idx))
    ranges = tuple(axis for axis in axes if axis.op is Ops.RANGE and axis not in mentioned)
    if not ranges:
        return value
    return Node(Ops.REDUCE, value.dtype, (value, *ranges), Reduce(monoid))


# --- one op at a time
# -------------------------------------------------------------------------------


def guard(condition: Node, value: Node) -> Node:
    """`value` where the condition holds, else 0; nested guards become one.

    A condition that reads memory stays inside: the read may be out of bounds elsewhere.
    """
    if condition.op is Ops.CONST:
        return value if condition.arg else const(0, value.dtype)
    if value.op is Ops.GUARD and not value.src[0].mask & Ops.INDEX.bit:
        condition = index.both(condition, value.src[0])
        value = value.src[1]
    if value.op is Ops.CONST and value.arg == 0:
        return value
    return Node(Ops.GUARD, value.dtype, (condition, value))


def reduction(monoid: Monoid, values: tuple[Node, ...], axes: Idx, merges: bool) -> Node:
    """A REDUCE over ranges; with `merges`, a sum of guarded sums becomes one sum."""
    ranges = tuple(axis for axis in axes if axis.op is Ops.RANGE)
    if merges:
        inner = values[0]
        condition = None
        if inner.op is Ops.GUARD:
            condition, inner = inner.src
        if inner.op is Ops.REDUCE and inner.arg.monoid is monoid:
            value = inner.src[0] if condition is None else guard(condition, inner.src[0])
            return Node(Ops.REDUCE, inner.dtype, (value, *ranges, *inner.src[1:]), inner.arg)
    if not ranges and monoid.primitive is not None:
        return values[0]
    return Node(Ops.REDUCE, monoid.states[0], (*values, *ranges), Reduce(monoid))


def _pointwise(assembly: _Assembly, request: Request, parts: tuple[Node, ...]) -> Node:
    node = request.node
    if node.op in _ORDERED and parts[0].dtype.kind in ("int", "uint"):
        return _compared(node.op, *parts)
    if node.op is Ops.WHERE and parts[0].op is Ops.CONST:
        return parts[1] if parts[0].arg else parts[2]
    return Node(node.op, node.dtype, parts, node.arg)


def _compared(op: Op, left: Node, right: Node) -> Node:
    """A comparison of places (a causal mask, the seams of joined arrays) as index arithmetic.

    Bounds may decide it, and it needs no 64-bit lanes.
    """
    if not (left.mask | right.mask) & _DATA and (left.mask | right.mask) & Ops.RANGE.bit:
        a, b = to_index(left), to_index(right)
        if a.op is not Ops.CAST and b.op is not Ops.CAST:
            return index.less(a, b) if op is Ops.CMPLT else index.at_least(b, a)
    return alu(op, left, right)


def _same(assembly: _Assembly, request: Request, parts: tuple[Node, ...]) -> Node:
    return parts[0]


def _guarded(assembly: _Assembly, request: Request, parts: tuple[Node, ...]) -> Node:
    return guard(assembly.finish(request.extra), parts[0])


def _reduce(assembly: _Assembly, request: Request, parts: tuple[Node, ...]) -> Node:
    return reduction(request.node.arg.monoid, parts, request.extra, _merges(assembly, request))


def _fold(assembly: _Assembly, request: Request, parts: tuple[Node, ...]) -> Node:
    axes, condition = request.extra
    monoid = primitive(Ops.ADD, request.node.dtype)
    value = guard(assembly.finish(condition), parts[0])
    return reduction(monoid, (value,), axes, _merges(assembly, request))


def _merges(assembly: _Assembly, request: Request) -> bool:
    inner = assembly.draft.requests.get(request.parts[0])
    return inner is not None and inner.merges and not inner.read


def _project(assembly: _Assembly, request: Request, parts: tuple[Node, ...]) -> Node:
    whole = parts[0]
    monoid = whole.arg.monoid
    if len(whole.src) > monoid.arity:
        return Node(Ops.PROJ, request.node.dtype, parts, request.node.arg)
    # Every axis has extent 1: the state of the one element.
    lifted = monoid.lift[request.node.arg]
    slots = {node: whole.src[node.arg] for node in toposort(lifted) if node.op is Ops.SLOT}
    return substitute(lifted, slots)


def _scan(assembly: _Assembly, request: Request, parts: tuple[Node, ...]) -> Node:
    axis = assembly.finish(request.extra)
    if axis.op is not Ops.RANGE:
        return parts[0]
    arg = Scan(request.node.arg.monoid, -1)
    return Node(Ops.SCAN, request.node.dtype, (parts[0], axis), arg)


Assembler = Callable[[_Assembly, Request, tuple[Node, ...]], Node]
ASSEMBLERS: MappingProxyType[Op, Assembler] = MappingProxyType(
    {
        **dict.fromkeys(ELEMENTWISE, _pointwise),
        **dict.fromkeys(_SAME, _same),
        Ops.PAD: _guarded,
        Ops.GATHER: _guarded,
        Ops.REDUCE: _reduce,
        Ops.FOLD: _fold,
        Ops.PROJ: _project,
        Ops.SCAN: _scan,
    }
)
