"""Long scatters by sorted places, on GPUs: values of one place side by side, places in parallel.

Writes that may meet keep their order, so that one thread makes them one after the other. A stable
sort of their places puts those that meet next to each other, in the order in which they came: each
run of them is combined by itself, and written once. Sums of a long run are made in parts of `STEPS`
addends at most, each part's begin counted from the run's own: a row's sum does not depend on the
other rows. Where memory is no obstacle, what is added up is integers instead, in any order.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from baregrad.dtypes import dtypes
from baregrad.graph.affine_index import affine_index_of
from baregrad.graph.radix import sorted_by_digits
from baregrad.graph.scatters import (
    cost_in_any_order,
    cost_of_atomics,
    has_any_order,
    in_any_order,
)
from baregrad.graph.sorts import (
    LAUNCH,
    cost_of_sorting,
    is_worth_digits,
    lower_bound,
    sorted_by_places,
)
from baregrad.graph.traced import Traced, rewrite
from baregrad.graph.views import (
    constant_of,
    counting,
    cut,
    expand,
    full,
    in_memory,
    lengthened,
    permute,
    reshape,
    stored,
)
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Reduce, Scatter
from baregrad.ir.core.index import Dim
from baregrad.ir.core.monoid import primitive
from baregrad.ir.core.node import Node, alu, cast, const
from baregrad.ir.core.op import ELEMENTWISE, Ops

# Fewer writes are soon made one after the other, where they are.
LEAST = 64
# Few writes are looked through by each element of a base that is constant or takes no longer to
# write than a kernel to begin, if together that is no more.
MOST_ASKED = 1 << 22
# From LONG on, writes in order take longer than any sort; up to MOST_SORTED, a sort is fast.
LONG = 4096
MOST_SORTED = 1 << 20
# What a write in order takes, in elements that are moved; kernels of the sums of sorted writes, and
# those of each level of parts.
WRITE = 1 << 15
SUM_LAUNCHES, PART_LAUNCHES = 3, 1
# The most addends that one thread adds up at a time: a power of two.
STEPS = 128
_DEPTH = 12


@dataclass(frozen=True, slots=True)
class _Rows:
    """A scatter as rows written at places that are looked up.

    chosen: the base's axes along which places are looked up. beside: the base's other axes, and
    `own` the values' axes that count along them. writes: the values' axes that are left.
    """

    chosen: tuple[int, ...]
    beside: tuple[int, ...]
    own: tuple[int, ...]
    writes: tuple[int, ...]


def _rows_of(node: Node) -> _Rows | None:
    """How a scatter writes rows; None where all places are counted.

    Axes along which what is looked up differs are no part of a row: their own places are looked up
    as well.
    """
    base, values, *places = node.src
    own_of: dict[int, int] = {}
    for axis, place in enumerate(places):
        found = affine_index_of(place)
        if found is None or found.start != 0 or found.step != 1:
            continue
        extent = values.shape[found.axis]
        fits = isinstance(extent, int) and extent <= base.shape[axis]
        if fits and found.axis not in own_of.values():
            own_of[axis] = found.axis
    looked = [place for axis, place in enumerate(places) if axis not in own_of]
    for axis, along in list(own_of.items()):
        if not all(_is_alike(place, along) for place in looked):
            del own_of[axis]
    chosen = tuple(axis for axis in range(len(places)) if axis not in own_of)
    own = tuple(own_of.values())
    writes = tuple(axis for axis in range(len(values.shape)) if axis not in own)
    if not looked:
        return None
    return _Rows(chosen, tuple(own_of), own, writes) if chosen and writes else None


def _is_alike(place: Node, axis: int, depth: int = _DEPTH) -> bool:
    """Whether `place` is certainly the same all along an axis."""
    if not place.shape or place.shape[axis] == 1:
        return True
    if place.op is Ops.EXPAND and place.src[0].shape[axis] == 1:
        return True
    if place.op is Ops.EXPAND or (place.op in ELEMENTWISE and depth):
        return all(_is_alike(child, axis, depth - 1) for child in place.src)
    return False


def _visit(node: Node) -> Node | None:
    base, values, *places = node.src
    monoid = node.arg.monoid
    if node.arg.apart or node.arg.atomic:
        return None
    if monoid is not None and node.dtype.kind == "float" and node.dtype.bits < 32:
        return None
    if not all(isinstance(extent, int) for extent in base.shape):
        return None
    if any(place.shape != values.shape for place in places):
        return None
    rows = _rows_of(node)
    if rows is None or not prod(base.shape):
        return None
    if not all(isinstance(extent, int) for extent in values.shape):
        longest = _with_all(node, rows)
        return None if longest is None else _visit(longest)
    if _are_few(node, rows):
        return _by_asking(node, rows)
    if has_any_order(node) and _is_sooner(node, rows, cost_in_any_order(node)):
        return in_any_order(node)
    if monoid is None:
        cells = prod(base.shape[axis] for axis in rows.chosen)
        if _is_sooner(node, rows, cost_of_atomics(prod(values.shape), cells)):
            return _by_last(node, rows)
    return _by_rows(node, rows) if _is_worth_sorting(node, rows) else None


def _with_all(node: Node, rows: _Rows) -> Node | None:
    """A scatter of as many writes as its extents may ever be: those that are none lie nowhere."""
    values, *places = node.src[1:]
    if not all(isinstance(values.shape[axis], int) for axis in rows.own):
        return None
    for axis, extent in enumerate(values.shape):
        if isinstance(extent, int):
            continue
        most = index.upper(extent)
        values = lengthened(values, axis, most, const(0, values.dtype))
        for number, place in enumerate(places):
            if number in rows.chosen and place.dtype.kind != "int":
                return None
            nowhere = const(-1 if number in rows.chosen else 0, place.dtype)
            places[number] = lengthened(place, axis, most, nowhere)
    for number, own in zip(rows.beside, rows.own, strict=True):
        places[number] = counting(values.shape, own, places[number].dtype)
    return Node(Ops.SCATTER, node.dtype, (node.src[0], values, *places), node.arg)


def _are_few(node: Node, rows: _Rows) -> bool:
    """Whether each element of the base asks all writes sooner than it is written twice."""
    base, values, *_ = node.src
    count = prod(values.shape[axis] for axis in rows.writes)
    is_whole = all(
        values.shape[own] == base.shape[axis]
        for own, axis in zip(rows.own, rows.beside, strict=True)
    )
    if not is_whole or not _adds(node):
        return False
    if constant_of(base) is None and prod(base.shape) > LAUNCH:
        return False  # an array that is there already may be written in place
    return bool(count == 1 or (count < LEAST and count * prod(base.shape) <= MOST_ASKED))


def _by_asking(node: Node, rows: _Rows) -> Node:
    """A base and, in each row, the sum of the writes that are of it: one kernel."""
    base, values, *places = node.src
    count = prod(values.shape[axis] for axis in rows.writes)
    beside = tuple(values.shape[axis] for axis in rows.own)
    order = (*rows.writes, *rows.own)
    chosen = tuple(base.shape[axis] for axis in rows.chosen)
    shape = (count, *chosen, *beside)
    thin = tuple(1 for _ in chosen)
    mine = expand(reshape(permute(values, order), (count, *thin, *beside)), shape)
    zero = full(const(0, node.dtype), shape)
    for number, axis in enumerate(rows.chosen, 1):
        place = places[axis]
        for along in rows.own:
            place = cut(place, along, 0, 1)
        place = reshape(place, (count, *thin, *(1 for _ in beside)))
        hit = alu(Ops.CMPEQ, expand(place, shape), counting(shape, number, place.dtype))
        mine = alu(Ops.WHERE, hit, mine, zero)
    found = Node(Ops.REDUCE, node.dtype, (mine,), Reduce(node.arg.monoid, (0,)))
    found = _placed(node, rows, found, beside)
    total = alu(Ops.ADD, base, found)
    if constant_of(base) is not None:
        return total
    # Where nobody writes even a zero keeps its sign.
    return alu(Ops.WHERE, alu(Ops.CMPEQ, found, _like(0, found)), base, total)


def _placed(node: Node, rows: _Rows, value: Node, beside: tuple[Dim, ...]) -> Node:
    """A value (rows, *beside) in the order of the base's axes; axes of 1 are repeated."""
    base = node.src[0]
    axes = (*rows.chosen, *rows.beside)
    back = tuple(axes.index(axis) for axis in range(len(axes)))
    whole = (*(base.shape[axis] for axis in rows.chosen), *beside)
    return expand(permute(reshape(value, whole), back), base.shape)


