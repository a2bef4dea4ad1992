"""Guards over reductions: the loads of a REDUCE below GUARD(cond, value) stay guarded.

A reduction is placed ahead of the expression that reads it, where its reader's guard no longer
covers it. Its own values are therefore guarded by every condition that shares an axis with it.
Conditions that share none say nothing about the reduction's addresses, and would drag it into
more loops.
"""

from __future__ import annotations

from baregrad.ir import index
from baregrad.ir.node import Node, rebuild
from baregrad.ir.op import Ops

_MEMO = "kernel.guarded"
_REDUCES = Ops.REDUCE.bit | Ops.SCAN.bit


def push_guards(kernel: Node) -> Node:
    """`kernel` with the values of guarded reductions guarded themselves."""
    if not (kernel.has(Ops.GUARD) and kernel.mask & _REDUCES):
        return kernel
    found: Node | None = kernel.memo.get(_MEMO)
    if found is None:
        found = rebuild(kernel, _visit)
        if found is not kernel:
            kernel.memo[_MEMO] = found
    return found


def _visit(node: Node) -> Node | None:
    if node.op is not Ops.GUARD or not node.src[1].mask & _REDUCES:
        return None
    condition, value = node.src

    def push(inner: Node) -> Node | None:
        if not inner.op.bit & _REDUCES or condition.ranges.isdisjoint(inner.ranges):
            return None
        return Node(inner.op, inner.dtype, tuple(_guarded(c) for c in inner.src), inner.arg)

    def _guarded(child: Node) -> Node:
        if child.op is Ops.RANGE:
            return child
        if child.op is Ops.GUARD:
            both = index.both(condition, child.src[0])
            return Node(Ops.GUARD, child.dtype, (both, child.src[1]))
        return Node(Ops.GUARD, child.dtype, (condition, child))

    return Node(Ops.GUARD, node.dtype, (condition, rebuild(value, push)))
