"""Which tile of a product a block computes by groups of four warps, whose matrix unit runs alone.

What it multiplies costs the threads nothing, and its results are the only registers it needs. So a
block has few warps and large tiles, and a multiprocessor is busy with products or with what comes
from the second cache, whichever takes longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from baregrad.base.bits import round_down, round_up
from baregrad.dtypes import DType
from baregrad.kernel.gpu.pipelines import FEW_SLOTS
from baregrad.kernel.instructions.wgmma import (
    PANEL,
    ROW_NBYTES,
    STEPS_NBYTES,
    WARPS,
    M,
    adds_apart,
    row_of,
)
from baregrad.kernel.language.schedule import Roles
from baregrad.kernel.planning.gpu.gemm_tiles import (
    LANES,
    MOST_HELD,
    Product,
    blocks_of,
    cycles_after,
    expected,
    held,
    operation_cycles,
    store_cycles,
)
from baregrad.target.gpu import LEAST_AT_LAUNCH, LEAST_BESIDE, GpuTarget

MOST_SLOTS = 6
# Bytes of what counts the phases of slots, as far as the next array.
PHASES_NBYTES = 1024
# Cycles of a multiprocessor until a block's first panel is there, and until what was asked for is;
# how far one kind of work delays another; bytes that the second cache gives for each that it would
# give alone, where neighbours read the same.
BEGIN, LATENCY, BESIDE, SHARED = 1500, 1000, 0.1, 1.6
# As much for boxes of tens of kilobytes, while all multiprocessors ask for theirs: of rings of two
# slots products of 128 x 256 took 1.6 times what they took of rings of three.
BOX_LATENCY = 1700
# Cycles from the last product of a block's tile to the first one of the next.
BETWEEN = 1000
# Groups that are done with a box's slot at about the same time. On an H200 4,096 cubed with a bias
# and a gelu took four groups 201 us by three slots and 181 by four, two 184 and 181; teams, of
# which one begins while the other ends, 198 us by four slots of 128 x 128 and 186 by five.
IN_STEP = 2
# Beside threads that copy, those that only multiply take so many cycles less from a tile to the
# next one. On an H200 sums of 1,024, 4,096 and 8,192 were made at 1.04, 1.03 and 1.08 of the rate,
# by turns in one process. Results that left through shared memory there, while the next tile came,
# cost 2 to 4 % in each of them.
BOX_GAIN = 1000
# Tiles that take but so much longer than the fastest may be larger, and ask less of the second
# cache: 8-bit floats of 8,192 cubed took 0.92 of the time with 256 x 128 in place of 128 x 192,
# which are 0.99 of it here.
NEAR = 1.02
# Boxes that seem to take but so much longer than copies by threads are taken: 1x1 convolutions of
# 64x256x56x56 took 66 us by them on an H200 and 80 us without, which are 1.02 of each other here.
BOX_NEAR = 1.05
# What operations on results take of what they take by themselves, in blocks of many warps; in those
# of so many it is twice that.
OPERATIONS, FEW_WARPS = 0.6, 4
# Cycles of the narrowest instruction for 16 rows that are read of shared memory, and what of the
# rate is left then for columns.
LEAST_CYCLES, COLUMNS_PER_CYCLE = 16, 4


# Warps that copy, of which one does: registers change hands among four. What each of their threads
# keeps.
COPIERS, COPIER_REGISTERS = 4, 40
# Of tiles that are cut: cycles until a block knows of another one's sums, of so many bytes each;
# and what all that takes of it, as blocks at other panels share less. On an H200 it was up to 1.19:
# of 1,536 x 1,536 sums of 16,384 126 us in tiles of 256 columns, where whole ones of 192 took 137;
# of 5,120 x 1,280 sums of 20,480 399 for 423; but of 768 x 2,304 102 for 94. More parts of a tile
# are read one after the other.
JOIN_LATENCY, SUM_NBYTES, CUT, MOST_PARTS = 1500, 4, 1.19, 2
# Blocks that run together.
PAIR = 2
# What memory takes for a tile's results, of what the products take, from which on pairs of blocks
# that share columns are faster. On an H200 8,192 x 8,192 sums of 1,024 took 201 us in pairs and 207
# apart, those of 2,048 373 and 379, those of 8,192 1,434 and 1,418, 4,096 cubed 184 and 181: shares
# of 0.28, 0.14, 0.03 and 0.07. Pairs along columns gained nothing there.
STORED = 0.1


class GroupTile(NamedTuple):
    """A block's groups of warps along rows and columns; tiles of 64 rows, and columns, of each."""

    groups_m: int
    tiles_m: int
    groups_n: int
    columns: int

    @property
    def m(self) -> int:
        """Rows of the block's tile."""
        return self.groups_m * self.tiles_m * M

    @property
    def n(self) -> int:
        """Columns of the block's tile."""
        return self.groups_n * self.columns

    @property
    def warps(self) -> int:
        """Warps of the block."""
        return WARPS * self.groups_m * self.groups_n

    @property
    def tiles_n(self) -> int:
        """Tiles of 8 columns of each group."""
        return self.columns // 8

    @property
    def results(self) -> int:
        """Results of a lane."""
        return self.tiles_m * self.columns // 2


