"""Tiles whose sums nobody reads, as a number in memory says, behind all others of their block.

Rows by experts fill tiles of which memory says how many there are; a kernel has as many as there
may be, and stores zeros for the rest. Blocks that do their tiles one after the other take those
that are there first, in turns of their own: all blocks then read neighbours' panels at the same
time, as they would without the others. What is left is stored at the end, with nothing summed.

One tile of 128 rows that was left out in its place had cost 8,192 rows by 8 experts of
4,096 x 14,336 on an H200 66 us of 1,413: a block that leaves a tile out is a whole tile ahead of
those which read the same panels, from then on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import Node, extent_of, make_node, rebuild, toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel.gpu.barriers import sequence
from baregrad.kernel.gpu.loop_bounds import limit_of
from baregrad.kernel.gpu.roles import is_of_block, reads_sums


class GridPart(NamedTuple):
    """Some tiles of a grid: what its axes begin with, how far they go, and what a tile does."""

    begins: tuple[Dim, ...]
    extents: tuple[Dim, ...]
    body: Node


def told_apart(axes: Sequence[Node], body: Node) -> list[GridPart]:
    """The tiles of a loop-level body that lies on a grid: all, or those there are and the rest."""
    whole = tuple([extent_of(axis) for axis in axes])
    every = GridPart((0,) * len(axes), whole, body)
    stores = [
        node for node in toposort(body) if node.op is Ops.STORE and node.src[0].op is Ops.PARAM
    ]
    if not stores or _leaves_in_bulk(body):
        return [every]
    written = {store.src[0] for store in stores}
    for choice in toposort(stores[0].src[1]):
        condition = choice.src[0] if choice.op is Ops.WHERE else None
        if condition is None or len(condition.ranges) != 1:
            continue
        (axis,) = condition.ranges
        if axis not in axes or not is_of_block(condition, {axis}, written):
            continue
        limit = limit_of(condition, axis)
        if limit is None or any(reads_sums(store.src[1], condition) for store in stores):
            continue
        place = list(axes).index(axis)
        count = index.maximum(index.minimum(limit, whole[place]), 0)
        return [
            GridPart(every.begins, _with(whole, place, count), _known(body, condition, True)),
            GridPart(_with(every.begins, place, count),
                 _with(whole, place, index.sub(whole[place], count)),
                 sequence(_stored(_known(body, condition, False)))),
        ]  # fmt: skip
    return [every]


def _leaves_in_bulk(body: Node) -> bool:
    """Whether an engine copies results out of shared memory."""
    return any(one.op is Ops.COPYTO and one.arg.engine == "bulk" for one in toposort(body))


def _with(dims: tuple[Dim, ...], place: int, dim: Dim) -> tuple[Dim, ...]:
    return (*dims[:place], dim, *dims[place + 1 :])


def _known(body: Node, condition: Node, holds: bool) -> Node:
    """A body in which a condition of choices is known."""

    def visit(node: Node) -> Node | None:
        if node.op is Ops.WHERE and node.src[0] is condition:
            return node.src[1 if holds else 2]
        return None

    return rebuild(body, visit)


def _stored(body: Node) -> list[Node]:
    """The statements of a body that write to memory, of what nothing has to be summed for."""
    if body.op is Ops.SEQ:
        return [one for child in body.src for one in _stored(child)]
    if body.op in (Ops.LOOP, Ops.IF):
        inside = _stored(body.src[1])
        return [make_node(body.op, dtypes.token, (body.src[0], sequence(inside)))] if inside else []
    return [body] if body.op is Ops.STORE and body.src[0].op is Ops.PARAM else []
