"""Sorting: what SORT becomes, on a CPU a network, on a GPU runs that are merged, or digits.

A network's exchanges are vectors' work, but each of its log(n)**2 / 2 stages passes over memory. A
GPU has threads enough to let every element find its place by itself: in a short run each counts
those below it, and of several sorted runs it finds by halving how many of each are before it. So
many runs are merged at a time as let few kernels do; the words of rows are read many times, but lie
in the first caches. Keys whose places rise already are sorted by their digits where these are few,
or the rows long.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod

from baregrad.base.bits import round_up
from baregrad.dtypes import DType, dtypes
from baregrad.graph.affine_index import affine_index_of
from baregrad.graph.radix import digits_of, sorted_by_digits, steps_of_pass
from baregrad.graph.traced import Traced, rewrite
from baregrad.graph.views import constant_of, counting, cut, expand, full, pad, reshape, stored
from baregrad.ir.core.attrs import Pad, Reduce, Scatter
from baregrad.ir.core.monoid import primitive
from baregrad.ir.core.node import Node, alu, cast, const
from baregrad.ir.core.op import Ops

Words = tuple[Node, ...]
# Comparisons of so few that words are made anew for each, rather than by a kernel of their own.
FEW_PAIRS = 1 << 20
# Runs whose elements are compared with each other: of whole accesses, and so long at most; how many
# are merged at a time, as a power of two, at most; and levels of merging. (262,144 words took 46 us
# on an H200 in runs of 32, mostly 4 at a time, and 326 in runs of 256, 32 at a time.)
WIDE, LONGEST_RUN = 8, 1024
MOST_WAYS = 4
MOST_LEVELS = 7
# Elements that one kernel looks up, at most.
READS = 40
# Elements that are merged, or put in the order of a digit, while a kernel begins; and the kernels
# of a sort beside those that merge: one makes words, the next counts.
LAUNCH = 1 << 17
MERGE_LAUNCHES = 2
# Comparisons that take as long as an element is moved, and those that a level of merging takes
# beside them to read and write an element. (907 rows of 1,899 words in runs of 96, then 5 and 4 at
# a time, took 120 us on an H200, 0.4 ps for each comparison.)
COMPARISONS, LEVEL_COMPARISONS = 30, 15


def is_less(words: Words, others: Words) -> Node:
    """Where the words come before others, in the order of a dictionary."""
    less = alu(Ops.CMPLT, words[-1], others[-1])
    for word, other in zip(words[-2::-1], others[-2::-1], strict=True):
        tied = alu(Ops.AND, alu(Ops.CMPEQ, word, other), less)
        less = alu(Ops.OR, alu(Ops.CMPLT, word, other), tied)
    return less


# --- by a network -------------------------------------------------------------------------------


def sorted_by_network(words: Words) -> Words:
    """Arrays sorted along the last axis by a bitonic network.

    Source: Batcher, "Sorting networks and their applications", 1968.
    """
    *front, extent = words[0].shape
    total = 1 << (extent - 1).bit_length()
    axis = len(front)
    if total > extent:
        # Padding is the greatest there is, in every word.
        places = counting((*front, total), axis)
        inside = alu(Ops.CMPLT, places, full(const(extent, dtypes.int64), places.shape))
        words = tuple(
            alu(Ops.WHERE, inside, pad(word, axis, Pad(0, total - extent)), _greatest(word.dtype))
            for word in words
        )
    words = tuple(stored(word) for word in words)
    size = 2
    while size <= total:
        # Two sorted runs, the second read backwards, are one that rises and falls.
        distance = size // 2
        words = _exchange(words, distance, True)
        while distance > 1:
            distance //= 2
            words = _exchange(words, distance, False)
        size *= 2
    return tuple(cut(word, axis, 0, extent) for word in words)


def _greatest(dtype: DType) -> Node:
    return const(int(dtype.max), dtype)


def _exchange(words: Words, distance: int, is_mirrored: bool) -> Words:
    """One stage: each element and its partner are put in order.

    The partner stands `distance` away or, mirrored, at the same place counted from the other end of
    the 2 * distance elements.
    """
    shape = words[0].shape
    *front, total = shape
    pairs = (*front, total // (2 * distance), 2, distance)
    last = len(front)
    turned = (last + 1, last + 2) if is_mirrored else (last + 1,)
    others = tuple(
        reshape(Node(Ops.FLIP, word.dtype, (reshape(word, pairs),), turned), shape)
        for word in words
    )
    bit = alu(Ops.AND, counting(shape, last), full(const(distance, dtypes.int64), shape))
    is_first = alu(Ops.CMPEQ, bit, full(const(0, dtypes.int64), shape))
    keeps_own = alu(Ops.CMPEQ, is_less(words, others), is_first)
    return tuple(
        stored(alu(Ops.WHERE, keeps_own, word, other))
        for word, other in zip(words, others, strict=True)
    )


# --- by places ----------------------------------------------------------------------------------


def sorted_by_places(words: Words) -> Words:
    """Arrays sorted along the last axis: short runs by counting, then merged several at a time."""
    shape = words[0].shape
    merging = _merging(shape, len(words))
    words = _placed(_made_ready(words, merging), merging.run)
    run = merging.run
    for ways in merging.ways:
        words = _merged(words, words, partial(_taken, words), run, ways)
        run *= ways
    return tuple(_whole(word, shape, run) for word in words)


def _order_of(keys: Node) -> Node:
    """Where along the last axis what is sorted was, equal keys in their order; int32 or int64.

    Places alone are written, so that a level of merging is one kernel; keys are read where they
    were.
    """
    shape = keys.shape
    merging = _merging(shape, 2)
    (keys,) = _made_ready((keys,), merging, are_alike=True)
    rows, total = prod(shape[:-1]), merging.total
    number = counting((rows * total,), 0, _counts(rows * total))
    *_, order = _placed((keys, reshape(number, keys.shape)), merging.run)
    keys, run = _flat(keys), merging.run
    for ways in merging.ways:
        read = partial(_taken_by, keys, order)
        (order,) = _merged((order,), (*_taken((keys,), order), order), read, run, ways)
        run *= ways
    order = reshape(order, (rows, total))
    begin = alu(Ops.MUL, counting(order.shape, 0, order.dtype), _number(total, order))
    return _whole(alu(Ops.SUB, order, begin), shape, total)


def _made_ready(words: Words, merging: _Merging, are_alike: bool = False) -> Words:
    """Words of whole runs, in memory unless there are few; what fills runs is alike, or rises."""
    elements = prod(words[0].shape)
    words = _padded(words, merging.total, are_alike)
    if merging.ways or elements * merging.run > FEW_PAIRS:
        words = tuple(stored(word) for word in words)
    return words


def _whole(word: Node, shape: tuple[int, ...], total: int) -> Node:
    """An array of rows of `total` each, without what fills them."""
    *front, extent = shape
    return cut(reshape(word, (*front, total)), len(front), 0, extent)


@dataclass(frozen=True, slots=True)
class _Merging:
    """How long the runs are that counting sorts, and how many are merged at a time, by levels.

    cost: what that takes, in elements that are moved.
    """

    cost: int
    run: int
    ways: tuple[int, ...]

    @property
    def total(self) -> int:
        """The length of a whole row, and of what fills its last runs."""
        return self.run * prod(self.ways)


def _merging(shape: tuple[int, ...], words: int) -> _Merging:
    """The soonest way to sort rows, (..., extent), by merging; words: those of an element."""
    *front, extent = shape
    rows = prod(front)
    found = [_merging_by(rows, words, extent, ())]
    for power in range(1, MOST_WAYS * MOST_LEVELS + 1):
        run = round_up(-(-extent >> power), WIDE)
        if run > LONGEST_RUN or run >= extent:
            continue
        for levels in range(-(-power // MOST_WAYS), min(power, MOST_LEVELS) + 1):
            found.append(_merging_by(rows, words, run, _ways(power, levels)))
        if run == WIDE:
            break
    return min(found, key=lambda one: (one.cost, one.run))


def _ways(power: int, levels: int) -> tuple[int, ...]:
    """2**power runs as how many are merged at each level, the most at the first ones."""
    each, more = divmod(power, levels)
    return tuple([1 << (each + (level < more)) for level in range(levels)])


def _merging_by(rows: int, words: int, run: int, ways: tuple[int, ...]) -> _Merging:
    compared, length = run, run
    for count in ways:
        compared += (count - 1) * length.bit_length() + LEVEL_COMPARISONS
        length *= count
    moved = words * rows * length * compared // COMPARISONS
    return _Merging(LAUNCH * (MERGE_LAUNCHES + len(ways)) + moved, run, ways)


def is_worth_digits(shape: tuple[int, ...], limit: int, words: int) -> bool:
    """Whether rows are sorted sooner by the digits of keys below `limit` than by merging.

    words: how many of them a comparison reads.
    """
    return _by_digits(shape, limit) < _merging(shape, words).cost


def cost_of_sorting(shape: tuple[int, ...], limit: int, words: int) -> int:
    """What a sort takes, in elements that are moved; arguments as of `is_worth_digits`."""
    return min(_by_digits(shape, limit), _merging(shape, words).cost)


def _by_digits(shape: tuple[int, ...], limit: int) -> int:
    *front, extent = shape
    return len(digits_of(limit)) * steps_of_pass(prod(front), extent, LAUNCH)


def _padded(words: Words, total: int, are_alike: bool) -> Words:
    """Arrays with elements at the end that come after all others; the last ones' rise or not."""
    *front, extent = words[0].shape
    if total == extent:
        return words
    axis = len(front)
    shape = (*front, total)
    places = counting(shape, axis)
    inside = alu(Ops.CMPLT, places, full(const(extent, dtypes.int64), shape))
    made = []
    for word in words:
        last = full(_greatest(word.dtype), shape)
        if word is words[-1] and not are_alike:
            first = const(int(word.dtype.max) - total + 1, word.dtype)
            last = alu(Ops.ADD, cast(places, word.dtype), full(first, shape))
        made.append(alu(Ops.WHERE, inside, pad(word, axis, Pad(0, total - extent)), last))
    return tuple(made)