def _adds(node: Node) -> bool:
    return node.arg.monoid is not None and node.arg.monoid.primitive is Ops.ADD


def _is_sooner(node: Node, rows: _Rows, cost: int) -> bool:
    """Whether writes in any order are made sooner than sorted ones, or than such in order."""
    base, values, *_ = node.src
    moved = prod(values.shape)
    if not _is_worth_sorting(node, rows):
        return bool(cost < _writes_alone(node, rows) * WRITE)
    count = prod(values.shape[axis] for axis in rows.writes)
    total = prod(base.shape[axis] for axis in rows.chosen)
    parts = (count.bit_length() - 1) // (STEPS.bit_length() - 1)
    rest = (SUM_LAUNCHES + PART_LAUNCHES * parts) * LAUNCH + moved
    return bool(cost < cost_of_sorting((count,), total + 1, 1) + rest)


def _is_worth_sorting(node: Node, rows: _Rows) -> bool:
    """Whether one write after the other takes longer than a sort of all of their places."""
    if node.arg.monoid is not None and not _adds(node):
        return False
    writes = prod(node.src[1].shape[axis] for axis in rows.writes)
    alone = _writes_alone(node, rows)
    return bool(alone >= LEAST and (writes <= MOST_SORTED or alone >= LONG))


def _writes_alone(node: Node, rows: _Rows) -> int:
    """The writes that one thread makes, where threads share all axes that are counted."""
    _, values, *places = node.src
    counted = [affine_index_of(place) for place in places]
    shared = {found.axis for found in counted if found is not None}
    return prod(values.shape[axis] for axis in rows.writes if axis not in shared)


