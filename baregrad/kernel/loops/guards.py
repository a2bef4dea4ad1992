"""Guards over reductions: the loads of a REDUCE below GUARD(cond, value) stay guarded.

A reduction is placed ahead of the expression that reads it, where its reader's guard no longer
covers it. Its own values are therefore guarded by every condition that shares an axis with it.
Conditions on other axes say nothing about the reduction's addresses, and would drag it into more
loops. One on no axis at all (a loaded scalar, a symbolic integer) may say something, and drags it
nowhere. A condition that reads memory itself stays inside the guards that were around it. What the
condition is computed from is computed without it.

A SCAN is left alone, and what it folds too: the guard speaks of one position, while each position
needs the values of all before it. It is only ever read in order, at places that exist.
"""

from __future__ import annotations

from baregrad.ir.core import index
from baregrad.ir.core.node import Node, rebuild
from baregrad.ir.core.op import Ops
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
