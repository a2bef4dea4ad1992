"""Short sums over windows that slide along an output, written out as operations.

Neighbouring results of a depthwise convolution, of pooling or of a blur read mostly the same
elements. Without a loop over the window, what a thread reads for several neighbours is plain to
see: each element is loaded once, many at a time, and each condition is asked once. Where the window
is the output, as in the gradient by a filter, a part of the long sum is written out instead: a
thread reads a stretch of both images for all places of the window.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product

from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Reduce
from baregrad.ir.core.monoid import Monoid, filled
from baregrad.ir.core.node import (
    Node,
    cast,
    const,
    extent_of,
    make_node,
    range_node,
    rebuild,
    toposort,
)
from baregrad.ir.core.op import Ops
from baregrad.ir.core.substitution import substitute
from baregrad.kernel.facts.analysis import Reduction, facts_of, is_read, iterations, offset_of
from baregrad.kernel.loops.loop_pieces import (
    combined,
    narrowed,
    state_parts,
    stepped,
    widened,
)
from baregrad.kernel.loops.outer_products import sums_outer
from baregrad.target.gpu import GpuTarget

# Terms of a sum that is written out, at most, and places of a window that is an output.
MOST_TERMS = 64
# The same of one axis.
MOST_PLACES = 16
# Terms that are written out of a long sum: neighbours in memory.
STRETCH, LEAST_STRETCH = 8, 2
# What the axis is called that a long sum keeps.
STRETCHES = "stretches"
# Elements of a window beside which the next one lies.
SHORT = 4
# Steps of a product of matrices, at most, that is written out: each element is one of the result's.
MOST_DEPTH = 7
# A product whose factors have so many results of their own is one of matrices: for matrix units, or
# for plain arithmetic on tiles.
MATRIX_SIDE, PLAIN_SIDE = 8, 16


def write_sums(kernel: Node, target: GpuTarget) -> Node:
    """`kernel` with its short sums over sliding windows written out."""
    if not kernel.has(Ops.REDUCE) or kernel.has(Ops.STAGE) or kernel.has(Ops.SCAN):
        return kernel
    facts = facts_of(kernel)
    if facts.ordered or len(facts.reductions) != 1:
        return kernel
    (found,) = facts.reductions
    results = {axis for axis in facts.data if extent_of(axis) != 1}
    if not _may_be_written(found) or not found.free.issuperset(results):
        return kernel
    is_thin = iterations(found.own) <= MOST_DEPTH and _is_of_each_with_each(found)
    if not is_thin and not _slides(found, SHORT):
        return kernel
    # A loop would round the same products: bits do not hang on what is written out.
    fma = target.fma and sums_outer(found.node.src[0])
    if iterations(found.own) <= MOST_TERMS:
        monoid, values = widened(found.node.arg.monoid, _values(found.node))
        states = narrowed(_chain(monoid, values, found.own, fma), found.node.arg.monoid)
        parts = state_parts(found.node, found.node.arg.monoid)
        return rebuild(
            kernel, index.resimplify, memo=dict(zip(parts, states, strict=True))
        )
    window = window_axes(found)
    if found.node.arg.monoid.primitive is None or not 1 < iterations(window) <= MOST_TERMS:
        return kernel
    if any(int(axis.src[0].arg) > MOST_PLACES for axis in window):
        return kernel
    part = _in_stretches(found, fma, 1 + max(axis.arg.id for axis in facts.axes))
    return kernel if part is None else rebuild(kernel, index.resimplify, memo={found.node: part})


def window_axes(reduction: Reduction) -> tuple[Node, ...]:
    """The axes of the output along which a window of a reduction's own axes has its places."""
    found = [axis for _, free in _slides(reduction) for axis in free]
    return tuple(dict.fromkeys(found))


def _may_be_written(reduction: Reduction) -> bool:
    """Whether a reduction is along constant axes, and no sum of products of matrices."""
    node = reduction.node
    if any(value.has(Ops.REDUCE) for value in node.src):
        return False
    if not all(isinstance(extent_of(axis), int) for axis in (*reduction.own, *reduction.free)):
        return False
    value = node.src[0]
    while value.op in (Ops.CAST, Ops.GUARD):
        if value.op is Ops.GUARD and value.src[0].has(Ops.INDEX):
            # It may end where data says.
            return False
        value = value.src[-1]
    reads = [each for each in toposort(node.src[0]) if is_read(each)]
    is_narrow = all(read.dtype.kind == "float" and read.dtype.bits == 16 for read in reads)
    least = MATRIX_SIDE if is_narrow else PLAIN_SIDE
    return iterations(reduction.own) <= MOST_DEPTH or _shorter_side(reduction) < least