def _by_rows(node: Node, rows: _Rows) -> Node:
    base = node.src[0]
    flat = _flat(node, rows)
    count, *beside = flat.shape
    total = prod(base.shape[axis] for axis in rows.chosen)
    writes = _sorted_writes(_keys(node, rows, count), count, total)
    if total < count and beside == [base.shape[axis] for axis in rows.beside]:
        return _by_row(node, rows, in_memory(flat), writes, total)
    return _by_run(node, rows, flat, writes)


def _flat(node: Node, rows: _Rows) -> Node:
    """The rows that are written, one after the other."""
    values = node.src[1]
    beside = tuple(values.shape[axis] for axis in rows.own)
    count = prod(values.shape[axis] for axis in rows.writes)
    return reshape(permute(values, (*rows.writes, *rows.own)), (count, *beside))


def _by_last(node: Node, rows: _Rows) -> Node:
    """Rows of the base by the last one that is written to each: the one of the greatest number."""
    base = node.src[0]
    flat = _flat(node, rows)
    count = flat.shape[0]
    row = _keys(node, rows, count)
    number = counting((count,), 0, dtypes.int32)
    nobody = full(const(-1, number.dtype), (prod(base.shape[axis] for axis in rows.chosen),))
    how = Scatter(primitive(Ops.MAX, number.dtype), atomic=True)
    last = Node(Ops.SCATTER, number.dtype, (nobody, number, row), how)
    writes = alu(Ops.CMPEQ, _taken(last, row), number)
    return _by_write(node, rows, flat, cast(row, dtypes.int64), writes)


def _by_row(node: Node, rows: _Rows, values: Node, writes: _Writes, total: int) -> Node:
    """Each row of the base from its run of writes: there are fewer rows than writes."""
    base = node.src[0]
    count, *beside = values.shape
    words, bits = writes.words, writes.bits
    number = counting((total + 1,), 0, words.dtype)
    wanted = alu(Ops.SHL, number, _like(bits, number))
    starts = stored(lower_bound((words,), (wanted,), _zeros(total + 1), count))
    first, last = cut(starts, 0, 0, total), cut(starts, 0, 1, total + 1)
    if node.arg.monoid is None:
        found = _rows(values, writes.order_at(_before(last)))
    else:
        # Of every `STEPS`-th write, where the run that it is of begins and how long it is.
        row = cast(_every(writes.row), dtypes.int32)
        begin = _taken(starts, row)
        longest = alu(Ops.SUB, _taken(starts, _after(row)), begin)
        runs = _Runs(first, alu(Ops.SUB, last, first), begin, longest)
        found = _sums(node, values, writes, runs)
    written = alu(Ops.CMPLT, first, last)
    written = _placed(node, rows, written, tuple(1 for _ in beside))
    found = _placed(node, rows, found, tuple(beside))
    if node.arg.monoid is not None:
        found = alu(Ops.ADD, base, found)
    return alu(Ops.WHERE, written, found, base)