def _flat(word: Node) -> Node:
    return reshape(word, (prod(word.shape),))


def _counts(size: int) -> DType:
    """The integers that places in an array are computed with."""
    return dtypes.int32 if size < 1 << 31 else dtypes.int64


def _placed(words: Words, run: int) -> Words:
    """Every `run` elements in order, as one axis: in each, as many come before as are less."""
    size = prod(words[0].shape)
    dtype = _counts(size)
    shape = (size // run, run, run)
    own = tuple(expand(reshape(word, (size // run, run, 1)), shape) for word in words)
    others = tuple(expand(reshape(word, (size // run, 1, run)), shape) for word in words)
    below = cast(is_less(others, own), dtype)
    rank = Node(Ops.REDUCE, dtype, (below,), Reduce(primitive(Ops.ADD, dtype), (2,)))
    return _written(tuple(_flat(word) for word in words), _after_begin(rank))


def _written(words: Words, place: Node) -> Words:
    """Arrays of one axis with each element at its place, no two at one, and one at each."""
    made = []
    for word in words:
        base = full(const(0, word.dtype), word.shape)
        made.append(Node(Ops.SCATTER, word.dtype, (base, word, place), Scatter(None, True, True)))
    return tuple(made)


def _merged(
    written: Words, words: Words, read: Callable[[Node], Words], run: int, ways: int
) -> Words:
    """Arrays of one axis, sorted runs of some words, with every `ways` of them as one.

    Each element finds by halving how many of each other run come before it, as no two are alike.
    read: the words at some places.
    """
    size = words[0].shape[0]
    dtype = _counts(size)
    shape = (size // (ways * run), ways, run, ways - 1)
    wanted = tuple(expand(reshape(word, (*shape[:3], 1)), shape) for word in words)
    group, own, other = (counting(shape, axis, dtype) for axis in (0, 1, 3))
    # All runs of a group but an element's own, in which its place is its rank.
    later = cast(alu(Ops.CMPLE, own, other), dtype)
    first = alu(Ops.MUL, group, full(const(ways, dtype), shape))
    first = alu(Ops.ADD, first, alu(Ops.ADD, other, later))
    first = alu(Ops.MUL, first, full(const(run, dtype), shape))
    before = alu(Ops.SUB, _bound(read, wanted, first, run), first)
    rank = Node(Ops.REDUCE, dtype, (before,), Reduce(primitive(Ops.ADD, dtype), (3,)))
    rank = alu(Ops.ADD, rank, counting(rank.shape, 2, dtype))
    return _written(written, _after_begin(reshape(rank, (shape[0], ways * run))))


def _after_begin(rank: Node) -> Node:
    """Places in an array of one axis of what has some rank in its row, (rows, run)."""
    begin = alu(Ops.MUL, counting(rank.shape, 0, rank.dtype), _number(rank.shape[1], rank))
    return _flat(alu(Ops.ADD, begin, rank))


def _taken(words: Words, place: Node) -> Words:
    """Elements of arrays of one axis."""
    return tuple(Node(Ops.GATHER, word.dtype, (word, place)) for word in words)


def _taken_by(keys: Node, order: Node, place: Node) -> Words:
    """Keys of one axis that are so many in some order, and where they are."""
    (number,) = _taken((order,), place)
    return (*_taken((keys,), number), number)


def _number(value: int, like: Node) -> Node:
    return full(const(value, like.dtype), like.shape)


def _halved(begin: Node, count: int, holds: Callable[[Node], Node], steps: int) -> Node:
    """The first of `count` places from `begin` on where something holds no more; or their end.

    steps: those of one kernel, at most.
    """
    place = begin
    done = 0
    while count > 1:
        half = count // 2
        done += 1
        if done == steps:
            done, place = 0, stored(place)
        further = holds(alu(Ops.ADD, place, _number(half - 1, place)))
        place = alu(Ops.WHERE, further, alu(Ops.ADD, place, _number(half, place)), place)
        count -= half
    return alu(Ops.WHERE, holds(place), alu(Ops.ADD, place, _number(1, place)), place)


def lower_bound(words: Words, wanted: Words, begin: Node, run: int) -> Node:
    """Where in a sorted run each of `wanted` would be put: before what is not less.

    words: of one axis. begin: where each one's run begins. run: its length.
    """
    return _bound(partial(_taken, words), wanted, begin, run)


def _bound(read: Callable[[Node], Words], wanted: Words, begin: Node, run: int) -> Node:
    """`lower_bound` among words that `read` knows."""
    steps = READS // len(wanted)
    return _halved(begin, run, lambda place: is_less(read(place), wanted), steps)


# --- passes -------------------------------------------------------------------------------------


def _by_network(node: Node) -> Node:
    return sorted_by_network(node.src)[-1]


def _by_places(node: Node) -> Node:
    words = node.src
    if len(words) == 2 and _is_counted(words[1]):
        return _by_long_keys(*words)
    found = _key_bits(words[0]) if len(words) == 1 else 0
    if not found or not is_worth_digits(words[0].shape, 1 << found, 1):
        return sorted_by_places(words)[-1]
    (word,) = words
    shape, low = word.shape, dtypes.uint64.bits // 2
    # Keys with a sign are moved to where all are positive, and back.
    moved = 1 << (low + found - 1) if word.dtype.kind == "int" else 0
    begin = full(const(moved, word.dtype), shape)
    ordered = sorted_by_digits(cast(alu(Ops.ADD, word, begin), dtypes.uint64), low, 1 << found)
    return alu(Ops.SUB, cast(ordered, word.dtype), begin)


def _by_long_keys(keys: Node, places: Node) -> Node:
    """Places in the order of keys of 64 bits: by their lower halves first, then by the others."""
    shape, half = keys.shape, dtypes.uint64.bits // 2
    if not is_worth_digits(shape, 1 << 2 * half, 2):
        return cast(_order_of(keys), places.dtype)
    if keys.dtype.kind == "int":
        keys = alu(Ops.XOR, keys, full(const(int(keys.dtype.min), keys.dtype), shape))
    keys = stored(cast(keys, dtypes.uint64))
    order = counted = cast(places, dtypes.uint64)
    low = full(const((1 << half) - 1, dtypes.uint64), shape)
    shift = full(const(half, dtypes.uint64), shape)
    for part in (alu(Ops.AND, keys, low), alu(Ops.SHR, keys, shift)):
        if order is not counted:
            along = [counting(shape, axis) for axis in range(len(shape) - 1)]
            part = Node(Ops.GATHER, part.dtype, (part, *along, cast(order, dtypes.int64)))
        words = alu(Ops.OR, alu(Ops.SHL, part, shift), order)
        order = alu(Ops.AND, sorted_by_digits(words, half, 1 << half), low)
    return cast(order, places.dtype)


def _is_counted(places: Node) -> bool:
    """Whether places are 0, 1, ... along the last axis."""
    found = affine_index_of(places)
    last = len(places.shape) - 1
    return found is not None and (found.axis, found.start, found.step) == (last, 0, 1)


def _key_bits(word: Node) -> int:
    """The bits of the key above a word's lower half, where that counts places; 0 otherwise."""
    if word.dtype.bits != 64 or word.op is not Ops.OR or word.src[0].op is not Ops.SHL:
        return 0
    key, shift = word.src[0].src
    amount = constant_of(shift)
    if amount is None or amount.arg != 32 or key.op is not Ops.CAST:
        return 0
    return int(key.src[0].dtype.bits) if _is_counted(word.src[1]) else 0


def sort_by_network(order: list[Node], changed: dict[Node, Node]) -> Node:
    """The sink with networks in the places of sorts."""
    return rewrite(order, _by_network, Ops.SORT.bit, changed)


def sort_by_places(order: list[Node], changed: dict[Node, Node]) -> Node:
    """The sink with elements that find their places in the places of sorts."""
    return rewrite(order, _by_places, Ops.SORT.bit, changed)


SORTS = Traced(
    "sorts", "sorting is exchanges of pairs, the same whatever there is", sort_by_network
)
SORTS_ON_GPU = Traced(
    "sorts", "sorting is to count what comes before, for a GPU's threads side by side",
    sort_by_places,
)
