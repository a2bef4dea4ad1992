"""Long reductions on GPUs in two steps: blocks make partial results, which are then put together.

Whether and how a reduction is cut depends on what is reduced for one result alone: the order of the
additions, and with it a result's last bits, does not depend on how many other results there are.
Axes of one element do not count: a single column is a row, and is cut as one. What one block does
as fast as many stays whole, so that all steps of a row's kernel can share what they read. Products
that tiles of results share (contractions) are cut where the tiles are few.
"""

from __future__ import annotations

import math
from math import gcd, prod
from types import MappingProxyType
from typing import Any, NamedTuple

from baregrad.base.bits import greatest_divisor, round_up
from baregrad.dtypes import dtypes
from baregrad.graph.group_factors import is_scaled
from baregrad.graph.repeats import (
    innermost,
    is_matrix_product,
    is_of_several,
    is_repeated,
    last_axis,
    result_order,
    sides_of,
    work_of,
)
from baregrad.graph.sums import once
from baregrad.graph.traced import Part, Rule
from baregrad.graph.views import (
    below_views,
    counting,
    expand,
    lengthened,
    permute,
    reshape,
    stored,
)
from baregrad.ir.analysis.stream import is_chained
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Reduce
from baregrad.ir.core.monoid import Monoid, primitive
from baregrad.ir.core.node import Node, alu, cast, const, toposort
from baregrad.ir.core.op import ELEMENTWISE, Ops, mask_of

# A reduction along rows is cut from this length on: a block reads a shorter row in about the time
# that a second launch takes, and what normalises rows reads them once. Rows are not normalised by
# places of extremes and by counts, and seldom by sums of what two arrays make, as losses are; what
# lies in several pieces for each result is no row.
LONG_ROW = 1 << 17
LONG_PLACES = 1 << 15
LONG_PIECES = 1 << 13
ROW_PART, PIECES_PART = 1 << 12, 1 << 10
# Operations that a block makes of a row that it reads, before many do: some 18 us of one
# multiprocessor. Sums of a block each go on beside each other where a program makes several: means
# of 14,296 cross entropies, of 2 million operations each, took 2.7 us each so on an H200, 12.1 in
# two steps.
MOST_WORK = 1 << 22
# Neighbouring results share their reads, each a thread of its own, so that fewer steps are many,
# and parts are short until there are some dozens.
LONG_COLUMN, LONG_TURNED = 1 << 9, 1 << 12
SHORT_COLUMN_PART, COLUMN_PART = 1 << 6, 1 << 8
SHORT_PARTS, MOST_PARTS = 64, 512
# A part is of whole accesses, where that can be, or of those of words, or of short rows.
ACCESS = 16
ACCESSES = (ACCESS, 8, 4)
# Contractions: blocks that keep a machine busy, the results of a tile, products worth a part; the
# same of shorter parts, but for which most of a machine would wait, and how many make up for a
# second launch; and how many times fewer and longer parts are where the number of results is
# symbolic.
SYMBOLIC = 4
BLOCKS, FEW_BLOCKS = 2048, 256
TILE = 1 << 10
LEAST_PRODUCTS, FEW_PRODUCTS, LEAST_SHORT = 1 << 9, 1 << 7, 4
# On matrix units: a side of a large tile, the short one of a smaller tile, up to where a side is
# thin; how many times as long as its sides the depth of a weight's gradient is, that of a batch;
# small tiles that keep a machine busy by themselves, how many large ones parts are to make of
# fewer of thin products, and steps worth a part.
LARGE_TILE, SMALL_TILE, THIN = 128, 64, 32
DEEP = 5
BUSY_TILES = 96
MATRIX_BLOCKS = 256
LEAST_STEPS = 512
# Where a factor is unpacked for a tile, whose words a block waits for panel after panel, more rows
# are few: 64 rows of 8,192 by 2,048 in Q6_K took 57 us on an H200 in one part, 26 in 16.
THIN_UNPACKED = 64
# Parts are of equal length unless these are so many times fewer.
FAR_FEWER = 4
# Of other products: tiles that a block may compute, blocks that run at once; in a cycle of one of
# these, products and bytes of the factors, and of all, these bytes and those of partial results;
# cycles until these are read. And what copies cost of so many elements that lie together: eight at
# once are no whole lines of a cache, and no panels that an engine copies. A filter's gradient of
# 64x256x56x56 took 101 us on an H200 in parts of rows of 56, and 67 to 70 in parts of images.
TILES = ((64, 64), (64, 128), (64, 192), (128, 128), (128, 160), (128, 224), (128, 256))
UNITS = 132
PRODUCTS, FACTOR_BYTES, CACHE_BYTES, RESULT_BYTES, AGAIN = 1024, 36, 3200, 1400, 4400
NBYTES, F32_NBYTES = 2, 4
COPIES = MappingProxyType({64: 1.0, 32: 1.1, 16: 1.2, 8: 1.4, 4: 1.5, 2: 2.1, 1: 5.6})
CHUNK = 8
# How much longer a block takes that nothing else fills the waits of, as no tile fits beside one of
# more results than so many.
ALONE, BESIDE = 1.5, 1 << 14
# Runs of elements that together are read: how many make accesses that are wide enough, how many
# runs, and elements of all, are worth sums of each place.
ODD = 4
RUNS, LONG_RUNS = 1 << 5, 1 << 10
_VIEWS = mask_of(
    (Ops.RESHAPE, Ops.EXPAND, Ops.PERMUTE, Ops.FLIP, Ops.SHRINK, Ops.PAD, Ops.WINDOW)
)


