"""Drafts put together: requests and placeholders replaced by expressions, OUTs made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from baregrad.dtypes import DType, dtypes
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Param, Reduce, Scan
from baregrad.ir.core.monoid import Monoid, primitive
from baregrad.ir.core.node import Node, alu, const, make_node, scalar, toposort
from baregrad.ir.core.op import ELEMENTWISE, Op, Ops, mask_of
from baregrad.ir.core.substitution import substitute
from baregrad.schedule.drafts.access import Idx, replace_inside, to_index
from baregrad.schedule.drafts.draft import Draft, Part, Request, Written

_ORDERED = frozenset((Ops.CMPLT, Ops.CMPLE))
_READ = Ops.INDEX
_INDEX = Ops.INDEX.bit
_VAR = Ops.VAR.bit
_DATA = _INDEX | Ops.REDUCE.bit | Ops.SCAN.bit
# What is the same op over its operands' expressions, whatever these are.
_PLAIN = mask_of(ELEMENTWISE - _ORDERED - {Ops.WHERE})


# The PARAMs of one plan by slot, dtype and shape: many kernels have the same.
Arrays = dict[tuple[int, DType, tuple[Any, ...]], Node]


def array(known: Arrays, slot: int, value: Node) -> Node:
    """The PARAM of a kernel's `slot` for a stored value."""
    key = (slot, value.dtype, value.shape)
    found = known.get(key)
    if found is None:
        shape = value.shape
        plain = None if value.mask & _VAR else shape
        found = known[key] = make_node(Ops.PARAM, value.dtype, (), Param(slot, shape), plain)
    return found


@dataclass(slots=True, eq=False)
class Built:
    """A draft's OUT nodes and the values behind its PARAM slots: written ones, then read ones.

    plain: what the OUTs mention, where nothing was left out that was asked for; else None.
    """

    draft: Draft
    outs: tuple[Node, ...]
    written: tuple[Node, ...]
    read: tuple[Node, ...]
    plain: Mentioned | None = None


class Mentioned(NamedTuple):
    """The PARAMs of some OUTs by slot, and their REDUCEs, sources first."""

    params: dict[int, Node]
    reductions: list[Node]


@dataclass(slots=True, eq=False)
class _Assembly:
    """One draft being put together.

    places: expressions of the requests with a placeholder. reductions: those that were made. plain:
    everything that was made is part of what it was made for.
    """

    draft: Draft
    arrays: Arrays
    plain: bool = True
    places: dict[Node, Node] = field(default_factory=dict)
    params: dict[Node, Node] = field(default_factory=dict)
    reductions: dict[Node, None] = field(default_factory=dict)
    first_slot: int = 0

    def param(self, node: Node) -> Node:
        """The PARAM of a stored value that is read; slots in first-use order."""
        found = self.params.get(node)
        if found is None:
            slot = self.first_slot + len(self.params)
            found = self.params[node] = array(self.arrays, slot, node)
        return found

    def finish(self, part: Part) -> Node:
        """The expression of a part whose requests have theirs."""
        if isinstance(part, Request):
            found: Node = part.expr
            return found
        return replace_inside(part, self.places) if part.mask & _INDEX else part

    def complete(self, roots: list[Part]) -> None:
        """Give every request below `roots` its expression."""
        # The requests above the one being looked at, each with its needs still to come.
        path: list[tuple[Request, Iterator[Part]]] = []
        # Without placeholders no index depends on another request.
        needs = self.needs if self.draft.placeholders else None
        for root in self.requests_in(roots):
            if root.expr is not None:
                continue
            request, parts = root, iter(_parts(root) if needs is None else needs(root))
            while True:
                for part in parts:
                    if not isinstance(part, Request) or part.expr is not None:
                        continue
                    if needs is None and part.read:
                        part.expr = self.assemble(part)
                        continue
                    path.append((request, parts))
                    request, parts = part, iter(part.parts if needs is None else needs(part))
                    break
                else:
                    request.expr = made = self.assemble(request)
                    if request.placeholder is not None:
                        self.places[request.placeholder] = made
                    if not path:
                        break
                    request, parts = path.pop()

    def needs(self, request: Request) -> Sequence[Part]:
        """The requests that a request's expression is made of, perhaps among other parts."""
        if request.read:
            return self.requests_in(request.idx)
        extra = request.extra
        if request.node.op is Ops.FOLD:
            extra = extra[1]
        own = (extra,) if isinstance(extra, Node) else ()
        return self.requests_in((*request.parts, *own))

    def requests_in(self, parts: Iterable[Part]) -> list[Request]:
        """The outermost requests in some parts."""
        found: list[Request] = []
        known = self.draft.placeholders
        for part in parts:
            if isinstance(part, Request):
                found.append(part)
            elif part.mask & _INDEX:
                nodes = toposort(part, enter=lambda node: node not in known)
                found.extend([known[node] for node in nodes if node in known])
        return found

    def assemble(self, request: Request) -> Node:
        """The expression of one request whose sources have theirs."""
        node = request.node
        if request.read:
            idx: Iterable[Node] = request.idx
            if self.draft.placeholders:
                idx = [self.finish(at) for at in idx]
            return scalar(_READ, node.dtype, (self.param(node), *idx))
        if self.draft.placeholders:
            parts = tuple([self.finish(one) for one in request.parts])
        else:
            # Without placeholders what is no request stays as it is.
            parts = tuple(
                [one.expr if isinstance(one, Request) else one for one in request.parts]
            )
        op = node.op
        if op.bit & _PLAIN:
            return scalar(op, node.dtype, parts, node.arg)
        return ASSEMBLERS[op](self, request, parts)