def _by_run(node: Node, rows: _Rows, flat: Node, writes: _Writes) -> Node:
    """What each run of writes comes to, written once, by the first or last write of it."""
    count = flat.shape[0]
    words, row = writes.words, writes.row
    own = counting((count,), 0, dtypes.int32)
    if node.arg.monoid is None:
        # A place behind all has no row, which is as well not that of the last one.
        after = alu(Ops.CMPEQ, _taken(row, _after(own)), row)
        inside = alu(Ops.CMPLT, _after(own), _like(count, own))
        ends = alu(Ops.CMPEQ, alu(Ops.AND, after, inside), _like(False, after))
        return _by_write(node, rows, _rows(flat, writes.order), cast(row, dtypes.int64), ends)
    before = alu(Ops.CMPEQ, _taken(row, _before(own)), row)
    inside = alu(Ops.CMPLT, _like(0, own), own)
    begins = alu(Ops.CMPEQ, alu(Ops.AND, before, inside), _like(False, before))
    bits = _like(writes.bits, words)
    wanted = alu(Ops.SHL, _after(row), bits)
    length = alu(Ops.SUB, lower_bound((words,), (wanted,), _zeros(count), count), own)
    length = stored(alu(Ops.WHERE, begins, length, _zeros(count)))
    mine = _every(row)
    wanted = alu(Ops.SHL, mine, _like(writes.bits, mine))
    begin = stored(lower_bound((words,), (wanted,), _zeros(mine.shape[0]), count))
    runs = _Runs(own, length, begin, _taken(length, begin))
    found = _sums(node, in_memory(flat), writes, runs)
    writes_it = alu(Ops.CMPLT, _zeros(count), length)
    return _by_write(node, rows, found, cast(row, dtypes.int64), writes_it)


def _by_write(node: Node, rows: _Rows, value: Node, row: Node, writes: Node) -> Node:
    """Values (count, ...) written to rows of the base where `writes` says so: one to each."""
    base, _, *places = node.src
    count, *beside = value.shape
    # A row that is no place at all, for all writes but those.
    row = alu(Ops.WHERE, writes, row, full(const(-1, row.dtype), (count,)))
    whole = (count, *beside)
    found: dict[int, Node] = {}
    stride = 1
    for axis in reversed(rows.chosen):
        extent = base.shape[axis]
        place = row
        if len(rows.chosen) > 1:
            place = alu(Ops.FLOORDIV, place, full(const(stride, row.dtype), (count,)))
            # The first axis goes on, so that what lies nowhere does so still.
            if axis != rows.chosen[0]:
                place = alu(Ops.MOD, place, full(const(extent, row.dtype), (count,)))
        stride *= extent
        found[axis] = expand(reshape(place, (count, *(1 for _ in beside))), whole)
    for number, axis in enumerate(rows.beside):
        found[axis] = counting(whole, number + 1)
    monoid = node.arg.monoid
    start = constant_of(base)
    if monoid is not None and start is not None and start.arg == 0:
        monoid = None
    sources = (base, value, *(found[axis] for axis in range(len(places))))
    return Node(Ops.SCATTER, node.dtype, sources, Scatter(monoid, apart=True))


def _before(place: Node) -> Node:
    return alu(Ops.SUB, place, _like(1, place))


def _after(place: Node) -> Node:
    return alu(Ops.ADD, place, _like(1, place))


