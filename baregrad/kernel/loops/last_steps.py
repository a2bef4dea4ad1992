"""Loops in which only the last step asks which of its lanes there are.

A vector that does not divide an axis is masked at the axis's end, and made a mask of at each step.
Where a condition holds at all steps of a loop but the last, that one stands behind the loop: there
the condition is of constants, and vectors of which no lane is left go.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.node import Node, const, extent_of, make_node, range_node, rebuild, toposort
from baregrad.ir.core.op import STATEMENTS, Ops, mask_of
from baregrad.ir.core.substitution import substitute

_STATEMENTS = mask_of(STATEMENTS)
# What is written twice: loops and what is computed between them stay as they are.
_PLAIN = frozenset((Ops.SEQ, Ops.IF, Ops.STORE))
_AROUND = frozenset((Ops.SEQ, Ops.LOOP, Ops.KERNEL))


def part_last_steps(kernel: Node) -> Node:
    """The loop-level KERNEL of a CPU with masked last steps of innermost loops by themselves."""
    if not kernel.mask & Ops.IF.bit or not kernel.mask & Ops.LOOP.bit:
        return kernel
    nodes = toposort(kernel)
    named = [one.arg.id for one in nodes if one.op in (Ops.RANGE, Ops.ALLOC)]
    fresh = itertools.count(1 + max(named))
    statements = [one for one in nodes if _is_statement(one) and one.op not in _AROUND]
    # Their steps ask memory for shares of what comes next: there are to be as many steps.
    asking = {name for one in nodes if one.op is Ops.PARAM for name, _, _ in one.arg.shares}

    def visit(node: Node) -> Node | None:
        if node.op is not Ops.LOOP or node.src[0].arg.axis in asking:
            return None
        return _parted(node, fresh, statements)

    return rebuild(kernel, visit, enter=_is_statement)


def _is_statement(node: Node) -> bool:
    return bool(node.op.bit & _STATEMENTS) or node.op is Ops.KERNEL


def _parted(loop: Node, fresh: Iterator[int], all_statements: list[Node]) -> Node | None:
    """A loop of all steps but the last, and that one; None where they are alike."""
    axis, body = loop.src
    extent = extent_of(axis)
    if not isinstance(extent, int) or extent < 2 or axis.arg.bind != "loop":
        return None
    statements = toposort(body, enter=_is_statement)
    parts = [one for one in statements if _is_statement(one)]
    if any(one.op not in _PLAIN for one in parts):
        return None
    # Another loop of the same axis may have all of its steps still.
    short = range_node(extent - 1, next(fresh), axis.arg.axis)
    found = {}
    for one in parts:
        if one.op is Ops.IF:
            for condition in index.conjuncts(one.src[0]):
                if axis in condition.ranges and _holds(condition, axis, short):
                    found[condition] = const(True, dtypes.bool)
    if not found:
        return None
    first = substitute(body, {axis: short, **found})
    apart = _own_arrays(parts, all_statements, fresh)
    last = substitute(body, {axis: const(extent - 1, dtypes.index), **apart})
    last = rebuild(last, lambda one: _without_empty(one, fresh), enter=_is_statement)
    return make_node(Ops.SEQ, loop.dtype, (make_node(Ops.LOOP, loop.dtype, (short, first)), last))


def _own_arrays(
    parts: list[Node], all_statements: list[Node], fresh: Iterator[int]
) -> dict[Node, Node]:
    """Arrays that a loop's steps make and read and nothing else does, each with another one.

    What a step keeps in registers is read until it is made again: the last one has others.
    """
    own: set[Node] = set()
    for one in parts:
        own |= _arrays(one)
    if not own:
        return {}
    inside = set(parts)
    for one in all_statements:
        if one not in inside:
            own -= _arrays(one)
    ordered = sorted(own, key=lambda one: int(one.arg.id))
    return {one: one.replace(arg=one.arg._replace(id=next(fresh))) for one in ordered}


def _arrays(statement: Node) -> set[Node]:
    """The arrays of the kernel that a statement reads or writes itself."""
    own = statement.src[0] if statement.op is Ops.IF else statement
    if statement.op in _AROUND or not own.mask & Ops.ALLOC.bit:
        return set()
    return {one for one in toposort(own) if one.op is Ops.ALLOC}


def _without_empty(node: Node, fresh: Iterator[int]) -> Node | None:
    """What is done under conditions, without the last vectors of a tile if these have no lane."""
    if node.op is not Ops.IF:
        return None
    fewer: dict[Node, Node] = {}
    for condition in index.conjuncts(node.src[0]):
        for axis in condition.ranges if condition.op is Ops.CMPLT else ():
            if axis.arg.bind == "unroll" and axis not in fewer:
                count = most = int(axis.src[0].arg)
                while count > 1 and _is_never(condition, axis, count - 1):
                    count -= 1
                if count < most:
                    fewer[axis] = range_node(count, next(fresh), axis.arg.axis, axis.arg.bind)
    return substitute(node, fewer) if fewer else None


def _is_never(condition: Node, axis: Node, place: int) -> bool:
    """Whether a condition is false at a place of an axis."""
    sides = [substitute(side, {axis: const(place, dtypes.index)}) for side in condition.src]
    there = index.less(*sides)
    return there.op is Ops.CONST and not there.arg


def _holds(condition: Node, axis: Node, short: Node) -> bool:
    """Whether a condition is true at all steps of a loop but the last."""
    if condition.op is not Ops.CMPLT:
        return False
    sides = [substitute(side, {axis: short}) for side in condition.src]
    always = index.less(*sides)
    return always.op is Ops.CONST and bool(always.arg)


__all__ = ["part_last_steps"]
