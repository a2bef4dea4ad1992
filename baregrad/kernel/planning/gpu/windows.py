"""Kernels on a GPU whose reads overlap: a thread computes a tile of what reads the same elements.

Neighbouring results of a stencil, a depthwise convolution or pooling share most of what they read.
A thread therefore has some columns of some rows: it loads each element that its tile reaches once,
several at a time, and asks once whether a row or a column is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations, pairwise, product
from math import prod

from baregrad.base.bits import is_power_of_two, next_power_of_two, round_up
from baregrad.ir.core.node import Node, extent_of
from baregrad.ir.core.op import Ops
from baregrad.kernel.facts.analysis import itemsize, iterations, op_flops, reads_in
from baregrad.kernel.language.schedule import Bind
from baregrad.kernel.loops.written_sums import STRETCHES, window_axes
from baregrad.kernel.planning.gpu.gpu_plan import WARPS, GpuPlan, Way

# Columns and rows of a thread's tile, at most, and reads and operations for all elements of a tile:
# each is code.
MOST_COLUMNS, MOST_ROWS = 8, 8
MOST_READS, MOST_OPS = 400, 1 << 11
# Elements of a row of an input that a tile reaches, at most: neighbours in threads are near.
MOST_REACH = 16
# Threads of a block, at most along a row, and the number that is aimed at.
BLOCK, MOST_BLOCK, MOST_WIDE = 256, 512, 128
WARP = 32
# Rows, or images, of a block that are tried.
MOST_DEEP = 8
# Stretches of each thread for a sum that a warp shares, and of a longer one.
WARP_STEPS, BLOCK_STEPS = 16, 8

# The strides of reads of one array, and where they begin.
Window = tuple[Mapping[Node, int], Sequence[int]]


def window_tiles(plan: GpuPlan, axes: Sequence[Node]) -> Way | None:
    """A tile of results whose reads overlap for each thread, if there are such."""
    ordered = plan.by_stride(axes, plan.write)
    near = ordered[-3:]
    if not near or not plan.uncertain.isdisjoint(axes):
        return None
    if not all(isinstance(extent_of(axis), int) for axis in near):
        return None
    inner = near[-1]
    if plan.write.stride(inner) != 1:
        return None
    # Rows are neighbours, or else those next to them, if only these share what they read.
    others: Sequence[Node | None] = near[-2::-1] or (None,)
    found = [
        (outer, windows, _tile(plan, windows, inner, outer))
        for outer in others
        if (windows := _windows(plan, inner, outer)) or _repeats(plan, inner)
    ]
    if not found:
        return None
    outer, windows, first = next((one for one in found if one[2][1] > 1), found[0])
    # What is read once alone gains by wide accesses, not by what its neighbours read.
    if prod(first) == 1 or not (windows or is_power_of_two(first[0])):
        return None
    reads = sum([len(places) for _, places in windows]) or 1
    return partial(_lay_windows, ordered=ordered, outer=outer, first=first, reads=reads)


def _lay_windows(
    plan: GpuPlan, ordered: Sequence[Node], outer: Node | None, first: tuple[int, int], reads: int
) -> None:
    """Give each thread columns and rows of results: so many, or others that a search tries.

    outer: the axis that rows lie along.
    """
    near = ordered[-3:]
    tried = _tiles(first, near[-1], outer)
    columns, rows = plan.pick("window tile", tried, "{0[0]} by {0[1]}".format)
    plan.because("{} reads near each other: {} rows of {} columns a thread", reads, rows, columns)
    tiles = [rows if axis is outer else 1 for axis in near[:-1]] + [columns]
    counts = [int(axis.src[0].arg) // tile for axis, tile in zip(near, tiles, strict=True)]
    plan.grid(ordered[:-3])
    threads = block_of([1] * (3 - len(near)) + counts)[-len(near) :]
    units = ("thread_z", "thread_y", "thread")[-len(near) :]
    for axis, unit, size, tile in zip(near, units, threads, tiles, strict=True):
        plan.parts([axis], [(unit, size), *([("unroll", tile)] if tile > 1 else [])], "grid")


def plan_stretches(plan: GpuPlan) -> bool:
    """Keep the sums of all places of a window in a thread; whether stretches are written out."""
    (reduction, *others) = plan.facts.reductions
    if others or not any(axis.arg.axis == STRETCHES for axis in reduction.own):
        return False
    window = window_axes(reduction)
    rows = [axis for axis in plan.facts.data if axis not in window]
    steps = iterations(reduction.own)
    for axis in window:
        plan.steps.append(Bind(plan.name(axis), "unroll"))
    if steps <= WARP_STEPS * plan.warp:
        threads = min(next_power_of_two(steps), plan.warp)
        units = [("thread", threads)]
        plan.spread_rows(rows, WARPS * plan.warp // threads)
    else:
        warps = min(next_power_of_two(steps // (BLOCK_STEPS * plan.warp)), WARPS)
        units = [("thread_y", warps), ("thread", plan.warp)]
        plan.grid(rows)
    plan.because(
        "{} sums of {} stretches from the same reads: for each {}",
        iterations(window), steps, "block" if len(units) > 1 else f"{threads} threads",
    )
    plan.parts(reduction.own, units)
    return True


def _windows(plan: GpuPlan, inner: Node, outer: Node | None) -> list[Window]:
    """Reads of one array that are apart by constants, and near each other along an axis.

    Or along the next one, or the same all along that, however far apart neighbours are.
    """
    found: dict[tuple[Node, frozenset[tuple[Node, int]]], dict[int, None]] = {}
    for read in reads_in(plan.facts.order):
        if not read.offset.rest and _is_near(read.offset.strides, inner, outer):
            key = (read.array, frozenset(read.offset.strides.items()))
            found.setdefault(key, {})[read.offset.constant] = None
    windows = [(dict(strides), sorted(places)) for (_, strides), places in found.items()]
    return [
        (strides, places) for strides, places in windows
        if any(b - a <= MOST_REACH for a, b in pairwise(places))
        or (outer is not None and len(places) > 1 and _share_rows(strides, places, outer))
    ]


def _is_near(strides: Mapping[Node, int], inner: Node, outer: Node | None) -> bool:
    """Whether what neighbours read is near, or the same for those along the next axis."""
    step = strides.get(inner, 0)
    return step > 0 and (
        step <= MOST_REACH // 2 or (outer is not None and not strides.get(outer, 0))
    )


def _repeats(plan: GpuPlan, inner: Node) -> bool:
    """Whether something is read backwards, or at quotients of places, as what is made larger."""
    reads = reads_in(plan.facts.order)
    return any(read.offset.strides.get(inner) == -1 for read in reads) or any(
        inner in atom.ranges and atom.op is Ops.FLOORDIV and not atom.has(Ops.INDEX)
        for read in reads for atom, _ in read.offset.rest
    )


def _tile(
    plan: GpuPlan, windows: Sequence[Window], inner: Node, outer: Node | None
) -> tuple[int, int]:
    """Columns and rows of a thread's tile: whole accesses, and rows if they share what is read."""
    reads = sum([len(places) for _, places in windows]) or 1
    writes = [itemsize(access.array.dtype) for access in plan.facts.accesses if access.write]
    # What is read of every element between is read by whole lines.
    reach = max([s[inner] for s, places in windows if len(places) < s[inner]], default=1)
    most = min(MOST_COLUMNS, plan.target.load_bytes // min(writes), max(MOST_REACH // reach, 1))
    width = int(inner.src[0].arg)
    busy = plan.facts.points(frozenset(plan.facts.data)) // plan.target.busy_threads
    # What is written at places of its own is computed by threads of its own.
    several = len({out.src[2:] for out in plan.facts.outs})
    work = max(sum([op_flops(node) for node in plan.facts.order]) // several, 1)
    elements = min(MOST_READS // reads, MOST_OPS // work, busy)
    most = max(min(most, elements), 1)
    columns = next_power_of_two(most + 1) // 2
    while columns > 1 and width % columns:
        columns //= 2
    if columns == 1:
        columns = max([size for size in range(1, most + 1) if width % size == 0])
    if outer is None:
        return columns, 1
    if not any(_share_rows(*each, outer) for each in windows):
        return columns, 1
    height = int(outer.src[0].arg)
    most = max(min(MOST_ROWS, elements // columns), 1)
    return columns, max([size for size in range(1, most + 1) if height % size == 0])


def _tiles(first: tuple[int, int], inner: Node, outer: Node | None) -> Iterator[tuple[int, int]]:
    """A tile, and others that a search tries: all that leave nothing over."""
    yield first
    width, height = (1 if axis is None else int(axis.src[0].arg) for axis in (inner, outer))
    for columns, rows in product(range(1, MOST_COLUMNS + 1), range(1, MOST_ROWS + 1)):
        if not (width % columns or height % rows or (columns, rows) == first):
            yield columns, rows


def _share_rows(strides: Mapping[Node, int], places: Sequence[int], outer: Node) -> bool:
    """Whether neighbours along an axis read the same elements, or nearly so."""
    step = abs(strides.get(outer, 0))
    return not step or any(
        abs((b - a + step // 2) % step - step // 2) <= MOST_REACH and b - a > step // 2
        for a, b in combinations(places, 2)
    )


def block_of(counts: Sequence[int]) -> tuple[int, int, int]:
    """Threads along three axes: whole warps as far as may be, and about as many as is aimed at."""
    deep, down, across = counts
    x = min(across, MOST_WIDE)

    def key(sizes: tuple[int, int]) -> tuple[float, int]:
        z, y = sizes
        threads = x * y * z
        used = threads / round_up(threads, WARP)
        whole = (down / round_up(down, y)) * (deep / round_up(deep, z))
        return (-round(used * whole, 1) + (whole < 1) / 2, abs(threads - BLOCK))

    tried = [
        (z, y)
        for z, y in product(range(1, min(deep, MOST_DEEP) + 1), range(1, min(down, BLOCK) + 1))
        if x * y * z <= MOST_BLOCK
    ]
    z, y = min(tried, key=key)
    return z, y, x
