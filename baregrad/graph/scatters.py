"""Scatters without an order: choices by place, and on GPUs exact sums, and parts of long ones.

`scatter(base, v, row, i)`, where `row` counts the rows, writes v[r] at base[r, i[r]] and touches
nothing twice; so it is `where(column == i, v, base)`, which fuses with what is around it: no zeros
to fill, nothing in order. This is the gradient of picking one class a row.

Integers that are combined need no order, and floats are sums of integers, or compare as some: of
many sums each is one integer, relative to its greatest addend.
`scatter_rows` says where that is sooner done than a sort of places. Other writes that may meet keep
their order, so that one thread makes them one after the other. Where their places are not sorted
either, long sums are cut into parts, each with zeros of its own; they are made side by side, and
summed at the end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from math import prod

from baregrad.base.bits import greatest_divisor
from baregrad.dtypes import dtypes
from baregrad.graph.affine_index import AffineIndex, affine_index_of
from baregrad.graph.sorts import LAUNCH
from baregrad.graph.traced import Traced, rewrite
from baregrad.graph.views import (
    constant_of,
    counting,
    expand,
    full,
    permute,
    reshape,
    stored,
    with_sums_stored,
)
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Reduce, Scatter
from baregrad.ir.core.index import Dim
from baregrad.ir.core.monoid import Monoid, primitive
from baregrad.ir.core.node import Node, alu, cast, const
from baregrad.ir.core.op import ATOMIC, Op, Ops
from baregrad.ir.core.shape import is_one

# Fewer writes in order than this are soon made.
LEAST = 512
LEAST_PART = 16
MOST_PARTS = 64
# Elements of all parts together: zeros to be written, and read again.
MOST_ELEMENTS = 1 << 24
# Writes in any order: exponents of a sum of floats, and the bits of how many addends there may be;
# writes for each element before there are copies of it, elements of all copies at most, and copies
# that are put together at once.
MOST_WIDTH = 32
MOST_BITS = 30
WRITES = 64
MOST_APART = 1 << 18
MOST_COPIES = 64
# Kernels of atomic writes, and cells of theirs that are written and read as fast as an element is
# moved.
ATOMIC_LAUNCHES, CELLS_OF_A_WORD = 3, 3
# The exponent of a float32 that is no finite number, and the bits of a significand.
_SPECIAL = 255
_SIGNIFICAND = 24
# As far below the greatest exponent of a sum an addend is nothing.
_MOST_BELOW = 62


# --- by place -------------------------------------------------------------------------------------


def _visit(node: Node) -> Node | None:
    if node.op is not Ops.SCATTER:
        return None
    base, values, *places = node.src
    if any(place.shape != values.shape for place in places) or not values.shape:
        return None
    values, *places = (_thin(one) for one in (values, *places))
    chosen: int | None = None
    axis_of: dict[int, int] = {}
    for axis, place in enumerate(places):
        counted = affine_index_of(place)
        if counted is not None and _covers(counted, values, base.shape[axis]):
            axis_of[axis] = counted.axis
        elif chosen is None:
            chosen = axis
        else:
            return None
    if len(set(axis_of.values())) != len(axis_of) or len(axis_of) != len(values.shape):
        return None
    if chosen is None:
        return None
    return _choice(node, values, places[chosen], chosen, axis_of)


def _thin(node: Node) -> Node:
    """A value without its axes of extent 1."""
    return reshape(node, tuple(extent for extent in node.shape if not is_one(extent)))


def _covers(counted: AffineIndex, values: Node, extent: Dim) -> bool:
    """Whether the places are 0, 1, ... through the whole axis, one for each of the values."""
    return counted.start == 0 and counted.step == 1 and values.shape[counted.axis] == extent


def _choice(
    node: Node, values: Node, place: Node, chosen: int, axis_of: dict[int, int]
) -> Node | None:
    base = node.src[0]
    shape = base.shape
    order = tuple(axis_of[axis] for axis in range(len(shape)) if axis != chosen)
    thin = tuple(1 if axis == chosen else extent for axis, extent in enumerate(shape))
    value = expand(reshape(permute(values, order), thin), shape)
    index = cast(place, dtypes.int64)
    index = expand(reshape(permute(index, order), thin), shape)
    hit = alu(Ops.CMPEQ, counting(shape, chosen), index)
    monoid = node.arg.monoid
    start = constant_of(base)
    if start is None or (monoid is not None and monoid.primitive is None):
        return None  # an array that is there already may be written in place
    if monoid is not None and not (start.arg == 0 and _adds(monoid)):
        value = alu(monoid.primitive, base, value)
    return alu(Ops.WHERE, hit, value, base)


def _adds(monoid: Monoid) -> bool:
    return monoid.primitive is Ops.ADD


def choose_by_place(order: list[Node], changed: dict[Node, Node]) -> Node:
    """The sink with scatters that write each row once as choices."""
    return rewrite(order, _visit, Ops.SCATTER.bit, changed)


# --- in any order ---------------------------------------------------------------------------------


def has_any_order(node: Node) -> bool:
    """Whether a scatter combines integers, or floats that may be: in sums, of no more than many."""
    monoid = node.arg.monoid
    if monoid is None or monoid.primitive not in ATOMIC:
        return False
    if node.dtype.is_float and _adds(monoid):
        return node.dtype is dtypes.float32 and bool(prod(node.src[1].shape) < 1 << MOST_BITS)
    return node.dtype.bits >= 32 and (node.dtype.is_int or node.dtype.is_float)


def cost_in_any_order(node: Node) -> int:
    """What a scatter in any order takes, in elements that are moved."""
    base, values, *_ = node.src
    elements, count = prod(base.shape), prod(values.shape)
    if not node.dtype.is_float or not _adds(node.arg.monoid):
        copies = _copies(elements, count)
        return cost_of_atomics(count, copies * elements if copies > 1 else 0)
    return min(_cost_of_planes(elements, count), _cost_by_greatest(elements, count))


def cost_of_atomics(count: int, cells: int) -> int:
    """What so many atomic writes take, to so many cells of 64 bits that are zeroed and read."""
    return int(ATOMIC_LAUNCHES * LAUNCH + count + cells // CELLS_OF_A_WORD)


def _cost_of_planes(elements: int, count: int) -> int:
    return cost_of_atomics(count, _copies(elements, count) * (_planes(count)[1] + 1) * elements)


def _cost_by_greatest(elements: int, count: int) -> int:
    """Of sums by the greatest exponent of each: one more kernel, a cell and half a cell of each."""
    return cost_of_atomics(2 * count, elements + elements // 2) + LAUNCH


def in_any_order(node: Node) -> Node:
    """A scatter that combines integers, or floats as such, by what machines do in one step."""
    base, values, *places = node.src
    op, dtype = node.arg.monoid.primitive, node.dtype
    if dtype.is_float and op is Ops.ADD:
        elements, count = prod(base.shape), prod(values.shape)
        is_sooner = _cost_by_greatest(elements, count) < _cost_of_planes(elements, count)
        return _sums_by_greatest(node) if is_sooner else _exact_sums(node)
    if dtype.is_float:
        base, values = _ordered(base, op), _ordered(values, op)
    monoid = primitive(op, base.dtype)
    copies = _copies(prod(base.shape), prod(values.shape))
    if copies == 1:
        how = Scatter(monoid, atomic=True)
        found = Node(Ops.SCATTER, base.dtype, (base, values, *places), how)
    else:
        parts = _copied(monoid, copies, values, places, base.shape)
        found = alu(op, base, _together(monoid, parts, 0))
    return Node(Ops.BITCAST, dtype, (_turned(found),)) if dtype.is_float else found


def _ordered(value: Node, op: Op) -> Node:
    """Floats as integers in the same order; what is no number is what an extreme keeps."""
    dtype = dtypes.int32 if value.dtype.bits == 32 else dtypes.int64
    bits = _turned(Node(Ops.BITCAST, dtype, (value,)))
    first = _like(dtype.max if op is Ops.MAX else dtype.min, bits)
    return alu(Ops.WHERE, alu(Ops.CMPNE, value, value), first, bits)


def _turned(bits: Node) -> Node:
    """The bits of negative floats the other way round, and back."""
    negative = alu(Ops.CMPLT, bits, _like(0, bits))
    return alu(Ops.WHERE, negative, alu(Ops.XOR, bits, _like(bits.dtype.max, bits)), bits)


def _exact_sums(node: Node) -> Node:
    """A scatter that adds up float32.

    Each is a multiple of the power of two that its exponent, cut to so many bits, stands for. These
    integers are added up for each such power by itself, where none of them is lost: so sums are
    exact until they are put together in float64. Infinities and NaNs are counted. Source: Kulisch,
    "Computer Arithmetic and Validity", 2008, on accumulators of fixed point.
    """
    base, values, *places = node.src
    count = prod(values.shape)
    width, planes = _planes(count)
    plane, word = _fixed(values, width, planes)
    # Neighbours are added to at once where they are along a plane; what is none of theirs lies
    # apart, where memory adds to more of it at a time.
    counted = affine_index_of(places[-1])
    axis = 0 if counted is not None and counted.step == 1 else len(places)
    shape = (*base.shape[:axis], planes + 1, *base.shape[axis:])
    places[axis:axis] = [plane]
    copies = _copies(prod(base.shape), count)
    sums = _copied(primitive(Ops.ADD, word.dtype), copies, word, places, shape)
    return _on_base(node, _from_fixed(sums, width, axis + 1))


def _sums_by_greatest(node: Node) -> Node:
    """A scatter that adds up float32, of so many sums that each is to be one integer.

    The exponent of the greatest addend of each sum is found first. All its addends are multiples of
    a power of two relative to that one, rounded where they have bits below it. What is lost is no
    more than an addition of floats to the greatest one loses, unless the addends of a sum, times
    those of all sums, are 2**38 or more.
    """
    base, values, *places = node.src
    # Two kernels read them: a number of another exponent, or elsewhere, would come out wrong.
    places = [with_sums_stored(place) for place in places]
    number = _parts_of(with_sums_stored(_bits_of(values)))
    power = cast(number.power, dtypes.int32)
    nobody = full(const(0, power.dtype), base.shape)
    how = Scatter(primitive(Ops.MAX, power.dtype), atomic=True)
    top = Node(Ops.SCATTER, power.dtype, (nobody, power, *places), how)
    mine = Node(Ops.GATHER, power.dtype, (top, *places), True)
    shift = _shift_by_greatest(prod(values.shape))
    below = alu(Ops.MAX, alu(Ops.SUB, mine, power), _like(0, power))
    below = cast(alu(Ops.MIN, below, _like(_MOST_BELOW, below)), dtypes.int64)
    word = alu(Ops.SHL, number.significand, _like(shift, below))
    half = alu(Ops.SHR, alu(Ops.SHL, _like(1, below), below), _like(1, below))
    word = number.signed(alu(Ops.SHR, alu(Ops.ADD, word, half), below))
    # Beside what is no finite number, finite ones are nothing.
    rest = alu(Ops.WHERE, number.ends, number.special, _like(0, word))
    word = alu(Ops.WHERE, alu(Ops.CMPEQ, mine, _like(_SPECIAL, mine)), rest, word)
    zeros = full(const(0, word.dtype), base.shape)
    how = Scatter(primitive(Ops.ADD, word.dtype), atomic=True)
    sums = Node(Ops.SCATTER, word.dtype, (zeros, word, *places), how)
    scale = _power_of_two(alu(Ops.SUB, cast(top, sums.dtype), _like(150 + shift, sums)))
    finite = alu(Ops.MUL, cast(sums, dtypes.float64), scale)
    ends = alu(Ops.CMPEQ, top, _like(_SPECIAL, top))
    return _on_base(node, alu(Ops.WHERE, ends, _not_finite(sums), finite))


def _shift_by_greatest(count: int) -> int:
    """How far significands are shifted up, so that sums of so many stay below 2**63."""
    return 63 - _SIGNIFICAND - count.bit_length()


def _on_base(node: Node, total: Node) -> Node:
    """Sums in float64 on what a scatter writes to."""
    base = node.src[0]
    start = constant_of(base)
    if start is not None and start.arg == 0:
        return cast(total, node.dtype)
    found = cast(alu(Ops.ADD, cast(base, total.dtype), total), node.dtype)
    return alu(Ops.WHERE, alu(Ops.CMPEQ, total, _like(0, total)), base, found)


def _copied(
    monoid: Monoid, copies: int, values: Node, places: list[Node], shape: tuple[Dim, ...]
) -> Node:
    """Integers combined in copies of a shape, as the first axis: few, or put together to few."""
    start = full(monoid.identity[0], (copies, *shape))
    number = reshape(counting((prod(values.shape),), 0, dtypes.int32), values.shape)
    copy = alu(Ops.AND, number, _like(copies - 1, number))
    how = Scatter(monoid, atomic=True)
    found = Node(Ops.SCATTER, values.dtype, (start, values, copy, *places), how)
    if copies <= MOST_COPIES:
        return found
    parts = reshape(found, (copies // MOST_COPIES, MOST_COPIES, *shape))
    return stored(_together(monoid, parts, 1))


def _together(monoid: Monoid, parts: Node, axis: int) -> Node:
    """What an axis comes to."""
    return Node(Ops.REDUCE, parts.dtype, (parts,), Reduce(monoid, (axis,)))


def _copies(elements: int, count: int) -> int:
    """How many copies there are of few elements, so that not all threads write to the same ones."""
    wanted = min(count // WRITES, MOST_APART) // max(elements, 1)
    return int(1 << max(wanted.bit_length() - 1, 0))


def _planes(count: int) -> tuple[int, int]:
    """Exponents that one sum takes numbers of, and how many such sums take those of all numbers."""
    width = min(MOST_WIDTH, 63 - 23 - count.bit_length())
    return width, (_SPECIAL - 1) // width + 1


@dataclass(frozen=True, slots=True)
class _Parts:
    """Float32 as integers: significand * 2**(power - 150), and their signs.

    power: from 1 on, in uint32. significand: in int64. ends: what is no finite number; `special`
    counts such a one, an infinity by its sign, a NaN as both.
    """

    power: Node
    significand: Node
    negative: Node
    ends: Node
    special: Node

    def signed(self, word: Node) -> Node:
        """An integer with the number's sign."""
        return alu(Ops.WHERE, self.negative, alu(Ops.SUB, _like(0, word), word), word)


