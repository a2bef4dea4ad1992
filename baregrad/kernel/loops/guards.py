"""Guards over reductions: the loads of a REDUCE below GUARD(cond, value) stay guarded.

A reduction is placed ahead of the expression that reads it, where its reader's guard no longer
covers it. Its own values are therefore guarded by every condition that shares an axis with it.
Conditions on other axes say nothing about the reduction's addresses, and would drag it into more
loops. One on no axis at all (a loaded scalar, a symbolic integer) may say something, and drags it
nowhere. A condition that reads memory itself stays inside the guards that were around it. What the
condition is computed from is computed without it.

What lies across the output of a GPU's kernel is copied by tiles, as far as it is there. So a guard
over a value of such reads is around each of them as well.

A SCAN is left alone, and what it folds too: the guard speaks of one position, while each position
needs the values of all before it. It is only ever read in order, at places that exist.
"""

from __future__ import annotations

from baregrad.ir.core import index
from baregrad.ir.core.node import Node, rebuild
from baregrad.ir.core.op import Ops
from baregrad.kernel.facts.analysis import in_bounds, is_read
from baregrad.kernel.loops.loop_pieces import nodes_having

_BOTH = Ops.GUARD.bit | Ops.REDUCE.bit


def push_guards(kernel: Node) -> Node:
    """`kernel` with the values of guarded reductions guarded themselves."""
    if kernel.mask & _BOTH != _BOTH:
        return kernel
    return rebuild(kernel, _visit, enter=lambda node: node.mask & _BOTH == _BOTH)


def _visit(node: Node) -> Node | None:
    if node.op is not Ops.GUARD or not node.src[1].has(Ops.REDUCE):
        return None
    condition, value = node.src
    known = frozenset(nodes_having(Ops.REDUCE.bit, (condition,)))

    def push(inner: Node) -> Node | None:
        if inner.op is not Ops.REDUCE or inner in known:
            return None
        if condition.ranges and condition.ranges.isdisjoint(inner.ranges):
            return None
        return Node(inner.op, inner.dtype, tuple(_guarded(c) for c in inner.src), inner.arg)

    def _guarded(child: Node) -> Node:
        if child.op is Ops.RANGE:
            return child
        if child.op is Ops.GUARD and not child.src[0].mask & Ops.INDEX.bit:
            both = index.both(condition, child.src[0])
            return Node(Ops.GUARD, child.dtype, (both, child.src[1]))
        return Node(Ops.GUARD, child.dtype, (condition, child))

    pushed = rebuild(value, push, enter=lambda inner: inner.op is not Ops.SCAN)
    return Node(Ops.GUARD, node.dtype, (condition, pushed))


def guard_crossed_reads(kernel: Node) -> Node:
    """`kernel` with guards right around the reads below them that lie across what is written.

    Those are reads outside their arrays where the guard does not hold, along axes that it has.
    """
    if not kernel.mask & Ops.GUARD.bit or kernel.mask & Ops.REDUCE.bit:
        return kernel
    return kernel.replace(src=tuple([_with_crossed_reads(out) for out in kernel.src]))


def _with_crossed_reads(out: Node) -> Node:
    if out.op is not Ops.OUT or out.src[1].op is not Ops.GUARD or len(out.src) == 2:
        return out
    array, guarded, *places = out.src
    condition, value = guarded.src

    def visit(node: Node) -> Node | None:
        if not is_read(node) or in_bounds(node) or not condition.ranges <= node.ranges:
            return None
        crossed = node.src[-1].ranges.isdisjoint(places[-1].ranges)
        return Node(Ops.GUARD, node.dtype, (condition, node)) if crossed else None

    def enter(node: Node) -> bool:
        reads = node.op is Ops.INDEX and any(place.mask & Ops.INDEX.bit for place in node.src[1:])
        return node.op is not Ops.GUARD and not reads

    found = rebuild(value, visit, enter=enter)
    if found is value:
        return out
    guarded = Node(Ops.GUARD, guarded.dtype, (condition, found))
    return out.replace(src=(array, guarded, *places))


def covered_by_guards(order: list[Node]) -> set[Node]:
    """The nodes of a kernel, or of a value, that are read below guards alone; sources first."""
    if not order[-1].mask & Ops.GUARD.bit:
        return set()
    free = {order[-1]}
    for node in reversed(order):
        if node in free:
            free.update(node.src[:1] if node.op is Ops.GUARD else node.src)
    return set(order) - free
