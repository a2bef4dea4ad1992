"""Loop level: integer ops whose machine form is undefined for some operands become defined ones.

Division by a constant becomes a multiplication and shifts; by a variable, the machine's division
with its forbidden operands kept away; shifts by too many bits are decided before shifting.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

from baregrad.dtypes import dtypes
from baregrad.ir.core.bounds import bounds
from baregrad.ir.core.node import Node, alu, const, rebuild
from baregrad.ir.core.op import Op, Ops, mask_of
from baregrad.kernel.legalise.divide import (
    floor_divide,
    floor_divide_constant,
    truncate_divide,
    truncate_divide_constant,
    unsigned_of,
)


def lower_integers(kernel: Node) -> Node:
    """A loop-level KERNEL whose divisions and shifts of integers the machine does as they stand."""
    return rebuild(kernel, _visit, enter=lambda node: bool(node.mask & _MASK))


def _visit(node: Node) -> Node | None:
    rule = _RULES.get(node.op)
    if rule is None or node.dtype.kind not in ("int", "uint"):
        return None
    return rule(node)


def _floordiv(node: Node) -> Node:
    x, y = node.src
    return floor_divide_constant(x, y.arg) if y.op is Ops.CONST else floor_divide(x, y)[0]


def _mod(node: Node) -> Node:
    x, y = node.src
    if y.op is not Ops.CONST:
        return floor_divide(x, y)[1]
    dtype = node.dtype
    if y.arg == 0:
        return const(0, dtype)
    if y.arg > 0 and y.arg & (y.arg - 1) == 0:
        return alu(Ops.AND, x, const(y.arg - 1, dtype))
    quotient = floor_divide_constant(x, y.arg)
    return alu(Ops.SUB, x, alu(Ops.MUL, quotient, y))


def _truncdiv(node: Node) -> Node:
    x, y = node.src
    return truncate_divide_constant(x, y.arg) if y.op is Ops.CONST else truncate_divide(x, y)


def _shift(node: Node) -> Node | None:
    """By as many bits as there are or more: 0, or the sign of what is shifted right."""
    x, y = node.src
    op, dtype = node.op, node.dtype
    low, high = bounds(y)
    if 0 <= low and high < dtype.bits:
        return None
    fits = _fits(y, dtype.bits)
    signed = op is Ops.SHR and dtype.kind == "int"
    otherwise = const(dtype.bits - 1 if signed else 0, dtype)
    shifted = alu(op, x, alu(Ops.WHERE, fits, y, otherwise))
    return shifted if signed else alu(Ops.WHERE, fits, shifted, otherwise)


def _bitfield(node: Node) -> Node:
    """A shift and a mask, in the word's own dtype."""
    word, offset = node.src
    shifted = alu(Ops.SHR, word, offset)
    defined = _shift(shifted) or shifted
    return alu(Ops.AND, defined, const((1 << node.arg) - 1, word.dtype))


def _fits(amount: Node, bits: int) -> Node:
    """Whether 0 <= amount < bits: one unsigned comparison."""
    if amount.op is Ops.CONST:
        return const(0 <= amount.arg < bits, dtypes.bool)
    unsigned = unsigned_of(amount.dtype)
    if unsigned is not amount.dtype:
        amount = Node(Ops.BITCAST, unsigned, (amount,))
    return alu(Ops.CMPLT, amount, const(bits, unsigned))


_RULES: MappingProxyType[Op, Callable[[Node], Node | None]] = MappingProxyType({
    Ops.FLOORDIV: _floordiv,
    Ops.MOD: _mod,
    Ops.TRUNCDIV: _truncdiv,
    Ops.SHL: _shift,
    Ops.SHR: _shift,
    Ops.BITFIELD: _bitfield,
})
_MASK = mask_of(_RULES)
