"""Monoids: the values that say how a reduction combines.

A monoid is an associative combine with an identity, over a tuple of states. Its functions are small
expression graphs over SLOT nodes, so laws about reductions are rewrites on monoids and every level
(evaluator, renderer, search) reads the same definition.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.node import Node, alu, const, rebuild
from baregrad.ir.core.op import Op, Ops


class Monoid(NamedTuple):
    """An associative combination of state tuples.

    states: dtypes of the parts. identity: one constant per part. lift: states of one element, over
    SLOT(i) = the i-th value reduced. combine: over SLOT(i) = left part i and SLOT(n + i) = right
    part i. primitive: the op when there is a single part and combine is that op.
    """

    name: str
    states: tuple[DType, ...]
    identity: tuple[Node, ...]
    lift: tuple[Node, ...]
    combine: tuple[Node, ...]
    commutative: bool = True
    idempotent: bool = False
    primitive: Op | None = None

    @property
    def arity(self) -> int:
        """Number of parts of the state."""
        return len(self.states)

    @property
    def is_exact(self) -> bool:
        """Whether a fold comes to the same in any order."""
        return self.idempotent or all(dtype.kind != "float" for dtype in self.states)

    def __repr__(self) -> str:
        return f"{self.name}[{','.join(dtype.name for dtype in self.states)}]"


def slot(position: int, dtype: DType) -> Node:
    """The `position`-th input of a monoid's functions."""
    return Node(Ops.SLOT, dtype, (), position)


def filled(formulas: tuple[Node, ...], slots: tuple[Node, ...]) -> tuple[Node, ...]:
    """A monoid's formulas with expressions in place of their SLOTs."""

    def visit(node: Node) -> Node | None:
        return slots[node.arg] if node.op is Ops.SLOT else None

    memo: dict[Node, Node] = {}
    return tuple(rebuild(formula, visit, memo=memo) for formula in formulas)


@cache
def primitive(op: Op, dtype: DType) -> Monoid:
    """The monoid of one op: ADD, MUL, MAX, MIN, AND, OR or XOR over `dtype`."""
    all_ones: bool | int = True if dtype.kind == "bool" else (1 << dtype.bits) - 1
    special = {Ops.MAX: dtype.lowest, Ops.MIN: dtype.highest, Ops.MUL: 1, Ops.AND: all_ones}
    identity = special.get(op, 0)
    a, b = slot(0, dtype), slot(1, dtype)
    return Monoid(
        op.name.lower(),
        (dtype,),
        (const(identity, dtype),),
        (a,),
        (alu(op, a, b),),
        idempotent=op in (Ops.MAX, Ops.MIN, Ops.AND, Ops.OR),
        primitive=op,
    )


@cache
def scaled_sum(dtype: DType) -> Monoid:
    """Sums of t * exp(h) over pairs (h, t): (the largest h, the sum relative to exp of it).

    No sum overflows or vanishes that a float of its own scale could hold. Equal infinities are
    relative to each other as 1 is to 1, so that no NaN arises on the way; a NaN stays one. The
    larger one is multiplied by nothing, so that what is combined commutes to the bit.
    """
    high, total, other, added = (slot(i, dtype) for i in range(4))
    first = alu(Ops.CMPLT, other, high)
    highest = alu(Ops.MAX, high, other)
    below = alu(Ops.SUB, alu(Ops.WHERE, first, other, high), highest)
    factor = Node(Ops.EXP, dtype, (below,))
    factor = alu(Ops.WHERE, alu(Ops.CMPEQ, high, other), const(1, dtype), factor)
    smaller = alu(Ops.MUL, alu(Ops.WHERE, first, added, total), factor)
    return Monoid(
        "scaled_sum",
        (dtype, dtype),
        (const(float("-inf"), dtype), const(0, dtype)),
        (high, total),
        (highest, alu(Ops.ADD, smaller, alu(Ops.WHERE, first, total, added))),
    )


def arg_extreme(op: Op, dtype: DType, index: DType = dtypes.int64) -> Monoid:
    """Argmax (op MAX) or argmin (op MIN) over (value, index).

    A tie goes to the lower index; a NaN beats every number.
    """
    # The cache takes arguments that are left out for others.
    return _arg_extreme(op, dtype, index)


@cache
def _arg_extreme(op: Op, dtype: DType, index: DType) -> Monoid:
    value, other = slot(0, dtype), slot(2, dtype)
    place, other_place = slot(1, index), slot(3, index)
    nearer = alu(Ops.CMPLT, place, other_place)
    wins = alu(Ops.CMPLT, other, value) if op is Ops.MAX else alu(Ops.CMPLT, value, other)
    if dtype.kind == "float":
        # A NaN beats every number; among NaNs the lower index wins.
        here, there = alu(Ops.CMPNE, value, value), alu(Ops.CMPNE, other, other)
        tie = alu(Ops.OR, alu(Ops.CMPEQ, value, other), alu(Ops.AND, here, there))
        wins = alu(Ops.OR, wins, alu(Ops.AND, here, alu(Ops.NOT, there)))
    else:
        tie = alu(Ops.CMPEQ, value, other)
    take = alu(Ops.OR, wins, alu(Ops.AND, tie, nearer))
    identity = dtype.lowest if op is Ops.MAX else dtype.highest
    return Monoid(
        "arg" + op.name.lower(),
        (dtype, index),
        (const(identity, dtype), const(index.highest, index)),
        (value, place),
        (alu(Ops.WHERE, take, value, other), alu(Ops.WHERE, take, place, other_place)),
        idempotent=True,
    )
