"""Schedules of contractions of 16-bit floats on GPUs: a warp's matrix unit does a tile at once.

Panels of 64 steps come by asynchronous copies some iterations ahead. They lie as the inputs do, so
that copies take 16 bytes; rows are swizzled, or padded where steps are across them, so that
matrices are read without bank conflicts.
"""

from __future__ import annotations

from typing import NamedTuple

from baregrad.ir.core.node import Node, extent_of
from baregrad.kernel.facts.analysis import ArrayAccess
from baregrad.kernel.instructions.mma_sync import INSTRUCTION, M, N, operand_of
from baregrad.kernel.language.schedule import Bind, Pipeline, Split, StageInput, Tensorize
from baregrad.kernel.planning.gpu.gemm_factors import GemmFactors
from baregrad.kernel.planning.gpu.gpu_plan import GpuPlan


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


TILES = (WarpTile(2, 4, 4, 4), WarpTile(2, 2, 2, 4))
# Steps of a panel: as many 16-bit floats as reach all banks, and of an instruction.
PANEL, DEPTH = 64, 16
LEAST_SIDE = 64
# Elements that one copy takes: 16 bytes.
CHUNK = 8
MOST_SLOTS = 3


def plan_matrix(plan: GpuPlan, factors: GemmFactors) -> bool:
    """Give a contraction to matrix units; False where it is none of theirs."""
    dtype = operand_of(plan.facts)
    if not plan.target.async_copies or dtype is None:
        return False
    if (dtype.name, DEPTH) not in plan.target.warp_products:
        return False
    sides = (factors.rows, factors.columns, factors.depth)
    if any(len(axes) != 1 for axes in sides):
        return False
    rows, columns, depth = (axes[0] for axes in sides)
    m, n, k, outside = factors.sizes()
    if min(m, n) < LEAST_SIDE or k < PANEL:
        return False
    reads = (factors.left, factors.right)
    across = [_across(read, own, depth) for read, own in zip(reads, (rows, columns), strict=True)]
    if None in across:
        return False
    busy = plan.target.busy_blocks
    tile = next((t for t in TILES if outside * -(-m // t.m) * -(-n // t.n) >= busy), TILES[-1])
    plan.grid(factors.shared)
    name = plan.name
    parts = (
        (name(rows), (("m_o", 0), ("m_w", tile.warps_m), ("m_u", tile.tiles_m), ("m_i", M))),
        (name(columns), (("n_o", 0), ("n_w", tile.warps_n), ("n_u", tile.tiles_n), ("n_i", N))),
        (name(depth), (("k_o", 0), ("k_u", PANEL // DEPTH), ("k_i", DEPTH))),
    )
    plan.steps.extend(Split(axis, each, "", True) for axis, each in parts)
    units = {"m_o": "grid", "n_o": "grid", "m_w": "thread_z", "n_w": "thread_y",
             "m_u": "unroll", "n_u": "unroll"}  # fmt: skip
    plan.steps.extend(Bind(axis, unit) for axis, unit in units.items())
    plan.steps.append(Tensorize(("m_i", "n_i", "k_i"), INSTRUCTION))
    for read, side, turned in zip(reads, "mn", across, strict=True):
        own, steps = (f"{side}_w", f"{side}_u", f"{side}_i"), ("k_u", "k_i")
        slot = read.array.arg.slot
        if turned:
            plan.steps.append(StageInput(slot, (*steps, *own), pad=CHUNK))
        else:
            plan.steps.append(StageInput(slot, (*own, *steps), swizzle=3))
    slots = _slots(plan, tile, k)
    if slots > 1:
        plan.steps.append(Pipeline("k_o", slots, "async"))
    return True


def _slots(plan: GpuPlan, tile: WarpTile, k: int) -> int:
    """Panels that are under way or read at once, as room allows."""
    # Rows may have a chunk between them.
    nbytes = 2 * (tile.m + tile.n) * (PANEL + CHUNK)
    room = plan.target.shared_bytes_per_block // nbytes
    return min(MOST_SLOTS, room, -(-k // PANEL))


def _across(read: ArrayAccess, own: Node, depth: Node) -> bool | None:
    """Whether a factor's neighbours lie along its own axis; None for what no copy takes whole."""
    if read.guarded or read.offset.rest:
        return None
    near = [axis for axis in (depth, own) if read.stride(axis) == 1]
    others = [stride for axis, stride in read.offset.strides.items() if axis not in near[:1]]
    if not near or any(size % CHUNK for size in (read.offset.constant, *others)):
        return None
    extent = extent_of(near[0])
    if not isinstance(extent, int) or extent % (DEPTH if near[0] is depth else M):
        return None
    return near[0] is own
