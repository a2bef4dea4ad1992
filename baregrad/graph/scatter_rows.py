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
from baregrad.graph.radix import sorted_by_digits, sums_before
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
SUM_LAUNCHES, PART_LAUNCHES = 3, 5
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
    return _by_run(node, rows, flat, _runs(writes, count))


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
        found = _rows(values, _taken(writes.order, _before(last)))
    else:
        found = _sums_of_rows(node, values, writes.order, first, last)
    written = alu(Ops.CMPLT, first, last)
    written = _placed(node, rows, written, tuple(1 for _ in beside))
    found = _placed(node, rows, found, tuple(beside))
    if node.arg.monoid is not None:
        found = alu(Ops.ADD, base, found)
    return alu(Ops.WHERE, written, found, base)


def _sums_of_rows(node: Node, values: Node, order: Node, first: Node, last: Node) -> Node:
    """The sum of each row's values, those of `order` from `first` to `last`.

    While rows may be long they are cut into parts of `STEPS`, counted from their own begin; the
    parts of all rows lie one behind the other, so that a thread has each.
    """
    (rows,) = first.shape
    count, longest = values.shape[0], values.shape[0]
    found: Node | None = order
    for table in _tables_of_parts(alu(Ops.SUB, last, first), longest):
        begins, ends = cut(table, 0, 0, rows), cut(table, 0, 1, rows + 1)
        count = rows + count // STEPS
        own = counting((count,), 0, table.dtype)
        after = alu(Ops.ADD, own, _like(1, own))
        row = stored(lower_bound((ends,), (after,), _zeros(count), rows))
        # Those behind all parts are as the last, but for their begin: that is behind its end.
        row = alu(Ops.MIN, row, _like(rows - 1, row))
        place = alu(Ops.SUB, own, _taken(begins, row))
        start = alu(Ops.ADD, _taken(first, row), alu(Ops.MUL, place, _like(STEPS, place)))
        length = alu(Ops.MIN, alu(Ops.SUB, _taken(last, row), start), _like(STEPS, start))
        values = stored(_stretches(node, values, found, start, length, STEPS))
        first, last, found = begins, ends, None
        longest = -(-longest // STEPS)
    return _stretches(node, values, found, first, alu(Ops.SUB, last, first), longest)


def _tables_of_parts(length: Node, longest: int) -> list[Node]:
    """Where the parts of each row begin among those of all rows, and the end of all.

    For rows of some lengths, of which no one is beyond `longest`; then for rows of as many values
    as there were parts, and so on until no row has more than one part.
    """
    (rows,) = length.shape
    found = []
    while longest > STEPS:
        filled = alu(Ops.ADD, length, _like(STEPS - 1, length))
        length = alu(Ops.FLOORDIV, filled, _like(STEPS, filled))
        longer = lengthened(length, 0, rows + 1, const(0, length.dtype))
        found.append(reshape(sums_before(reshape(longer, (1, rows + 1))), (rows + 1,)))
        longest = -(-longest // STEPS)
    return found


def _stretches(
    node: Node, values: Node, order: Node | None, start: Node, length: Node, steps: int
) -> Node:
    """Sums of neighbouring values, or of those that `order` says, `length` from `start` on.

    steps: the most that there are.
    """
    (count,) = start.shape
    _, *beside = values.shape
    shape = (count, steps, *beside)
    own = expand(reshape(start, (count, 1, *(1 for _ in beside))), shape)
    return _ending(node, values, order, alu(Ops.ADD, own, counting(shape, 1, own.dtype)), length)


def _by_run(node: Node, rows: _Rows, flat: Node, run: _Runs) -> Node:
    """What each run of writes comes to, written once, by the first or last write of it."""
    count = flat.shape[0]
    if node.arg.monoid is None:
        writes = alu(Ops.CMPEQ, counting((count,), 0, run.end.dtype), _before(run.end))
        return _by_write(node, rows, _rows(flat, run.order), run.row, writes)
    writes = alu(Ops.CMPEQ, counting((count,), 0, run.begin.dtype), run.begin)
    return _by_write(node, rows, _sums(node, in_memory(flat), run), run.row, writes)


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
    return alu(Ops.SUB, place, full(const(1, place.dtype), place.shape))


# --- runs of writes to one row ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Writes:
    """Writes in the order of their rows: each as one word, and their numbers.

    A word has the row `bits` up, and the number below.
    """

    words: Node
    bits: int
    order: Node


@dataclass(frozen=True, slots=True)
class _Runs:
    """Writes in the order of their rows: of each its row, which it was, and where its run lies."""

    row: Node
    order: Node
    begin: Node
    end: Node


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
    words = in_memory(words)
    low = alu(Ops.AND, words, _like((1 << bits) - 1, words))
    return _Writes(words, bits, cast(low, dtypes.int32))


def _runs(writes: _Writes, count: int) -> _Runs:
    words = writes.words
    bits = _like(writes.bits, words)
    row = alu(Ops.SHR, words, bits)
    after = alu(Ops.ADD, row, _like(1, row))
    begin, end = (
        stored(lower_bound((words,), (alu(Ops.SHL, one, bits),), _zeros(count), count))
        for one in (row, after)
    )
    # What lies nowhere is behind the last row, and is written nowhere again.
    return _Runs(cast(row, dtypes.int64), stored(writes.order), begin, end)


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


def _sums(node: Node, values: Node, run: _Runs) -> Node:
    """The sum of each run's rows, where the run begins."""
    count = values.shape[0]
    # Parts of one length whatever there is: further levels add nothing to a shorter run.
    stride = STEPS
    values = _parts(node, values, run.order, run, 1)
    while stride < count:
        values = _parts(node, stored(values), None, run, stride)
        stride *= STEPS
    return values


def _parts(node: Node, values: Node, order: Node | None, run: _Runs, stride: int) -> Node:
    """Sums of `STEPS` rows, each `stride` behind the one before, as far as a run goes.

    Those that begin at multiples of stride*STEPS, counted in their run; others are of nothing.
    order: the rows' places in `values`, where they do not lie in order yet.
    """
    count, *beside = values.shape
    dtype = run.begin.dtype

    def number(value: int, shape: tuple[int, ...] = (count,)) -> Node:
        return full(const(value, dtype), shape)

    own = counting((count,), 0, dtype)
    inside = alu(Ops.AND, alu(Ops.SUB, own, run.begin), number(stride * STEPS - 1))
    begins = alu(Ops.CMPEQ, inside, number(0))
    left = alu(Ops.SUB, alu(Ops.ADD, run.end, number(stride - 1)), own)
    left = alu(Ops.SHR, left, number(stride.bit_length() - 1))
    left = alu(Ops.MIN, left, number(STEPS))
    length = stored(alu(Ops.WHERE, begins, left, number(0)))
    shape = (count, STEPS, *beside)
    at = expand(reshape(own, (count, 1, *(1 for _ in beside))), shape)
    at = alu(Ops.ADD, at, alu(Ops.MUL, counting(shape, 1, dtype), number(stride, shape)))
    return _ending(node, values, order, at, length)


def _ending(node: Node, values: Node, order: Node | None, at: Node, length: Node) -> Node:
    """Sums along the second axis of the values at some places, as many as `length` says of each.

    order: what places are those of, instead of the values'.
    """
    shape, dtype = at.shape, at.dtype
    count, _, *beside = shape
    if order is not None:
        at = _taken(order, at)
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