def _parts(request: Request) -> Sequence[Part]:
    """What a request's expression is made of, where no index depends on another request."""
    return () if request.read else request.parts


def build(draft: Draft, outs: list[Written], arrays: Arrays) -> Built:
    """The OUT nodes of a draft, in the order of `outs`; arrays: PARAMs that are there already."""
    assembly = _Assembly(draft, arrays)
    if draft.built:
        # Again, with its outputs in another order.
        for request in draft.requests.values():
            request.expr = None
    draft.built = True
    slots: dict[Node, Node] = {}
    for written in outs:
        if written.target not in slots:
            slots[written.target] = array(arrays, len(slots), written.target)
    assembly.first_slot = len(slots)
    roots: list[Part] = [written.value for written in outs]
    if draft.placeholders:
        # Places may depend on what is read.
        roots = [expr for written in outs for expr in (written.value, *written.idx)]
    assembly.complete(roots)
    made = []
    plain = assembly.plain and not draft.placeholders
    for written in outs:
        idx = written.idx
        if draft.placeholders:
            idx = tuple([assembly.finish(place) for place in idx])
        value = assembly.finish(written.value)
        if written.how.monoid is not None:
            value = repeated(written.how.monoid, value, idx, draft.outer)
            plain = False
        src = (slots[written.target], value, *idx)
        made.append(make_node(Ops.OUT, dtypes.token, src, written.how))
    known: Mentioned | None = None
    if plain:
        params = {param.arg.slot: param for param in (*slots.values(), *assembly.params.values())}
        known = Mentioned(params, list(assembly.reductions))
    return Built(draft, tuple(made), tuple(slots), tuple(assembly.params), known)


def repeated(monoid: Monoid, value: Node, idx: Idx, axes: Idx) -> Node:
    """A scattered value, combined over the axes that neither it nor its place depends on.

    An OUT runs over the ranges that it mentions, so a constant put into one place many times would
    count once.
    """
    mentioned = value.ranges.union(*(place.ranges for place in idx))
    ranges = tuple(axis for axis in axes if axis.op is Ops.RANGE and axis not in mentioned)
    if not ranges:
        return value
    return make_node(Ops.REDUCE, value.dtype, (value, *ranges), Reduce(monoid))


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
    if value is const(0, value.dtype):
        return value
    if value.op is Ops.CONST and value.dtype is dtypes.bool:
        return condition
    return make_node(Ops.GUARD, value.dtype, (condition, value))