def _bits_of(values: Node) -> Node:
    return Node(Ops.BITCAST, dtypes.uint32, (values,))


def _parts_of(bits: Node) -> _Parts:
    exponent = alu(Ops.AND, alu(Ops.SHR, bits, _like(23, bits)), _like(_SPECIAL, bits))
    fraction = alu(Ops.AND, bits, _like((1 << 23) - 1, bits))
    negative = alu(Ops.CMPLE, _like(1 << 31, bits), bits)
    # Numbers of exponent 0 are as those of 1, without the leading bit.
    normal = alu(Ops.CMPLT, _like(0, bits), exponent)
    leading = alu(Ops.WHERE, normal, _like(1 << 23, bits), _like(0, bits))
    power = alu(Ops.MAX, exponent, _like(1, bits))
    significand = cast(alu(Ops.OR, fraction, leading), dtypes.int64)
    infinite = alu(Ops.WHERE, negative, _like(1 << 32, significand), _like(1, significand))
    is_number = alu(Ops.CMPLT, _like(0, bits), fraction)
    special = alu(Ops.WHERE, is_number, _like((1 << 32) + 1, significand), infinite)
    ends = alu(Ops.CMPEQ, exponent, _like(_SPECIAL, bits))
    return _Parts(power, significand, negative, ends, special)


