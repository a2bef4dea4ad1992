"""Graphs after every pass of the room, and what is counted in them."""

from __future__ import annotations

from baregrad.graph import canonicalise, stages
from baregrad.ir.core.node import Node, toposort
from tests.schedule.graphs import A, sink


def canonical(x: A) -> Node:
    return canonicalise(sink(x)).src[0]


def count(node: Node, op: object) -> int:
    return sum(one.op is op for one in toposort(node))


def ops(x: A) -> set[object]:
    return {one.op for one in toposort(canonicalise(sink(x)))}


def one_by_one(root: Node) -> Node:
    *_, (_, _, last) = stages(root)
    return last


def ops_of(root: Node) -> set[str]:
    return {node.op.name for node in toposort(root)}