def _is_of_each_with_each(reduction: Reduction) -> bool:
    """Whether two reads each run along an axis of the results that the other one does not."""
    nodes = toposort(reduction.node.src[0])
    axes = {node.ranges & reduction.free for node in nodes if is_read(node)}
    return any(one - other and other - one for one, other in combinations(axes, 2))


def _shorter_side(reduction: Reduction) -> int:
    """Of the products that are summed: results that only one of both factors runs along."""
    value = reduction.node.src[0]
    while value.op in (Ops.CAST, Ops.GUARD):
        value = value.src[-1]
    if value.op is not Ops.MUL:
        return 1
    left, right = (side.ranges & reduction.free for side in value.src)
    return min(iterations(left - right), iterations(right - left))


def _slides(reduction: Reduction, most: int = 0) -> list[tuple[Node, list[Node]]]:
    """The reduction's axes that move a read along an axis of its results too, with those.

    The windows of neighbouring results overlap, or those of `most` elements lie side by side.
    """
    found = []
    own, free = frozenset(reduction.own), reduction.free
    for node in toposort(reduction.node.src[0]):
        for place in node.src[1:] if is_read(node) else ():
            axes = place.ranges
            if axes.isdisjoint(own) or axes.isdisjoint(free):
                continue
            terms, _ = index.linear(place)
            for axis in own.intersection(terms):
                size = int(axis.src[0].arg)
                length = abs(terms[axis]) * size if size > 1 else 0
                step = 1 if axis.arg.axis == STRETCHES else abs(terms[axis])
                beside = [
                    each for each in free.intersection(terms)
                    if step < abs(terms[each]) * int(each.src[0].arg)
                    and (abs(terms[each]) < length or abs(terms[each]) == length <= most)
                ]
                found += [(axis, beside)] if beside else []
    return found


def _values(node: Node) -> tuple[Node, ...]:
    """What a REDUCE folds, its conditions around what they keep in the arrays, not around casts."""

    def visit(inner: Node) -> Node | None:
        if inner.op is Ops.GUARD and inner.src[1].op is Ops.CAST and is_read(inner.src[1].src[0]):
            condition, value = inner.src
            read = make_node(Ops.GUARD, value.src[0].dtype, (condition, value.src[0]))
            return cast(read, value.dtype)
        return None

    return tuple([rebuild(value, visit) for value in node.src[: node.arg.monoid.arity]])


def _chain(
    monoid: Monoid, values: tuple[Node, ...], axes: Sequence[Node], fma: bool
) -> tuple[Node, ...]:
    """The states of a fold along constant axes, one element after the other."""
    states: tuple[Node, ...] = ()
    for place in product(*[range(int(axis.src[0].arg)) for axis in axes]):
        places = dict(zip(axes, [const(each, dtypes.index) for each in place], strict=True))
        terms = filled(monoid.lift, tuple([substitute(value, places) for value in values]))
        if states and monoid.primitive is not None:
            states = (stepped(monoid, states[0], terms[0], fma),)
        else:
            states = combined(monoid, states, terms) if states else terms
    return states


def _in_stretches(reduction: Reduction, fma: bool, first: int) -> Node | None:
    """The REDUCE with stretches of its innermost axis written out; None where there are none."""
    monoid, (value,) = widened(reduction.node.arg.monoid, _values(reduction.node))
    strides = [offset_of(node).strides for node in toposort(value) if is_read(node)]
    inner = [
        axis for axis in reduction.own if {each.get(axis, 0) for each in strides} in ({1}, {0, 1})
    ]
    if len(inner) != 1:
        return None
    (axis,) = inner
    extent = int(axis.src[0].arg)
    size = max(size for size in range(1, STRETCH + 1) if extent % size == 0)
    if size < LEAST_STRETCH:
        return None
    outer, step = (
        range_node(extent // size, axis.arg.id, STRETCHES), range_node(size, first)
    )
    place = index.as_node(index.add(index.mul(outer, size), step))
    (part,) = _chain(monoid, (substitute(value, {axis: place}),), (step,), fma)
    own = [outer if each is axis else each for each in reduction.own]
    total = make_node(Ops.REDUCE, monoid.states[0], (part, *own), Reduce(monoid))
    return narrowed((total,), reduction.node.arg.monoid)[0]
