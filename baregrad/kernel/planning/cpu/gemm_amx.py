"""Schedules for contractions of bfloat16 or bytes on a CPU core's matrix unit.

For C[m, n] += A[m, k] * B[k, n], in words of two or four numbers along k:

    for n blocks:             # B[k block, n block] is copied, in words: the second cache holds it
      for k blocks:           # one, if a panel fits
        for m tiles:          # A[m tile, k block] is copied, tile after tile, or read where it lies
          for n tiles:        # up to 2 x 2 tiles of sums, a run over all steps of the k block
        what follows the sums # ordinary code, from a small array

Threads share the n blocks, or blocks of m outside everything else. Copies are padded with zeros to
whole tiles and what is written is masked, so that one run serves all sizes.
"""

from __future__ import annotations

from dataclasses import dataclass

from baregrad.ir.analysis.words import NAMES, TILE, WORD_NBYTES, in_word
from baregrad.ir.core import index
from baregrad.kernel.facts.analysis import ArrayAccess
from baregrad.kernel.instructions.amx import SIDES, instruction_of
from baregrad.kernel.instructions.instruction import summed_factors
from baregrad.kernel.language.schedule import Reorder, Schedule, StageInput, StageReduce, Tensorize
from baregrad.kernel.planning.contractions import (
    SHORT_NS,
    Contraction,
    rows_fit,
    shared_loop,
    split,
)
from baregrad.kernel.planning.cpu.sum_plan import SumPlan

# What a step of a run of 2 x 2 tiles takes a core, panels streaming from the second cache.
RUN_STEP_NS = 40.0
# Fewer rows than this leave most of a tile empty.
LEAST_ROWS = 12
# Columns of a panel of B, at least, in tiles of two; a longer sum is made in blocks instead.
LEAST_TILES = 4


@dataclass(frozen=True, slots=True)
class TileSizes:
    """Rows and columns of a run, steps of a k block, tiles of an n block and of a block of rows.

    by_rows: threads share blocks of rows. chunks: what is to be shared out.
    """

    rows: int
    columns: int
    steps: int
    tiles: int
    group: int
    chunks: int
    by_rows: bool