# --- runs of writes to one row ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Writes:
    """Writes in the order of their rows: each as one word, and their numbers.

    A word has the row `bits` up, and the number below.
    """

    words: Node
    bits: int

    @property
    def order(self) -> Node:
        """Which write each was."""
        return self._numbers(self.words)

    def order_at(self, places: Node) -> Node:
        """Which writes those at some places were: read from their words, not stored before."""
        return self._numbers(_taken(self.words, places))

    def _numbers(self, words: Node) -> Node:
        low = alu(Ops.AND, words, _like((1 << self.bits) - 1, words))
        return cast(low, dtypes.int32)

    @property
    def row(self) -> Node:
        """The row of each, in the words' dtype."""
        return alu(Ops.SHR, self.words, _like(self.bits, self.words))


@dataclass(frozen=True, slots=True)
class _Runs:
    """Runs of writes in order: where each begins, and how many it has, 0 for none.

    `around` and `length_around` are those of the run that every `STEPS`-th write is of.
    """

    begin: Node
    length: Node
    around: Node
    length_around: Node


def _keys(node: Node, rows: _Rows, count: int) -> Node:
    """The row of each write, counted through the chosen axes; what lies nowhere is behind all."""
    base, _, *places = node.src
    total = prod(base.shape[axis] for axis in rows.chosen)
    dtype = dtypes.int32 if (total + 3) << count.bit_length() < 1 << 31 else dtypes.int64
    row = full(const(0, dtypes.int64), (count,))
    inside: Node | None = None
    for axis in rows.chosen:
        place = places[axis]
        for along in rows.own:
            place = cut(place, along, 0, 1)
        place = cast(reshape(permute(place, (*rows.writes, *rows.own)), (count,)), dtypes.int64)
        extent = full(const(base.shape[axis], dtypes.int64), (count,))
        zero = full(const(0, dtypes.int64), (count,))
        fits = alu(Ops.AND, alu(Ops.CMPLE, zero, place), alu(Ops.CMPLT, place, extent))
        inside = fits if inside is None else alu(Ops.AND, inside, fits)
        row = alu(Ops.ADD, alu(Ops.MUL, row, extent), place)
    assert inside is not None
    row = alu(Ops.WHERE, inside, row, full(const(total, dtypes.int64), (count,)))
    return cast(row, dtype)


def _sorted_writes(row: Node, count: int, total: int) -> _Writes:
    """Writes in the order of their rows; what lies nowhere comes last."""
    is_counted = is_worth_digits((count,), total + 1, 1)
    bits = 32 if is_counted else (count - 1).bit_length()
    dtype = dtypes.uint64 if is_counted else row.dtype
    own = counting((count,), 0, dtype)
    packed = alu(Ops.OR, alu(Ops.SHL, cast(row, dtype), _like(bits, own)), own)
    if is_counted:
        words = sorted_by_digits(packed, bits, total + 1)
    else:
        (words,) = sorted_by_places((packed,))
    return _Writes(in_memory(words), bits)


def _zeros(count: int) -> Node:
    return full(const(0, dtypes.int32), (count,))


def _like(value: int, like: Node) -> Node:
    return full(const(value, like.dtype), like.shape)


def _taken(values: Node, places: Node) -> Node:
    """Elements of an array of one axis; none outside of it."""
    return Node(Ops.GATHER, values.dtype, (values, places), True)


def _rows(values: Node, order: Node) -> Node:
    """Some rows of `values`."""
    shape = (*order.shape, *values.shape[1:])
    places = [expand(reshape(order, (shape[0], *(1 for _ in shape[1:]))), shape)]
    places += [counting(shape, axis, dtypes.int32) for axis in range(1, len(shape))]
    return Node(Ops.GATHER, values.dtype, (values, *places), True)