def _fixed(values: Node, width: int, planes: int) -> tuple[Node, Node]:
    """The plane of each float32, and the integer that it is there."""
    number = _parts_of(_bits_of(values))
    power = number.power
    plane = alu(Ops.FLOORDIV, power, _like(width, power))
    shift = alu(Ops.SUB, power, alu(Ops.MUL, plane, _like(width, power)))
    word = number.signed(alu(Ops.SHL, number.significand, cast(shift, dtypes.int64)))
    plane = cast(alu(Ops.WHERE, number.ends, _like(planes, power), plane), dtypes.int32)
    return plane, alu(Ops.WHERE, number.ends, number.special, word)


def _from_fixed(sums: Node, width: int, axis: int) -> Node:
    """The float64 that sums of several copies, (copies, ...), with planes along an axis come to.

    The last plane counts infinities.
    """
    wide = dtypes.float64
    plane = counting(sums.shape, axis)
    power = alu(Ops.ADD, alu(Ops.MUL, plane, _like(width, plane)), _like(-150, plane))
    finite = alu(Ops.MUL, cast(sums, wide), _power_of_two(power))
    ends = alu(Ops.CMPEQ, plane, _like(sums.shape[axis] - 1, plane))
    found = alu(Ops.WHERE, ends, _not_finite(sums), finite)
    return Node(Ops.REDUCE, wide, (found,), Reduce(primitive(Ops.ADD, wide), (0, axis)))


