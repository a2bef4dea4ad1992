"""Sums on a GPU whose results are neighbours in memory: columns, for the threads of a block.

Threads lie along the results, so that one reads what its neighbours in memory read beside it, and
share a column's steps. Where rows are so short that no wide access fits into one, a thread has
whole rows, which lie together, and parts of the sums of all columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import gcd
from typing import NamedTuple

from baregrad.base.bits import next_power_of_two, previous_power_of_two
from baregrad.ir.core import index
from baregrad.ir.core.monoid import Monoid
from baregrad.ir.core.node import Node, extent_of
from baregrad.ir.core.op import Ops
from baregrad.kernel.facts.analysis import Reduction, itemsize, iterations
from baregrad.kernel.language.schedule import Bind
from baregrad.kernel.planning.common.decisions import powers_from
from baregrad.kernel.planning.gpu.gpu_plan import WARPS, GpuPlan, Way

BLOCK = 128
MOST_WARPS = 32
# Steps of a column before warps share it; and before as many threads do as read a machine's memory
# at its rate with their loads, of whole lines where there are enough columns, of sectors else.
LONG_COLUMN, VERY_LONG_COLUMN, LONGEST_COLUMN = 32, 512, 1 << 14
# The same of so few columns that a warp has all of them: nothing else keeps a machine busy.
FEW_LONG_COLUMN = 256
COLUMN_THREADS, LEAST_COLUMN_THREADS, MOST_COLUMN_THREADS = 64, 4, 256
LINE_BYTES, SECTOR_BYTES = 128, 32
# Threads of a block of long columns. Neighbouring columns of a thread where there are not so many
# times as many blocks as keep a machine busy: more threads share such a machine more evenly.
COLUMN_BLOCK = 512
COLUMN_LANES, MANY_BLOCKS = 4, 8
# Accesses of a thread that are under way together, how many a search tries, and the elements of a
# column's.
TOGETHER, MOST_STEPS = 4, 16
COLUMN_ELEMENTS = 16
# States of several numbers that a thread puts together of a column, at most, before others share
# it, and of all columns that it may have by their type: no loop is left of so few. (32 parts of
# 64 x 32 x 128 sums by 4 threads, not 8: 303 us in place of 310 on an H200.)
STATE_STEPS, STATES = 8, 128
# Neighbours that a thread has all of, where results lie along another axis.
SHORT_NEAR = 8
# Columns of which a thread may have all, if no two are one access, and its elements of as many rows
# as fill accesses; rounds of its loop before there are more threads, and these at most. On an H200
# 10,240,000 rows of 3 floats took 47.4 us by elements and 32.1 so; 480,000 of 6 were slower.
SHORT_ROW, SHORT_ELEMENTS = 5, 32
SHORT_ROUNDS, SHORT_THREADS = 2, 256
# Results of each sum are many, if they are more than so many times its steps; and steps of a sum
# for a few columns of a row that threads share.
MUCH_BESIDE, LEAST_SHARED = 4, 16
# Bytes of the second cache that are worth it to have rows that share them next to each other.
MUCH_AGAIN = 1 << 24
# Rows of a thread along two axes, at most; and the warps of a multiprocessor that are left to take
# turns.
MOST_SIDE, TURN_WARPS = 4, 32


def plan_columns(
    plan: GpuPlan, rows: Sequence[Node], columns: Sequence[Node], length: int
) -> None:
    """A warp along the results, in wide accesses; warps share a long sum.

    columns: axes of the output along which sums are not, as those of a softmax across rows.
    """
    ordered = _without_short_rows(plan, [axis for axis in rows if extent_of(axis) != 1])
    inner = plan.together(ordered)
    lanes = widest = plan.lanes(inner)
    others = iterations(rows) // (width := iterations(inner))
    plain = all(each.node.arg.monoid.arity == 1 for each in plan.sums)
    fixed = all(isinstance(extent_of(axis), int) for axis in inner)
    exact = all(each.node.arg.monoid.is_exact for each in plan.sums)
    few = FEW_LONG_COLUMN if iterations(rows) <= plan.warp else VERY_LONG_COLUMN
    if (plain or exact) and fixed and not columns:
        way = _whole_rows(plan, inner, length) if widest == 1 else None
        if way is not None or length >= (LONG_COLUMN if exact else few):
            plan.grid([axis for axis in ordered if axis not in inner])
            way = way or _long_columns(plan, inner, lanes, others, length if not exact else 0)
            way(plan)
            return
    lanes = plan.whole_lanes(lanes, inner[-1])
    lanes = _column_lanes(plan, lanes, iterations(rows), width, 2 if plain else 1)
    # The order of a sum does not hang on how many columns there are.
    most = min(plan.most_lanes(inner[-1]), COLUMN_ELEMENTS)
    lanes = plan.pick("lanes", powers_from(lanes, 1, widest))
    # All have as many steps of states, which need not have one that changes nothing.
    few = min(next_power_of_two(-(-length // STATE_STEPS)), WARPS)
    warps = WARPS if length >= LONG_COLUMN else 1
    if columns and length >= FEW_LONG_COLUMN:
        # A thread goes through its part of a column several times.
        warps *= 4 if length >= VERY_LONG_COLUMN else 2
    warps = warps if plain or exact or length % few else few
    warps = plan.pick("warps", powers_from(warps, 1, min(MOST_WARPS, length)))
    written = plan.by_stride(ordered, plan.write)
    is_along = written[-1] is inner[-1]
    if not fixed or (warps == 1 and (is_along or width < plan.warp)):
        # Few neighbours are no block: threads go on with the next ones.
        wide = plan.lanes(written) if is_along or not fixed else 1
        while wide > 1 and iterations(rows) < wide * BLOCK * plan.target.busy_blocks:
            wide //= 2
        plan.spread(ordered, BLOCK, wide)
    else:
        plan.grid([axis for axis in ordered if axis not in inner])
        block = min(plan.warp if warps > 1 else BLOCK, next_power_of_two(width // lanes))
        block = _threads_along(plan, inner, lanes, others, block) if columns else block
        across = [("thread", block)]
        plan.parts(inner, [*across, ("vector", lanes)] if lanes > 1 else across, "grid")
    for reduction in plan.sums:
        own = moving(reduction)
        if not own or not plan.taken.isdisjoint(own):
            continue
        plan.taken.update(own)
        steps = _column_steps(plan, reduction, own, warps, most, length)
        units = [one for one in (("unroll", steps), ("thread_y", warps)) if one[1] > 1]
        if units:
            plan.parts(as_one(plan, own), units)
    if warps > 1:
        _share_written(plan, columns, warps)


def _without_short_rows(plan: GpuPlan, rows: Sequence[Node]) -> list[Node]:
    """The axes of the results but for short rows that lie beside each other, whole in each thread.

    The results lie otherwise: blocks of so few neighbours would be many, of few threads each.
    """
    ordered = in_order(plan, rows)
    near = plan.together(ordered)
    others = ordered[: -len(near)]
    width = iterations(near)
    if not others or width > SHORT_NEAR or width * _size(plan, near) >= SECTOR_BYTES:
        return ordered
    reads = [one for one in plan.facts.accesses if not one.write and one.stride(near[-1]) == 1]
    beside = all(one.stride(others[-1]) == width for one in reads)
    if not reads or not beside or not all(isinstance(extent_of(axis), int) for axis in rows):
        return ordered
    if iterations(others[-1:]) < plan.warp:
        return ordered
    plan.because("{} neighbours of {} results each, in each thread", width, iterations(others))
    plan.steps.extend([Bind(plan.name(axis), "unroll") for axis in near])
    return others


def _share_written(plan: GpuPlan, columns: Sequence[Node], warps: int) -> None:
    """Warps of a column along what is written of it, several results of each at once."""
    if columns:
        longest = max(columns, key=lambda axis: index.upper(extent_of(axis)))
        steps = TOGETHER if index.upper(extent_of(longest)) >= FEW_LONG_COLUMN else 1
        plan.parts([longest], [("unroll", steps), ("thread_y", warps)])


def _long_columns(
    plan: GpuPlan, ordered: Sequence[Node], lanes: int, others: int, length: int
) -> Way:
    """So many threads for each column: any order is as good for what is exact.

    length: of a sum whose order matters, or 0.
    """
    lay = partial(_lay_long_columns, ordered=ordered, lanes=lanes, others=others)
    exact = not length
    if length >= LONGEST_COLUMN and iterations(ordered) * _size(plan, ordered) < SECTOR_BYTES:
        # Such columns are parts of longer ones, and no others keep a machine busy.
        return partial(lay, most=COLUMN_BLOCK)
    first = [COLUMN_THREADS, *([16, 8, LEAST_COLUMN_THREADS, MOST_COLUMN_THREADS] if exact else [])]
    places = any(each.node.arg.monoid.arity != 1 for each in plan.sums)
    if exact and places and _are_few(plan, ordered, others):
        # A thread reads on when it has compared what it read: more of them wait at once.
        first = [MOST_COLUMN_THREADS, *first[:-1]]
    return plan.best("columns", {f"{down} threads": partial(lay, most=down) for down in first})


def _size(plan: GpuPlan, ordered: Sequence[Node]) -> int:
    """Bytes of an element of what is read along columns, at least."""
    sizes = [itemsize(access.array.dtype) for access in plan.facts.accesses
             if not access.write and access.axes.issuperset(ordered)]  # fmt: skip
    return min(sizes, default=4)


def _are_few(plan: GpuPlan, ordered: Sequence[Node], others: int) -> bool:
    """Whether a machine is not busy with a thread for each sector of the rows of columns."""
    nbytes = others * iterations(ordered) * _size(plan, ordered)
    return nbytes < SECTOR_BYTES * plan.target.busy_blocks


def _column_lanes(plan: GpuPlan, lanes: int, points: int, width: int, least: int) -> int:
    """Neighbouring columns of a thread, `lanes` at most, where there are so many of a width.

    least: a machine is busy with a block for one in so many of its multiprocessors. Of states of
    several numbers a thread computes as long as it loads.
    """
    blocks, busy = points // plan.warp, plan.target.busy_blocks
    if lanes > COLUMN_LANES and blocks < MANY_BLOCKS * lanes * busy:
        lanes = COLUMN_LANES
    while lanes > 1 and (lanes * plan.warp > width or least * blocks < lanes * busy):
        lanes //= 2
    return lanes


def has_several(reduction: Reduction) -> bool:
    """Whether a thread has several folds at once, so that it waits for their loads together.

    Several numbers of one are in the order of a row, as those of a variance, but where any will do.
    """
    monoid: Monoid = reduction.node.arg.monoid
    return monoid.arity == 1 or monoid.is_exact


def _column_steps(
    plan: GpuPlan, reduction: Reduction, own: Sequence[Node], warps: int, most: int, length: int
) -> int:
    """Steps of a thread that are under way together; of a column of states all, or one."""
    if has_several(reduction):
        steps = max(min(COLUMN_ELEMENTS // most, TOGETHER, length // (4 * warps)), 1)
        return plan.pick("steps", powers_from(steps, 1, min(MOST_STEPS, length // warps)))
    each, left = divmod(iterations(own), warps)
    is_whole = not left and all(isinstance(extent_of(axis), int) for axis in own)
    return each if is_whole and each <= min(STATE_STEPS, STATES // most) else 1


def _lay_long_columns(
    plan: GpuPlan, ordered: Sequence[Node], lanes: int, others: int, most: int
) -> None:
    """A column's steps along most threads of a block, several of them read at once by each.

    others: how many such rows of columns there are. most: threads of a column.
    """
    width = iterations(ordered)
    wanted = lanes
    if _are_few(plan, ordered, others):
        # Few columns are for many threads, with an element or two of each row.
        nbytes = COLUMN_BLOCK * _size(plan, ordered)
        wanted = min(lanes, max(SECTOR_BYTES * most // nbytes, 1))
    lanes = plan.pick("lanes", powers_from(wanted, 1, lanes))
    threads = max(LINE_BYTES // (lanes * _size(plan, ordered)), 1)
    threads = _threads_along(plan, ordered, lanes, others, threads)
    room = plan.target.threads_per_block
    threads = min(threads, COLUMN_BLOCK // most, next_power_of_two(-(-width // lanes)))
    threads = plan.pick("threads along", powers_from(threads, 1, room // LEAST_COLUMN_THREADS))
    first = min(most, room // threads)
    options = powers_from(first, LEAST_COLUMN_THREADS, room // threads)
    down = plan.pick("threads of a column", options)
    together = 2 * TOGETHER if most == COLUMN_BLOCK else TOGETHER
    steps = plan.pick("steps", powers_from(together, 1, MOST_STEPS))
    plan.because("{} columns in each block, {} threads each", threads * lanes, down)
    across = [("thread", threads)] if threads > 1 else []
    beside = ("vector" if across else "unroll", lanes)
    plan.parts(ordered, [*across, beside] if lanes > 1 else across, "grid")
    # Where no columns lie beside each other, the lanes of a warp fold by exchanges.
    along = [("thread_y", down)]
    if not across:
        along = [("thread_y", down // plan.warp), ("thread", plan.warp)]
    for reduction in plan.sums:
        own = moving(reduction)
        if own and plan.taken.isdisjoint(own):
            plan.taken.update(own)
            units = [("unroll", steps)] if has_several(reduction) else []
            plan.parts(as_one(plan, own), [*units, *along])


def _threads_along(
    plan: GpuPlan, ordered: Sequence[Node], lanes: int, others: int, most: int
) -> int:
    """Threads of a block along columns, each of which has `lanes`: fewer where blocks were few.

    They read sectors, at least. No column is shared otherwise.
    """
    nbytes, width = lanes * _size(plan, ordered), iterations(ordered)
    while most > 1 and most * nbytes > SECTOR_BYTES and (
        others * width < most * lanes * plan.target.busy_blocks
    ):
        most //= 2
    return most


def _whole_rows(plan: GpuPlan, ordered: Sequence[Node], length: int) -> Way | None:
    """Short rows for each thread, where they lie together and none is of wide accesses."""
    width = iterations(ordered)
    reads = [one for one in plan.facts.accesses if not one.write and one.array.op is Ops.PARAM]
    sums = [as_one(plan, own) for each in plan.sums if (own := moving(each))]
    dense = [
        one for one in reads for own in sums
        if one.stride(ordered[-1]) == 1 and one.stride(own[-1]) == width
    ]
    if width > SHORT_ROW or length < FEW_LONG_COLUMN or not dense or (
        any(one.guarded for one in dense)
    ):
        return None
    nbytes = width * min([itemsize(one.array.dtype) for one in dense])
    each = plan.target.load_bytes // gcd(plan.target.load_bytes, nbytes)
    while each > 1 and (
        each * width > SHORT_ELEMENTS or any(iterations(own) % each for own in sums)
    ):
        each //= 2
    if each == 1:
        return None
    # States of several numbers take longer to put together.
    rounds = SHORT_ROUNDS * max(one.node.arg.monoid.arity for one in plan.sums)
    wanted = previous_power_of_two(max(length // (each * rounds), COLUMN_THREADS))
    threads = min(wanted, SHORT_THREADS)
    return partial(_lay_whole_rows, ordered=ordered, threads=threads, each=each)


def _lay_whole_rows(plan: GpuPlan, ordered: Sequence[Node], threads: int, each: int) -> None:
    """All columns in each thread, of `each` rows that lie together."""
    plan.because("{} threads with {} whole rows at once", threads, each)
    plan.steps.append(Bind(plan.joined(ordered), "unroll"))
    for reduction in plan.sums:
        own = moving(reduction)
        if own and plan.taken.isdisjoint(own):
            plan.taken.update(own)
            plan.parts(as_one(plan, own), [("thread", threads), ("unroll", each)])


# --- sums of columns of rows --------------------------------------------------------------------


def columns_of_sums(
    plan: GpuPlan, rows: frozenset[Node], columns: Sequence[Node]
) -> frozenset[Node]:
    """Those of the columns of rows that long sums are for, of which none is for others.

    None where there are many for each step of the sums: threads along them make these alone.
    """
    data = frozenset(plan.facts.data)
    sums = [each for each in plan.sums if (each.free & data) - rows]
    found = frozenset(columns) if sums else frozenset[Node]()
    found = found.intersection(*[each.free for each in sums])
    if not all(isinstance(extent_of(axis), int) for axis in found):
        return frozenset()
    length = max([iterations(each.own) for each in sums], default=0)
    if length < LEAST_SHARED or iterations(found) > MUCH_BESIDE * length:
        return frozenset()
    return frozenset([axis for axis in found if extent_of(axis) != 1])


def lie_along(plan: GpuPlan, columns: frozenset[Node]) -> bool:
    """Whether some array that is summed for columns lies along them."""
    own = {axis for each in plan.sums if each.free & columns for axis in each.own}
    return any(
        access.stride(axis) == 1 and not access.axes.isdisjoint(own)
        for access in plan.facts.accesses if not access.write for axis in columns
    )


class RowBlock(NamedTuple):
    """Rows along two axes, of which those along either read the same of an array.

    tall, wide: rows of a thread along the long and the short one.
    """

    long: Node
    short: Node
    tall: int
    wide: int

    def lay(self, plan: GpuPlan, rows: Sequence[Node], together: int) -> None:
        """Lay the rows out: parts of a block for so many that are next to each other."""
        across = min(-(-iterations([self.short]) // self.wide), together)
        down = max(together // across, 1)
        plan.because(
            "rows share what they read: {} x {} of a thread, {} x {} of these in a block",
            self.tall, self.wide, down, across,
        )
        plan.grid([axis for axis in rows if axis not in (self.long, self.short)])
        for axis, unit, parts, each in (
            (self.long, "thread_y", down, self.tall), (self.short, "thread_z", across, self.wide),
        ):
            plan.parts([axis], [(unit, parts), *([("unroll", each)] if each > 1 else [])], "grid")


def sharing_rows(plan: GpuPlan, rows: Sequence[Node], threads: int) -> RowBlock | None:
    """Rows of which those along a short axis read the same of a large array, if there are such.

    They are a block's then, and several of a thread: what they read comes from the second cache
    once, and from the first one for each thread. None where that is not much. threads: of a row.
    """
    own = frozenset([axis for each in plan.facts.reductions for axis in each.own])
    reads = [one for one in plan.facts.accesses if not one.write and not one.axes.isdisjoint(own)]
    sizes = {one: iterations(one.axes) * itemsize(one.array.dtype) for one in reads}
    shared = {
        axis: sum([size for one, size in sizes.items() if axis not in one.axes])
        for axis in rows if extent_of(axis) != 1
    }
    plain = all(each.node.arg.monoid.arity == 1 for each in plan.facts.reductions)
    known = all(isinstance(extent_of(axis), int) for axis in shared)
    if len(shared) < 2 or not (plain and known):
        return None
    short = max(shared, key=lambda axis: shared[axis])
    long = max(shared, key=lambda axis: (axis is not short, iterations([axis])))
    if shared[short] * iterations([short]) < MUCH_AGAIN or not shared[long]:
        return None
    tall = wide = MOST_SIDE
    least = TURN_WARPS * plan.warp * plan.target.units
    while tall * wide > 1 and iterations(rows) * threads < tall * wide * least:
        tall, wide = (tall // 2, wide) if tall == wide else (tall, wide // 2)
    # Few are left over.
    turns = -(-iterations([short]) // wide)
    return RowBlock(long, short, tall, -(-iterations([short]) // turns))


# --- axes ---------------------------------------------------------------------------------------


def moving(reduction: Reduction) -> list[Node]:
    """The reduced axes that have more than one point."""
    return [axis for axis in reduction.own if extent_of(axis) != 1]


def as_one(plan: GpuPlan, own: Sequence[Node]) -> Sequence[Node]:
    """Reduced axes that may be one, or the longest of them."""
    if len(own) > 1 and can_be_one(plan, own):
        return own
    return [max(own, key=lambda axis: index.upper(extent_of(axis)))]


def in_order(plan: GpuPlan, own: Sequence[Node]) -> list[Node]:
    """Axes, those that the largest input strides furthest along first."""
    reads = [a for a in plan.facts.accesses if not a.write and not a.axes.isdisjoint(own)]
    if not reads:
        return plan.by_stride(own, plan.write)
    return plan.by_stride(own, max(reads, key=lambda access: iterations(access.axes)))


def can_be_one(plan: GpuPlan, own: Sequence[Node]) -> bool:
    """Whether axes can be one: every reduction takes all of them or none, and none is long."""
    if not all(isinstance(extent_of(axis), int) for axis in own):
        return False
    return all(
        len(frozenset(own).intersection(other.own)) in (0, len(own))
        for other in plan.facts.reductions
    )
