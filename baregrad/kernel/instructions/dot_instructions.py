"""Sums of products of narrow numbers, a word of them at a time: four bytes, or two bfloat16.

DOT2 multiplies two bfloat16 by two. DOT4 multiplies unsigned bytes by signed ones. Where both
factors are signed, or both unsigned, one has its highest bit turned over, which makes it larger, or
smaller, by 128; the sum is then off by 128 times the sum of the other factor, which is taken off
again.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from baregrad.base.errors import ScheduleError
from baregrad.dtypes import DType, dtypes
from baregrad.ir.analysis.words import in_word
from baregrad.ir.core import index
from baregrad.ir.core.node import Node, alu, cast, const, make_node
from baregrad.ir.core.op import Ops
from baregrad.kernel.facts.analysis import in_bounds, is_read, offset_of
from baregrad.kernel.language.schedule import Tensorize

if TYPE_CHECKING:
    from baregrad.kernel.applying.axes import AxisTable, Piece

I32 = dtypes.int32
# The highest bit of each byte: as unsigned bytes 128, as signed ones -128.
HIGHEST = const(-0x7F7F7F80, I32)
_BYTES = (dtypes.int8, dtypes.uint8)
_HALVES = (dtypes.bfloat16,)
# By instruction: what it multiplies.
_FACTORS = MappingProxyType({"dot4": _BYTES, "dot2": _HALVES})


class Word(NamedTuple):
    """Which numbers are read as one word: those along an axis; `turned`: bytes' highest bits."""

    axis: str
    turned: bool = False


def byte_factors(value: Node) -> tuple[Node, Node] | None:
    """The reads of bytes whose product, as an int32, `value` is; None for anything else."""
    if value.op is not Ops.MUL or value.dtype is not I32:
        return None
    one, other = [child.src[0] if child.op is Ops.CAST else child for child in value.src]
    return (one, other) if _reads(one, _BYTES) and _reads(other, _BYTES) else None


def word_factors(value: Node) -> tuple[Node, Node] | None:
    """The reads whose product `value` is: of bytes, as an int32, or of bfloat16, as a float32."""
    if value.op is not Ops.MUL or value.dtype is not dtypes.float32:
        return byte_factors(value)
    if any(child.op is not Ops.CAST for child in value.src):
        return None
    one, other = [child.src[0] for child in value.src]
    return (one, other) if _reads(one, _HALVES) and _reads(other, _HALVES) else None


def _reads(node: Node, wanted: tuple[DType, ...]) -> bool:
    """Whether a node reads an argument of one of these dtypes, guarded or not."""
    covered = node.src[1] if node.op is Ops.GUARD else node
    return node.dtype in wanted and is_read(covered)


def dot_instruction(value: Node) -> str:
    """The instruction that adds such products up in lanes; empty where none does."""
    factors = word_factors(value)
    found = factors[0].dtype if factors else None
    return next((name for name, taken in _FACTORS.items() if found in taken), "")


def is_dot_sum(reduce: Node, instruction: str) -> bool:
    """Whether a REDUCE is a sum of such products as the instruction adds up."""
    if reduce.arg.monoid.primitive is not Ops.ADD:
        return False
    return dot_instruction(reduce.src[0]) == instruction


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
    for piece in table.pieces[table.names[near[0]]]:
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


def check_tensorize(table: AxisTable, step: Tensorize) -> None:
    """Refuse an axis that the instruction cannot take. Raises ScheduleError."""
    axis = table.axis(step.axis, step)
    if step.instruction not in table.dot_instructions:
        raise ScheduleError(
            f"{step} is not legal: the machine has no such instruction",
            found=", ".join(table.dot_instructions) or "none of this kind",
            wanted="a CPU with avx512vnni or avxvnni for dot4, with avx512bf16 for dot2",
        )
    count = in_word(_FACTORS[step.instruction][0])
    if axis.serial or axis.unit != "loop" or axis.extent != count or axis.name in table.staged:
        raise ScheduleError(
            f"{step} is not legal: the axis is not {count} steps that are free to go",
            found=axis.serial or f"{axis.extent} steps, bound to {axis.unit}",
            wanted=f"a part of size {count} of an axis, neither bound nor staged",
        )
    for reduction in table.facts.reductions:
        for node in reduction.own:
            merged = table.merged.get(node)
            pieces = table.pieces[merged[0] if merged else table.names[node]]
            within = any(name == axis.name for piece in pieces for name, _ in piece.terms)
            if within and not is_dot_sum(reduction.node, step.instruction):
                raise ScheduleError(
                    f"{step} is not legal: something else is reduced along the axis",
                    wanted="for dot4 a sum of products of int8 or uint8, each cast to int32; for "
                    "dot2 one of products of bfloat16, each cast to float32",
                )
    if not axis.reduced:
        raise ScheduleError(f"{step} is not legal: the axis is not reduced", found=axis.name)
    table.tensorized.add(axis.name)
    axis.serial = "an instruction does all of the axis"