def _power_of_two(power: Node) -> Node:
    """2**power in float64, of integers of 64 bits for which that is a normal number."""
    bits = alu(Ops.SHL, alu(Ops.ADD, power, _like(1023, power)), _like(52, power))
    return Node(Ops.BITCAST, dtypes.float64, (bits,))


def _not_finite(sums: Node) -> Node:
    """The float64 that counts of infinities and NaNs come to; 0 where there are none."""
    parts = []
    for number, value in (
        (alu(Ops.AND, sums, _like((1 << 32) - 1, sums)), math.inf),
        (alu(Ops.SHR, sums, _like(32, sums)), -math.inf),
    ):
        none = alu(Ops.CMPEQ, number, _like(0, number))
        zero = full(const(0, dtypes.float64), sums.shape)
        parts.append(alu(Ops.WHERE, none, zero, _like(value, zero)))
    return alu(Ops.ADD, *parts)


def _like(value: float, like: Node) -> Node:
    return full(const(value, like.dtype), like.shape)


# --- in parts -------------------------------------------------------------------------------------


def _visit_long(node: Node) -> Node | None:
    if node.op is not Ops.SCATTER:
        return None
    monoid = node.arg.monoid
    base, values, *places = node.src
    if monoid is None or monoid.primitive is not Ops.ADD or not values.shape:
        return None
    if node.arg.apart or node.arg.atomic:
        return None
    if node.dtype.kind == "bool" or (node.dtype.kind == "float" and node.dtype.bits < 32):
        return None
    if not all(isinstance(extent, int) for extent in (*base.shape, *values.shape)):
        return None
    if any(place.shape != values.shape for place in places):
        return None
    counted = [affine_index_of(place) for place in places]
    if any(found is not None and found.axis == 0 for found in counted):
        return None  # these writes do not meet
    writes = values.shape[0]
    elements = max(index.upper(index.product(base.shape)), 1)
    most = min(MOST_PARTS, MOST_ELEMENTS // elements, writes // LEAST_PART)
    if writes < LEAST or most < 2:
        return None
    parts = greatest_divisor(writes, most)
    return _in_parts(node, parts) if parts > 1 else None


def _in_parts(node: Node, parts: int) -> Node:
    base, values, *places = node.src
    shape = (parts, values.shape[0] // parts, *values.shape[1:])
    thin = (parts, *(1 for _ in shape[1:]))
    number = expand(reshape(Node(Ops.IOTA, dtypes.int64, (), parts), thin), shape)
    zeros = full(const(0, node.dtype), (parts, *base.shape))
    cut = tuple([reshape(one, shape) for one in (values, *places)])
    src = (zeros, cut[0], number, *cut[1:])
    apart = Node(Ops.SCATTER, node.dtype, src, Scatter(node.arg.monoid))
    total = Node(Ops.REDUCE, node.dtype, (apart,), Reduce(node.arg.monoid, (0,)))
    return alu(Ops.ADD, base, total)


def scatter_in_parts(order: list[Node], changed: dict[Node, Node]) -> Node:
    """The sink with long accumulating scatters in parts."""
    return rewrite(order, _visit_long, Ops.SCATTER.bit, changed)


SCATTERS = Traced(
    "scatters",
    "a scatter that writes each row once is a choice by place",
    choose_by_place,
    ("constants",),
)
SCATTER_PARTS = Traced(
    "scatter_parts",
    "a long scatter that adds up is made of parts, for a GPU's threads to share",
    scatter_in_parts,
    ("scatter_rows",),
)