def plan_tiles(plan: SumPlan, found: Contraction) -> Schedule | None:
    """The schedule of a contraction by the matrix unit; None where it is not to be used."""
    available = plan.target.tile_instructions
    if not available or summed_factors(plan.facts, NAMES) is None or found.rows.size < LEAST_ROWS:
        return None
    name = instruction_of(found.a.array.dtype, found.b.array.dtype)
    if name not in available:
        return None
    numbers = in_word(found.a.array.dtype)
    sizes = choose_sizes(found, numbers)
    whole = -(-found.steps.size // (TILE * numbers))
    if whole > sizes.steps:
        waiting = sizes.group * sizes.rows * sizes.tiles * sizes.columns * WORD_NBYTES
        for axis in found.inside:
            waiting *= axis.size
        if waiting > plan.target.l3_bytes:
            return None
    plan.because(
        "the core's matrix unit: {} for {} rows by {} columns, {} steps of {} words in a run",
        name, sizes.rows, sizes.columns, sizes.steps, TILE,
    )
    plan.because("{} columns at a time: their panel stays in the second cache",
                 sizes.tiles * sizes.columns)
    return _schedule(plan, found, sizes, numbers)


def choose_sizes(found: Contraction, numbers: int) -> TileSizes:
    """TileSizes of runs, panels and what threads share."""
    plan = found.plan
    rows, columns = (
        SIDES[0] if axis.size <= SIDES[0] else SIDES[1] for axis in (found.rows, found.lane)
    )
    total = -(-found.steps.size // (TILE * numbers))
    step_nbytes = TILE * WORD_NBYTES * columns
    room = plan.target.l2_bytes // 2
    most = max(room // (step_nbytes * LEAST_TILES), 1)
    steps = -(-total // -(-total // most))
    high, wide = -(-found.rows.size // rows), -(-found.lane.size // columns)
    others = inside = 1
    for axis in found.outside:
        others *= axis.size
    for axis in found.inside:
        inside *= axis.size
    runs = high * wide * total * others * inside
    nanoseconds = runs * RUN_STEP_NS * (rows * columns) / SIDES[1] ** 2
    cores = max(plan.target.cores, 1)
    chunks = 1
    if nanoseconds >= plan.target.alone_ns:
        chunks = cores * (2 if nanoseconds >= SHORT_NS * cores else 1)
    wanted = -(-chunks // others)
    # Copies that take long are best made once: a block of rows copies no others.
    alone = found.steps.stride(found.a) != 1 or not in_words(found.a, numbers)
    by_rows = wanted > 1 and high >= (wanted if alone else min(wide, wanted))
    by_rows = by_rows and (alone or wide < wanted or high > 4 * wide)
    tiles = max(room // (step_nbytes * steps), 1)
    tiles = min(tiles, wide if by_rows else -(-wide // min(wanted, wide)))
    tiles = -(-wide // -(-wide // tiles))
    group = -(-high // min(wanted, high)) if by_rows else high
    return TileSizes(rows, columns, steps, tiles, group, chunks, by_rows)


def _schedule(plan: SumPlan, found: Contraction, sizes: TileSizes, numbers: int) -> Schedule:
    n, m, k = found.lane.name, found.rows.name, found.steps.name
    for axis in plan.axes:
        plan.keep(axis)
    block, tile, lanes = f"{n}b", f"{n}t", f"{n}v"
    split(plan, found.lane, {block: 0, tile: sizes.tiles, lanes: sizes.columns})
    plan.bind(lanes, "vector")
    groups, rows, row = ([f"{m}b"] if sizes.by_rows else []), f"{m}o", f"{m}u"
    grouped = {groups[0]: 0, rows: sizes.group} if groups else {rows: 0}
    split(plan, found.rows, {**grouped, row: sizes.rows})
    step, word, number = f"{k}i", f"{k}w", f"{k}d"
    several = found.steps.size > sizes.steps * TILE * numbers
    outer = [f"{k}o"] if several else []
    first = {outer[0]: 0, step: sizes.steps} if several else {step: 0}
    split(plan, found.steps, {**first, word: TILE, number: numbers})
    outside = [name for axis in found.outside for name, _ in axis.loops]
    inside = [name for axis in found.inside for name, _ in axis.loops]
    within = [*inside, rows, tile]
    steps = list(plan.steps)
    around = (*groups, *outside, block, *outer, *within)
    steps.append(Reorder((*around, row, lanes, step, word, number)))
    steps.append(Tensorize((row, lanes, step, word, number), "amx"))
    pool = shared_loop(found, sizes.chunks, [*groups, block][0])
    if pool is not None:
        plan.because("threads share {}: {} chunks are enough", pool.axis, sizes.chunks)
        steps.append(pool)
    slot_b, slot_a = found.b.array.arg.slot, found.a.array.arg.slot
    width = plan.target.lanes(WORD_NBYTES)
    steps.append(StageInput(slot_b, (tile, step, word, lanes), width))
    if not lies_well(found, sizes, numbers):
        steps.append(StageInput(slot_a, (step, row, word), width))
    if outer:
        steps.append(StageReduce(outer[0], (*within, row, lanes)))
    else:
        at = step if sizes.steps > 1 else word
        steps.append(StageReduce(at, (row, lanes)))
    return Schedule(tuple(steps))


def lies_well(found: Contraction, sizes: TileSizes, numbers: int) -> bool:
    """Whether tiles of A are as good where they lie: whole words and tiles, in different sets."""
    a, k, m = found.a, found.steps, found.rows
    if a.guarded or k.stride(a) != 1 or len(k.nodes) != 1 or a.array is found.b.array:
        return False
    if m.size % sizes.rows or k.size % (sizes.steps * TILE * numbers) or not in_words(a, numbers):
        return False
    return rows_fit(found, sizes.rows)


def in_words(access: ArrayAccess, numbers: int) -> bool:
    """Whether an array is read in whole words, each at a multiple of its size."""
    offset = access.offset
    strides = [stride for stride in offset.strides.values() if stride != 1]
    sizes = [offset.constant, index.product(access.array.shape), *strides]
    whole = all(isinstance(size, int) and size % numbers == 0 for size in sizes)
    return whole and not offset.rest and len(offset.strides) == len(strides) + 1
