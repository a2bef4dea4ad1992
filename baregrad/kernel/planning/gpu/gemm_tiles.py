"""Which tile of a product a block computes with its warps' matrix units: a model of their times.

A multiprocessor is busy with products, with its shared memory, or with what comes from the second
cache, whichever takes longest; and a block takes as long as its panels do one after the other, of
which several blocks have some at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import NamedTuple, Protocol

from baregrad.kernel.instructions.mma_sync import M, N
from baregrad.target.gpu import GpuTarget

NBYTES = 2
# Registers of a lane for addresses and the like.
ADDRESSES = 36


class MatrixTile(Protocol):
    """What a block computes: its rows and columns, its warps, and what each lane has of it."""

    @property
    def m(self) -> int:
        """Rows of the block's tile."""

    @property
    def n(self) -> int:
        """Columns of the block's tile."""

    @property
    def warps(self) -> int:
        """Warps of the block."""

    @property
    def tiles_n(self) -> int:
        """Tiles of 8 columns that a lane has parts of, in each of its rows."""

    @property
    def results(self) -> int:
        """Results of a lane."""


class WarpTile(NamedTuple):
    """A block's warps along rows and columns, and the tiles that each warp holds in registers."""

    warps_m: int
    tiles_m: int
    warps_n: int
    tiles_n: int

    @property
    def m(self) -> int:
        """Rows of the block's tile."""
        return self.warps_m * self.tiles_m * M

    @property
    def n(self) -> int:
        """Columns of the block's tile."""
        return self.warps_n * self.tiles_n * N

    @property
    def warps(self) -> int:
        """Warps of the block."""
        return self.warps_m * self.warps_n

    @property
    def results(self) -> int:
        """Results of a lane."""
        return 4 * self.tiles_m * self.tiles_n

    @property
    def registers(self) -> int:
        """Registers of a lane: accumulators, a step's matrices, and addresses."""
        return self.results + 4 * self.tiles_m + 2 * self.tiles_n + ADDRESSES


class Product(NamedTuple):
    """The sizes of a product, how many there are of it, and what is done with each result.

    after: operations on it. written: bytes of it in all outputs. reads: arrays that have an element
    for each result.
    """

    m: int
    n: int
    k: int
    batches: int
    after: int = 0
    written: int = NBYTES
    reads: int = 0


class TileChoice(NamedTuple):
    """A tile, and panels that are under way or read at once."""

    tile: WarpTile
    slots: int
    cycles: float

    def __str__(self) -> str:
        tile = self.tile
        return f"{tile.m}x{tile.n} for {tile.warps_m}x{tile.warps_n} warps, {self.slots} panels"


TILES = tuple([
    WarpTile(*sizes) for sizes in (
        (2, 4, 4, 8), (4, 4, 2, 8), (2, 4, 4, 7), (2, 4, 4, 6), (4, 3, 2, 8), (2, 4, 4, 5),
        (2, 4, 2, 8), (2, 4, 4, 4), (1, 4, 4, 6),
        (2, 4, 2, 4), (2, 2, 2, 8), (4, 2, 2, 4), (2, 2, 4, 4), (2, 2, 2, 4), (4, 2, 1, 4),
        (1, 2, 4, 4), (1, 2, 4, 2), (1, 1, 4, 4), (1, 1, 4, 2), (4, 2, 1, 2), (4, 2, 1, 1),
    )
])  # fmt: skip
MOST_SLOTS = 6
# As many where copies are narrow, if these take no longer.
NARROW_SLOTS = 3
# Cycles of a multiprocessor until a block's first panel is there; until a panel is read, multiplied
# and met for, at least; until what was asked for is there; and what a lane waits for each element
# that it reads for a result, as it asks for some at once.
BEGIN, STEP, LATENCY, READ_WAIT = 500, 250, 900, 30
# What work takes by what it would take without waits: with one panel nothing is under way while
# that is multiplied, with two each is asked for one panel ahead. And how far one kind of work
# delays another.
WAITING = (0.0, 1.6, 1.1)
BESIDE = 0.15
# Lanes of a multiprocessor; instructions of an operation, as the facts of kernels count them.
LANES, INSTRUCTIONS = 128, 3
# Code that a multiprocessor keeps, and about what an operation on one result is of it; what is
# larger comes from the second cache for each tile, and takes so many times as long.
CODE_BYTES, OPERATION_BYTES, FETCHED = 1 << 17, 16, 4
# Tiles of a warp beside each other of which lanes have whole accesses to store; what a result takes
# longer where there are no such.
QUAD, NARROW = 4, 1 / 7
# Tiles of results that warps need in progress for the matrix units to be busy.
BUSY_TILES = 48
WARP = 32
# Elements that a lane may hold of panels to come.
MOST_HELD = 64


