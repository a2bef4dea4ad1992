"""The schedule of a stream over keys: how many rows a block has, and how many keys pass it."""

from __future__ import annotations

from dataclasses import replace

from baregrad.ir.core import index
from baregrad.ir.core.node import Node, extent_of
from baregrad.ir.core.op import mask_of
from baregrad.kernel.facts.stream_facts import POWERS, StreamFacts, stream_facts
from baregrad.kernel.instructions import wgmma
from baregrad.kernel.instructions.mma_sync import M
from baregrad.kernel.language.schedule import Schedule, StreamTiles
from baregrad.kernel.planning.common.decisions import Decisions, powers_from
from baregrad.kernel.planning.common.tiling import Reason
from baregrad.target.gpu import GpuTarget

# Warps of a block, and how many a search tries.
WARPS, MOST_WARPS = 4, 8
# Of two tiles of rows a warp loads each fragment of keys once; wider results leave no registers.
WIDEST_OF_TWO = 128
# Registers of scores and results that a thread may hold beside all else, and where weights are made
# of two products, which need no maxima of rows.
MOST_HELD, MOST_OF_GRADIENTS = 160, 192
# Keys that pass at a time, and the bytes apart from which rows lie in shared memory.
KEYS = (64, 32, 16)
# Groups of warps: how many a block has, their keys, and the registers that a thread may hold, also
# where scores are made ahead.
GROUPS, KEYS_OF_GROUPS, MOST_OF_GROUPS, MOST_AHEAD = 2, (128, 64, 32), 160, 224
# The most keys, and numbers of scores and results for a row, of two blocks of a multiprocessor.
TURNS_OF_KEYS, TURNS_HELD = 64, 192
APART = 16
SLOTS = 2


def plan_stream(
    kernel: Node, target: GpuTarget, decisions: Decisions | None = None
) -> tuple[Schedule, tuple[Reason, ...]] | None:
    """The schedule of a prepared KERNEL that is one stream, and why; None where it is none."""
    facts = stream_facts(kernel) if kernel.mask & mask_of(POWERS) else None
    if facts is None or (facts.products[0].left.dtype.name, M) not in target.warp_products:
        return None
    rows = 1 if facts.row is None else index.upper(extent_of(facts.row))
    wide = 0 if facts.column is None else facts.widths[-1]
    # Where all factors of a tile of sums are copied anew, more warps share them.
    first = min(WARPS if facts.over is None else MOST_WARPS, -(-rows // M))
    held = wide * max(1, len(facts.values))
    # Sums for each row and key are as many as there are scores.
    sums = len(facts.products) + (facts.over is not None)
    is_one = held > WIDEST_OF_TWO or rows <= WARPS * M or facts.over is not None
    is_gradient = len(facts.products) > 1 and held > 0
    most = MOST_OF_GRADIENTS if is_gradient else MOST_HELD
    # Of what is widened as it is read, threads wait for loads: more blocks ask for more at once.
    waits = facts.is_widened
    found = _of_groups(facts, target, rows) + [
        StreamTiles(warps, tiles, keys)
        for warps in powers_from(first, 1, min(MOST_WARPS, -(-rows // M)))
        for tiles in ((1,) if is_one else (2, 1))
        for keys in KEYS[waits or (is_gradient and tiles > 1) :]
        if tiles * (held + keys * sums) // 2 <= most
        and _shared_nbytes(facts, warps * tiles * M, keys) <= target.shared_bytes_per_block
    ]
    if not found:
        return None
    step = (decisions or Decisions()).pick("stream", found)
    groups = step.instruction == wgmma.INSTRUCTION
    text = "a stream: blocks of {} rows for {}, keys pass {} at a time"
    who, each = ("groups of warps", wgmma.M) if groups else ("warps", M)
    return Schedule((step,)), ((text, step.warps * step.tiles * each, who, step.keys),)


def _of_groups(facts: StreamFacts, target: GpuTarget, rows: int) -> list[StreamTiles]:
    """Blocks of groups of four warps, where a machine has such and they have enough rows."""
    if rows < wgmma.M or not wgmma.has_groups(target, facts.products[0].left.dtype):
        return []
    if not wgmma.suits_stream(facts):
        return []
    held = facts.widths[-1] * len(facts.values)
    is_gradient = len(facts.products) > 1 and held > 0
    most = MOST_AHEAD if is_gradient else MOST_OF_GROUPS
    # Blocks of one group of those with most registers take turns by themselves.
    groups = 1 if len(facts.values) > 1 else min(GROUPS, rows // wgmma.M)
    found = [
        StreamTiles(groups, 1, keys, wgmma.INSTRUCTION) for keys in KEYS_OF_GROUPS[is_gradient:]
        if _shared_nbytes(facts, groups * wgmma.M, keys) <= target.shared_bytes_per_block
    ]
    # Powers have registers of their own then, and so do those that are multiplied.
    ahead = [replace(one, ahead=1) for one in found
             if wgmma.goes_ahead(facts) and held // 2 + one.keys + one.keys // 4 <= MOST_AHEAD]
    # What is multiplied as it is rounded has words beside its numbers.
    words = len(facts.values) if is_gradient else 0
    plain = [one for one in found if words * one.keys // 4
             + (held + one.keys * len(facts.products)) // 2 <= most]
    order = sorted(ahead + plain, key=lambda one: (-one.keys, -one.ahead))
    if is_gradient:
        return order
    # Two blocks of few registers overlap by themselves what one does by skew.
    room = TURNS_OF_KEYS if held + TURNS_OF_KEYS <= TURNS_HELD else 0
    return sorted(order, key=lambda one: one.ahead > 0 or one.keys > room)


def _shared_nbytes(facts: StreamFacts, rows: int, keys: int) -> int:
    """What a block keeps of its rows, of keys and of values, at most."""
    widths = [width * facts.products[0].left.dtype.itemsize + APART for width in facts.widths]
    count = len(facts.products)
    values = sum(widths[count:]) * len(facts.values)
    slots = 1 if facts.over is None else SLOTS
    return slots * rows * sum(widths[:count]) + SLOTS * keys * (sum(widths[:count]) + values)