class Parted(NamedTuple):
    """Blocks that a multiprocessor holds, 0 for too big; registers of those who copy and others.

    The registers are 0 where those who multiply would have no more than at launch.
    """

    blocks: int
    copies: int = 0
    products: int = 0

    def step(self, warps: int) -> Roles:
        """What a schedule says of a block in which so many warps multiply."""
        return Roles((COPIERS, self.copies), (warps, self.products))


class GroupChoice(NamedTuple):
    """A tile, panels that are under way or read at once, and blocks of a multiprocessor.

    boxes: whether an engine copies the panels, for a warp of its own. teams: sets of a block's
    threads, each of which has a tile. parted: how warps are parted for boxes. cut: whether the
    tiles of the last round are cut along the sums.
    """

    tile: GroupTile
    slots: int
    cycles: float
    resident: int
    boxes: bool = False
    teams: int = 1
    parted: Parted = Parted(0)
    cut: bool = False

    def __str__(self) -> str:
        tile, teams = self.tile, f" of {self.teams} teams" if self.teams > 1 else ""
        groups = f"{tile.groups_m}x{tile.groups_n} groups{teams}"
        cut = ", the last ones cut" if self.cut else ""
        return f"{tile.m}x{tile.n} for {groups}, {self.slots} panels{cut}"


TILES = tuple([
    GroupTile(*sizes) for sizes in (
        (2, 1, 1, 256), (2, 1, 2, 128), (2, 2, 1, 128), (2, 1, 1, 192), (2, 1, 1, 128),
        (1, 1, 2, 128), (2, 1, 1, 64), (1, 1, 1, 256), (1, 1, 1, 128), (1, 1, 1, 64), (1, 1, 2, 64),
    )
])  # fmt: skip
# Those of boxes, whose columns need be no whole panels of shared memory: of more widths there
# mostly is one that keeps all blocks busy to the end, with the same bits. Where columns lie across
# the sums, boxes are whole panels nevertheless, of which the last is read in part. Along them, on
# an H200 1,536 x 1,536 sums of 8,192 took 67 us without these and 56 with them, 2,560 cubed 57 and
# 50, 1,792 x 1,792 sums of 7,168 79 and 66. Parts of the depth, stored and added up, took longer
# than the whole.
FREE_TILES = tuple([
    GroupTile(2, 1, 1, columns) for columns in (240, 224, 208, 176, 160, 144, 112, 96)
])  # fmt: skip
# As many where columns lie across the sums: boxes are whole panels then, of which the last is read
# in part, and rows of them that begin inside lines come slower. So they are of use where factors
# are larger than a share of the second cache, which whole panels wait for, too: on an H200 1,536 x
# 1,536 sums of 8,192 took 71 us in whole panels and 67 so, 768 x 3,072 71 and 66, 1,280 x 2,048 73
# and 68, 1,792 x 1,792 of 7,168 82 and 77, 2,560 cubed 60 and 56; but 1,536 x 3,072 sums of 2,304
# 34 and 40. Widths of 144, 176 and 208 took longer than 160, 192 and 224, and 96 longer than 128.
ACROSS_TILES = tuple([tile for tile in FREE_TILES if tile.columns in (224, 160)])
FROM_MEMORY = 0.5
# Those of a team.
TEAM_TILES = tuple([
    GroupTile(*sizes) for sizes in ((1, 2, 1, 128), (2, 1, 1, 128), (1, 1, 1, 256))
])  # fmt: skip


