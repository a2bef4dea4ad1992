"""Sorting: what SORT becomes, on a CPU a network, on a GPU runs that are merged, or digits.

A network's exchanges are vectors' work, but each of its log(n)**2 / 2 stages passes over memory. A
GPU has threads enough to let every place find its element by itself: in a short run each element
counts those below it, and is written there; of two sorted runs each place finds by halving how many
of either are before it. Keys whose places rise already are sorted by their digits where these are
few, or the runs many.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

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
# Comparisons of all pairs that take no longer than merging.
MOST_PAIRS = 1 << 26
# Comparisons of so few that words are made anew for each, rather than by a kernel of their own.
FEW_PAIRS = 1 << 20
# Elements of a run that are compared with each other.
RUN = 16
# Places from one that searches all of a run to the next.
STRIDE = 32
# Elements that one kernel looks up, at most.
READS = 20
# Elements that are merged, or put in the order of a digit, while a kernel begins; and the kernels
# of a level of merging.
LAUNCH = 1 << 17
MERGE_LAUNCHES = 2


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
    """Arrays sorted along the last axis: short runs by counting, then merged two by two."""
    *front, extent = words[0].shape
    rows = prod(front)
    pairs = rows * extent * extent
    if pairs > FEW_PAIRS:
        words = tuple(stored(word) for word in words)
    if extent <= RUN or pairs <= MOST_PAIRS:
        flat = _placed(words, extent)
        return tuple(reshape(word, (*front, extent)) for word in flat)
    total = RUN << (-(-extent // RUN) - 1).bit_length()
    words = _placed(_padded(words, total), RUN)
    run = RUN
    while run < total:
        words = _merged(words, run)
        run *= 2
    whole = [reshape(word, (*front, total)) for word in words]
    return tuple(cut(word, len(front), 0, extent) for word in whole)


def is_worth_digits(shape: tuple[int, ...], limit: int, words: int) -> bool:
    """Whether rows are sorted sooner by the digits of keys below `limit` than by merging.

    words: how many of them a comparison reads.
    """
    return _by_digits(shape, limit) < _by_merging(shape, words)


def cost_of_sorting(shape: tuple[int, ...], limit: int, words: int) -> int:
    """What a sort takes, in elements that are moved; arguments as of `is_worth_digits`."""
    return min(_by_digits(shape, limit), _by_merging(shape, words))


def _by_digits(shape: tuple[int, ...], limit: int) -> int:
    *front, extent = shape
    return len(digits_of(limit)) * steps_of_pass(prod(front), extent, LAUNCH)


def _by_merging(shape: tuple[int, ...], words: int) -> int:
    *front, extent = shape
    if extent <= RUN or prod(front) * extent * extent <= MOST_PAIRS:
        return MERGE_LAUNCHES * LAUNCH
    levels = (-(-extent // RUN) - 1).bit_length()
    return levels * words * (MERGE_LAUNCHES * LAUNCH + prod(shape))


def _padded(words: Words, total: int) -> Words:
    """Arrays with elements at the end that come after all others, no two of them alike."""
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
        if word is words[-1]:
            first = const(int(word.dtype.max) - total + 1, word.dtype)
            last = alu(Ops.ADD, cast(places, word.dtype), full(first, shape))
        made.append(stored(alu(Ops.WHERE, inside, pad(word, axis, Pad(0, total - extent)), last)))
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
    begin = counting(rank.shape, 0, dtype)
    begin = alu(Ops.MUL, begin, full(const(run, dtype), rank.shape))
    # The sums are stored: a kernel of its own writes along them.
    place = _flat(alu(Ops.ADD, begin, stored(rank)))
    return _written(tuple(_flat(word) for word in words), place)


def _written(words: Words, place: Node) -> Words:
    """Arrays of one axis with each element at its place, no two at one, and one at each."""
    made = []
    for word in words:
        base = full(const(0, word.dtype), word.shape)
        made.append(Node(Ops.SCATTER, word.dtype, (base, word, place), Scatter(None, True, True)))
    return tuple(made)


def _merged(words: Words, run: int) -> Words:
    """Arrays of one axis of sorted runs, with each two of them as one.

    Each element of the result finds how many of those before it are of the first run. Every
    `STRIDE`-th searches all of it, those in between from there on, where few are left. Source:
    Green, McColl and Bader, "GPU merge path", ICS 2012.
    """
    size = words[0].shape[0]
    own = counting((size,), 0, _counts(size))
    start: Node | None = None
    if run > 2 * STRIDE:
        shape = (size // STRIDE, STRIDE)
        few = cut(reshape(own, shape), 1, 0, 1)
        start = stored(_split(words, run, reshape(few, shape[:1]), None))
        start = reshape(expand(reshape(start, (shape[0], 1)), shape), (size,))
    split = _split(words, run, own, start)
    begin, inside = _places(own, 2 * run)
    other = alu(Ops.SUB, inside, split)
    left, right = _met(words, begin, run, split, other)
    first = alu(Ops.OR, _at_least(other, run), is_less(left, right))
    first = alu(Ops.AND, first, alu(Ops.CMPLT, split, _number(run, split)))
    return tuple(
        stored(alu(Ops.WHERE, first, one, two)) for one, two in zip(left, right, strict=True)
    )


def _split(words: Words, run: int, own: Node, start: Node | None) -> Node:
    """How many of the first run of two are before each of some places of both together.

    start: how many there are `STRIDE` places before, at most.
    """
    begin, inside = _places(own, 2 * run)

    def is_before(place: Node) -> Node:
        """Whether element `place` of the first run is before: what it meets comes after it."""
        met = alu(Ops.SUB, alu(Ops.SUB, inside, place), _number(1, place))
        holds = alu(Ops.OR, _at_least(met, run), is_less(*_met(words, begin, run, place, met)))
        exists = alu(Ops.CMPLT, place, _number(run, place))
        return alu(Ops.AND, holds, alu(Ops.AND, exists, _at_least(met, 0)))

    steps = READS // (2 * len(words))
    if start is None:
        return _halved(_number(0, own), run, is_before, steps)
    return _halved(start, STRIDE, is_before, steps)


def _met(
    words: Words, begin: Node, run: int, first: Node, second: Node
) -> tuple[Words, Words]:
    """Elements of both of two runs; of places outside of theirs, some of either run."""
    mask = _number(2 * run - 1, begin)
    second = alu(Ops.ADD, second, _number(run, second))
    places = (alu(Ops.ADD, begin, alu(Ops.AND, place, mask)) for place in (first, second))
    left, right = (_taken(words, place) for place in places)
    return left, right


def _places(own: Node, run: int) -> tuple[Node, Node]:
    """Where the run of each place begins, and how far behind that it lies; run: a power of two."""
    inside = alu(Ops.AND, own, _number(run - 1, own))
    number = alu(Ops.SHR, own, _number(run.bit_length() - 1, own))
    return alu(Ops.MUL, number, _number(run, own)), inside


def _taken(words: Words, place: Node) -> Words:
    """Elements of arrays of one axis."""
    return tuple(Node(Ops.GATHER, word.dtype, (word, place)) for word in words)


def _number(value: int, like: Node) -> Node:
    return full(const(value, like.dtype), like.shape)


def _at_least(place: Node, limit: int) -> Node:
    return alu(Ops.CMPLE, _number(limit, place), place)


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
    steps = READS // len(words)
    return _halved(begin, run, lambda place: is_less(_taken(words, place), wanted), steps)


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
        return sorted_by_places((keys, places))[-1]
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
