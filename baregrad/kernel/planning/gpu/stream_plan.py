"""The schedule of a stream over keys: how many rows a block has, and how many keys pass it."""

from __future__ import annotations

from baregrad.ir.core import index
from baregrad.ir.core.node import Node, extent_of
from baregrad.ir.core.op import Ops
from baregrad.kernel.facts.stream_facts import StreamFacts, stream_facts
from baregrad.kernel.instructions.mma_sync import M
from baregrad.kernel.language.schedule import Schedule, StreamTiles
from baregrad.kernel.planning.common.tiling import Reason
from baregrad.target.gpu import GpuTarget

WARPS = 4
# Of two tiles of rows a warp loads each fragment of keys once; wider results leave no registers.
WIDEST_OF_TWO = 128
# Registers of scores and results that a thread may hold beside all else.
MOST_HELD = 160
# Keys that pass at a time, and the bytes apart from which rows lie in shared memory.
KEYS = (64, 32, 16)
APART = 16
SLOTS = 2


def plan_stream(
    kernel: Node, target: GpuTarget
) -> tuple[Schedule, tuple[Reason, ...]] | None:
    """The schedule of a prepared KERNEL that is one stream, and why; None where it is none."""
    facts = stream_facts(kernel) if kernel.mask & Ops.EXP2_NEAR.bit else None
    if facts is None or (facts.values.dtype.name, M) not in target.warp_products:
        return None
    rows = 1 if facts.row is None else index.upper(extent_of(facts.row))
    tiles = 2 if facts.widths[1] <= WIDEST_OF_TWO and rows > WARPS * M else 1
    warps = min(WARPS, -(-rows // M))
    for keys in KEYS:
        held = tiles * (facts.widths[1] + keys) // 2
        nbytes = _shared_nbytes(facts, warps * tiles * M, keys)
        if held <= MOST_HELD and nbytes <= target.shared_bytes_per_block:
            reason = "a stream: blocks of {} rows, keys pass {} at a time", warps * tiles * M, keys
            return Schedule((StreamTiles(warps, tiles, keys),)), (reason,)
    return None


def _shared_nbytes(facts: StreamFacts, rows: int, keys: int) -> int:
    """What a block keeps of its rows, of keys and of values."""
    deep, wide = (width * facts.values.dtype.itemsize + APART for width in facts.widths)
    return rows * deep + SLOTS * keys * (deep + wide)
