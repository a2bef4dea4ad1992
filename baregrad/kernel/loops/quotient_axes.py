"""Reduced axes that packed numbers are read at quotients or rests of, as two axes each.

Several numbers of a sum lie in one word, so that the word's place is a quotient of theirs, or a
rest. As two axes, of the words and of what lies in each, places are sums of axes, and a schedule
can give a thread all of what is in a word.
"""

from __future__ import annotations

from baregrad.ir.core import index
from baregrad.ir.core.node import Node, extent_of, make_node, range_node, rebuild, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.core.substitution import substitute
from baregrad.kernel.facts.analysis import facts_of


def split_quotients(kernel: Node) -> Node:
    """`kernel` with such axes of its reductions split, where each is divided by one number."""
    if not kernel.has(Ops.REDUCE) or not kernel.has(Ops.FLOORDIV, Ops.MOD):
        return kernel
    facts = facts_of(kernel)
    if any(value.has(Ops.REDUCE) for each in facts.reductions for value in each.node.src):
        return kernel
    sizes = _divisors(kernel)
    first = 1 + max(axis.arg.id for axis in facts.axes)
    parts: dict[Node, tuple[Node, Node]] = {}
    for reduction in facts.reductions:
        for axis in reduction.own:
            size = sizes.get(axis, 0)
            extent = extent_of(axis)
            if size and axis not in parts and isinstance(extent, int) and extent % size == 0:
                place = first + 2 * len(parts)
                parts[axis] = range_node(extent // size, place), range_node(size, place + 1)
    if not parts:
        return kernel
    places = {
        axis: index.as_node(index.add(index.mul(outer, size_of(inner)), inner))
        for axis, (outer, inner) in parts.items()
    }
    memo: dict[Node, Node] = {}
    for reduction in facts.reductions:
        node = reduction.node
        if parts.keys().isdisjoint(reduction.own):
            continue
        values = [substitute(value, places) for value in node.src[: -len(reduction.own)]]
        own = [part for axis in reduction.own for part in parts.get(axis, (axis,))]
        memo[node] = make_node(node.op, node.dtype, (*values, *own), node.arg)
    return rebuild(kernel, index.resimplify, memo=memo)


def size_of(axis: Node) -> int:
    """The extent of an axis of a constant one."""
    size: int = axis.src[0].arg
    return size


def _divisors(kernel: Node) -> dict[Node, int]:
    """By axis the number that it is divided by where integers are read; 0 where there are two."""
    found: dict[Node, int] = {}
    for read in toposort(kernel):
        if read.op is not Ops.INDEX or read.dtype.kind != "uint":
            continue
        for node in toposort(*read.src[1:]):
            if node.op in (Ops.FLOORDIV, Ops.MOD) and node.src[0].op is Ops.RANGE:
                axis, by = node.src
                size = int(by.arg) if by.op is Ops.CONST else 0
                found[axis] = size if found.get(axis, size) == size else 0
    return found
