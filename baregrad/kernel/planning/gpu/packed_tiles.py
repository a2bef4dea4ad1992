"""Which tile of a product a block computes where one factor is unpacked for it: a model of times.

Words wait in registers while the panel before them is multiplied, and only one panel ahead is under
way. So a block takes as long as its panels' words take to come, one panel after the other, and long
panels are worth as much as many blocks beside each other. What is unpacked for a tile is unpacked
again for each other tile of its rows: tiles have all rows where these are few.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import ELEMENTWISE, Ops, mask_of
from baregrad.kernel.planning.gpu.gemm_factors import Factor
from baregrad.kernel.planning.gpu.gemm_tiles import (
    BEGIN,
    LANES,
    LATENCY,
    MOST_HELD,
    NBYTES,
    STEP,
    Product,
    WarpTile,
    blocks_of,
    cycles_after,
    expected,
    held,
    panel_nbytes,
)
from baregrad.target.gpu import GpuTarget

_ELEMENTWISE = mask_of(ELEMENTWISE)
PANELS = (64, 128, 256)
SLOTS = (2, 3)
# Elements that a lane unpacks together, and instructions of each beside its operations: they share
# loads and stores.
CHUNK, BESIDE = 4, 2


class UnpackedChoice(NamedTuple):
    """A tile, panels that are under way or read at once, and the steps of each."""

    tile: WarpTile
    slots: int
    cycles: float
    panel: int

    def __str__(self) -> str:
        tile = self.tile
        return (
            f"{tile.m}x{tile.n} for {tile.warps_m}x{tile.warps_n} warps, "
            f"{self.slots} panels of {self.panel}"
        )


TILES = tuple([
    WarpTile(*sizes) for sizes in (
        (1, 1, 4, 1), (1, 1, 4, 2), (1, 1, 8, 1), (1, 1, 8, 2), (1, 1, 8, 4),
        (2, 1, 2, 2), (2, 1, 4, 1), (2, 1, 4, 2), (2, 1, 4, 4),
        (4, 1, 1, 2), (4, 1, 1, 4), (4, 1, 2, 2), (4, 1, 2, 4), (4, 1, 2, 8),
        (4, 2, 1, 4), (4, 2, 2, 4), (4, 2, 2, 8), (8, 2, 1, 4), (4, 4, 2, 4), (4, 4, 2, 8),
    )
])  # fmt: skip


def operations_of(factor: Factor, near: Node) -> float:
    """Operations that make an element of what lies packed in words; 0 where nothing is.

    near: the axis whose neighbours a lane makes together, which share what it does to a word.
    """
    if not any(read.array.dtype.kind == "uint" for read in factor.reads):
        return 0.0
    made = [
        node for node in toposort(factor.value)
        if node.op.bit & _ELEMENTWISE and node.mask & Ops.INDEX.bit and node.op is not Ops.BITCAST
    ]
    return sum([1.0 if near in node.ranges else 1.0 / CHUNK for node in made])


def ranked_unpacked(
    target: GpuTarget, sizes: Sequence[Product], operations: tuple[float, float], gap: int,
    words: tuple[bool, bool],
) -> list[UnpackedChoice]:
    """Tiles and panels that a multiprocessor holds, that of the least time first.

    operations: that make an element of each factor. The others are as of `ranked_tiles`.
    """
    found = []
    for tile in TILES:
        for panel in PANELS:
            if sizes[0].k % panel:
                continue
            for slots in SLOTS:
                if slots * panel > sizes[0].k:
                    continue
                times = [
                    _cycles(target, size, tile, slots, panel, operations, gap, words)
                    for size in sizes
                ]
                time = expected(sizes, times)
                if time is not None:
                    found.append(UnpackedChoice(tile, slots, time, panel))
    return sorted(found, key=lambda choice: choice.cycles)


def _cycles(
    target: GpuTarget, size: Product, tile: WarpTile, slots: int, panel: int,
    operations: tuple[float, float], gap: int, words: tuple[bool, bool],
) -> float | None:
    """What a product takes with a tile; None where a multiprocessor does not hold the tile."""
    waiting = held(tile, panel, words)
    if waiting > MOST_HELD:
        return None
    nbytes = slots * panel_nbytes(tile, panel, gap)
    resident = target.resident_blocks(tile.warps, tile.registers + waiting, nbytes)
    if not resident:
        return None
    each = -(-blocks_of(size, tile) // target.units)
    panels = -(-size.k // panel)
    unpacked = sum([
        side * panel * (count + BESIDE) / LANES
        for side, count in zip((tile.m, tile.n), operations, strict=True) if count
    ])  # fmt: skip
    multiplied = tile.m * tile.n * panel / target.warp_macs_per_cycle
    moved = NBYTES * panel * (min(tile.m, size.m) + min(tile.n, size.n))
    # Rows of panels that several tiles read come from the second cache.
    busy = max(unpacked + multiplied, moved / target.cache_bytes_per_cycle)
    alone = LATENCY + STEP + unpacked + multiplied
    turns = -(-each // resident)
    ends = BEGIN + cycles_after(target, size, tile)
    return panels * max(turns * alone, each * busy) + turns * ends