class PartsOf(NamedTuple):
    """How a reduction is cut: an axis, one of the reduced `axes` of a `shape`, is so many parts."""

    shape: tuple[Any, ...]
    axes: tuple[int, ...]
    axis: int
    parts: int

    @property
    def inner(self) -> tuple[int, ...]:
        """The axes that each part is reduced along, where parts are an axis before its own."""
        return tuple([axis + (axis >= self.axis) for axis in self.axes])

    @property
    def place(self) -> int:
        """Which axis of the partial results the parts are."""
        return self.axis - sum(1 for axis in self.axes if axis < self.axis)


def _visit(node: Node, known: dict[Node, int]) -> Node | None:
    value, axes, monoid = node.src[0], node.arg.axes, node.arg.monoid
    if is_chained(node, known):
        return None  # its parts would share no weights
    if monoid.primitive is None and any(lift.op is not Ops.SLOT for lift in monoid.lift):
        return None  # what elements are lifted to cannot be stored and lifted again
    if not all(isinstance(value.shape[axis], int) for axis in axes):
        return None if is_matrix_product(value, axes) else _cut(_as_bounds(node))
    return _cut(node) if (balanced := _balanced(node)) is None else balanced


def _as_bounds(node: Node) -> Node:
    """A reduction of as many elements as there may be: neutral ones are behind the last."""
    values, monoid = node.src, node.arg.monoid
    for axis in node.arg.axes:
        most = index.upper(values[0].shape[axis])
        values = tuple([
            lengthened(value, axis, most, neutral)
            for value, neutral in zip(values, monoid.identity, strict=True)
        ])
    return node.replace(src=values)


