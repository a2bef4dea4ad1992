"""Sums of products of narrow numbers, a word of them at a time: four bytes, or two bfloat16.

DOT2 multiplies two bfloat16 by two. DOT4 multiplies unsigned bytes by signed ones. Where both
factors are signed, or both unsigned, one has its highest bit turned over, which makes it larger, or
smaller, by 128; the sum is then off by 128 times the sum of the other factor, which is taken off
again.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import NamedTuple

from baregrad.dtypes import DType, dtypes
from baregrad.ir.analysis.words import NAMES, in_word
from baregrad.ir.core import index
from baregrad.ir.core.node import Node, alu, cast, const, make_node
from baregrad.ir.core.op import Ops
from baregrad.kernel.facts.analysis import in_bounds, offset_of
from baregrad.kernel.facts.axis_table import Axis, AxisTable, Piece
from baregrad.kernel.instructions.instruction import Instruction, factors_of, without_instruction
from baregrad.kernel.language.schedule import Tensorize, illegal

I32 = dtypes.int32
# The highest bit of each byte: as unsigned bytes 128, as signed ones -128.
HIGHEST = const(-0x7F7F7F80, I32)
_BYTES = (dtypes.int8, dtypes.uint8)
_HALVES = (dtypes.bfloat16,)


class Word(NamedTuple):
    """Which numbers are read as one word: those along an axis; `turned`: bytes' highest bits."""

    axis: str
    turned: bool = False


def word_factors(value: Node) -> tuple[Node, Node] | None:
    """The reads whose product `value` is: of bytes, as an int32, or of bfloat16, as a float32."""
    return factors_of(value, NAMES)


def dot_instruction(value: Node) -> str:
    """The instruction that adds such products up in lanes; empty where none does."""
    if factors_of(value, NAMES) is None:
        return ""
    return DOT4.name if value.dtype is I32 else DOT2.name


def turned_over(word: Node) -> Node:
    """A word of bytes with the highest bit of each turned over."""
    return alu(Ops.XOR, word, HIGHEST)


def word_of(values: Sequence[Node]) -> Node:
    """The int32 that holds four bytes or two floats of 16 bits, the first the lowest."""
    total: Node | None = None
    for place, value in enumerate(values):
        if value.dtype.kind == "float":
            value = make_node(Ops.BITCAST, dtypes.uint16, (value,))
        wide = cast(value, I32)
        if place < len(values) - 1 and value.dtype is dtypes.int8:
            wide = alu(Ops.AND, wide, const(255, I32))
        if place:
            wide = alu(Ops.SHL, wide, const(8 * value.dtype.itemsize * place, I32))
        total = wide if total is None else alu(Ops.OR, total, wide)
    assert total is not None
    return total


def are_turned(left: DType, right: DType) -> bool:
    """Whether the highest bits of one of two factors are to be turned over."""
    return left in _BYTES and left is right


def word_product(turned: Node, other: Node, left: DType, right: DType) -> tuple[Node, Node | None]:
    """The sum of the products of two words' numbers, and what it is too large by; None for nothing.

    left, right: the dtypes of the numbers in `turned` and in `other`.
    """
    if left in _HALVES:
        return alu(Ops.DOT2, turned, other, const(0.0, dtypes.float32)), None
    zero = const(0, I32)
    signed = left is dtypes.int8, right is dtypes.int8
    if signed == (True, True):
        return alu(Ops.DOT4, turned, other, zero), alu(Ops.DOT4, HIGHEST, other, zero)
    if signed == (False, False):
        return alu(Ops.DOT4, other, turned, zero), alu(Ops.DOT4, other, HIGHEST, zero)
    first, second = (other, turned) if signed[0] else (turned, other)
    return alu(Ops.DOT4, first, second, zero), None


def word_slots(table: AxisTable) -> frozenset[int]:
    """The arguments of which nothing but whole words is read, each at a multiple of its size."""
    found: set[Node] = set()
    for reduction in table.facts.reductions:
        factors = word_factors(reduction.node.src[0]) or ()
        found.update(read for read in factors if _is_whole(table, read, reduction.own))
    accesses = [access.array.arg.slot for access in table.facts.accesses]
    slots = [read.src[0].arg.slot for read in found]
    return frozenset(slot for slot in slots if slots.count(slot) == accesses.count(slot))


def _is_whole(table: AxisTable, read: Node, own: tuple[Node, ...]) -> bool:
    """Whether numbers are read as whole words: neighbours from a multiple of a word's on."""
    if read.op is not Ops.INDEX or not in_bounds(read):
        return False
    offset, count = offset_of(read), in_word(read.dtype)
    near = [axis for axis in own if offset.strides.get(axis) == 1]
    if len(near) != 1 or table.merged.get(near[0]) or offset.rest:
        return False
    for piece in table.pieces_of(near[0]):
        last = [name for name, scale in piece.terms if scale % count]
        limited = any(name in last for limit in piece.limits for name, _ in limit.terms)
        if len(last) != 1 or last[0] not in table.tensorized or limited or piece.start != 0:
            return False
    extents = read.src[0].arg.shape
    others = [stride for axis, stride in offset.strides.items() if axis is not near[0]]
    whole = [offset.constant, index.product(extents), *others]
    return all(isinstance(size, int) and size % count == 0 for size in whole)


def at_number(piece: Piece, axis: str, place: int) -> Piece:
    """A piece at one of the numbers of a word, along `axis`, which is none of its axes any more."""
    scale = dict(piece.terms).get(axis)
    if scale is None:
        return piece
    limits = []
    for limit in piece.limits:
        step = dict(limit.terms).get(axis, 0)
        left = tuple([term for term in limit.terms if term[0] != axis])
        limits.append(limit._replace(start=index.add(limit.start, place * step), terms=left))
    terms = tuple([term for term in piece.terms if term[0] != axis])
    start = index.add(piece.start, place * scale)
    return piece._replace(start=start, terms=terms, limits=tuple(limits))


def _check_dot(table: AxisTable, step: Tensorize, axes: list[Axis]) -> None:
    """Refuse machines without the instruction, and what else is reduced along its axis."""
    row = DOT4 if step.instruction == DOT4.name else DOT2
    if not table.has(row.name):
        raise without_instruction(table, step, row)
    (axis,) = axes
    for reduction in table.facts.reductions:
        for node in reduction.own:
            within = any(axis.name in dict(piece.terms) for piece in table.pieces_of(node))
            node = reduction.node
            sums = node.arg.monoid.primitive is Ops.ADD and factors_of(node.src[0], row.products)
            if within and not sums:
                raise illegal(step, "something else is reduced along the axis", wanted=row.needs)
    table.tensorized.add(axis.name)


_BYTE_PRODUCTS = tuple([product for product in NAMES if product.total is I32])
DOT4 = Instruction(
    "dot4", "lane", MappingProxyType(dict.fromkeys(_BYTE_PRODUCTS, "dot4")), ((4,),), 1,
    "all in lanes, each factor's four bytes in a word",
    "a CPU with avx512vnni or avxvnni, and a sum of products of int8 or uint8, each cast to int32",
    _check_dot,
)
_HALF_PRODUCTS = tuple([product for product in NAMES if product.total is not I32])
DOT2 = Instruction(
    "dot2", "lane", MappingProxyType(dict.fromkeys(_HALF_PRODUCTS, "dot2")), ((2,),), 1,
    "all in lanes, each factor's two numbers in a word",
    "a CPU with avx512bf16, and a sum of products of bfloat16, each cast to float32",
    _check_dot,
)
