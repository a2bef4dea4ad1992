"""Kernels with sums on a GPU that neither hold a row nor multiply matrices.

Axes of the output fall in two. Those that every reduction's result runs along are *rows*: blocks or
warps of their own, which never meet. Along the others, and along reduced axes, the threads of a
block lie, so that one reads what its neighbours in memory read beside it. How many threads share a
sum depends on its length alone, so that the order of the additions does, too; but for columns that
are few (`columns.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from math import prod

from baregrad.base.bits import next_power_of_two
from baregrad.ir.core import index
from baregrad.ir.core.monoid import Monoid
from baregrad.ir.core.node import Node, extent_of
from baregrad.kernel.facts.analysis import (
    Reduction,
    by_id,
    itemsize,
    iterations,
    op_flops,
    out_axes,
)
from baregrad.kernel.facts.pairs import is_of_all_pairs, searchers
from baregrad.kernel.facts.row_tile import (
    FAR_ROW,
    THREAD_ROW,
    RowTile,
    is_short,
    row_tile,
)
from baregrad.kernel.loops.held_rows import lies_across
from baregrad.kernel.planning.common.decisions import powers_from
from baregrad.kernel.planning.gpu.columns import (
    BLOCK,
    FEW_LONG_COLUMN,
    MOST_STEPS,
    MOST_WARPS,
    MUCH_BESIDE,
    SECTOR_BYTES,
    TOGETHER,
    as_one,
    can_be_one,
    columns_of_sums,
    has_several,
    in_order,
    lie_along,
    moving,
    plan_columns,
    sharing_rows,
)
from baregrad.kernel.planning.gpu.gpu_plan import WARPS, GpuPlan, Way
from baregrad.kernel.planning.gpu.held_rows_plan import plan_short_rows

# What is summed anew in each row is less than one part of so many.
FEW_AGAIN = 2
# Accesses of a thread that makes a sum by itself, which are all under way together.
MOST_ALONE = 32
# Threads of a row whose sums each of them makes by itself.
SHORT_THREADS = 4
# Accesses of a thread for a row that a warp shares; of a longer row, before there are more warps.
WARP_STEPS = 8
BLOCK_STEPS = 8
# The same where each step compares two places as well as two values.
PLACE_STEPS = 16
# Rows so long are parts of a longer one, of which there are many: of blocks that have half of all
# threads there are some on each multiprocessor, and others read while one adds up what its threads
# have. 2^28 numbers took 261 us on an H200 in blocks of all threads, 242 of half of them.
LONG_PART = 1 << 17
# Elements of a thread where rows are few and it looks for places.
LONE_STEPS = 2
# The last round of accesses under way together may waste one part of so many of a sum: 47 accesses,
# each of which waits for the one before, took 22 us on an H200.
MUCH_WASTED = 16
# Elements of each thread before blocks share what comes after sums that each of them makes, and the
# operations of an element that are one element's.
BLOCK_ELEMENTS, ELEMENT_OPS = 16, 32
# Results of a thread at once that share what it reads along a row.
MOST_BESIDE = 4
# Steps of a sum within another one that a thread makes, for each element of that, and at least.
NEST_STEPS, LEAST_NEST_STEPS = 4, 8
# Threads for sums of sums.
NESTED_BLOCK = 512
# Operations on elements that are under way together, at most: each is code.
MOST_OPS = 1 << 10
# Bytes that a thread has under way of rows that share a factor, about, over those of an element, as
# there is as much to do for each; the rows of a thread, at most; and the warps of a multiprocessor
# that are left to take turns. (14,336 rows of 4,096 numbers on an H200: 1, 2, 4 and 8 rows of 8-bit
# floats took 20.3, 17.7, 16.9 and 15.8 us; 1, 2 and 4 of bfloat16 26.5, 26.7 and 27.4.)
ROW_BYTES, MOST_ROWS, TURN_WARPS = 128, 8, 32


def plan_reductions(plan: GpuPlan) -> None:
    """Share out the sums of a kernel among warps, blocks or the threads of columns."""
    facts = plan.facts
    data = frozenset(facts.data)
    nested = [r for r in facts.reductions if r.free - data]
    if nested and _are_own(plan, nested):
        plan.because("short sums within others: a thread makes those of its elements")
        plan.sums = tuple([each for each in facts.reductions if each not in nested])
        plan.taken.update([axis for each in nested for axis in each.own])
    rows = _rows(plan, data)
    columns = by_id(data - rows)
    length = max(iterations(reduction.own) for reduction in plan.sums)
    points = iterations(rows)
    is_little = iterations(columns) > MUCH_BESIDE * length
    across = points > 1 and not is_little and lies_across(facts, rows)
    if not nested and not columns and is_of_all_pairs(facts, rows):
        _plan_all_pairs(plan, by_id(rows), length)
        return
    is_nest = len(plan.sums) == len(facts.reductions) and bool(nested)
    # States of several numbers, too, have more threads for a row than for a column.
    is_state = any(_is_of_states(each.node.arg.monoid) for each in plan.sums)
    is_row = across and (is_state or bool(columns)) and _is_narrow(plan, rows, length)
    if not is_nest and across and not is_row:
        plan.because("{} results, sums of {}: neighbours in threads read best", points, length)
        plan_columns(plan, by_id(rows), columns, length)
        return
    if not nested and plan_short_rows(plan, by_id(rows), columns):
        for reduction in facts.reductions:
            _across(plan, reduction, frozenset(), [], "unroll")
        return
    # A lone row, too: the order of its sum is that of each of many. In sums of sums a thread's
    # elements cannot lie next to each other along both.
    steps = max(iterations((each.free - data).union(each.own)) for each in facts.reductions)
    is_short_nest = not nested or steps <= (FAR_ROW if is_nest else THREAD_ROW)
    if not columns and is_short_nest and all(is_short(facts, each) for each in facts.reductions):
        threads = 1 if nested else searchers(facts, plan.target, points, steps)
        if threads > 1:
            plan.because("{} results, sums of {} searches: {} threads each", points, steps, threads)
            plan.spread_rows(by_id(rows), BLOCK // threads, near=True)
            for reduction in facts.reductions:
                _across(plan, reduction, frozenset(), [("thread", threads)])
            return
        plan.because("{} results, sums of {}: a thread for each", points, steps)
        _alone(plan, by_id(rows), bool(nested))
        return
    if is_nest:
        plan.because("sums of sums: the inner along the lanes of a warp, the outer along warps")
        _nested(plan, by_id(rows), columns, nested)
        return
    beside = columns_of_sums(plan, rows, columns)
    others = [axis for axis in columns if axis not in beside]
    if beside and not others and lie_along(plan, beside):
        _plan_both(plan, by_id(rows), by_id(beside))
    else:
        _plan_rows(plan, by_id(rows), others, max(length, iterations(others)), by_id(beside))


def _are_own(plan: GpuPlan, nested: Sequence[Reduction]) -> bool:
    """Whether sums within others are so short that a thread makes those of its elements itself.

    Threads along such sums were few, and what they are within went on one by one: a batch norm of
    6 x 4 x 37 x 37 numbers took a millisecond for its loss.
    """
    data = frozenset(plan.facts.data)
    outer = [each.own for each in plan.facts.reductions if each not in nested]
    shared = frozenset([axis for axes in outer for axis in axes])
    most = max(NEST_STEPS * min(map(iterations, outer)), LEAST_NEST_STEPS)
    return all(
        is_short(plan.facts, each)
        and iterations((each.free - data - shared).union(each.own)) <= min(most, FAR_ROW)
        for each in nested
    )


def _is_of_states(monoid: Monoid) -> bool:
    """Whether what a fold makes are several numbers, and depends on the order."""
    return monoid.arity != 1 and not monoid.is_exact


def _is_narrow(plan: GpuPlan, rows: frozenset[Node], length: int) -> bool:
    """Whether long sums have fewer neighbours in memory than a sector holds.

    Threads along these are too few to wait together for what they read: 16 of them took 220 us on
    an H200 for a norm of 2 x 3,075 numbers that lie across.
    """
    near = plan.together(in_order(plan, [axis for axis in rows if extent_of(axis) != 1]))
    sizes = [itemsize(each.array.dtype) for each in plan.facts.accesses if not each.write]
    nbytes = iterations(near) * min(sizes, default=SECTOR_BYTES)
    return nbytes < SECTOR_BYTES and length >= FEW_LONG_COLUMN


def _plan_all_pairs(plan: GpuPlan, rows: Sequence[Node], length: int) -> None:
    """Neighbouring results for the threads of a warp: a thread for each sum, or some."""

    def some(trial: GpuPlan) -> None:
        _plan_rows(trial, rows, (), length)

    ways: dict[str, Way] = {
        "a thread for each": partial(_alone, rows=rows),
        "columns": lambda trial: plan_columns(trial, rows, (), length),
        "rows": some,
    }
    plan.because("{} sums of {} pairs each", iterations(rows), length)
    plan.best("sums of pairs", ways)(plan)


def _alone(plan: GpuPlan, rows: Sequence[Node], is_nested: bool = False) -> None:
    """A thread for each result, which makes its sums."""
    plan.spread(rows, BLOCK)
    for reduction in plan.facts.reductions if not is_nested else ():
        _across(plan, reduction, frozenset(), [])


def _rows(plan: GpuPlan, data: frozenset[Node]) -> frozenset[Node]:
    """The axes of the output that are rows.

    Where sums of few elements are for several of the rows of the longest ones, as a mean of
    partial results is that a variance is of, each row makes them anew.
    """
    reductions = plan.sums
    main = max(reductions, key=lambda each: iterations(each.free.union(each.own)))
    rows = main.free & data
    points = iterations(rows)
    again = [points * iterations(each.own) for each in reductions if each.free != main.free]
    most = iterations(main.free.union(main.own)) // FEW_AGAIN
    if all(each.free <= main.free for each in reductions) and sum(again) <= most:
        return rows
    found = data.intersection(*[each.free for each in reductions])
    if not found and all(each.free and each.free <= data for each in reductions):
        # Sums that have nothing in common, as of two factors of a product of each with each.
        return data
    return found


# --- rows ---------------------------------------------------------------------------------------


def _plan_rows(
    plan: GpuPlan, rows: Sequence[Node], columns: Sequence[Node], longest: int,
    beside: Sequence[Node] = (),
) -> None:
    """A warp or a block for each row.

    columns: axes of the output along which threads lie. beside: those along which each thread has
    its part of some sums, one after the other.
    """
    tiles = _tiles(plan, frozenset(columns))
    main = max(plan.sums, key=lambda each: iterations(each.own))
    if main.node in tiles and iterations(main.own) == longest:
        first, is_long = tiles[main.node].warps * tiles[main.node].threads, False
    else:
        first, is_long = _threads_of(plan, columns, longest)
    threads = plan.pick("threads of a row", powers_from(first, 1, MOST_WARPS * plan.warp))
    each = 1 if columns or beside else _rows_of_thread(plan, rows, threads)
    each = plan.pick("rows of a thread", powers_from(each, 1, MOST_ROWS)) if each > 1 else 1
    if threads < plan.warp or not (is_long or threads > plan.warp):
        units = [("thread", threads)]
        plan.because("{} rows, sums of {}: {} threads each", iterations(rows), longest, threads)
        together = WARPS * plan.warp // threads
        # Few rows are for many blocks, of a warp at least.
        few = iterations(rows) // each // plan.target.busy_blocks
        while together * threads > plan.warp and few < together:
            together //= 2
        options = powers_from(together, 1, plan.target.threads_per_block // threads)
        together = plan.pick("rows of a block", options)
        sharing = sharing_rows(plan, rows, threads)
        if sharing is None:
            plan.spread_rows(rows, together, each, near=threads < plan.warp)
        else:
            sharing.lay(plan, rows, together)
    else:
        units = [("thread_y", threads // plan.warp), ("thread", plan.warp)]
        what = "each row" if each == 1 else f"{each} rows, which share a factor"
        plan.because("{} rows, sums of {}: a block for {}", iterations(rows), longest, what)
        if each > 1:
            plan.spread_rows(rows, 1, each)
        else:
            plan.grid(rows)
    is_plain = len(plan.sums) == len(plan.facts.reductions)
    for reduction in plan.sums:
        tile = tiles.get(reduction.node)
        if tile is not None and _fits(plan, tile, threads):
            _tiled(plan, reduction, tile)
        else:
            alone = is_plain and is_short(plan.facts, reduction)
            _across(plan, reduction, frozenset(columns), [] if alone else units)
    _along(plan, columns, units)
    if beside:
        near = plan.by_stride(beside, plan.write)[-1]
        # Each thread has some results at once, which share what it reads of a row.
        outer = "grid" if 2 * iterations(rows) < plan.target.busy_blocks else "loop"
        plan.parts([near], [("unroll", min(iterations([near]), MOST_BESIDE))], outer)


def _plan_both(plan: GpuPlan, rows: Sequence[Node], columns: Sequence[Node]) -> None:
    """A block for each row: lanes along results, and warps along the sums for them."""
    plan.grid(rows)
    along = frozenset(columns)
    mine = [each for each in plan.sums if each.free & along]
    length = max(iterations(each.own) for each in mine)
    plan.because("{} columns of each row, sums of {}: warps along these", iterations(along), length)
    warps = min(next_power_of_two(-(-length // BLOCK_STEPS)), MOST_WARPS)
    units = [("thread_y", warps), ("thread", plan.warp)]
    for reduction in plan.sums:
        if reduction not in mine:
            _across(plan, reduction, along, units)
    ordered = plan.by_stride([axis for axis in columns if extent_of(axis) != 1], plan.write)
    outer = "grid" if _is_spread(plan, columns, ordered, units, length) else "loop"
    _share(plan, ordered, units[1:], False, outer)
    for reduction in mine:
        own = moving(reduction)
        if own and plan.taken.isdisjoint(own):
            plan.taken.update(own)
            steps = min(TOGETHER, max(iterations(own) // warps, 1))
            several = [("unroll", steps)] if steps > 1 and has_several(reduction) else []
            plan.parts(as_one(plan, own), [*several, units[0]])


def _rows_of_thread(plan: GpuPlan, rows: Sequence[Node], threads: int) -> int:
    """Rows that a thread has side by side, where all read one row of another array.

    That is read, and widened, once for them, and as much of each is under way as there is of one
    that has few bytes. No sum changes: each is shared among as many threads, in the same order.
    """
    facts = plan.facts
    own = frozenset([axis for each in facts.reductions for axis in each.own])
    longest = max(rows, key=lambda axis: index.upper(extent_of(axis)), default=None)
    extent = 0 if longest is None else extent_of(longest)
    if longest is None or not isinstance(extent, int):
        return 1
    reads = [each for each in facts.accesses if not each.write and not each.axes.isdisjoint(own)]
    along = [each for each in reads if longest in each.axes]
    plain = all(each.node.arg.monoid.arity == 1 for each in facts.reductions)
    if len(along) == len(reads) or not plain:
        return 1
    nbytes = sum(iterations(each.axes & own) * itemsize(each.array.dtype) for each in along)
    size = min([itemsize(each.array.dtype) for each in along], default=1)
    most = min(ROW_BYTES * threads // max(nbytes * size, 1), MOST_ROWS)
    least = TURN_WARPS * plan.warp * plan.target.units
    each = 1
    while 2 * each <= most and extent % (2 * each) == 0 and (
        iterations(rows) // (2 * each) * threads >= least
    ):
        each *= 2
    return each


def _tiles(plan: GpuPlan, columns: frozenset[Node]) -> dict[Node, RowTile]:
    """How threads share the sums along one axis each, whose results do not run along threads."""
    found: dict[Node, RowTile] = {}
    is_plain = len(plan.sums) == len(plan.facts.reductions)
    for reduction in plan.sums:
        tile = row_tile(plan.facts, reduction, plan.target) if is_plain else None
        plain = reduction.node.arg.monoid.arity == 1 and reduction.free.isdisjoint(columns)
        if tile is not None and plain:
            found[reduction.node] = tile
    return found


def _fits(plan: GpuPlan, tile: RowTile, threads: int) -> bool:
    """Whether that many threads share a sum as its tile says, or each of their warps makes it."""
    lanes, warps = min(threads, plan.warp), max(threads // plan.warp, 1)
    return tile.threads == lanes and tile.warps in (1, warps)


def _tiled(plan: GpuPlan, reduction: Reduction, tile: RowTile) -> None:
    """Lay the axis of a sum as its tile says."""
    (axis,) = reduction.own
    if axis in plan.taken:
        return
    plan.taken.add(axis)
    units = ("unroll", "thread_y", "thread", "vector")
    plan.parts([axis], [(unit, size) for unit, size in zip(units, tile, strict=True) if size > 1])


def _threads_of(plan: GpuPlan, columns: Sequence[Node], longest: int) -> tuple[int, bool]:
    """Threads of a row that no tile says how to share, and whether it is a block's."""
    if longest > LONE_STEPS * plan.warp and _are_lone_places(plan, columns):
        return min(next_power_of_two(-(-longest // LONE_STEPS)), MOST_WARPS * plan.warp), True
    if len(plan.sums) < len(plan.facts.reductions):
        # Each element is a sum: threads share them before one has several.
        threads = min(next_power_of_two(longest), NESTED_BLOCK)
        return threads, threads > plan.warp
    count = -(-longest // _row_lanes(plan, columns))
    if count <= WARP_STEPS * plan.warp:
        short = longest <= FAR_ROW and all(is_short(plan.facts, r) for r in plan.sums)
        if short:
            # Threads share what is beside the sums alone.
            count = min(count, max(iterations(columns), 1), SHORT_THREADS)
        return min(next_power_of_two(count), plan.warp), False
    plain = all(each.node.arg.monoid.arity == 1 for each in plan.sums)
    steps = BLOCK_STEPS if plain else PLACE_STEPS
    warps = next_power_of_two(max(count // (steps * plan.warp), 1))
    if 2 * warps > MOST_WARPS:
        # A block of all threads that there may be has a multiprocessor to itself.
        warps = next_power_of_two(count // (2 * steps * plan.warp))
    most = MOST_WARPS // 2 if longest >= LONG_PART else MOST_WARPS
    return min(warps, most) * plan.warp, warps > 1


def _are_lone_places(plan: GpuPlan, columns: Sequence[Node]) -> bool:
    """Whether there are fewer rows than multiprocessors, of folds that are the same in any order.

    Such folds look for places: a thread loads one element when it is done with the one before.
    """
    rows = iterations([axis for axis in plan.facts.data if axis not in columns])
    monoids = [each.node.arg.monoid for each in plan.sums]
    places = any(monoid.arity != 1 for monoid in monoids)
    return places and rows < plan.target.units and all(monoid.is_exact for monoid in monoids)


def _row_lanes(plan: GpuPlan, columns: Sequence[Node]) -> int:
    """Elements that a thread moves at once along the axes of a row, at most."""
    found = 1
    for axes in (columns, *[reduction.own for reduction in plan.sums]):
        own = [axis for axis in axes if extent_of(axis) != 1]
        if own:
            found = max(found, plan.lanes(in_order(plan, own)))
    return found


def _across(
    plan: GpuPlan, reduction: Reduction, columns: frozenset[Node], units: list[tuple[str, int]],
    near: str = "vector",
) -> None:
    """Threads along a reduction's contiguous axis, if its results do not run along threads.

    near: what adjacent elements of a thread lie on.
    """
    own = moving(reduction)
    if not own or reduction.free & columns or not plan.taken.isdisjoint(own):
        return
    plan.taken.update(own)
    ordered = in_order(plan, own)
    inner = plan.together(ordered)
    threads = prod([size for _, size in units])
    together = 2 * TOGETHER * threads * plan.lanes(ordered)
    # What is summed within along some of the axes is made once for all the others.
    parted = iterations(inner) >= threads and any(
        0 < len(each.free.intersection(own)) < len(own) for each in plan.facts.reductions
    )
    wanted = len(own) > len(inner) and iterations(inner) < together and not parted
    if wanted and can_be_one(plan, own):
        inner = ordered
    elif len(inner) > 1 and not can_be_one(plan, inner):
        inner = ordered[-1:]
    if len(inner) < len(own) and iterations(inner) < threads:
        inner = [max(own, key=lambda axis: index.upper(extent_of(axis)))]
    _share(plan, inner, units, has_several(reduction), near=near)


def _share(
    plan: GpuPlan, axes: Sequence[Node], units: list[tuple[str, int]], unrolled: bool,
    outer: str = "loop", near: str = "vector",
) -> None:
    """Axes as one for the threads of a row, with adjacent elements for each where there are enough.

    unrolled: some accesses of each thread may be under way together. outer: what the rest lies on;
    near: what adjacent elements do.
    """
    lanes = plan.lanes(axes)
    size, threads = iterations(axes), prod([n for _, n in units])
    while lanes > 1 and size < lanes * threads:
        lanes //= 2
    steps = _steps(size, lanes * threads) if unrolled else 1
    if unrolled and not units and size <= MOST_ALONE * lanes:
        steps = size // lanes
    along = frozenset(axes)
    work = sum(op_flops(node) for node in plan.facts.order if not along.isdisjoint(node.ranges))
    while steps > 1 and steps * lanes * work > MOST_OPS:
        steps //= 2
    lanes = plan.pick("lanes", powers_from(lanes, 1, lanes))
    if unrolled:
        most = min(MOST_STEPS, size // (lanes * threads), MOST_OPS // max(lanes * work, 1))
        steps = plan.pick("steps", powers_from(steps, 1, most))
    wide = [(near, lanes)] if lanes > 1 else []
    plan.parts(axes, [*([("unroll", steps)] if steps > 1 else []), *units, *wide], outer)


def _steps(size: int, width: int) -> int:
    """Accesses under way together, of which the last round of a sum wastes few.

    width: elements of one access of all threads.
    """
    rounds = -(-size // width)
    most = max(min(TOGETHER, size // width), 1)
    return next(steps for steps in range(most, 0, -1) if -rounds % steps <= rounds // MUCH_WASTED)


def _along(plan: GpuPlan, columns: Sequence[Node], units: list[tuple[str, int]]) -> None:
    """Threads along the axes of the output that not all reductions' results run along.

    Those that some do run along are shared out first: each thread sums for its own.
    """
    free = {axis for each in plan.facts.reductions for axis in each.free}
    axes = [axis for axis in columns if extent_of(axis) != 1]
    axes = [axis for axis in axes if axis in free] or axes
    if not axes:
        return
    ordered = plan.by_stride(axes, plan.write)
    outs = [out_axes(out).intersection(axes) for out in plan.facts.outs]
    several = all(isinstance(extent_of(axis), int) for axis in ordered)
    alike = all(len(each) in (0, len(axes)) for each in outs)
    near = _near_axes(ordered, outs) if several and not alike and len(units) > 1 else []
    if not near and not (several and alike):
        ordered = [max(ordered, key=lambda axis: index.upper(extent_of(axis)))]
    along = frozenset(ordered)
    fixed = along.union(plan.facts.data).difference(columns)
    work = sum([
        op_flops(node) * iterations(node.ranges - fixed - along)
        for node in plan.facts.order if not along.isdisjoint(node.ranges)
    ])
    worth = max(work // ELEMENT_OPS, 1)
    outer = "grid" if _is_spread(plan, columns, ordered, units, worth) else "loop"
    if near:
        far = [axis for axis in ordered if axis not in near]
        is_wide = iterations(near) > iterations(far)
        _share(plan, near, units[-1:], False, outer if is_wide else "loop")
        plan.parts(far, units[:-1], outer)
    else:
        _share(plan, ordered, units, free.isdisjoint(axes) and worth == 1, outer)


def _near_axes(ordered: Sequence[Node], outs: Sequence[frozenset[Node]]) -> list[Node]:
    """The last axes, if some outputs run along all and the rest of them along those before.

    A warp lies along these then, and warps along the others, whose results are each a warp's.
    """
    widths = {len(each) for each in outs} - {0}
    few = min(widths)
    plain = all(each == frozenset(ordered[: len(each)]) for each in outs)
    return list(ordered[few:]) if plain and widths == {few, len(ordered)} else []


def _is_spread(
    plan: GpuPlan, columns: Sequence[Node], ordered: Sequence[Node], units: list[tuple[str, int]],
    worth: int,
) -> bool:
    """Whether blocks share such axes, each of which makes the sums of all of them anew.

    worth: how many plain elements one of them is worth.
    """
    if not all(isinstance(extent_of(axis), int) for axis in ordered):
        return False
    data = frozenset(plan.facts.data)
    again = [
        iterations(each.free.difference(data).union(each.own))
        for each in plan.facts.reductions if each.free.isdisjoint(columns)
    ]
    elements = BLOCK_ELEMENTS * prod([size for _, size in units])
    return (
        2 * iterations(data.difference(columns)) < plan.target.busy_blocks
        and worth * iterations(ordered) >= elements
        and sum(again) <= elements
    )


# --- sums of sums -------------------------------------------------------------------------------


def _nested(
    plan: GpuPlan, rows: Sequence[Node], columns: Sequence[Node], nested: Sequence[Reduction]
) -> None:
    """Reductions of reductions: the inner ones along a warp's lanes, the outer ones along warps.

    Lanes that short inner ones leave are the outer ones'; several loads of each are under way.
    """
    plan.grid(rows)
    data = frozenset(plan.facts.data)
    inner = {axis for reduction in nested for axis in reduction.own}
    taken = {axis for reduction in nested for axis in reduction.free - data}
    lanes = min(_longest(inner - taken), plan.warp)
    warps = min(_longest(taken - inner), NESTED_BLOCK // lanes, MOST_WARPS)
    shared = any(reduction.free & frozenset(columns) for reduction in plan.facts.reductions)
    if shared:
        # Results that sums are for come first: what is summed for them is each thread's own.
        _along(plan, columns, [("thread_y", warps), ("thread", lanes)])
    done: set[Node] = set()
    shares = (inner - taken, "thread", lanes), (taken - inner, "thread_y", warps)
    for reduction in plan.facts.reductions:
        for axes, unit, size in shares:
            mine = [a for a in reduction.own if a in axes and extent_of(a) != 1]
            if not mine or not done.isdisjoint(reduction.own):
                continue
            best = max(mine, key=lambda axis: index.upper(extent_of(axis)))
            done.update(reduction.own)
            steps = min(index.upper(extent_of(best)) // size, TOGETHER) if unit == "thread" else 1
            several = [("unroll", steps)] if steps > 1 and has_several(reduction) else []
            plan.parts([best], [*several, (unit, size)])
    if not shared:
        _along(plan, columns, [("thread_y", warps), ("thread", lanes)])


def _longest(axes: Iterable[Node]) -> int:
    """The length of the longest of some axes, as a power of two."""
    return next_power_of_two(max([index.upper(extent_of(axis)) for axis in axes], default=1))
