"""Expensive values that two loops over equal axes compute both are computed once and kept.

A softmax takes the exponential of a row to sum it and again to divide it. Where such a value under
a reduced axis and the same value under another axis differ in nothing but the axis, it is staged
in scratch memory, and both read it there: over the reduced axis itself, so that one loop computes
and sums it, or over a third one where vectors would not divide that.
"""

from __future__ import annotations

from baregrad.base.bits import round_up
from baregrad.ir.core import index
from baregrad.ir.core.attrs import StageInfo
from baregrad.ir.core.node import Node, extent_of, range_node, rebuild, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.core.substitution import substitute
from baregrad.kernel.facts.analysis import (
    EXPENSIVE,
    EXPENSIVE_OPS,
    by_id,
    in_bounds,
    is_read,
    sums_of,
    with_sums,
    without_sums,
)
from baregrad.kernel.loops.guards import covered_by_guards, guard_crossed_reads, push_guards
from baregrad.kernel.loops.held_rows import hold_rows
from baregrad.kernel.loops.matrix_operands import fit_factors
from baregrad.kernel.loops.quotient_axes import split_quotients
from baregrad.kernel.loops.shared_factors import share_factors
from baregrad.kernel.loops.written_sums import write_sums
from baregrad.target import AnyTarget

_MEMO = "kernel.prepared"
# Rows that fit the first or second cache, and are worth a loop of their own.
LEAST_EXTENT = 16
MOST_EXTENT = 1 << 15
# A stage's axis cannot have a tail, so it is a multiple of the first, or of the second if long.
LANES = 8
LONG_LANES = 16
LONG_EXTENT = 64
# A reduced axis of a multiple of this is one of a stage as it is: several vectors divide it.
SEVERAL_LANES = 64


def prepare(kernel: Node, target: AnyTarget | None = None) -> Node:
    """`kernel` as schedules see it: guards pushed into reductions, expensive values shared.

    On GPUs short sums over windows are written out, threads hold what several loops compute of a
    row in registers, and factors of 8-bit floats are made such that matrix units multiply.
    """
    if kernel.arg.sums:
        return with_sums(prepare(without_sums(kernel), target), sums_of(kernel))
    key = _MEMO
    if target is not None and target.kind == "gpu":
        key = f"{_MEMO}.{target.name}"
    memo = kernel.memo
    if key not in memo:
        found = push_guards(kernel)
        if target is not None and target.kind == "gpu":
            found = split_quotients(guard_crossed_reads(found))
            found = hold_rows(write_sums(fit_factors(found, target), target), target)
        else:
            found = share_factors(share_values(found))
        # A node that held itself would never be freed.
        memo[key] = None if found is kernel else found
    prepared: Node | None = memo[key]
    return kernel if prepared is None else prepared


def share_values(kernel: Node) -> Node:
    """`kernel` with expensive values of two loops staged."""
    if not (kernel.mask & EXPENSIVE_OPS and kernel.has(Ops.REDUCE)) or kernel.has(Ops.STAGE):
        return kernel
    order = toposort(kernel)
    values = [node for node in order if node.op in EXPENSIVE]
    reduced: set[Node] = set()
    paired: set[Node] = set()
    for node in order:
        if node.op is Ops.REDUCE:
            own = node.src[node.arg.monoid.arity :]
            reduced.update(own)
            if len(own) > 1:
                paired.update(own)
    # What is staged is computed ahead of its readers, where their guards do not cover it.
    covered = covered_by_guards(order)
    taken: set[Node] = set()
    replaced: dict[Node, Node] = {}
    first = 1 + max(node.arg.id for node in order if node.op is Ops.RANGE)
    for one in values:
        for axis in by_id(one.ranges & reduced):
            if one in taken or not _fits(axis):
                continue
            axes = {v: _axis_in_place_of(one, axis, v) for v in values if v not in taken}
            others = {value: where for value, where in axes.items() if where is not None}
            if not others:
                continue
            if one in covered and not _reads_within(one):
                continue
            if _lies_across(one, axis, reduced):
                continue
            stage = _staged(one, axis, first + len(replaced), axis not in paired)
            for value, where in {one: axis, **others}.items():
                taken.add(value)
                replaced[value] = Node(Ops.INDEX, one.dtype, (stage, where))
    if not replaced:
        return kernel
    return rebuild(kernel, lambda node: None, memo=dict(replaced))


def _reads_within(value: Node) -> bool:
    """Whether a value reads inside its arrays even where no guard around it holds."""
    return all(in_bounds(node) for node in toposort(value) if is_read(node))


def _lies_across(value: Node, axis: Node, reduced: set[Node]) -> bool:
    """Whether neighbours of what a value reads lie along results, and none along a reduced axis.

    Then vectors of results compute it anew in each loop in no more time than elements would be
    brought together from far places; and a row is summed in the order in which it is where
    somebody stored these values.
    """
    wide = False
    for node in toposort(value):
        if not is_read(node):
            continue
        places = [index.linear(place)[0] for place in node.src[1:]]
        if any(axis in place for place in places[:-1]):
            last = places[-1]
            if any(axis in atom.ranges for atom in last):
                return False
            wide = wide or any(
                abs(scale) == 1 and atom.op is Ops.RANGE and atom not in reduced
                and _fits(atom) for atom, scale in last.items()
            )
        elif any(axis in atom.ranges for place in places for atom in place):
            return False
    return wide


def _staged(value: Node, axis: Node, id: int, alone: bool) -> Node:
    """A value over all of an axis; to whole vectors, what is past its end being guarded.

    alone: no reduction runs along the axis and another one.
    """
    extent = extent_of(axis)
    assert isinstance(extent, int)
    if alone and extent % SEVERAL_LANES == 0:
        return Node(Ops.STAGE, value.dtype, (value, axis), StageInfo("scratch"))
    size = round_up(extent, LONG_LANES if extent >= LONG_EXTENT else LANES)
    place = range_node(size, id)
    kept = substitute(value, {axis: place})
    if extent != size:
        kept = Node(Ops.GUARD, kept.dtype, (index.less(place, extent), kept))
    return Node(Ops.STAGE, value.dtype, (kept, place), StageInfo("scratch"))


def _fits(axis: Node) -> bool:
    extent = extent_of(axis)
    return isinstance(extent, int) and LEAST_EXTENT <= extent <= MOST_EXTENT


def _axis_in_place_of(one: Node, axis: Node, other: Node) -> Node | None:
    """What `other` has in place of `axis`, if it is `one` with another axis of the same extent."""
    more = other.ranges - one.ranges
    if other.op is not one.op or len(more) != 1 or one.ranges - other.ranges != {axis}:
        return None
    (found,) = more
    alike = found.src[0] is axis.src[0] and substitute(one, {axis: found}) is other
    return found if alike else None
