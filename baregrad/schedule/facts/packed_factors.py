"""Which factors of sums of products are numbers made of fewer bytes, as of packed weights.

Stored as numbers they would take several times the memory, and the time to move it. A kernel reads
the bytes instead and keeps a row or a panel of numbers in scratch memory, whatever of them several
rows of the other factor want (`kernel/loops/shared_factors.py`, `stage_factor`).

Where matrix units multiply so many rows that all tiles of them would unpack the same numbers many
times, these are stored for the time of the product.
"""

from __future__ import annotations

from collections.abc import Iterable

from baregrad.dtypes import dtypes
from baregrad.ir.analysis.words import byte_products
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import ELEMENTWISE, Ops, mask_of
from baregrad.schedule.facts.survey import VIEWED, Survey
from baregrad.schedule.facts.traffic import Traffic, is_half

# How many times as many bytes the numbers take, at least.
LEAST_RATIO = 2.0
# Operations, casts aside, from which on an element is unpacked rather than widened or scaled.
LEAST_OPERATIONS = 4
# Rows of 16-bit products from which on matrix units read numbers: to store these takes as long as
# to multiply so many rows by what is unpacked for them.
MANY_ROWS = 128
WHY = "numbers made of fewer bytes are kept a row or a panel at a time"
_ELEMENTWISE = mask_of(ELEMENTWISE)
_OPERATIONS = _ELEMENTWISE & ~(Ops.CAST.bit | Ops.BITCAST.bit)
_BYTES = (dtypes.uint8, dtypes.int8)
_NUMBERS = Ops.CONST.bit | Ops.IOTA.bit
_SHOWN = VIEWED | Ops.GATHER.bit
_INSIDE = _ELEMENTWISE | _SHOWN
_ROW = _ELEMENTWISE | VIEWED


def packed_factors(
    order: Iterable[Node], survey: Survey, traffic: Traffic, matrix_units: bool = False
) -> frozenset[Node]:
    """All that such factors are computed of, down to what is in memory.

    matrix_units: whether the machine has units for products of 16-bit floats.
    """
    found: set[Node] = set()
    for node in order:
        if node.op is not Ops.REDUCE or node.arg.monoid.primitive is not Ops.ADD:
            continue
        body = node.src[0]
        if byte_products(body):
            found |= _made_of_bytes(body)
            continue
        while body.op in (Ops.CAST, Ops.RESHAPE, Ops.PERMUTE):
            body = body.src[0]
        if body.op is not Ops.MUL:
            continue
        for factor in body.src:
            if matrix_units and _has_many_rows(factor, body, survey):
                continue
            if _is_packed(factor, survey, traffic):
                found |= _inside(factor)
    return frozenset(found)


def row_factors(order: Iterable[Node]) -> frozenset[Node]:
    """What sums of products of bytes make of 16-bit floats alone, which are in memory by then.

    A GPU's threads make it once for all of their rows, in less time than a launch takes.
    """
    found: set[Node] = set()
    for node in order:
        if node.op is Ops.REDUCE and byte_products(node.src[0]):
            found |= _made_of_halves(node.src[0])
    return frozenset(found)


def _has_many_rows(factor: Node, product: Node, survey: Survey) -> bool:
    """Whether matrix units multiply many rows by each row of a factor."""
    while factor.op.bit & (VIEWED | Ops.CAST.bit):
        if factor.op is Ops.CAST and factor.src[0].dtype.bits == 16:
            factor = factor.src[0]
            break
        factor = factor.src[0]
    is_half = factor.dtype.is_float and factor.dtype.bits == 16
    while factor.op.bit & VIEWED:
        factor = factor.src[0]
    return is_half and survey.size[product.shape] >= MANY_ROWS * survey.size[factor.shape]


def _is_packed(factor: Node, survey: Survey, traffic: Traffic) -> bool:
    while factor.op.bit & VIEWED:
        factor = factor.src[0]
    if not factor.op.bit & _ELEMENTWISE:
        return False
    behind = traffic.behind(factor)
    count = survey.size[factor.shape]
    if not behind or sum(behind.values()) * LEAST_RATIO > count * factor.dtype.itemsize:
        return False
    # Of a resized image the same numbers are read several times, which are none the fewer: a float
    # holds one, and an integer one in each bit at most. Rows that are named may be so many times.
    codes = max(behind, key=lambda array: behind[array])
    held = 1 if codes.dtype.is_float else codes.dtype.bits
    if not factor.mask & Ops.GATHER.bit and count > held * survey.size[codes.shape]:
        return False
    operations = sum(node.op.bit & _OPERATIONS > 0 for node in _inside(factor))
    return operations >= LEAST_OPERATIONS


def _is_computed(node: Node) -> bool:
    return bool(node.op.bit & (_SHOWN if node.dtype in _BYTES else _INSIDE))


def _made_of_bytes(body: Node) -> set[Node]:
    """What a sum of products of bytes makes of arrays of bytes alone: words, and their scales."""
    order = toposort(body, enter=_is_computed)
    found: set[Node] = set()
    for node in order:
        # Rows that an index names are read where they are.
        is_named = node.op is Ops.GATHER and node.dtype in _BYTES
        if is_named or (_is_computed(node) and all(
            child in found or child.dtype in _BYTES or child.op.bit & _NUMBERS
            for child in node.src
        )):  # fmt: skip
            found.add(node)
    return found


def _made_of_halves(body: Node) -> set[Node]:
    found: set[Node] = set()
    plain: set[Node] = set()
    for node in toposort(body, enter=lambda one: bool(one.op.bit & _ROW) and not is_half(one)):
        if node.op.bit & _NUMBERS:
            plain.add(node)
        elif node.op.bit & _ROW and not is_half(node):
            if all(child in plain for child in node.src):
                plain.add(node)
            elif all(child in plain or child in found or is_half(child) for child in node.src):
                found.add(node)
    return found


def _inside(factor: Node) -> set[Node]:
    found: set[Node] = set()
    waiting = [factor]
    while waiting:
        node = waiting.pop()
        if node not in found and node.op.bit & _INSIDE:
            found.add(node)
            waiting.extend(node.src)
    return found