def reduction(monoid: Monoid, values: tuple[Node, ...], axes: Idx, merges: bool) -> Node:
    """A REDUCE over ranges; with `merges`, a sum of guarded sums becomes one sum."""
    ranges = tuple([axis for axis in axes if axis.op is Ops.RANGE])
    if merges:
        inner = values[0]
        condition = None
        if inner.op is Ops.GUARD:
            condition, inner = inner.src
        if inner.op is Ops.REDUCE and inner.arg.monoid is monoid:
            value = inner.src[0] if condition is None else guard(condition, inner.src[0])
            return make_node(Ops.REDUCE, inner.dtype, (value, *ranges, *inner.src[1:]), inner.arg)
    if not ranges and monoid.primitive is not None:
        return values[0]
    return make_node(Ops.REDUCE, monoid.states[0], (*values, *ranges), Reduce(monoid))


def _pointwise(assembly: _Assembly, request: Request, parts: tuple[Node, ...]) -> Node:
    node = request.node
    if node.op in _ORDERED and parts[0].dtype.kind in ("int", "uint"):
        return _compared(node.op, *parts)
    if node.op is Ops.WHERE and parts[0].op is Ops.CONST:
        assembly.plain = False
        return parts[1] if parts[0].arg else parts[2]
    return scalar(node.op, node.dtype, parts, node.arg)


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
    return _under(assembly, request.extra, parts[0])


def _under(assembly: _Assembly, extra: Node, value: Node) -> Node:
    """`value` where the condition of a request holds, else 0."""
    condition = assembly.finish(extra)
    if condition.op is Ops.CONST:
        assembly.plain = False
    return guard(condition, value)


def _reduce(assembly: _Assembly, request: Request, parts: tuple[Node, ...]) -> Node:
    return _reduced(assembly, request, request.node.arg.monoid, parts, request.extra)


def _fold(assembly: _Assembly, request: Request, parts: tuple[Node, ...]) -> Node:
    axes, condition = request.extra
    monoid = primitive(Ops.ADD, request.node.dtype)
    return _reduced(assembly, request, monoid, (_under(assembly, condition, parts[0]),), axes)


def _reduced(
    assembly: _Assembly, request: Request, monoid: Monoid, values: tuple[Node, ...], axes: Idx
) -> Node:
    merges = _merges(request)
    made = reduction(monoid, values, axes, merges)
    if merges:
        # The sum that it may have become part of is nobody's.
        assembly.plain = False
    elif made.op is Ops.REDUCE:
        assembly.reductions[made] = None
    return made


def _merges(request: Request) -> bool:
    inner = request.parts[0]
    return isinstance(inner, Request) and inner.merges and not inner.read


def _project(assembly: _Assembly, request: Request, parts: tuple[Node, ...]) -> Node:
    whole = parts[0]
    monoid = whole.arg.monoid
    if len(whole.src) > monoid.arity:
        return make_node(Ops.PROJ, request.node.dtype, parts, request.node.arg)
    # Every axis has extent 1: the state of the one element.
    assembly.plain = False
    lifted = monoid.lift[request.node.arg]
    slots = {node: whole.src[node.arg] for node in toposort(lifted) if node.op is Ops.SLOT}
    return substitute(lifted, slots)


def _scan(assembly: _Assembly, request: Request, parts: tuple[Node, ...]) -> Node:
    axis = assembly.finish(request.extra)
    arg = Scan(request.node.arg.monoid, -1)
    if axis.op is Ops.RANGE:
        parts = (*parts, axis)
    elif arg.monoid.arity == 1:
        return parts[0]
    # Of one element there is no axis: what that is lifted to, its PROJ says.
    return make_node(Ops.SCAN, request.node.dtype, parts, arg)


Assembler = Callable[[_Assembly, Request, tuple[Node, ...]], Node]
ASSEMBLERS: MappingProxyType[Op, Assembler] = MappingProxyType(
    {
        **dict.fromkeys(ELEMENTWISE, _pointwise),
        Ops.CONTIGUOUS: _same,
        Ops.PAD: _guarded,
        Ops.GATHER: _guarded,
        Ops.REDUCE: _reduce,
        Ops.FOLD: _fold,
        Ops.PROJ: _project,
        Ops.SCAN: _scan,
    }
)
