"""Replacing nodes of a graph, with index arithmetic simplified on the way."""

from __future__ import annotations

from collections.abc import Mapping

from baregrad.dtypes import dtypes
from baregrad.ir.core.index import linear, replaced, resimplify
from baregrad.ir.core.node import Node, fill, make_node, rebuild
from baregrad.ir.core.op import STATEMENTS, Ops, mask_of

# Below these, nodes may depend on axes that they close.
_HIDES = mask_of((Ops.REDUCE, Ops.STAGE, Ops.OUT, *STATEMENTS))


def substitute(root: Node, mapping: Mapping[Node, Node]) -> Node:
    """`root` with each key of `mapping` replaced; index arithmetic is simplified on the way."""
    if not mapping:
        return root
    if all(key.op is Ops.RANGE for key in mapping):
        return _with_axes(root, mapping)
    mask = mask_of([key.op for key in mapping])
    return rebuild(root, resimplify, memo=dict(mapping), enter=lambda node: bool(node.mask & mask))


def _with_axes(root: Node, mapping: Mapping[Node, Node]) -> Node:
    """`substitute` of axes: a sum of many terms is made once, not once for each of its parts."""
    axes = frozenset(mapping)
    done: dict[Node, Node] = dict(mapping)

    def enter(node: Node) -> bool:
        if node.ranges.isdisjoint(axes):
            return bool(node.mask & _HIDES)
        return node.op is not Ops.ADD or node.dtype is not dtypes.index

    def visit(node: Node, known: dict[Node, Node]) -> Node:
        if not enter(node):
            if node.ranges.isdisjoint(axes):
                return node
            terms, constant = linear(node)
            fill(known, tuple(terms), visit, known, enter)
            return replaced(terms, constant, known)
        src = tuple([known[child] for child in node.src])
        current = node if src == node.src else make_node(node.op, node.dtype, src, node.arg)
        simpler = resimplify(current)
        return current if simpler is None else simpler

    fill(done, (root,), visit, done, enter)
    return done[root]