def _cut(node: Node) -> Node | None:
    """A reduction in parts, or None where it is to stay whole."""
    value, axes = node.src[0], node.arg.axes
    length = prod([value.shape[axis] for axis in axes])
    if is_scaled(value):
        # Panels stay whole.
        parts = _divided(value.shape[axes[0]], _parts(node, value.src[0], length))
        cut = PartsOf(value.shape, axes, axes[0], parts)
        return _in_parts(node, cut) if parts > 1 else None
    run = _odd_run(node)
    if run:
        return _in_parts(node, run)
    sides = _sides_on_units(value, axes)
    if sides is not None and min(sides[:2]) > (THIN_UNPACKED if _is_unpacked(value) else THIN):
        axis, parts = _best_cut(value.shape, axes, sides)
        return _in_parts(node, PartsOf(value.shape, axes, axis, parts)) if parts > 1 else None
    wanted = _parts(node, value, length)
    if wanted < 2:
        return None
    if not is_matrix_product(value, axes):
        return _in_parts(node, _outer_parts(value.shape, axes, wanted))
    found = [(axis, _divided(value.shape[axis], wanted)) for axis in axes]
    if is_of_matrix_units(value) and not _is_copied_singly(value.shape, axes):
        # What goes to matrix units has no conditions: parts that nothing divides would.
        axis, parts = max(found, key=lambda one: (one[1], -one[0]))
        if FAR_FEWER * parts < wanted:
            # Some more, or at worst conditions, rather than few blocks for very long sums.
            more = [
                (count, one) for one in axes for count in range(wanted, 2 * wanted + 1)
                if value.shape[one] % count == 0
            ]
            longest = max(axes, key=lambda one: (value.shape[one], -one))
            parts, axis = min(more, default=(wanted, longest))
    else:
        axis, parts = max(found, key=lambda one: (min(one[1], wanted // 4), -one[0]))
        if parts < max(wanted // 4, 2):
            axis, parts = max(axes, key=lambda one: (value.shape[one], -one)), wanted
    parts = min(parts, value.shape[axis])
    return _in_parts(node, PartsOf(value.shape, axes, axis, parts)) if parts > 1 else None


def _is_copied_singly(shape: tuple[Any, ...], axes: tuple[int, ...]) -> bool:
    """Whether threads copy one element of a sum after the other, and ask of each if it is there."""
    return gcd(CHUNK, shape[axes[-1]]) == 1


def _outer_parts(shape: tuple[Any, ...], axes: tuple[int, ...], wanted: int) -> PartsOf:
    """A cut into about so many parts, whose elements lie together as far as that can be.

    Reduced axes, the outermost first, are cut into their elements while these are no more, and the
    next one into equal parts; if there are far fewer, one long axis into parts that are not equal.
    """
    first, count, place = axes[0], 1, 0
    while place + 1 < len(axes) and axes[place + 1] == axes[place] + 1:
        if count * shape[axes[place]] > wanted:
            break
        count *= shape[axes[place]]
        place += 1
    last, least = axes[place], max(wanted // 4, 2)
    parts = count * _divided(shape[last], wanted // count, ACCESSES)
    is_wide = place + 1 < len(axes) or shape[last] * count >= parts * ACCESS
    if parts >= least and is_wide:
        merged = (*shape[:first], prod(shape[first : last + 1]), *shape[last + 1 :])
        inner = tuple([axis - (last - first) for axis in axes[place + 1 :]])
        return PartsOf(merged, (first, *inner), first, parts)
    long = max(axes, key=lambda axis: (min(shape[axis], least), -axis))
    return PartsOf(shape, axes, long, min(wanted, shape[long]))


def _balanced(node: Node) -> Node | None:
    """The sum of x - m, m being the mean of x: 0, but NaN where that is no number; else None.

    Gradients of variances have it, as a pass over memory that sums up errors of rounding.
    """
    value, reduce = node.src[0], node.arg
    if value.op is not Ops.SUB or reduce.monoid.primitive is not Ops.ADD:
        return None
    x, mean = value.src
    if not mean.mask & Ops.REDUCE.bit or not all(is_repeated(mean, one) for one in reduce.axes):
        return None
    whole = Node(Ops.REDUCE, node.dtype, (x,), reduce)
    cut = _cut(whole)
    scale = _scale(mean, whole if cut is None else cut)
    count = prod(x.shape[axis] for axis in reduce.axes)
    if scale is None or not math.isclose(scale * count, 1.0, rel_tol=2.0**-20):
        return None
    once_only = once(mean, reduce.axes)
    return alu(Ops.SUB, once_only, once_only)


def _scale(value: Node, of: Node) -> float | None:
    """By what constant a value is another one, seen through views, times; None where it is not."""
    scale = 1.0
    while value is not of:
        if value.op is Ops.MUL and value.src[1].op is Ops.CONST:
            scale *= float(value.src[1].arg)
        elif value.op is Ops.DIV and value.src[1].op is Ops.CONST and value.src[1].arg:
            scale /= float(value.src[1].arg)
        elif not value.op.bit & _VIEWS:
            return None
        value = value.src[0]
    return scale


def _odd_run(node: Node) -> PartsOf | None:
    """A cut into the elements of the run that lies together, where no wide access reads that alone.

    There are many such runs for each result, as in the images of a batch. Neighbouring results' are
    read as one: the sums of each place of a run are columns.
    """
    shape, axes = node.src[0].shape, node.arg.axes
    first = len(shape)
    while first and first - 1 in axes:
        first -= 1
    others = tuple([axis for axis in axes if axis < first])
    run = prod(shape[first:])
    runs = prod([shape[axis] for axis in others])
    if run < 2 or run % ODD == 0 or runs < RUNS or run * runs < LONG_RUNS:
        return None
    if node.arg.monoid.primitive is None or not others or is_matrix_product(node.src[0], axes):
        return None
    if _is_of_windows(node.src[0]):
        return None  # taps, which do not lie together
    return PartsOf((*shape[:first], run), (*others, first), first, run)


def _is_of_windows(value: Node) -> bool:
    """Whether a value is computed of windows along something that lies in memory."""
    below = mask_of(ELEMENTWISE) | _VIEWS
    found = toposort(value, enter=lambda node: bool(node.op.bit & below))
    return any(node.op is Ops.WINDOW for node in found)


def _parts(node: Node, value: Node, length: int) -> int:
    """How many parts a reduction of `length` elements for each result is cut into; 1 for whole."""
    shape, axes, monoid = value.shape, node.arg.axes, node.arg.monoid
    if is_matrix_product(value, axes):
        sides = _sides_on_units(value, axes)
        if sides is not None:
            return _thin_parts(*sides, length)
        known = [extent for extent in node.shape if isinstance(extent, int)]
        # Along an axis of a symbolic size there may be many: then parts are few, and long.
        scale = 1 if len(known) == len(node.shape) else SYMBOLIC
        tiles = max(-(-prod(known) // TILE), 1)
        parts = min(BLOCKS // scale // tiles, length // (LEAST_PRODUCTS * scale))
        short = min(FEW_BLOCKS // scale // tiles, length // (FEW_PRODUCTS * scale))
        # The unit adds up what is scaled panel by panel, as long as it is one sum.
        is_worth_it = short >= LEAST_SHORT and short > parts and not is_scaled(node.src[0])
        return short if is_worth_it else parts
    inner, last = innermost(value), last_axis(shape)
    if inner not in axes:
        # What reads a permuted array's rows often does so again: one kernel does all of that.
        if length < (LONG_COLUMN if inner == last else LONG_TURNED):
            return 1
        few = min(length // SHORT_COLUMN_PART, SHORT_PARTS)
        return max(few, min(length // COLUMN_PART, MOST_PARTS))
    if any(shape[axis] != 1 for axis in range(min(axes), inner) if axis not in axes):
        longest, part = LONG_PIECES, PIECES_PART
    else:
        is_norm = monoid.primitive is not None and node.dtype.kind == "float"
        is_norm = is_norm and not (monoid.primitive is Ops.ADD and is_of_several(value, axes))
        usual = LONG_ROW if is_norm else LONG_PLACES
        longest = min(usual, MOST_WORK // work_of(value, axes))
        part = max(ROW_PART * longest // usual, PIECES_PART)
    return 1 if length < longest else min(length // part, MOST_PARTS)


def is_of_matrix_units(value: Node) -> bool:
    """Whether a product's factors are 16-bit floats that are widened."""
    if value.op is not Ops.MUL or value.dtype is not dtypes.float32:
        return False
    for factor in value.src:
        factor = below_views(factor)
        if factor.op is not Ops.CAST or factor.src[0].dtype.kind != "float":
            return False
        if factor.src[0].dtype.bits != 16:
            return False
    return True


def _is_unpacked(value: Node) -> bool:
    """Whether a product's factors are made of the bits of whole numbers."""
    below = mask_of(ELEMENTWISE) | _VIEWS
    leaves = toposort(value, enter=lambda node: bool(node.op.bit & below))
    return any(node.dtype.kind == "uint" for node in leaves if not node.op.bit & below)


def _sides_on_units(value: Node, axes: tuple[int, ...]) -> tuple[int, int, int] | None:
    """Rows and columns of products for matrix units, and how many there are; None for others."""
    if not is_matrix_product(value, axes) or not is_of_matrix_units(value):
        return None
    return sides_of(value, axes)


def _thin_parts(rows: int, columns: int, products: int, length: int) -> int:
    """Parts of the depth of products of few rows whose tiles are too few for a machine."""
    short, long = sorted((rows, columns))
    if products * -(-long // SMALL_TILE) * -(-short // SMALL_TILE) >= BUSY_TILES:
        return 1
    large = products * -(-long // LARGE_TILE) * -(-short // LARGE_TILE)
    return min(MATRIX_BLOCKS // large, length // LEAST_STEPS)


def _best_cut(
    shape: tuple[Any, ...], axes: tuple[int, ...], sides: tuple[int, int, int]
) -> tuple[int, int]:
    """Which axis of the depth of products to cut into how many parts, for the least time.

    Of a batch's rows and a matrix there is one part, as sums would be others than those of more
    rows. So there is where tiles are many.
    """
    rows, columns, products = sides
    short, long = sorted((rows, columns))
    extents = [shape[axis] for axis in axes]
    length = prod(extents)
    best = axes[0], 1
    if length < DEEP * long:
        return best
    if products * -(-long // LARGE_TILE) * -(-short // SMALL_TILE) >= BUSY_TILES:
        return best
    together = gcd(max(COPIES), prod(extents[1:]) if len(extents) > 1 else length)
    least = _cycles(sides, length, 1, together)
    for place, axis in enumerate(axes):
        inner = prod(extents[place + 1 :])
        for parts in range(2, min(extents[place], length // LEAST_STEPS, MATRIX_BLOCKS) + 1):
            if extents[place] % parts:
                continue
            together = gcd(max(COPIES), extents[place] // parts * inner)
            cycles = _cycles(sides, length, parts, together)
            if cycles < least:
                least, best = cycles, (axis, parts)
    return best


def _cycles(sides: tuple[int, int, int], length: int, parts: int, together: int) -> float:
    """What products take with a depth in parts, of which so many elements are copied together."""
    rows, columns, products = sides
    least = math.inf
    for m, n in (*TILES, *[(n, m) for m, n in TILES]):
        blocks = products * parts * -(-rows // m) * -(-columns // n)
        turns = -(-blocks // UNITS)
        alone = ALONE if turns == 1 or m * n > BESIDE else 1.0
        # Each takes so much at most, and the second cache gives so much to all of them.
        brought = NBYTES * (m + n) * max(turns / FACTOR_BYTES, blocks / CACHE_BYTES)
        least = min(least, max(turns * alone * m * n / PRODUCTS, brought))
    once = least * length / parts * COPIES[together]
    # Partial results are written and read.
    again = AGAIN + 2 * F32_NBYTES * products * rows * columns * parts / RESULT_BYTES
    return once + again if parts > 1 else once


def _divided(extent: int, wanted: int, accesses: tuple[int, ...] = (ACCESS,)) -> int:
    """Parts of equal length of an axis, `wanted` at most; of whole accesses, if not far fewer."""
    for access in accesses:
        if extent % access == 0:
            parts = greatest_divisor(extent // access, wanted)
            if 2 * parts >= wanted:
                return parts
    return greatest_divisor(extent, wanted)


def _in_parts(node: Node, cut: PartsOf) -> Node:
    """The reduction of a REDUCE's partial results, which are stored."""
    distances = _distances_in_parts(node, cut)
    if distances is not None:
        return distances
    monoid: Monoid = node.arg.monoid
    shape, _, axis, parts = cut
    values = tuple([reshape(value, shape) for value in node.src])
    if _is_rounded(monoid):
        # Partial sums of narrow floats are kept as they are summed.
        monoid = primitive(monoid.primitive, dtypes.float32)
        values = (cast(values[0], dtypes.float32),)
    length, parts = _lengths(cut)
    if length * parts != shape[axis]:
        is_product = is_matrix_product(node.src[0], node.arg.axes) and values[0].op is Ops.MUL
        if is_product and monoid.primitive is Ops.ADD:
            factors = [_longer(factor, axis, length * parts) for factor in values[0].src]
            values = (values[0].replace(src=tuple(factors)),)
        else:
            values = tuple([
                lengthened(value, axis, length * parts, neutral)
                for value, neutral in zip(values, monoid.identity, strict=True)
            ])
    pieces = tuple([_split(value, axis, parts) for value in values])
    partial = Node(Ops.REDUCE, monoid.states[0], pieces, Reduce(monoid, cut.inner))
    place = cut.place
    order = tuple(range(len(node.shape)))
    if is_matrix_product(node.src[0], node.arg.axes):
        # Each part is a matrix of its own, whose neighbours are stored together.
        order = result_order(node, CHUNK) or order
        others = [axis + (axis >= place) for axis in order]
        partial, place = permute(partial, (place, *others)), 0
    elif innermost(node.src[0]) < min(node.arg.axes):
        # Neighbours are written as they are read.
        others = [axis for axis in range(len(partial.shape)) if axis != place]
        partial, place = permute(partial, (place, *others)), 0
    states = tuple([_stored(partial, monoid, part) for part in range(monoid.arity)])
    whole = Node(Ops.REDUCE, monoid.states[0], states, Reduce(monoid, (place,)))
    whole = permute(whole, tuple([order.index(axis) for axis in range(len(order))]))
    return whole if whole.dtype is node.dtype else cast(whole, node.dtype)


def _lengths(cut: PartsOf) -> tuple[int, int]:
    """How long parts are, of whole accesses where they are not equal, and how many there are."""
    extent: int = cut.shape[cut.axis]
    length = -(-extent // cut.parts)
    if length * cut.parts == extent:
        return length, cut.parts
    inner = prod(cut.shape[cut.axis + 1 :])
    length = round_up(length, ACCESS // gcd(CHUNK, inner) if inner > 1 else ACCESS)
    return length, -(-extent // length)


def _longer(factor: Node, axis: int, length: int) -> Node:
    """A factor with zeros behind its last element, beside what is narrow: units multiply that."""
    views, below = list[Node](), factor
    while below.op.bit & _VIEWS:
        views.append(below)
        below = below.src[0]
    if below.op is Ops.CAST and below.src[0].dtype.kind == "float":
        (narrow,) = below.src
        for view in reversed(views):
            narrow = view.replace(dtype=narrow.dtype, src=(narrow, *view.src[1:]))
        longer = lengthened(narrow, axis, length, const(0.0, narrow.dtype))
        return cast(longer, factor.dtype)
    return lengthened(factor, axis, length, const(0, factor.dtype))


def _split(value: Node, axis: int, parts: int) -> Node:
    """An array with one of its axes in so many parts."""
    shape = value.shape
    return reshape(value, (*shape[:axis], parts, shape[axis] // parts, *shape[axis + 1 :]))


def _distances_in_parts(node: Node, cut: PartsOf) -> Node | None:
    """The sum of (x - m)**2, m made of sums of x in such parts, with one pass over x; else None.

    Each part's sum is that about its own mean p, which what makes its sum has at hand; n elements
    further from m by p - m have n * (p - m)**2 more. No digits are lost by that, as they are where
    n * m**2 is subtracted from a sum of squares. Source: Chan, Golub and LeVeque, "Updating
    Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979.
    """
    value, reduce = node.src[0], node.arg
    if value.op is not Ops.MUL or reduce.monoid.primitive is not Ops.ADD:
        return None
    distance, other = value.src
    shape, _, axis, _ = cut
    if distance is not other or distance.op is not Ops.SUB:
        return None
    x, mean = distance.src
    if not all(is_repeated(mean, one) for one in reduce.axes):
        return None
    (length, parts), inner, place = _lengths(cut), cut.inner, cut.place
    zero = const(0, node.dtype)
    longer = lengthened(reshape(x, shape), axis, length * parts, zero)
    pieces = _split(longer, axis, parts)
    sums = Node(Ops.REDUCE, node.dtype, (pieces,), Reduce(reduce.monoid, inner))
    if not _is_made_of(mean, stored(sums)):
        return None
    count = _counts(cut, sums)
    kept = tuple([1 if one in inner else extent for one, extent in enumerate(pieces.shape)])
    own = expand(reshape(alu(Ops.DIV, sums, count), kept), pieces.shape)
    near = alu(Ops.SUB, pieces, own)
    square = alu(Ops.MUL, near, near)
    if length * parts != shape[axis]:
        # There is no distance behind the last element.
        places = _split(counting(longer.shape, axis), axis, parts)
        inside = alu(Ops.CMPLT, places, const(shape[axis], dtypes.int64))
        square = alu(Ops.WHERE, inside, square, zero)
    squares = Node(Ops.REDUCE, node.dtype, (square,), Reduce(reduce.monoid, inner))
    shape = sums.shape
    whole = reshape(once(mean, reduce.axes), (*shape[:place], 1, *shape[place + 1 :]))
    apart = alu(Ops.SUB, alu(Ops.DIV, stored(sums), count), expand(whole, shape))
    moved = alu(Ops.MUL, alu(Ops.MUL, apart, apart), count)
    total = alu(Ops.ADD, stored(squares), moved)
    return Node(Ops.REDUCE, node.dtype, (total,), Reduce(reduce.monoid, (place,)))


def _counts(cut: PartsOf, sums: Node) -> Node:
    """How many elements are added up to each of partial sums."""
    length, parts = _lengths(cut)
    extent = cut.shape[cut.axis]
    others = prod([cut.shape[one] for one in cut.axes if one != cut.axis])
    if length * parts == extent:
        return const(length * others, sums.dtype)
    begin = alu(Ops.MUL, counting(sums.shape, cut.place), const(length, dtypes.int64))
    left = alu(Ops.SUB, const(extent, dtypes.int64), begin)
    found = alu(Ops.MIN, left, const(length, dtypes.int64))
    return cast(alu(Ops.MUL, found, const(others, dtypes.int64)), sums.dtype)


def _is_made_of(mean: Node, sums: Node) -> bool:
    """Whether a value is a sum of `sums`, scaled by constants, seen through views."""
    while mean is not sums:
        if mean.op in (Ops.MUL, Ops.DIV) and mean.src[1].op is Ops.CONST:
            mean = mean.src[0]
        elif mean.op.bit & _VIEWS or (mean.op is Ops.REDUCE and len(mean.src) == 1):
            mean = mean.src[0]
        else:
            return False
    return True


def _is_rounded(monoid: Monoid) -> bool:
    dtype = monoid.states[0]
    return monoid.primitive in (Ops.ADD, Ops.MUL) and dtype.kind == "float" and dtype.bits < 32


def _stored(partial: Node, monoid: Monoid, part: int) -> Node:
    """One state of partial results, in memory."""
    dtype = monoid.states[part]
    value = partial if monoid.arity == 1 else Node(Ops.PROJ, dtype, (partial,), part)
    return stored(value)


def _rule(order: list[Node], changed: dict[Node, Node]) -> Rule:
    known: dict[Node, int] = {}
    return lambda _, made: _visit(made, known) if made.op is Ops.REDUCE else None


PARTIALS_ON_GPU = Part(
    "partials",
    "a long reduction is made of stored partial results, for a GPU's blocks to share",
    Ops.REDUCE.bit,
    _rule,
    ("sums",),
)
