"""The schedule of a stream over keys: how many rows a block has, and how many keys pass it.

Of blocks of groups of four warps it is what takes least time by what three things take: the matrix
unit, whose factors come from shared memory in part; what threads do with each score, and for each
tile of keys; and the copies of keys, which rows of a block share. Of the first two the longer hides
as much of the other as there are blocks to take turns.

The numbers fit 30 kernels that were timed on an H200 (forward and both gradients of 4 x 32 heads of
4,096 keys, 64 and 128 columns, by tiles): they order those of one kernel as their times do.
"""

from __future__ import annotations

from dataclasses import replace
from operator import itemgetter
from typing import NamedTuple

from baregrad.base.bits import next_power_of_two
from baregrad.ir.core import index
from baregrad.ir.core.node import Node, extent_of
from baregrad.ir.core.op import mask_of
from baregrad.ir.core.substitution import substitute
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
# Keys that pass at a time.
KEYS = (64, 32, 16)
# Warps that share keys of few rows, where a multiprocessor holds so many blocks of them, in which
# one begins while another ends.
SHARES, LEAST_BLOCKS, F32_NBYTES = 2, 2, 4
# Groups of warps: how many a block has, and their keys. Registers that a thread of two sums may
# want: the assembler loads what belongs to keys as late as it must.
GROUPS, KEYS_OF_GROUPS, MOST_OF_TWO_SUMS = 2, (128, 64, 32), 288
# Bytes apart from which rows lie in shared memory.
APART = 16
# Keys of the tile that costs are of.
TILE = 64
# Products of 16-bit floats in a clock, and bytes of shared memory.
PRODUCTS, SHARED_BYTES = 2048, 128
# Scores of a thread in that tile, operations of each, and those of a tile of keys of any length.
SCORES, OF_EACH, OF_PRODUCT, OF_VALUES, OF_TILE = 32, 2, 1, 3, 110
# Clocks in which 64 rows get 64 keys of 256 numbers, as far as nothing hides that.
COPIED, NUMBERS = 360, 256
# Registers of a thread beside sums, scores and words; groups of warps that keep a unit busy.
OTHERS, BUSY_GROUPS = 32, 4
# How much of what scores made ahead hide, in blocks, and in what time the groups of a block that is
# alone wait for each other.
AHEAD, ALONE = 0.5, 130


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
    # Of what is widened as it is read, threads wait for loads: more blocks ask for more at once. An
    # H200 decodes from 8-bit floats 1.25 times as fast by 16 keys as by 32. Of those that come by
    # themselves 64 keys leave room for half as many warps, and take registers: 1.02 times as long.
    waits = facts.is_widened(target) * (2 if rows <= M else 1) or bool(facts.octets(target, False))
    # Beside few keys, as of a part of them, others would be copied for nothing.
    keys_at_most = max(next_power_of_two(index.upper(extent_of(facts.key))), KEYS[-1])
    found = _of_groups(facts, target, rows) + [
        StreamTiles(warps, tiles, keys, shares=_shares(facts, target, rows, keys))
        for warps in powers_from(first, 1, min(MOST_WARPS, -(-rows // M)))
        for tiles in ((1,) if is_one else (2, 1))
        for keys in KEYS[waits or (is_gradient and tiles > 1) :]
        if keys <= keys_at_most and tiles * (held + keys * sums) // 2 <= most
        and _shared_nbytes(facts, target, warps * tiles * M, keys) <= target.shared_bytes_per_block
    ]
    if not found:
        return None
    step = (decisions or Decisions()).pick("stream", found)
    groups = step.instruction == wgmma.INSTRUCTION
    text = "a stream: blocks of {} rows for {}, keys pass {} at a time"
    who, each = ("groups of warps", wgmma.M) if groups else ("warps", M)
    own = step.warps * step.tiles * each
    reasons: list[Reason] = [(text, own, who, step.keys)]
    if step.shares > 1:
        reasons.append(("{} warps share the keys of a part", step.shares))
    beside = _beside(facts, target) if rows > own else 1
    if beside > 1:
        step = replace(step, beside=beside)
        reasons.append(("blocks with most keys first, of {} of the batch by turns", beside))
    return Schedule((step,)), tuple(reasons)


def _beside(facts: StreamFacts, target: GpuTarget) -> int:
    """Of how many members of the batch blocks come by turns, where some rows see more keys.

    The blocks that are left at the end see few keys then. All keys that are read meanwhile are to
    fit the second cache.
    """
    if not facts.limits or facts.over is not None:
        return 1
    keys = index.upper(extent_of(facts.key))
    nbytes = keys * sum(facts.widths) * facts.products[0].left.dtype.itemsize
    reads = (*[one.right for one in facts.products], *facts.values)
    found = 1
    for axis in reversed(facts.batch):
        extent = extent_of(axis)
        if not isinstance(extent, int):
            break
        count = extent
        if any(axis in read.ranges for read in reads):
            most = max(target.cache_bytes // nbytes, 1)
            count = max(one for one in range(1, min(extent, most) + 1) if extent % one == 0)
            nbytes *= count
        found *= count
        if count < extent:
            break
    return found


def _shares(facts: StreamFacts, target: GpuTarget, rows: int, keys: int) -> int:
    """How many warps share the keys of a block of few rows, each having `keys` at a time.

    That hangs on the number of keys, not on what other blocks there are: so do a result's bits.
    """
    if rows > M or not facts.shares_keys or not facts.octets(target, False):
        return 1
    nbytes = _shared_nbytes(facts, target, M, keys * SHARES)
    nbytes += SHARES * rows * (facts.widths[-1] + APART) * F32_NBYTES
    fits = target.resident_blocks(SHARES, 0, nbytes) >= LEAST_BLOCKS
    return SHARES if fits and SHARES * keys <= index.upper(extent_of(facts.key)) else 1


def _of_groups(facts: StreamFacts, target: GpuTarget, rows: int) -> list[StreamTiles]:
    """Blocks of groups of four warps, where a machine has such and they have enough rows."""
    if rows < wgmma.M or not wgmma.has_groups(target, facts.products[0].left.dtype):
        return []
    if not wgmma.suits_stream(facts):
        return []
    most = MOST_OF_TWO_SUMS if len(facts.values) > 1 else target.registers_per_thread
    found = list[tuple[float, StreamTiles]]()
    for groups in range(min(GROUPS, rows // wgmma.M), 0, -1):
        for keys in KEYS_OF_GROUPS:
            shared = _shared_nbytes(facts, target, groups * wgmma.M, keys, has_groups=True)
            for ahead in (0, 1) if wgmma.goes_ahead(facts) else (0,):
                step = StreamTiles(groups, 1, keys, wgmma.INSTRUCTION, ahead)
                if shared > target.shared_bytes_per_block or registers_of(facts, step) > most:
                    continue
                cost = cost_of(facts, step, shared, target)
                found.append((cost.clocks, replace(step, resident=cost.blocks)))
    return [step for _, step in sorted(found, key=itemgetter(0))]


def _shared_nbytes(
    facts: StreamFacts, target: GpuTarget, rows: int, keys: int, has_groups: bool = False
) -> int:
    """What a block keeps of its rows, of keys and of values, at most."""
    octets, itemsize = facts.octets(target, has_groups), facts.products[0].left.dtype.itemsize

    def row_of(read: Node, width: int) -> int:
        return width * (1 if read in octets else itemsize) + APART

    # Values that are a product's factor as well lie there once.
    factors = [(each.right, each.depth) for each in facts.products]
    apart = [
        value for value in facts.values
        if not any(_is_alike(facts, value, *factor) for factor in factors)
    ]
    slots = facts.slots(target, has_groups)
    own = rows * (1 if facts.over is None else slots)
    products = list(zip(facts.products, facts.widths, strict=False))
    lines = sum(row_of(one.right, width) for one, width in products)
    lines += sum(row_of(value, facts.widths[-1]) for value in apart)
    return own * sum(row_of(one.left, width) for one, width in products) + slots * keys * lines


def _is_alike(facts: StreamFacts, value: Node, factor: Node, depth: Node) -> bool:
    """Whether values are a factor of a product, along columns as that is along its steps."""
    return facts.column is not None and substitute(value, {facts.column: depth}) is factor


# --- costs ----------------------------------------------------------------------------------------


class StreamCost(NamedTuple):
    """Clocks of a tile, and how many blocks a multiprocessor is to hold."""

    clocks: float
    blocks: int


def registers_of(facts: StreamFacts, step: StreamTiles) -> int:
    """Registers of a thread: sums, scores, what is multiplied as it is rounded, and others.

    Powers that are multiplied later than they are made have registers of their own.
    """
    held = facts.widths[-1] * len(facts.values) // 2
    scores = step.keys // 2 * len(facts.products)
    words = step.keys // 4 * len(facts.values) if len(facts.values) > 1 else 0
    if step.ahead:
        scores, words = 2 * scores, step.keys // 4
    return held + scores + words + OTHERS


def cost_of(facts: StreamFacts, step: StreamTiles, shared: int, target: GpuTarget) -> StreamCost:
    """What a block of groups of warps takes, with so many bytes of shared memory."""
    count = len(facts.products)
    registers = min(registers_of(facts, step), target.registers_per_thread)
    warps = step.warps * wgmma.WARPS
    blocks = target.resident_blocks(warps, registers, shared)
    blocks = max(min(blocks, BUSY_GROUPS // step.warps), 1)
    # A step of 16: rows and keys are read for it, or keys alone.
    each = max(wgmma.M * step.keys / PRODUCTS, 2 * (wgmma.M + step.keys) / SHARED_BYTES)
    unit = sum(facts.widths[:count]) * each * TILE / step.keys
    sums = sum(facts.widths[count:]) * len(facts.values)
    unit += sums * wgmma.M * TILE / PRODUCTS
    threads = SCORES * (OF_EACH + OF_PRODUCT * count + OF_VALUES * len(facts.values))
    threads += OF_TILE * TILE // step.keys
    numbers = sum(facts.widths[:count]) + (sums if count == 1 else 0)
    copies = COPIED / step.warps * numbers / NUMBERS
    turns = blocks + AHEAD * step.ahead
    waits = ALONE if blocks == 1 else 0
    return StreamCost(max(unit, threads) + min(unit, threads) / turns + copies + waits, blocks)