def ranked_groups(
    target: GpuTarget, sizes: Sequence[Product], words: tuple[bool, bool], dtype: DType,
    boxes: bool = False, asked: tuple[bool, bool] = (False, False), teams: int = 1,
    whole: int = 0, cut: bool = False,
) -> list[GroupChoice]:  # fmt: skip
    """Tiles and panels that a multiprocessor holds, that of the least time first.

    sizes, words: as of `ranked_tiles`. dtype: that of the factors. boxes: as of `GroupChoice`.
    teams: of several each has a tile, and none multiplies before another is done with that. There
    are none for sums of fewer panels than a whole ring: a convolution 1x1 of 64x256x56x56, of four
    panels, took 71 us by them on an H200 and 64 without.
    whole: columns that boxes have multiples of, where those of tiles need be none; else 0.
    cut: whether tiles may be cut between blocks.
    asked: which factors' chunks have conditions: of tiles that take as long those with fewer of
    them come first. A convolution 3x3 of 64x256x56x56 took 325 us on an H200 by 128 places of the
    image and 256 filters, 333 by 256 and 128, on an H100 326 and 340.
    """
    panels = -(-sizes[0].k // row_of(dtype))
    if teams > 1 and panels < MOST_SLOTS:
        return []
    # There is no ring of one panel.
    boxes = boxes and panels > 1
    if boxes:
        # Whatever else threads would do to elements on their way.
        words = True, True
    most = min(MOST_SLOTS if any(words) else 2, panels)
    found = []
    tiles = TILES
    if boxes and whole:
        tiles += _free_tiles(target, sizes[0], dtype, whole)
    for tile in tiles if teams == 1 else TEAM_TILES:
        for slots in range(1 if most == 1 else 2, most + 1):
            how = _Copied(slots, words, dtype, boxes, teams, max(whole, 1))
            times = [_cycles(target, size, tile, how) for size in sizes]
            time = expected(sizes, times)
            if time is None:
                continue
            resident, roles = _resident(target, tile, how)
            found.append(GroupChoice(tile, slots, time, resident, boxes, teams, roles))
            less = _cut_cycles(target, sizes[0], tile, how) if cut and resident == 1 else None
            if less is not None:
                found.append(found[-1]._replace(cycles=less, cut=True))
    return sorted(found, key=lambda one: (
        *_order(one), one.tile.m * asked[0] + one.tile.n * asked[1],
    ))  # fmt: skip


def _free_tiles(
    target: GpuTarget, size: Product, dtype: DType, whole: int
) -> tuple[GroupTile, ...]:
    """Tiles of no whole panels; boxes have multiples of `whole` columns."""
    if whole < PANEL:
        return FREE_TILES
    nbytes = size.batches * (size.m + size.n) * size.k * dtype.itemsize
    return ACROSS_TILES if nbytes >= FROM_MEMORY * target.cache_bytes else ()


def pairs_that_pay(
    target: GpuTarget, size: Product, tile: GroupTile, dtype: DType
) -> tuple[int, int]:
    """Blocks along rows and columns that take less time if they run together and share boxes.

    That is known of results that the second cache does not hold, of tiles that are longer along one
    side: that side's box is shared. Sums of parts ask the second cache unevenly, whatever they
    take: 8-bit floats of 8,192 cubed took 893 us in pairs along columns on an H200 and 912 apart,
    scaled by blocks 914 and 956.
    """
    if size.m * size.n * size.batches * size.written <= target.cache_bytes:
        return 1, 1
    panels = -(-size.k // row_of(dtype))
    stored = store_cycles(target, size, tile)
    if tile.n > tile.m and stored > STORED * panels * _cycles_of_panel(tile):
        return PAIR, 1
    return (1, PAIR) if tile.m > tile.n and adds_apart(dtype) else (1, 1)


def _order(choice: GroupChoice) -> tuple[float, int]:
    # More slots than the model asks for: on an H200 products of 4,096 and 2,048 cubed took 1 % less
    # with four than with three, of 1,024 cubed 4 % less with six than with five.
    return choice.cycles, -choice.slots


def larger_first(ranked: list[Any]) -> list[Any]:
    """Choices that are ranked by time; of boxes, the largest tile among those near the fastest."""
    near = [one for one in ranked if isinstance(one, GroupChoice) and one.boxes]
    if not near or near[0].cycles > BOX_NEAR * ranked[0].cycles:
        return ranked
    most = NEAR * near[0].cycles
    first = min(
        (one for one in near if one.cycles <= most),
        key=lambda one: (one.cut, 1 / one.tile.m + 1 / one.tile.n, *_order(one)),
    )
    return [first, *(one for one in ranked if one is not first)]


class _Copied(NamedTuple):
    """How panels come: how many at once, which factors by words, of a dtype, or all as boxes.

    teams: of threads that read them in turns. whole: columns of which multiples come.
    """

    slots: int
    words: tuple[bool, bool]
    dtype: DType
    boxes: bool
    teams: int = 1
    whole: int = 1


def _resident(target: GpuTarget, tile: GroupTile, how: _Copied) -> tuple[int, Parted]:
    """Blocks that a multiprocessor holds at once, 0 for none; how the warps of each are parted."""
    dtype = how.dtype
    waiting = held(tile, row_of(dtype), how.words) if how.slots > 1 else 0
    if waiting > MOST_HELD:
        return 0, Parted(0)
    phases = (how.boxes + (how.teams > 1)) * PHASES_NBYTES
    nbytes = how.slots * ROW_NBYTES * (tile.m + round_up(tile.n, how.whole)) + phases
    # Sums of a panel's own are those of 64 rows at a time.
    results = tile.results + (tile.columns // 2 if adds_apart(dtype) else 0)
    if not how.boxes:
        found = target.blocks_of_groups(tile.warps, results + waiting, nbytes)
        return found, Parted(found)
    roles = parted(target, how.teams * tile.warps, results + waiting, nbytes)
    return min(roles.blocks, 1) if how.teams > 1 else roles.blocks, roles


def parted(target: GpuTarget, warps: int, kept: int, shared_bytes: int) -> Parted:
    """How blocks are parted in which `warps` warps multiply, and others copy for them.

    Copiers leave all but a few registers to the others, for each of their threads. kept: registers
    of a thread that products take. As many blocks as have room: one stores, others multiply.
    """
    total = warps + COPIERS
    for blocks in range(target.resident_blocks(total, 1, shared_bytes), 0, -1):
        given = target.registers_at_launch(blocks * total * target.warp_lanes)
        left = (given * total - COPIER_REGISTERS * COPIERS) // warps
        others = round_down(min(left, max(target.register_shift, default=0)), 8)
        enough = max(given, others) >= kept + LEAST_BESIDE
        if enough and (blocks == 1 or given >= kept + LEAST_AT_LAUNCH):
            changes = COPIER_REGISTERS < given < others
            return Parted(blocks, COPIER_REGISTERS, others) if changes else Parted(blocks)
    return Parted(0)


def _cycles_of_panel(tile: GroupTile) -> int:
    """What a block's products of a panel take of the matrix unit."""
    groups = tile.groups_m * tile.groups_n
    instructions = groups * tile.tiles_m * ROW_NBYTES // STEPS_NBYTES
    least = LEAST_CYCLES + tile.columns // COLUMNS_PER_CYCLE
    return instructions * max(tile.columns // 2, least)


def _cycles(target: GpuTarget, size: Product, tile: GroupTile, how: _Copied) -> float | None:
    """What a product takes with a tile; None where a multiprocessor does not hold the tile."""
    resident, _ = _resident(target, tile, how)
    if not resident:
        return None
    each = -(-blocks_of(size, tile) // target.units)
    here = min(resident, each)
    teams = how.teams
    if teams > each:
        return None
    busy, gain = _busy(target, size, tile, how, here), BOX_GAIN * how.boxes
    if teams > 1:
        # While one stores another one multiplies; but for the last.
        after = BETWEEN + _cycles_beside(target, size, tile)
        return BEGIN + each * max(busy, (busy + after) / teams) + after
    if here == 1 and each > 1 and resident == 1:
        return each * (busy - gain + BETWEEN + _cycles_beside(target, size, tile))
    ends = (BEGIN - gain + cycles_after(target, size, tile)) * (0.5 if here > 1 else 1.0)
    return each * (busy + ends)


def _cut_cycles(
    target: GpuTarget, size: Product, tile: GroupTile, how: _Copied
) -> float | None:
    """What a product takes if tiles of its last round are cut; None where all blocks are busy."""
    blocks, units = blocks_of(size, tile), target.units
    whole, tiles = divmod(blocks, units)
    if not how.boxes or how.teams > 1 or MOST_PARTS * tiles < units:
        return None
    if tiles * -(-size.k // row_of(how.dtype)) < units:
        return None
    busy = _busy(target, size, tile, how, 1)
    # Parts of tails are stored one after the other by who has them, then read by who has a head.
    stored, read = units / (units - tiles), units / tiles
    each = JOIN_LATENCY + SUM_NBYTES * tile.m * tile.n / target.cache_bytes_per_cycle
    between = BETWEEN - BOX_GAIN + _cycles_beside(target, size, tile)
    last = tiles / units * busy + between + (stored + read) * each
    return BEGIN + whole * (busy + between) + CUT * last


def _busy(
    target: GpuTarget, size: Product, tile: GroupTile, how: _Copied, here: int
) -> float:
    """What the panels of a tile take, of which a multiprocessor has `here` at once."""
    slots, _, dtype, boxes, teams, whole = how
    panels = -(-size.k // row_of(dtype))
    groups = tile.groups_m * tile.groups_n
    # One slot is read; of several a second one may still be.
    late = groups > IN_STEP or teams > 1 if boxes else slots > FEW_SLOTS
    lead = max(slots - 1 - late, 0.5)
    multiplied = _cycles_of_panel(tile)
    if adds_apart(dtype) and groups * here == 1:
        # While threads add up, nobody has the unit.
        multiplied += M * tile.tiles_m * tile.columns // LANES
    moved = ROW_NBYTES * (min(tile.m, size.m) + min(round_up(tile.n, whole), size.n))
    latency = BOX_LATENCY if boxes else LATENCY
    rate = min(SHARED * target.cache_bytes_per_cycle, here * lead * moved / latency)
    work = multiplied, moved / rate
    busy = panels * (max(work) + BESIDE * sum(work))
    if slots < 2 and here == 1:
        # Nothing is multiplied while threads wait, nor brought while it is.
        busy = panels * sum(work)
    return busy


def _cycles_beside(target: GpuTarget, size: Product, tile: GroupTile) -> float:
    """What a tile's results take behind its products, in a block that persists.

    The next tile's first panels come meanwhile, and memory takes results while they are computed.
    """
    operations = OPERATIONS * operation_cycles(size, tile) * (1 + FEW_WARPS / tile.warps)
    return max(operations, store_cycles(target, size, tile))
