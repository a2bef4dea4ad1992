"""The graph of a function of one example, rewritten for a batch of them, op by op.

A node that an example reaches gets the batch as its first axis; any other stays as it is, and is
spread over the batch where an op needs that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from baregrad.base.errors import UnsupportedError
from baregrad.func.stand_ins import (
    Handed,
    handed_over,
    made_of,
    order_below,
    stand_in,
    what_was_handed,
)
from baregrad.ir.core.attrs import Pad, Slice
from baregrad.ir.core.node import Node, make_node
from baregrad.ir.core.op import ELEMENTWISE, Op, Ops
from baregrad.tensor.array import nodes
from baregrad.tensor.array.views import Pulled
from baregrad.tensor.autograd.gradients_structure import device_below


class Mapped:
    """One rewriting: the extent of the batch, and what each node that examples reach became."""

    def __init__(self, extent: Any, given: Mapping[Node, Node]) -> None:
        self.extent = extent
        self.done = dict(given)

    def of(self, node: Node) -> Node:
        """A node for all of the batch: what it became, or itself spread over the batch."""
        found = self.done.get(node)
        if found is not None:
            return found
        return nodes.broadcast(nodes.unsqueeze(node, 0), (self.extent, *node.shape))

    def rewrite(self, roots: Sequence[Node]) -> None:
        """Put what each node below the roots became into `done`, if an example reaches it."""
        done = self.done
        for node in order_below(roots, done):
            if node in done or done.keys().isdisjoint(made_of(node)):
                continue
            rule = RULES.get(node.op)
            if rule is None:
                raise UnsupportedError(f"vmap has no rule for {node.op.name}")
            done[node] = rule(self, node)

    def positions(self, shape: tuple[Any, ...]) -> Node:
        """The number of the example of each element of (batch, *shape)."""
        return nodes.iota_along((self.extent, *shape), 0)


Rule = Callable[[Mapped, Node], Node]


def _elementwise(batch: Mapped, node: Node) -> Node:
    shape = (batch.extent, *node.shape)
    operands = []
    for source in node.src:
        found = batch.done.get(source)
        if found is None:
            # A scalar goes with any shape as it is.
            operands.append(batch.of(source) if source.shape else source)
        elif source.shape != node.shape:
            ones = (1,) * len(node.shape)
            operands.append(nodes.expand(nodes.reshape(found, (batch.extent, *ones)), shape))
        else:
            operands.append(found)
    return Node(node.op, node.dtype, tuple(operands), node.arg)


def _reshape(batch: Mapped, node: Node) -> Node:
    return nodes.reshape(batch.of(node.src[0]), (batch.extent, *node.shape))


def _permute(batch: Mapped, node: Node) -> Node:
    return nodes.permute(batch.of(node.src[0]), (0, *(axis + 1 for axis in node.arg)))


def _expand(batch: Mapped, node: Node) -> Node:
    return nodes.expand(batch.of(node.src[0]), (batch.extent, *node.shape))


def _pad(batch: Mapped, node: Node) -> Node:
    return nodes.pad(batch.of(node.src[0]), (Pad(), *node.arg))


def _shrink(batch: Mapped, node: Node) -> Node:
    return nodes.shrink(batch.of(node.src[0]), (Slice(0, batch.extent), *node.arg))


def _flip(batch: Mapped, node: Node) -> Node:
    return nodes.flip(batch.of(node.src[0]), tuple([axis + 1 for axis in node.arg]))


def _along(batch: Mapped, node: Node) -> Node:
    """A node whose attribute names an axis of its sources."""
    sources = tuple(map(batch.of, node.src))
    return make_node(node.op, node.dtype, sources, node.arg._replace(axis=node.arg.axis + 1))


def _reduce(batch: Mapped, node: Node) -> Node:
    axes = tuple([axis + 1 for axis in node.arg.axes])
    sources = tuple(map(batch.of, node.src))
    return make_node(node.op, node.dtype, sources, node.arg._replace(axes=axes))


def _same(batch: Mapped, node: Node) -> Node:
    """Ops that leave axes alone, or know the last one only."""
    return make_node(node.op, node.dtype, tuple(map(batch.of, node.src)), node.arg)


def _gather(batch: Mapped, node: Node) -> Node:
    x, *places = node.src
    if x not in batch.done:
        return make_node(node.op, node.dtype, (x, *map(batch.of, places)), node.arg)
    shape = places[0].shape if places else ()
    sources = (batch.done[x], batch.positions(shape), *map(batch.of, places))
    return make_node(node.op, node.dtype, sources, node.arg)


def _scatter(batch: Mapped, node: Node) -> Node:
    base, values, *places = node.src
    shape = places[0].shape if places else ()
    sources = (batch.of(base), batch.of(values), batch.positions(shape), *map(batch.of, places))
    return make_node(node.op, node.dtype, sources, node.arg)


def _detach(batch: Mapped, node: Node) -> Node:
    value = batch.of(node.src[0])
    mark = node.arg
    if mark.__class__ is Handed:
        return Node(node.op, node.dtype, (value,), Handed(mark.place, batch.of(mark.gradient)))
    if mark.__class__ is not Pulled:
        return Node(node.op, node.dtype, (value,), mark)

    def rule(gradient: Node) -> tuple[Node | None, ...]:
        device = device_below(node) or ""
        handed = what_was_handed(gradient)
        ones = {
            place: stand_in(part.shape[1:], part.dtype, device) for place, part in handed.items()
        }
        one = handed_over(ones) if ones else stand_in(node.shape, gradient.dtype, device)
        given = {ones[place]: part for place, part in handed.items()} or {one: gradient}
        parts = mark.rule(one)
        inner = Mapped(batch.extent, {**batch.done, **given})
        inner.rewrite([part for part in parts if part is not None])
        return tuple([part if part is None else inner.of(part) for part in parts])

    return Node(node.op, node.dtype, (value,), Pulled(tuple(map(batch.of, mark.sources)), rule))


RULES: Mapping[Op, Rule] = MappingProxyType(
    {
        **dict.fromkeys(ELEMENTWISE, _elementwise),
        Ops.RESHAPE: _reshape,
        Ops.PERMUTE: _permute,
        Ops.EXPAND: _expand,
        Ops.PAD: _pad,
        Ops.SHRINK: _shrink,
        Ops.FLIP: _flip,
        Ops.WINDOW: _along,
        Ops.FOLD: _along,
        Ops.SCAN: _along,
        Ops.REDUCE: _reduce,
        Ops.PROJ: _same,
        Ops.SORT: _same,
        Ops.CONTIGUOUS: _same,
        Ops.COPY: _same,
        Ops.GATHER: _gather,
        Ops.SCATTER: _scatter,
        Ops.DETACH: _detach,
    }
)
