"""What is known of every tensor value before fusion: its size, what computing one element costs.

One pass over the graph, sources first. Costs are in plain vectorised operations per element;
reading one byte from memory counts as one. Values that come through an EXPAND are shared by the
elements that they are repeated for, so their cost is divided among these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from types import MappingProxyType
from typing import Any

from baregrad.dtypes import dtypes
from baregrad.ir.analysis.stream import is_chained, is_computed, is_operand, is_stream
from baregrad.ir.analysis.words import byte_products
from baregrad.ir.core import index
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import ALU, MOVEMENT, SPELLED, Op, Ops, mask_of

COSTLY: MappingProxyType[Op, float] = MappingProxyType(
    {
        **dict.fromkeys(
            (Ops.EXP, Ops.EXP_NEAR, Ops.EXP2, Ops.EXP2_NEAR, Ops.LOG, Ops.LOG2), 10.0
        ),
        **dict.fromkeys((Ops.SIN, Ops.COS, Ops.TANH, Ops.ERF, Ops.GELU, Ops.GELU_NEAR), 16.0),
        **dict.fromkeys((Ops.ATAN, Ops.POW), 16.0),
        **dict.fromkeys((Ops.DIV, Ops.SQRT, Ops.RECIPROCAL), 4.0),
        **dict.fromkeys((Ops.FLOORDIV, Ops.MOD, Ops.TRUNCDIV), 8.0),
        Ops.THREEFRY: 60.0,
    }
)
_IN_MEMORY = mask_of((Ops.PARAM, Ops.BUFFER, Ops.SCATTER, Ops.SCAN))
_ARITHMETIC = mask_of(ALU)
_FOLDS = Ops.REDUCE.bit | Ops.FOLD.bit
_INDEX = dtypes.index
READ_BY_STREAM = "read by a stream"
GUARD_COST = 4.0  # a guarded read breaks a vector loop's contiguous loads
MOST = 1e18
# A REDUCE(add) of a product whose operands are each read at least this often is a contraction.
CONTRACTION_REUSE = 4.0
# The same of words on a GPU: blocks of their own multiply up to 8 rows by the same ones.
WORDS_REUSE = 9.0
# From here on a tile of a matrix unit is filled well enough.
MATRIX_REUSE = 8.0
# Times that a product may read rows whose places are read as well.
MOST_READS = 16.0
STORED_WHEN_SHARED = 24.0  # operations an element; what costs more is stored once two want it
VIEWED = mask_of((*MOVEMENT, Ops.DETACH))
_PASSING = VIEWED & ~Ops.PAD.bit  # what is seen through them is their source
_MOVING = _PASSING & ~Ops.EXPAND.bit  # an element costs what it does in the source
LEAVES = frozenset((Ops.PARAM, Ops.BUFFER))


class Sizes(dict[tuple[Any, ...], float]):
    """The number of elements, at most, of arrays by their shape."""

    def __missing__(self, shape: tuple[Any, ...]) -> float:
        count = 1.0
        for extent in shape:
            count *= extent if extent.__class__ is int else index.upper(extent)
        self[shape] = count
        return count


@dataclass(slots=True)
class Survey:
    """Facts of each tensor node, and of each shape.

    size: elements of a shape (upper bound). work: operations per element when computed where it is
    read, of what is no view. reading: what reading one element costs. readers: how many non-view
    nodes read it. contractions: reductions with so much reuse that they deserve a kernel's tiles
    for themselves. gpu: whether the machine is one.
    """

    readers: Counter[Node]
    gpu: bool = False
    size: Sizes = field(default_factory=Sizes)
    work: dict[Node, float] = field(default_factory=dict)
    reading: dict[Node, float] = field(default_factory=dict)
    contractions: set[Node] = field(default_factory=set)


def base_of(node: Node) -> Node:
    """The value below views."""
    while node.op.bit & _PASSING:
        node = node.src[0]
    return node


def take_survey(order: list[Node], stored: Iterable[Node] = (), gpu: bool = False) -> Survey:
    """The facts of every node of `order`, which lists sources before their users.

    stored: values that will be in memory whatever fusion decides.
    """
    survey = Survey(_count_readers(order), gpu)
    kept = frozenset(stored)
    work, reading, readers = survey.work, survey.reading, survey.readers
    costly = dict(COSTLY).get  # asked faster than a read-only view of it
    for node in order:
        src, bit = node.src, node.op.bit
        # What most nodes are is asked first.
        if bit & _MOVING and len(src) == 1 and node.dtype is not _INDEX:
            # It has no more readers than its source: where it would be stored, that is already.
            reading[node] = reading[src[0]]
            continue
        if bit & _ARITHMETIC and len(src) == 2 and node.dtype is not _INDEX:
            left, right = src
            cost = reading[left]
            if right is not left:
                cost += reading[right]
            weight = costly(node.op, 1.0) + cost
        else:
            weight = _weigh(node, survey)
        if weight > MOST:
            weight = MOST
        work[node] = weight
        loaded = node in kept or (readers[node] > 1 and is_dear(node, weight, survey))
        reading[node] = float(node.dtype.itemsize) if loaded else weight
    return survey


def _count_readers(order: list[Node]) -> Counter[Node]:
    """How many nodes that are no views read each: views pass their readers on to their source."""
    views = [node for node in order if node.op.bit & _PASSING]
    passing = frozenset(views)
    readers = Counter(chain.from_iterable([one.src for one in order if one not in passing]))
    for node in reversed(views):
        # Extents are sources too.
        for child in node.src:
            readers[child] += readers[node]
    return readers


def is_dear(node: Node, weight: float, survey: Survey) -> bool:
    """Whether a value of several readers will be stored, so that reading it is a load.

    A tuple-valued reduction is never stored; its parts are.
    """
    if weight <= STORED_WHEN_SHARED and node not in survey.contractions:
        return False
    return not is_tuple(node)


def only_operand(value: Node) -> Node | None:
    """The one operand of a value that is no constant; None where there are several or none."""
    found = dict.fromkeys([child for child in value.src if child.op is not Ops.CONST])
    if len(found) != 1:
        return None
    (below,) = found
    return None if below.dtype is _INDEX else below


def own_work(node: Node) -> float:
    """Operations per element of the node itself, its operands being at hand."""
    return COSTLY.get(node.op, 1.0)


def is_tuple(node: Node) -> bool:
    """Whether a node is a reduction, or a running fold, of several parts."""
    return node.op in (Ops.REDUCE, Ops.SCAN) and node.arg.monoid.arity > 1


def _weigh(node: Node, survey: Survey) -> float:
    op, bit = node.op, node.op.bit
    src = node.src
    reading = survey.reading
    if bit & _IN_MEMORY:
        return float(node.dtype.itemsize)
    if not src or node.dtype is _INDEX or op is Ops.SINK:
        return 1.0 if op is Ops.IOTA else 0.0
    first = src[0]
    if op is Ops.EXPAND:
        # What is dear is stored once several places want it: no more than a load counts.
        once = min(reading[first], float(node.dtype.itemsize))
        return once * survey.size[first.shape] / max(survey.size[node.shape], 1.0)
    if bit & VIEWED:
        extra = GUARD_COST if op is Ops.PAD else 0.0
        return reading[first] + extra
    below = reading[first]
    if len(src) > 1:
        for child in src[1:] if len(src) == 2 else dict.fromkeys(src[1:]):
            if child is not first:
                below += reading[child]
    if bit & _ARITHMETIC:
        return COSTLY.get(op, 1.0) + below
    if bit & _FOLDS:
        if _is_contraction(node, survey):
            survey.contractions.add(node)
        each = below + (GUARD_COST if op is Ops.FOLD else 1.0)
        return each * survey.size[first.shape] / max(survey.size[node.shape], 1.0)
    if op is Ops.GATHER:
        return below + GUARD_COST
    return below


def held_above_zero(order: list[Node]) -> dict[Node, Node]:
    """Of each value that is held above 0 somewhere: that, a choice between it and 0."""
    found = {}
    for node in order:
        if node.op is Ops.WHERE and node.src[0].op is Ops.CMPLE:
            mask, zero, value = node.src
            if mask.src[0] is value and _is_zero(mask.src[1]) and _is_zero(zero):
                found[value] = node
    return found


def _is_zero(node: Node) -> bool:
    return node.op is Ops.CONST and node.arg == 0


def matrix_products(survey: Survey) -> frozenset[Node]:
    """The contractions whose factors are 16-bit floats, with enough results a side for tiles."""
    return frozenset([node for node in survey.contractions if _is_of_narrow(node, survey)])


def _is_of_narrow(node: Node, survey: Survey) -> bool:
    if node.op is Ops.FOLD:
        return False
    body = _product(node)
    size = survey.size[body.shape]
    return all(
        is_widened(operand) and size >= MATRIX_REUSE * survey.size[_factor(operand).shape]
        for operand in body.src
    )


def is_widened(value: Node) -> bool:
    """Whether a value is a 16-bit float, widened, seen through views and zeros around them."""
    while value.op.bit & VIEWED or (value.op is Ops.CAST and value.dtype.bits > 16):
        value = value.src[0]
    return value.dtype.kind == "float" and value.dtype.bits == 16


def _product(node: Node) -> Node:
    """What a REDUCE sums, below casts and views that only move axes."""
    body = node.src[0]
    while body.op in (Ops.CAST, Ops.RESHAPE, Ops.PERMUTE):
        body = body.src[0]
    return body


def _factor(operand: Node) -> Node:
    """What a factor of a product is made of by casts and views, which may stand in any order."""
    while operand.op.bit & _PASSING or operand.op is Ops.CAST:
        operand = operand.src[0]
    return operand


def _is_contraction(node: Node, survey: Survey) -> bool:
    if node.op is Ops.FOLD:
        return base_of(node.src[0]) in survey.contractions
    if node.arg.monoid.primitive is not Ops.ADD:
        return False
    body = _product(node)
    if body.op is not Ops.MUL or byte_products(body):
        # A GPU's threads sum few rows' products with words that no more read.
        products = byte_products(node.src[0])
        return bool(products) and not (survey.gpu and any(
            not _is_reused(one.src[:2], one, survey, WORDS_REUSE) for one in products
        ))  # fmt: skip
    return _is_reused(body.src, body, survey)


def _is_reused(
    factors: Iterable[Node], product: Node, survey: Survey, least: float = CONTRACTION_REUSE
) -> bool:
    """Whether each element of some factors is in several products."""
    size = survey.size[product.shape]
    return all(size >= least * survey.size[_factor(one).shape] for one in factors)


def read_in_place(survey: Survey) -> frozenset[Node]:
    """Rows that places name and one product reads, a few times each: a copy would cost more.

    The product's tile loads each once for all that reads it, as keys and values in pages are for
    the heads that share them. A GPU's reads whole matrices so however often: it copies panels of
    them in any case.
    """
    found = set()
    for total in survey.contractions:
        product = total.src[0]
        for side in product.src:
            rows = base_of(side)
            while rows.op is Ops.CAST:
                rows = base_of(rows.src[0])
            often = survey.size[product.shape] > MOST_READS * survey.size[rows.shape]
            if rows.op is not Ops.GATHER or survey.readers[rows] != 1:
                continue
            # What is asked for in memory is there for a GPU's panels, too.
            held = _IN_MEMORY | Ops.CONTIGUOUS.bit if survey.gpu else _IN_MEMORY
            if _is_whole(rows, 2, held) if survey.gpu else not often and _is_whole(rows, 1, held):
                found.add(rows)
    return frozenset(found)


def _is_whole(gather: Node, count: int, held: int) -> bool:
    """Whether a GATHER of an array of an op of `held` is whole along its last `count` axes."""
    array, *places = gather.src
    if not base_of(array).op.bit & held or len(places) <= count:
        return False
    for axis in range(1, count + 1):
        own, length = places[-axis], gather.shape[-axis]
        order = base_of(own)
        is_order = order.op is Ops.IOTA and order.shape == (length,)
        if not is_order or own.op is not Ops.EXPAND or own.src[0].shape[-axis] != length:
            return False
        others = [one for one in places if one is not own]
        if not all(one.op is Ops.EXPAND and one.src[0].shape[-axis] == 1 for one in others):
            return False
    return True


def streamed(order: list[Node], must: dict[Node, str]) -> frozenset[Node]:
    """What streams over tiles compute anew for each tile; `must` receives what they read.

    A reduction by the monoid of `ir/analysis/stream.py`, or one whose weights are made of such
    states, is a kernel with the products inside it: neither these nor the arithmetic around them is
    stored. The factors of the products are, and the states, and other sums.
    """
    found: set[Node] = set()
    known: dict[Node, int] = {}
    for fold in order:
        if fold.op is not Ops.REDUCE or not (is_stream(fold) or is_chained(fold, known)):
            continue
        for node in toposort(*fold.src, enter=is_computed):
            if is_operand(node):
                _note_reads(node, found, must)
            elif is_computed(node):
                found.add(node)
            else:
                _note_stored(node, must)
    return frozenset(found)


def _note_stored(node: Node, must: dict[Node, str]) -> None:
    if node.op not in LEAVES and node.mask & ~SPELLED:
        must.setdefault(node, READ_BY_STREAM)


def _note_reads(operand: Node, found: set[Node], must: dict[Node, str]) -> None:
    """Note what a stream reads of an array, and makes the places of, where those are read as well.

    found: receives what is not stored, must: what is.
    """
    waiting = [operand]
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        if node.op is Ops.GATHER or node.op.bit & (_ARITHMETIC | VIEWED) or node.op is Ops.CAST:
            found.add(node)
            waiting.extend(node.src)
        else:
            _note_stored(node, must)
