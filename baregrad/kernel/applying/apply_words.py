"""Words of several numbers: what instructions multiply, and sums of such products."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baregrad.ir.analysis.words import in_word
from baregrad.ir.core.node import Node, alu, make_node
from baregrad.ir.core.op import Ops
from baregrad.kernel.applying.scope import Pieces, Scope
from baregrad.kernel.applying.staged_accumulators import kept_in_scratch
from baregrad.kernel.instructions.amx import sum_of_words, without_array
from baregrad.kernel.instructions.dot_instructions import (
    Word,
    are_turned,
    at_number,
    turned_over,
    word_factors,
    word_of,
    word_product,
)

if TYPE_CHECKING:
    from baregrad.kernel.applying.apply import Rewriter


def dotted(rewriter: Rewriter, node: Node, choice: Pieces, scope: Scope) -> tuple[Node, ...]:
    """A sum of products, a word of numbers at a time; nothing where no instruction is to do so.

    What lies past the end of the numbers is 0 in both factors, unless one is turned over.
    """
    names = {name for piece in choice.values() for name, _ in piece.terms}
    axis = next((name for name in names if name in rewriter.table.tensorized), "")
    if axis and rewriter.table.tiled is not None:
        return (_multiplied(rewriter, node, choice, scope, axis),)
    found = word_factors(node.src[0]) if axis else None
    if found is None:
        return ()
    # The factor with lanes is summed by itself where the other is turned over.
    turned, other = sorted(found, key=lambda factor: _has_lanes(factor, scope))
    first = rewriter.read(turned, scope, Word(axis, are_turned(turned.dtype, other.dtype)))
    second = rewriter.read(other, scope, Word(axis))
    product, excess = word_product(first, second, turned.dtype, other.dtype)
    axes = rewriter.final_axes(choice)
    total, *off = [
        carried(rewriter, make_node(Ops.REDUCE, node.dtype, (value, *axes), node.arg))
        for value in (product, excess)
        if value is not None
    ]
    return (alu(Ops.SUB, total, off[0]),) if off else (total,)


def _multiplied(rewriter: Rewriter, node: Node, choice: Pieces, scope: Scope, axis: str) -> Node:
    """A sum of products of words, for a matrix unit. Raises ScheduleError where it cannot.

    What lies past the end of what is summed is 0 in both factors.
    """
    found = word_factors(node.src[0]) or ()
    factors = tuple(sorted(found, key=lambda factor: _has_lanes(factor, scope)))
    words = tuple([rewriter.read(factor, scope, Word(axis)) for factor in factors])
    reduce = sum_of_words(node, factors, words, rewriter.final_axes(choice))
    total = carried(rewriter, reduce)
    if total is reduce:
        raise without_array(rewriter.table.tiled)
    return total


def _has_lanes(node: Node, scope: Scope) -> bool:
    """Whether an axis of lanes moves what a node reads."""
    names = [name for axis in node.ranges for name, _ in scope.pieces[axis].terms]
    return any(scope.ranges[name].arg.bind == "vector" for name in names)


def carried(rewriter: Rewriter, node: Node) -> Node:
    """A REDUCE whose accumulators are kept in scratch memory, if a step says so."""
    for step in rewriter.table.staged_reductions:
        axes = [rewriter.ranges[name] for name in step.axes if name not in rewriter.dead]
        at, first = rewriter.ranges[step.axis], rewriter.first_id()
        found = kept_in_scratch(node, at, axes, first, rewriter.matrix)
        if found is not None:
            rewriter.applied.add(step)
            return found
    return node


def packed(rewriter: Rewriter, node: Node, scope: Scope, word: Word) -> Node:
    """The word of the numbers that a read gives along an axis."""
    values = []
    for place in range(in_word(node.dtype)):
        pieces = {axis: at_number(p, word.axis, place) for axis, p in scope.pieces.items()}
        early = scope.early or rewriter.masked
        values.append(rewriter.read(node, Scope(pieces, scope.ranges, early, scope.copying)))
    packed = word_of(values)
    return turned_over(packed) if word.turned else packed
