"""Attention as reductions over the keys, on GPUs, so that tiles of keys stream through kernels.

What is written as a maximum, a sum of powers relative to it and a sum of those powers times values
is one reduction, whose states are all three (`ir/analysis/stream.py`, R4). Its maxima are whole, so
that a sum relative to another maximum is that one times a power of two, and rounding powers to 16
bits, which both sums are of, makes no difference before or after.

What else reads the scores, gradients and attention whose weights are rounded after the division, is
sums by row or column of what is made of the scores anew, of the stored maxima and of the stored
sums of powers: the numbers are those that were written. Where anything other than such sums reads
what is between the products, all is stored as it was.
"""

from __future__ import annotations

from baregrad.graph.streams.groups import WIDTH, StreamGroups, WeightedSum
from baregrad.graph.streams.softmax import (
    F32,
    POWERS,
    lifted,
    raised,
    state_beside,
    streamed,
)
from baregrad.graph.traced import Joined, Part, Rule, again
from baregrad.graph.views import permute, stored
from baregrad.ir.analysis.stream import in_memory, is_of_bytes, shown, stream, sums
from baregrad.ir.core.attrs import Reduce
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Op, Ops, all_ops, mask_of
from baregrad.target import AnyTarget

_ALL = mask_of(all_ops())


def has_streams(target: AnyTarget) -> bool:
    """Whether a GPU makes both kinds of 16-bit products, and copies beside its threads."""
    if target.kind != "gpu" or not target.async_copies:
        return False
    return {("float16", WIDTH), ("bfloat16", WIDTH)} <= set(target.warp_products)


def _kept(made: Node, innermost: int | None) -> Node:
    """A value that is stored with an axis innermost, as what it is."""
    last = len(made.shape) - 1
    if innermost is None or innermost == last:
        is_there = in_memory(made) and not is_of_bytes(shown(made))
        return made if is_there else Node(Ops.CONTIGUOUS, made.dtype, (made,))
    order = (*[axis for axis in range(last + 1) if axis != innermost], innermost)
    turned = Node(Ops.CONTIGUOUS, made.dtype, (permute(made, order),))
    return permute(turned, tuple([order.index(axis) for axis in range(last + 1)]))


def _merged(node: Node) -> Node | None:
    """One permutation in the place of two."""
    if node.op is not Ops.PERMUTE or node.src[0].op is not Ops.PERMUTE:
        return None
    below = node.src[0]
    return permute(below.src[0], tuple([below.arg[axis] for axis in node.arg]))


def _over(value: Node, kept: WeightedSum) -> Node:
    """A sum over its lines and columns as its result, summed over the outer ones of them."""
    axes = [*kept.lines, kept.across]
    if kept.outer:
        outer = tuple([place for place, axis in enumerate(axes) if axis in kept.outer])
        value = Node(Ops.REDUCE, F32, (stored(value),), Reduce(sums(F32, 1), outer))
        axes = [axis for axis in axes if axis not in kept.outer]
    return permute(value, tuple([axes.index(axis) for axis in kept.result]))


def _in_steps(total: Node) -> Node:
    """A sum of terms over rows and keys: one of each row over its keys first, or the reverse."""
    value, axes = total.src[0], set(total.arg.axes)
    last = len(value.shape) - 1
    if last not in axes:
        # The keys take the place of the rows, which are gone.
        value = permute(value, (*range(last - 1), last, last - 1))
        axes.remove(last - 1)
    part = stored(Node(Ops.REDUCE, F32, (value,), Reduce(sums(F32, 1), (last,))))
    others = tuple(sorted(axes - {last}))
    return Node(Ops.REDUCE, F32, (part,), Reduce(sums(F32, 1), others)) if others else part


def _state(x: Node, power: Op, summed: Node, part: int) -> Node:
    """A state of a reduction of its own over an exponent's last axis, of what is summed there."""
    values = (raised(x, power), summed)
    base = Ops.EXP2 if power is Ops.EXP2_NEAR else power
    folded = Node(Ops.REDUCE, F32, values, Reduce(stream(F32, 1, base), (len(x.shape) - 1,)))
    return Node(Ops.PROJ, F32, (folded,), part)


def _rule(order: list[Node], changed: dict[Node, Node]) -> Rule | None:
    """The rule for a graph with powers of that kind."""
    if not order[-1].mask & mask_of(POWERS):
        return None
    groups = StreamGroups(order)
    if not groups.results and not groups.stored:
        return None

    def now(node: Node) -> Node:
        return changed.get(node, node)

    def state(power: Node, part: int) -> Node:
        """The maximum of an exponent, or the sum of powers relative to it, over the last axis."""
        for one in groups.results.values():
            made = state_beside(one, part, ahead) if one.power is power else None
            if made is not None:
                return made
        x = now(power.src[0].src[0])
        return _state(x, power.op, groups.summed(power, lifted(x, power.op)), part)

    def ahead(root: Node) -> Node:
        """What becomes of a node whose turn may not have come."""
        for node in toposort(root, enter=lambda one: one not in changed):
            if node not in changed:
                made = node if changed.keys().isdisjoint(node.src) else again(node, changed)
                found = rule(node, made)
                made = made if found is None else found
                if made is not node:
                    changed[node] = made
        return now(root)

    def one_of(total: Node) -> Node:
        """One of several sums that are one reduction, over the lines and columns of each."""
        joined = groups.joined[total]
        bodies = [permute(ahead(one.total.src[0]), (*one.lines, one.across, one.along))
                  for one in joined]  # fmt: skip
        monoid = sums(F32, len(bodies))
        made = Node(Ops.REDUCE, F32, tuple(bodies), Reduce(monoid, (len(bodies[0].shape) - 1,)))
        (number,) = [n for n, one in enumerate(joined) if one.total is total]
        if len(joined) > 1:
            made = Node(Ops.PROJ, F32, (made,), number)
        return _over(made, joined[number])

    def rule(node: Node, made: Node) -> Node | None:
        if node in groups.joined:
            made = one_of(node)
            return _kept(made, groups.stored[node]) if node in groups.stored else made
        if node in groups.results:
            return streamed(made, groups.results[node], now)
        if node in groups.apart:
            return _in_steps(made)
        if node in groups.totals:
            return state(groups.totals[node], 1)
        if node in groups.maxima:
            return state(groups.maxima[node], 0)
        if node in groups.stored:
            return _kept(made, groups.stored[node])
        return _merged(made)

    return rule


STREAMS = Joined((Part(
    "streams",
    "attention is reductions over the keys, which a GPU's blocks take in tiles",
    _ALL,
    _rule,
    ("folds",),
),))  # fmt: skip
