"""The graph of a function of one example, rewritten for a batch of them, op by op.

A node that an example reaches gets the batch as its first axis; any other stays as it is, and is
spread over the batch where an op needs that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from baregrad.base.errors import UnsupportedError
from baregrad.dtypes import dtypes
from baregrad.engine.session import current_session
from baregrad.func.stand_ins import stand_in
from baregrad.ir.core.attrs import Choose, Pad, Param, Repeat, Slice, TextKernel
from baregrad.ir.core.control import body_params, choose_form, repeat_form, result
from baregrad.ir.core.node import Node, make_node
from baregrad.ir.core.op import ELEMENTWISE, Op, Ops
from baregrad.tensor.array import nodes
from baregrad.tensor.array.views import Pulled
from baregrad.tensor.autograd.gradients_structure import device_below
from baregrad.tensor.autograd.putting_in import (
    Handed,
    handed_over,
    made_of,
    order_below,
    put_in,
    what_was_handed,
)


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
        with current_session().watching.standing_in():
            parts = mark.rule(one)
        inner = Mapped(batch.extent, {**batch.done, **given})
        inner.rewrite([part for part in parts if part is not None])
        return tuple([part if part is None else inner.of(part) for part in parts])

    return Node(node.op, node.dtype, (value,), Pulled(tuple(map(batch.of, mark.sources)), rule))


# --- loops and choices ---------------------------------------------------------------------------


def _control(batch: Mapped, node: Node) -> Node:
    """The same result of the loop, the choice or the kernel of a whole batch."""
    form = node.arg
    if isinstance(form, Choose):
        return _chosen(batch, node, form)
    if isinstance(form, TextKernel):
        return _one_by_one(batch, node, form)
    if form.conditional:
        return _until_none_goes_on(batch, node, form)
    values = node.src
    reached = [value in batch.done for value in values]
    first, last = form.carried, form.carried + form.read
    params = body_params(form, values)
    while True:
        given = _batched(batch.extent, params, reached)
        inner = Mapped(batch.extent, given)
        inner.rewrite(form.body.src)
        also = [root in inner.done for root in form.body.src[:first]]
        if all(known for known, more in zip(reached, also, strict=False) if more):
            break
        # What one step makes of an example's value is an example's in the next.
        reached[:first] = [a or b for a, b in zip(reached, also, strict=False)]
    roots = form.body.src
    made = [inner.of(root) if i >= first or reached[i] else root for i, root in enumerate(roots)]
    sources = [
        value if not is_reached else _rows_first(batch.of(value)) if first <= i < last
        else batch.of(value)
        for i, (value, is_reached) in enumerate(zip(values, reached, strict=True))
    ]
    body = Node(Ops.SINK, dtypes.token, tuple(made))
    found = result(repeat_form(body, first, form.read, form.length, form.backwards), sources,
                   form.part)
    is_kept = form.part >= len(roots)
    is_carried = form.part < first
    place = form.part - len(roots) if is_kept else form.part
    if (is_kept or is_carried) and not reached[place]:
        return nodes.broadcast(nodes.unsqueeze(found, 0), (batch.extent, *node.shape))
    return found if is_carried else _rows_first(found)


def _batched(extent: Any, params: Sequence[Node], reached: Sequence[bool]) -> dict[Node, Node]:
    """The PARAMs of a batch in place of those of an example."""
    return {
        one: Node(Ops.PARAM, one.dtype, (), one.arg._replace(shape=(extent, *one.shape)))
        for one, is_reached in zip(params, reached, strict=True) if is_reached
    }


def _rows_first(stack: Node) -> Node:
    """A stack of batches of a batch of stacks, or the other way round."""
    return nodes.permute(stack, (1, 0, *range(2, len(stack.shape))))


def _chosen(batch: Mapped, node: Node, form: Choose) -> Node:
    """A choice for all examples, or, where each has its own, both results and a choice of these."""
    values = node.src
    flag, *rest = values
    if flag in batch.done:
        params = body_params(form, values)
        places = dict(zip(params, values, strict=True))
        both = put_in([form.body.src[form.part], form.other.src[form.part]], places)
        batch.rewrite(both)
        shape = (batch.extent, *node.shape)
        chosen = nodes.reshape(batch.of(flag), (batch.extent, *[1] * len(node.shape)))
        return nodes.where(nodes.expand(chosen, shape), *map(batch.of, both))
    reached = [value in batch.done for value in values]
    params = body_params(form, values)
    bodies = []
    for body in (form.body, form.other):
        inner = Mapped(batch.extent, _batched(batch.extent, params, reached))
        inner.rewrite(body.src)
        bodies.append(Node(Ops.SINK, dtypes.token, tuple(map(inner.of, body.src))))
    sources = [flag, *[batch.of(x) if x in batch.done else x for x in rest]]
    return result(choose_form(*bodies), sources, form.part)


def _until_none_goes_on(batch: Mapped, node: Node, form: Repeat) -> Node:
    """A loop that goes on while any example does, and changes nothing of those that are done."""
    if form.adjoint is not None:
        raise UnsupportedError(
            "vmap of a derivative of while_loop is not there", hint="use func.scan, or a limit"
        )
    values, first = node.src, form.carried
    params = body_params(form, values)
    every = [i < first or value in batch.done for i, value in enumerate(values)]
    given = _batched(batch.extent, params, every)
    inner = Mapped(batch.extent, given)
    inner.rewrite(form.body.src)
    goes_on = given[params[first - 1]]
    made = []
    for i, (root, param) in enumerate(zip(form.body.src, params, strict=False)):
        shape = (batch.extent, *param.shape)
        flag = nodes.expand(nodes.reshape(goes_on, (batch.extent, *[1] * len(param.shape))), shape)
        if i == first - 1:
            made.append(nodes.alu(Ops.AND, flag, inner.of(root)))
        else:
            made.append(nodes.where(flag, inner.of(root), given[param]))
    # The flags of all, and last whether any of them holds.
    any_of = nodes.reduce(Ops.MAX, made[-1], tuple(range(len(made[-1].shape))))
    old = {one: Node(Ops.PARAM, one.dtype, (), one.arg._replace(slot=one.arg.slot + 1))
           for one in [given.get(param, param) for param in params[first:]]}
    body = Node(Ops.SINK, dtypes.token, tuple(put_in([*made, any_of], old)))
    carried = [batch.of(value) for value in values[:first]]
    flag = nodes.reduce(Ops.MAX, carried[-1], tuple(range(len(carried[-1].shape))))
    rest = [batch.of(x) if x in batch.done else x for x in values[first:]]
    other = repeat_form(body, first + 1, 0, form.length, False, True)
    return result(other, [*carried, flag, *rest], form.part)


def _one_by_one(batch: Mapped, node: Node, form: TextKernel) -> Node:
    """A kernel of text, which knows one example: a loop over those of the batch."""
    values = node.src
    order = sorted(range(len(values)), key=lambda i: values[i] not in batch.done)
    rows = [batch.of(values[i]) for i in order if values[i] in batch.done]
    params: list[Any] = [None] * len(values)
    for slot, i in enumerate(order):
        params[i] = Node(Ops.PARAM, values[i].dtype, (), Param(slot, values[i].shape))
    made = [result(form, params, part) for part in range(len(form.body.src))]
    body = Node(Ops.SINK, dtypes.token, tuple(made))
    sources = [*rows, *[values[i] for i in order[len(rows) :]]]
    return result(repeat_form(body, 0, len(rows), batch.extent), sources, form.part)


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
        Ops.REPEAT: _control,
        Ops.CHOOSE: _control,
        Ops.CALL: _control,
    }
)
