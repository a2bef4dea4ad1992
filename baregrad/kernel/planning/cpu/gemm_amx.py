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

from baregrad.ir.analysis.words import NAMES, TILE, WORD_NBYTES, in_word
from baregrad.kernel.instructions.amx import SIDES, instruction_of
from baregrad.kernel.instructions.instruction import summed_factors
from baregrad.kernel.language.schedule import (
    Reorder,
    Schedule,
    StageInput,
    StageReduce,
    Step,
    Tensorize,
)
from baregrad.kernel.planning.common.tiling import points
from baregrad.kernel.planning.cpu.contractions import (
    SHORT_NS,
    Blocks,
    Contraction,
    blocked_schedule,
    cut_blocks,
    in_words,
    rows_fit,
)
from baregrad.kernel.planning.cpu.sum_plan import SumPlan

# Fewer rows than this leave most of a tile empty.
LEAST_ROWS = 12
# Columns of a panel of B, at least, in tiles of two; a longer sum is made in blocks instead.
LEAST_TILES = 4


def plan_amx(plan: SumPlan, found: Contraction) -> Schedule | None:
    """The schedule of a contraction by the matrix unit; None where it is not to be used."""
    name = instruction_of(found.a.array.dtype, found.b.array.dtype)
    if name not in plan.target.tile_instructions or found.rows.size < LEAST_ROWS:
        return None
    if summed_factors(plan.facts, NAMES) is None:
        return None
    numbers = in_word(found.a.array.dtype)
    sizes = choose_sizes(found, numbers)
    waiting = sizes.group * sizes.rows * sizes.waiting_nbytes(found, WORD_NBYTES)
    several = -(-found.steps.size // (TILE * numbers)) > sizes.steps
    if several and waiting > plan.target.l3_bytes:
        return None
    plan.because(
        "the core's matrix unit: {} for {} rows by {} columns, {} steps of {} words in a run",
        name, sizes.rows, sizes.columns, sizes.steps, TILE,
    )
    plan.because("{} columns at a time: their panel stays in the second cache",
                 sizes.tiles * sizes.columns)
    return _schedule(plan, found, sizes, numbers)


def choose_sizes(found: Contraction, numbers: int) -> Blocks:
    """Sizes of runs, panels and what threads share."""
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
    others = points(found.outside)
    runs = high * wide * total * others * points(found.inside)
    nanoseconds = runs * plan.target.tile_step_ns * (rows * columns) / SIDES[1] ** 2
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
    return Blocks(rows, columns, tiles, steps, group, chunks, by_rows)


def _schedule(plan: SumPlan, found: Contraction, sizes: Blocks, numbers: int) -> Schedule:
    n, k = found.lane.name, found.steps.name
    word = {f"{k}w": TILE, f"{k}d": numbers}
    loops = cut_blocks(found, sizes, sizes.by_rows, {f"{n}v": sizes.columns}, "loop", word)
    row, step, lanes, first = loops.row, loops.inner, loops.lanes, f"{k}w"
    unit = (row, *lanes, step, *word)
    order: list[Step] = [Reorder((*loops.around, *unit)), Tensorize(unit, "amx")]
    width = plan.target.lanes(WORD_NBYTES)
    copies = [StageInput(found.b.array.arg.slot, (loops.tile, step, first, *lanes), width)]
    if not lies_well(found, sizes, numbers):
        copies.append(StageInput(found.a.array.arg.slot, (step, row, first), width))
    steps = blocked_schedule(found, sizes, loops, order, copies)
    if not loops.outer:
        steps.append(StageReduce(step if sizes.steps > 1 else first, (row, *lanes)))
    return Schedule(tuple(steps))


def lies_well(found: Contraction, sizes: Blocks, numbers: int) -> bool:
    """Whether tiles of A are as good where they lie: whole words and tiles, in different sets.

    A last group of fewer tiles has its own masked, which no run of instructions reads past.
    """
    a, k, m = found.a, found.steps, found.rows
    if a.guarded or k.stride(a) != 1 or len(k.nodes) != 1 or a.array is found.b.array:
        return False
    whole = sizes.group * sizes.rows
    if m.size % whole or k.size % (sizes.steps * TILE * numbers) or not in_words(a, numbers):
        return False
    return rows_fit(found, sizes.rows)