def ranked_tiles(
    target: GpuTarget, sizes: Sequence[Product], panel: int, gap: int, words: tuple[bool, bool],
    narrow: bool = False, itemsize: int = NBYTES, parted: bool = False,
) -> list[TileChoice]:  # fmt: skip
    """Tiles and panels that a multiprocessor holds, that of the least time first.

    sizes: that the product may have, the largest first: no tile is best for all (see `expected`).
    gap: elements between the rows of a panel. words: whether copies of both factors go by
    themselves; what others bring waits in registers. narrow: some copies are of less than the
    widest access, and there are as many more. itemsize: bytes of an element of a factor, of which
    the units multiply the more the fewer they are. parted: a panel's sums are registers of their
    own.
    """
    most = MOST_SLOTS if any(words) else 2
    found = [
        TileChoice(tile, slots, cycles)
        for tile in TILES
        for slots in range(1, min(most, -(-sizes[0].k // panel)) + 1)
        if (
            cycles := _all_cycles(target, sizes, tile, slots, panel, gap, words, itemsize, parted)
        ) is not None
    ]
    # Where more slots take no longer they hide more. And where a block has a multiprocessor for
    # itself, they leave no room for a second one, while another multiprocessor has none. But many
    # narrow copies that are under way wait for each other.
    return sorted(found, key=lambda choice: (
        choice.cycles, abs(choice.slots - NARROW_SLOTS) if narrow else -choice.slots,
    ))


def held(tile: MatrixTile, panel: int, words: tuple[bool, bool]) -> int:
    """Elements of a panel that wait in a lane's registers."""
    waiting = tile.m * (not words[0]) + tile.n * (not words[1])
    return waiting * panel // (WARP * tile.warps)


def panel_nbytes(tile: WarpTile, panel: int, gap: int, itemsize: int = NBYTES) -> int:
    """Bytes of a panel of both factors, whichever way they lie."""
    return itemsize * (max(tile.m * (panel + gap), panel * (tile.m + gap))
                     + max(tile.n * (panel + gap), panel * (tile.n + gap)))  # fmt: skip


def expected(sizes: Sequence[Product], times: Iterable[float | None]) -> float | None:
    """What a product takes that may have these sizes; None where the time of one is not known.

    Each length up to a bound is as likely, so that few are much shorter: a size counts by what
    there is to multiply.
    """
    most = prod(sizes[0][:4])
    total = 0.0
    for size, time in zip(sizes, times, strict=True):
        if time is None:
            return None
        total += time * prod(size[:4]) / most
    return total


def _all_cycles(
    target: GpuTarget, sizes: Sequence[Product], tile: WarpTile, slots: int, panel: int, gap: int,
    words: tuple[bool, bool], itemsize: int, parted: bool,
) -> float | None:  # fmt: skip
    """What products of these sizes take; None where no multiprocessor holds the tile."""
    times = [
        _cycles(target, size, tile, slots, panel, gap, words, itemsize, parted) for size in sizes
    ]
    return expected(sizes, times)


def _cycles(
    target: GpuTarget, size: Product, tile: WarpTile, slots: int, panel: int, gap: int,
    words: tuple[bool, bool], itemsize: int, parted: bool,
) -> float | None:  # fmt: skip
    """What a product takes with a tile; None where a multiprocessor does not hold the tile."""
    nbytes = slots * panel_nbytes(tile, panel, gap, itemsize)
    registers = tile.registers + tile.results * parted
    if slots > 1:
        waiting = held(tile, panel, words)
        if waiting > MOST_HELD:
            return None
        registers += waiting
    resident = target.resident_blocks(tile.warps, registers, nbytes)
    if not resident:
        return None
    each = -(-blocks_of(size, tile) // target.units)
    here = min(resident, each)
    panels = -(-size.k // panel)
    steps = panels * panel
    # What lies past an edge is not read.
    moved = itemsize * (min(tile.m, size.m) + min(tile.n, size.n)) * steps
    in_progress = here * tile.warps * tile.tiles_m * tile.tiles_n
    most = target.warp_macs_per_cycle * NBYTES / itemsize
    rate = most * min(1.0, in_progress / BUSY_TILES)
    multiplied = tile.m * tile.n * steps / rate
    read = itemsize * tile.warps * (M * tile.tiles_m + N * tile.tiles_n) * steps
    under_way = here * max(slots - 1, 0.5) * moved / panels
    brought = moved / min(target.cache_bytes_per_cycle, under_way / LATENCY)
    work = (multiplied, (read + moved) / target.shared_bytes_per_cycle, brought)
    busy = max(work) + BESIDE * sum(work)
    if slots < min(panels, len(WAITING)):
        busy *= WAITING[slots]
    # What is before and after a tile's sums runs beside another block's, where there is one.
    ends = (BEGIN + cycles_after(target, size, tile)) * (0.5 if here > 1 else 1.0)
    turns = -(-each // resident)
    return max(each * (busy + ends), turns * panels * STEP)


def blocks_of(size: Product, tile: MatrixTile) -> int:
    """Blocks that compute a tile each."""
    return size.batches * -(-size.m // tile.m) * -(-size.n // tile.n)


def cycles_after(target: GpuTarget, size: Product, tile: MatrixTile) -> float:
    """Cycles of what follows a tile's sums: operations on them, reads for them, and stores."""
    return operation_cycles(size, tile) + store_cycles(target, size, tile)


def operation_cycles(size: Product, tile: MatrixTile) -> float:
    """Cycles of operations on a tile's sums, and of waits for what is read for them."""
    area = tile.m * tile.n
    operations = area * size.after * INSTRUCTIONS / LANES
    if tile.results * size.after * OPERATION_BYTES > CODE_BYTES:
        operations *= FETCHED
    if tile.tiles_n % QUAD:
        operations += NARROW * area
    return operations + READ_WAIT * size.reads * tile.results


def store_cycles(target: GpuTarget, size: Product, tile: MatrixTile) -> float:
    """Cycles that memory takes for a tile's results, and for what is read for them."""
    bytes_per_cycle = target.memory_bytes_per_ns / (target.units * target.cycles_per_ns)
    return tile.m * tile.n * (size.written + NBYTES * size.reads) / bytes_per_cycle
