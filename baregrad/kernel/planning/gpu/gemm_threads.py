"""Schedules of contractions on GPUs: tiles of the output in registers, panels in shared memory.

Axes that only the one factor runs along are the tile's rows, those of the other its columns, those
of both are blocks. Each of the three kinds is one axis, however many the kernel has: a convolution
is a product of matrices whose panels are gathered as they are copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from baregrad.base.bits import previous_power_of_two
from baregrad.ir.core import index
from baregrad.ir.core.node import extent_of
from baregrad.kernel.facts.analysis import itemsize
from baregrad.kernel.instructions.instruction import kept_factors, scaled_bits
from baregrad.kernel.language.schedule import (
    Bind,
    Pipeline,
    Reorder,
    Split,
    StageFactor,
    StageInput,
    Step,
)
from baregrad.kernel.planning.common.decisions import powers_from
from baregrad.kernel.planning.gpu.gemm_copies import copy_of
from baregrad.kernel.planning.gpu.gemm_factors import Factor, GemmFactors
from baregrad.kernel.planning.gpu.gpu_plan import GpuPlan
from baregrad.target.gpu import GpuTarget


class ThreadTile(NamedTuple):
    """A tile of a block: threads and registers along rows, threads and vectors along columns."""

    threads_m: int
    rows: int
    threads_n: int
    vectors: int

    @property
    def threads(self) -> int:
        """Threads of a group."""
        return self.threads_m * self.threads_n

    @property
    def m(self) -> int:
        """Rows of the tile."""
        return self.threads_m * self.rows

    @property
    def n(self) -> int:
        """Columns of the tile."""
        return self.threads_n * self.vectors * LANES

    def covering(self, m: int, n: int) -> int:
        """How many tiles cover m rows and n columns."""
        return -(-m // self.m) * -(-n // self.n)


LANES = 4
# Results of a thread, at most.
MOST_RESULTS = 64
DEPTH = 16
TILES = tuple([
    ThreadTile(*sizes)
    for sizes in (
        (16, 8, 16, 2), (16, 8, 8, 2), (16, 4, 16, 1), (8, 4, 16, 1), (16, 8, 8, 1), (8, 4, 8, 1)
    )
])
# Those of few rows or columns, which each thread has all of, with many more of the other side. A
# convolution 7x7 of 36x232x64x64 to 8 channels took 20.0 ms on an H200 by threads along its sums,
# 2.04 by tiles of 8 x 128 for four groups, 2.22 by 8 x 256 for two, 2.6 without groups.
NARROW = tuple([
    ThreadTile(*sizes)
    for threads in (128, 64, 32)
    for sizes in ((1, 8, threads, 1), (1, 4, threads, 1), (threads, 4, 1, 2), (threads, 4, 1, 1))
])
# Steps of a sum that are worth panels there, if results do not lie along the large factor: if they
# do, a panel's steps are.
LEAST_NARROW = 64
# Instructions of a copy of some elements that lie together, with what it takes to find their place.
COPY = 6
# Groups of threads that share the summed axis, by its steps alone: how many steps each has at
# least, and how many groups there are at most, of tiles and of narrow ones. On an H200 two groups
# took 0.65 of the time for 1,024 cubed, 1.08 for 4,096 x 512 x 4,096 and 1.15 for 256 steps there.
GROUP_STEPS, MOST_GROUPS = 256, 2
NARROW_STEPS, MOST_NARROW = 64, 4
# Steps of a loop that is short enough to be written out: one's reads overlap with another's sums.
STEPS = 4
# Panels that are read, or on their way.
SLOTS = 3
MOST_THREADS = 512
# Of a multiprocessor at least, where tiles may be smaller; and work that is no more, about. On an
# H200 2168 x 408 results of 1569 steps, twice, took 291 us by 136 tiles of 128 x 128, which leave
# most multiprocessors with one and the last ones with two, and 155 us by tiles of 128 x 64.
BUSY_THREADS, ALIKE = 256, 1.1
LEAST_SIDE = 16
# Rows whose results lie together, so that threads lie along them: sectors of memory are whole.
LEAST_FOLLOWED = 8
LEAST_DEPTH = 8
# Bytes between rows of a panel, at most.
ROW_GAP_NBYTES = 16


def plan_threads(plan: GpuPlan, factors: GemmFactors) -> bool:
    """Bind a contraction's tiles to threads; False where it is too small."""
    m, n, k, _ = factors.sizes()
    if k < LEAST_DEPTH or max(m, n) < LEAST_SIDE:
        return False
    kept = kept_factors(plan.facts, scaled_bits(plan.target)) is not None
    plain = all(each.is_plain and len(each.reads) == 1 for each in (factors.left, factors.right))
    if not kept and not (plain and factors.left.slot != factors.right.slot):
        return False
    ahead = plan.target.async_copies
    depth_tile = min(DEPTH, previous_power_of_two(k))
    slots = SLOTS if ahead else 2
    picked = _pick(plan, factors, depth_tile, slots)
    if picked is None:
        return False
    tile, groups = picked
    plan.grid(factors.shared)
    rows = plan.joined(plan.by_stride(factors.rows, plan.write))
    columns = plan.joined(plan.by_stride(factors.columns, plan.write))
    depth = plan.joined(factors.depth)
    # Results of one column lie together where those of a row do not: threads follow them.
    follows = tile.threads_n == 1 or _follow_rows(plan, factors)
    own = {"m_t": tile.threads_m, "m_u": tile.rows}
    own = dict(reversed(own.items())) if follows else own
    wide = {"n_u": tile.vectors} if tile.vectors > 1 else {}
    inner = {"k_z": groups} if groups > 1 else {}
    steps = {"k_i": depth_tile // min(STEPS, depth_tile), "k_u": min(STEPS, depth_tile)}
    for axis, parts in (
        (rows, {"m_o": 0, **own}),
        (columns, {"n_o": 0, **wide, "n_t": tile.threads_n, "n_v": LANES}),
        (depth, {"k_o": 0, **inner, **steps}),
    ):
        plan.steps.append(Split(axis, tuple(parts.items()), "", True))
    plan.steps.extend(Bind(name, "thread_z") for name in inner)
    plan.steps.append(Reorder(("m_o", "n_o", "m_t", "n_t", "m_u", *wide, "n_v")))
    along, across = ("thread", "thread_y") if follows else ("thread_y", "thread")
    units = {"m_o": "grid", "n_o": "grid", "m_t": along, "n_t": across, "m_u": "unroll",
             **dict.fromkeys(wide, "unroll"), "n_v": "vector"}  # fmt: skip
    plan.steps.extend(Bind(name, unit) for name, unit in units.items())
    for factor, axes, side in (
        (factors.left, factors.rows, tuple(own)),
        (factors.right, factors.columns, (*wide, "n_t", "n_v")),
    ):
        turned = copy_of(factor, plan.by_stride(axes, plan.write), factors.depth).turned
        plan.steps.append(_panel(factor, (*inner, *steps), side, turned, kept))
    if k > depth_tile * groups:
        plan.steps.append(Pipeline("k_o", slots, "async") if ahead else Pipeline("k_o"))
    return True


def _pick(
    plan: GpuPlan, factors: GemmFactors, depth: int, slots: int
) -> tuple[ThreadTile, int] | None:
    """The tile of a group of threads, and how many groups a block has; None where none fits."""
    m, n, k, _ = factors.sizes()
    is_narrow = min(m, n) < LEAST_SIDE
    nbytes = plan.target.shared_bytes_per_block
    room = {
        tile: min(
            nbytes // _nbytes_of_group(tile, factors, depth, slots), MOST_THREADS // tile.threads
        ) for tile in (NARROW if is_narrow else TILES)
    }  # fmt: skip
    groups = min(_groups(k, is_narrow), max(room.values()))
    if not groups:
        return None
    groups = previous_power_of_two(groups)
    tiles = [tile for tile, most in room.items() if most >= groups]
    tiles = _narrow(plan, factors, tiles) if is_narrow else tiles
    if not tiles:
        return None
    best = tiles[0] if is_narrow else _tile(tiles, groups, factors, plan.target)
    options = [best, *[each for each in tiles if each is not best]]
    tile = plan.pick("thread tile", options, lambda each: f"{each.m}x{each.n}")
    most = min(room[tile], max(k // (2 * depth), 1))
    return tile, plan.pick("groups", powers_from(groups, 1, most))


def _narrow(
    plan: GpuPlan, factors: GemmFactors, tiles: Sequence[ThreadTile]
) -> list[ThreadTile]:
    """Those of tiles for few rows or columns, that of the least time first.

    A multiprocessor makes products, and as many copies as its tiles have rows and columns. None
    where a long sum's own elements lie together: threads along that read them without a copy.
    """
    m, n, k, _ = factors.sizes()
    wide, own = (factors.left, factors.rows) if m > n else (factors.right, factors.columns)
    copy = copy_of(wide, plan.by_stride(own, plan.write), factors.depth, LANES)
    least = DEPTH if copy.turned else LEAST_NARROW
    if k < least or (copy.lanes == LANES and not copy.turned):
        return []

    # Of the short side, more than half is there, or half of what a thread has at least.
    short = "n" if m > n else "m"
    sides = [(tile, getattr(tile, short)) for tile in tiles]
    most = min(max(2 * min(m, n) - 1, LANES), LEAST_SIDE - 1)
    found = [tile for tile, side in sides if side <= most]
    return sorted(found, key=lambda tile: _work(tile, factors, plan.target.units))


def _panel(
    factor: Factor, depth: tuple[str, ...], side: tuple[str, ...], turned: bool, kept: bool
) -> Step:
    """The panel of a factor in shared memory."""
    axes, pad = (*depth, *side), None
    if not turned:
        # Copied along the depth, whose steps are across: they lie in different banks.
        *inner, coarse, fine = depth
        axes = (*inner, *side[:-2], coarse, fine, *side[-2:])
        pad = max(ROW_GAP_NBYTES // itemsize(factor.value.dtype), 1)
    return StageFactor(factor.place, axes, pad) if kept else StageInput(factor.slot, axes, pad=pad)


def _follow_rows(plan: GpuPlan, factors: GemmFactors) -> bool:
    """Whether no more columns lie together than a thread has, and behind them rows do."""
    run = 1
    for axis in reversed(plan.by_stride(factors.columns, plan.write)):
        extent = extent_of(axis)
        if plan.write.stride(axis) != run or not isinstance(extent, int):
            break
        run *= extent
    if run > LANES:
        return False
    return any(
        plan.write.stride(axis) == run and index.upper(extent_of(axis)) >= LEAST_FOLLOWED
        for axis in factors.rows
    )


def _tile(
    tiles: Sequence[ThreadTile], groups: int, factors: GemmFactors, target: GpuTarget
) -> ThreadTile:
    """The largest of tiles that leaves enough blocks for the machine, and is not mostly empty.

    Those of few threads leave more. Of those whose threads have most results each, that is taken of
    which the multiprocessor with the most tiles has least to do.
    """
    m, n, _, outside = factors.sizes()
    busy, first = target.busy_blocks, tiles[-1]
    for tile in tiles:
        blocks = outside * tile.covering(m, n)
        threads = blocks * groups * tile.threads
        if blocks >= busy and threads >= busy * BUSY_THREADS and _is_filled(tile, m, n):
            first = tile
            break
    alike = [one for one in tiles if one.rows * one.vectors == MOST_RESULTS // LANES]
    if first not in alike:
        return first
    alike = alike[alike.index(first) :]
    work = {one: _work(one, factors, target.units) for one in alike}
    least = min(work.values())
    return next(one for one in alike if work[one] <= ALIKE * least)


def _work(tile: ThreadTile, factors: GemmFactors, units: int) -> int:
    """What the busiest of multiprocessors does: products, and copies of rows and columns."""
    m, n, _, outside = factors.sizes()
    blocks = -(-outside * tile.covering(m, n) // units)
    return blocks * (tile.m * tile.n + COPY * (tile.m + tile.n))


def _is_filled(tile: ThreadTile, m: int, n: int) -> bool:
    """Whether so many rows and columns are more than half of a tile."""
    return 2 * m > tile.m and 2 * n > tile.n


def _groups(k: int, is_narrow: bool) -> int:
    """Groups of a block's threads that share the summed axis.

    By how long a sum is alone: its bits are the same whatever other results there are.
    """
    least, most = (NARROW_STEPS, MOST_NARROW) if is_narrow else (GROUP_STEPS, MOST_GROUPS)
    return previous_power_of_two(min(max(k // least, 1), most))


def _nbytes_of_group(tile: ThreadTile, factors: GemmFactors, depth: int, slots: int) -> int:
    """Shared memory of a group: its panels, with what lies between rows, and its sums."""
    size = max(itemsize(each.value.dtype) for each in (factors.left, factors.right))
    rows = tile.threads_m + tile.threads_n * tile.vectors
    panels = slots * depth * ((tile.m + tile.n) * size + rows * ROW_GAP_NBYTES)
    return panels + tile.threads * LANES * max(size, 4)
