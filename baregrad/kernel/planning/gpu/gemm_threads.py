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
from baregrad.kernel.instructions.instruction import kept_factors
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


class ThreadTile(NamedTuple):
    """A tile of a block: threads and registers along rows, threads and vectors along columns."""

    threads_m: int
    rows: int
    threads_n: int
    vectors: int

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
DEPTH = 16
TILES = tuple([
    ThreadTile(*sizes)
    for sizes in ((16, 8, 16, 2), (16, 4, 16, 1), (8, 4, 16, 1), (16, 8, 8, 1), (8, 4, 8, 1))
])
# Those of few rows or columns, which each thread has all of, with many more of the other side. A
# convolution 7x7 of 36x232x64x64 to 8 channels took 20.0 ms on an H200 by threads along its sums,
# 2.04 by tiles of 8 x 128 for four groups, 2.22 by 8 x 256 for two, 2.6 without groups.
NARROW = tuple([
    ThreadTile(*sizes)
    for threads in (128, 64, 32)
    for sizes in ((1, 8, threads, 1), (1, 4, threads, 1), (threads, 4, 1, 2), (threads, 4, 1, 1))
])
# Steps of a sum that are worth panels there.
LEAST_NARROW = 64
# Instructions of a copy of some elements that lie together, with what it takes to find their place.
COPY = 6
MOST_GROUPS = 8
# Steps of a loop that is short enough to be written out: one's reads overlap with another's sums.
STEPS = 4
# Panels that are read, or on their way.
SLOTS = 3
MOST_THREADS = 512
# Fewer products than this are not worth a panel.
LEAST_PRODUCTS = 1 << 15
LEAST_SIDE = 16
# Rows whose results lie together, so that threads lie along them: sectors of memory are whole.
LEAST_FOLLOWED = 8
LEAST_DEPTH = 8
# Bytes between rows of a panel, at most.
ROW_GAP_NBYTES = 16


def plan_threads(plan: GpuPlan, factors: GemmFactors) -> bool:
    """Bind a contraction's tiles to threads; False where it is too small."""
    m, n, k, outside = factors.sizes()
    if k < LEAST_DEPTH or m * n * k < LEAST_PRODUCTS:
        return False
    kept = kept_factors(plan.facts) is not None
    plain = all(each.is_plain and len(each.reads) == 1 for each in (factors.left, factors.right))
    if not kept and not (plain and factors.left.slot != factors.right.slot):
        return False
    ahead = plan.target.async_copies
    depth_tile = min(DEPTH, previous_power_of_two(k))
    slots = SLOTS if ahead else 2
    nbytes = plan.target.shared_bytes_per_block
    is_narrow = min(m, n) < LEAST_SIDE
    every = _narrow(plan, factors) if is_narrow else TILES
    room = {each: nbytes // _nbytes_of_group(each, factors, depth_tile, slots) for each in every}
    tiles = [tile for tile in every if room[tile]]
    if not tiles:
        return False
    best = tiles[0] if is_narrow else _tile(tiles, m, n, outside, plan.target.busy_blocks)
    options = [best, *[each for each in tiles if each is not best]]
    tile = plan.pick("thread tile", options, lambda each: f"{each.m}x{each.n}")
    plan.grid(factors.shared)
    rows = plan.joined(plan.by_stride(factors.rows, plan.write))
    columns = plan.joined(plan.by_stride(factors.columns, plan.write))
    depth = plan.joined(factors.depth)
    # Results of one column lie together where those of a row do not: threads follow them.
    follows = tile.threads_n == 1 or _follow_rows(plan, factors)
    own = {"m_t": tile.threads_m, "m_u": tile.rows}
    own = dict(reversed(own.items())) if follows else own
    blocks = outside * tile.covering(m, n)
    most = min(k // (2 * depth_tile), room[tile])
    groups = _groups(tile, blocks, most, plan.target.busy_threads)
    most = min(most, MOST_GROUPS, MOST_THREADS // (tile.threads_m * tile.threads_n))
    groups = plan.pick("groups", powers_from(groups, 1, most))
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


def _narrow(plan: GpuPlan, factors: GemmFactors) -> list[ThreadTile]:
    """Tiles of a product of few rows or columns, that of the least time first; none of few blocks.

    A multiprocessor makes products, and as many copies as its tiles have rows and columns. What
    lies along a long sum is read as well by threads along that, without a copy.
    """
    m, n, k, outside = factors.sizes()
    wide, own = (factors.left, factors.rows) if m > n else (factors.right, factors.columns)
    copy = copy_of(wide, plan.by_stride(own, plan.write), factors.depth, LANES)
    if k < LEAST_NARROW or (copy.lanes == LANES and not copy.turned):
        return []

    def work(tile: ThreadTile) -> int:
        blocks = -(-outside * tile.covering(m, n) // plan.target.units)
        return blocks * (tile.m * tile.n + COPY * (tile.m + tile.n))

    found = [
        tile for tile in NARROW
        if _is_filled(tile, m, n) and outside * tile.covering(m, n) >= plan.target.busy_blocks
    ]
    return sorted(found, key=work)


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


def _tile(tiles: Sequence[ThreadTile], m: int, n: int, outside: int, busy: int) -> ThreadTile:
    """The largest of tiles that leaves `busy` blocks for the machine, and is not mostly empty."""
    for tile in tiles:
        blocks = outside * tile.covering(m, n)
        if blocks >= busy and _is_filled(tile, m, n):
            return tile
    return tiles[-1]


def _is_filled(tile: ThreadTile, m: int, n: int) -> bool:
    """Whether so many rows and columns are more than half of a tile."""
    return 2 * m > tile.m and 2 * n > tile.n


def _groups(tile: ThreadTile, blocks: int, most: int, busy: int) -> int:
    """Groups of a block's threads that share the summed axis, where there are few blocks."""
    threads = tile.threads_m * tile.threads_n
    groups = 1
    while (
        2 * groups <= min(most, MOST_GROUPS)
        and 2 * groups * threads <= MOST_THREADS
        and blocks * threads * groups < busy
    ):
        groups *= 2
    return groups


def _nbytes_of_group(tile: ThreadTile, factors: GemmFactors, depth: int, slots: int) -> int:
    """Shared memory of a group: its panels, with what lies between rows, and its sums."""
    size = max(itemsize(each.value.dtype) for each in (factors.left, factors.right))
    rows = tile.threads_m + tile.threads_n * tile.vectors
    panels = slots * depth * ((tile.m + tile.n) * size + rows * ROW_GAP_NBYTES)
    return panels + tile.threads_m * tile.threads_n * LANES * max(size, 4)