def _every(line: Node) -> Node:
    """Every `STEPS`-th element of an array of one axis, from the first on."""
    (count,) = line.shape
    few = counting((-(-count // STEPS),), 0, dtypes.int32)
    return _taken(line, alu(Ops.MUL, few, _like(STEPS, few)))


def _sums(node: Node, values: Node, writes: _Writes, runs: _Runs) -> Node:
    """The sum of each run's values, those of the writes where it lies.

    Up to `STEPS` are added up where the sum is made. Further parts of as many, counted from the
    run's begin, are stored before: each at its place by `STEPS`, which no other part has, since a
    run that has parts begins as far before the first one. So parts of a run are neighbours, and are
    added up likewise, of parts of them if they are many.
    """
    count = values.shape[0]
    begin, length, around, longest = runs.begin, runs.length, runs.around, runs.length_around
    total = _stretches(node, values, writes, begin, _at_most(length))
    source: _Writes | None = writes
    while count > STEPS:
        own = counting((-(-count // STEPS),), 0, begin.dtype)
        own = alu(Ops.MUL, own, _like(STEPS, own))
        # The first of the run's parts that begins here or behind.
        part = _over(alu(Ops.SUB, own, around))
        done = alu(Ops.MUL, part, _like(STEPS, part))
        left = alu(Ops.SUB, longest, done)
        none = alu(Ops.CMPEQ, part, _like(0, part))
        left = alu(Ops.WHERE, none, _like(0, left), _at_most(left))
        start = alu(Ops.ADD, around, done)
        values, source = stored(_stretches(node, values, source, start, left)), None
        begin, length = _parts(begin, length)
        around, longest = _parts(around, longest)
        total = alu(Ops.ADD, total, _stretches(node, values, None, begin, _at_most(length)))
        count = values.shape[0]
        if count > STEPS:
            around, longest = stored(_every(around)), stored(_every(longest))
    return total


def _parts(begin: Node, length: Node) -> tuple[Node, Node]:
    """Where the parts behind the first one of each run lie, and how many they are."""
    behind = alu(Ops.ADD, _shifted(begin), _like(1, begin))
    return behind, alu(Ops.MAX, _before(_over(length)), _like(0, length))


def _at_most(length: Node) -> Node:
    return alu(Ops.MAX, alu(Ops.MIN, length, _like(STEPS, length)), _like(0, length))


def _over(length: Node) -> Node:
    """How many times `STEPS` it takes."""
    return _shifted(alu(Ops.ADD, length, _like(STEPS - 1, length)))


def _shifted(place: Node) -> Node:
    return alu(Ops.SHR, place, _like(STEPS.bit_length() - 1, place))


def _stretches(
    node: Node, values: Node, writes: _Writes | None, start: Node, length: Node
) -> Node:
    """Sums of neighbouring values, or of those that were written, `length` from `start` on.

    There are `STEPS` of them at most.
    """
    (count,) = start.shape
    _, *beside = values.shape
    shape = (count, STEPS, *beside)
    own = expand(reshape(start, (count, 1, *(1 for _ in beside))), shape)
    at = alu(Ops.ADD, own, counting(shape, 1, own.dtype))
    return _ending(node, values, writes, at, length)


def _ending(
    node: Node, values: Node, writes: _Writes | None, at: Node, length: Node
) -> Node:
    """Sums along the second axis of the values at some places, as many as `length` says of each.

    writes: what places are those of, instead of the values'.
    """
    shape, dtype = at.shape, at.dtype
    count, _, *beside = shape
    if writes is not None:
        at = writes.order_at(at)
    # An axis along which all is alike, as far as there is something: how many steps are left.
    wide = dtypes.int64  # in which nothing wraps
    left = cast(expand(reshape(length, (count, 1, *(1 for _ in beside))), shape), wide)
    step = cast(counting(shape, 1, dtype), wide)
    left = alu(Ops.SUB, alu(Ops.SUB, left, step), full(const(1, wide), shape))
    # So long that every number is below it.
    whole = values.shape[0]
    spread = expand(reshape(values, (whole, 1, *beside)), (whole, 1 << 31, *beside))
    places = (at, left, *(counting(shape, axis, dtype) for axis in range(2, len(shape))))
    taken = Node(Ops.GATHER, values.dtype, (spread, *places), True)
    return Node(Ops.REDUCE, node.dtype, (taken,), Reduce(node.arg.monoid, (1,)))


def scatter_by_rows(order: list[Node], changed: dict[Node, Node]) -> Node:
    """The sink with long scatters by sorted places."""
    return rewrite(order, _visit, Ops.SCATTER.bit, changed)


SCATTER_ROWS = Traced(
    "scatter_rows",
    "writes that may meet are added up exactly, in any order, or sorted, so as to meet in order",
    scatter_by_rows,
    ("partials",),
)
