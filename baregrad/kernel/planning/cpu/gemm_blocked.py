"""Schedules for contractions of two operands in blocks: panels for each cache, a tile in registers.

For C[m, n] += A[m, k] * B[k, n], lanes along n:

    for n blocks:                   # B[k block, n block] is copied: the second cache holds it
      for k blocks:
        for m tiles:                # A[m tile, k block] is copied, or lies well as it is
          for n tiles of the block: # C's tile lies in registers
            for k: C += A * B       # B streams from the second cache, A is broadcast
          C is written, or what was added so far is added: once for each k block

Threads share the n blocks, each of which copies all of A; or blocks of m, outside everything else,
each of which copies all of B. Products of bytes are added four at a time, those of bfloat16 two: a
word of each operand is a step. Copies are padded with zeros to whole tiles and what is written is
masked, so that one tile serves all sizes: no tails.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from baregrad.ir.analysis.words import WORD_NBYTES, in_word
from baregrad.ir.core.op import Ops
from baregrad.kernel.facts.analysis import ArrayAccess, itemsize
from baregrad.kernel.instructions.dot_instructions import are_turned, dot_instruction
from baregrad.kernel.language.schedule import (
    Reorder,
    Schedule,
    StageInput,
    StageReduce,
    Step,
    Tensorize,
)
from baregrad.kernel.planning.common.pool import estimate_ns
from baregrad.kernel.planning.common.tiling import PlannedAxis, merged, points
from baregrad.kernel.planning.cpu.contractions import (
    SHORT_NS,
    Blocks,
    Contraction,
    blocked_schedule,
    cut_blocks,
    in_words,
    rows_fit,
)
from baregrad.kernel.planning.cpu.gemm_amx import plan_amx
from baregrad.kernel.planning.cpu.sum_plan import SumPlan

# What an instruction beside the products costs a core that another thread shares, in cycles.
LOAD_CYCLES = 0.25
STEP_CYCLES = 0.5
# For a broadcast under way.
SPARE_REGISTERS = 1
MOST_VECTORS = 8
# Fewer rows of products than this do not pay for a copy of the operand with lanes.
LEAST_ROWS = 24
LEAST_ROWS_OF_WORDS = MappingProxyType({"dot4": 2, "dot2": 4})
LEAST_STEPS = 16
MOST_ROWS_IN_PLACE = 48
# What part of a vector's lanes is enough where a step is a word: other ways convert each number.
NARROWER = 4
# Bytes of the sums that wait in memory, at most.
WIDEST_SUM = 8
# Rows whose elements of a k block fill most of the first cache, or half of it where k is split:
# each further block costs reading and writing C once more.
CACHED_ROWS = 8
MASK_PENALTY = 0.02
# Cycles to copy an element: in vectors as it lies, and where the panel's order is another. Rows of
# A that are adjacent are read a few at a time, from distant pages.
NEAR = 0.5
FAR_A = 2.7
FAR_B = 1.2
# What part of a long kernel's time waiting for the slower core may cost.
WAITING = 0.03
# Blocks of rows write each line of C from one core, too, but keep panels of B in both.
BY_ROWS = 0.01
# Vectors of a panel of B, at least, beside rows in place: each tile reads all of those again.
LEAST_VECTORS = 8
# Rows whose elements are adjacent are copied as vectors, best as whole ones.
ADJACENT_ROWS = 4
ODD_ROWS_PENALTY = 0.05
# Vectors that are no one value are more code, and no faster.
PARTS_PENALTY = 0.02


def plan_blocks(plan: SumPlan) -> Schedule | None:
    """The schedule of a contraction in blocks; None for kernels that are no such contraction."""
    found = recognise(plan)
    if found is None:
        return None
    tiled = plan_amx(plan, found)
    if tiled is not None:
        return tiled
    nanoseconds = estimate_ns(plan.facts, plan.target) / found.together
    blocks = choose_blocks(found, nanoseconds)
    held = blocks.waiting_nbytes(found, WIDEST_SUM) * blocks.rows * blocks.group
    if blocks.steps < found.count and held > plan.target.l3_bytes:
        return None
    plan.because("a contraction in blocks: tiles of {} rows by {} vectors of {} in {} registers",
                 blocks.rows, blocks.columns // plan.lanes, plan.lanes, plan.registers)
    plan.because("{} steps and {} tiles at a time: their panel stays in the second cache",
                 blocks.steps, blocks.tiles)
    if found.together > 1:
        plan.because("{} numbers of each operand are one word: an instruction adds their products",
                     found.together)
    if blocks.by_rows:
        plan.because("blocks of rows: their own copies cost less than those of blocks of columns")
    return _schedule(plan, found, blocks)


def choose_blocks(found: Contraction, nanoseconds: float) -> Blocks:
    """The register tile, and what of the operands the caches hold.

    nanoseconds: what one core takes for the whole, about.
    """
    plan = found.plan
    size = found.nbytes
    steps = choose_steps(found)
    room = plan.target.l2_bytes // 2 // (steps * size * plan.lanes)
    chunks, by_rows = choose_sharing(found, nanoseconds, room)
    others = points(found.outside)
    wanted = 1 if by_rows else -(-chunks // others)
    counts = []
    for vectors in range(1, min(MOST_VECTORS, -(-found.lane.size // plan.lanes)) + 1):
        count = -(-found.lane.size // (plan.lanes * vectors))
        most = max(min(room // vectors, -(-count // wanted)), 1)
        counts.append((count, fewest_left_over(count, most)))
    rows, vectors = choose_block_tile(found, counts)
    count, tiles = counts[vectors - 1]
    panels = -(-count // tiles) * others
    blocks = Blocks(rows, vectors * plan.lanes, tiles, steps, 1, chunks, by_rows)
    return group_rows(found, blocks, panels)


def choose_steps(found: Contraction) -> int:
    """How many steps are a k block: of rows that are copied, as many as the first cache holds.

    Rows in place are read from the second one, beside a panel of B of a few tiles at least.
    """
    plan = found.plan
    if _is_in_line(found):
        most = plan.target.l2_bytes // 2 // (LEAST_VECTORS * plan.lanes * found.nbytes)
        return -(-found.count // -(-found.count // max(most, LEAST_STEPS)))
    held = plan.target.l1_bytes // (CACHED_ROWS * found.nbytes)
    part = held // 4 if found.rows.stride(found.a) == 1 else held // 2
    parts = -(-found.count // max(part, 1)) if found.count > held * 3 // 4 else 1
    return -(-found.count // parts)


def group_rows(found: Contraction, blocks: Blocks, panels: int) -> Blocks:
    """`blocks` with the tiles of rows of one: a chunk's, and what caches have room for.

    panels: of B, each of which is a chunk unless rows are.
    """
    plan = found.plan
    rows, steps, by_rows = blocks.rows, blocks.steps, blocks.by_rows
    trips = -(-found.rows.size // rows)
    share = -(-trips // min(blocks.chunks, trips))
    group = share if by_rows else 1
    if not by_rows and panels < blocks.chunks:
        by_rows = panels * 2 <= blocks.chunks
        group = share
    if found.rows.stride(found.a) == 1:
        # Whole lines of the operand, as many as leave room for the other one.
        room = plan.target.l2_bytes // 4 // (steps * found.nbytes * rows)
        group = fewest_left_over(trips, min(max(room, 1), group if by_rows else trips))
    if steps < found.count:
        # Sums wait in memory for the next k block: those of all rows inside its loop.
        nbytes = blocks.waiting_nbytes(found, WIDEST_SUM) * rows
        most = max(plan.target.l3_bytes // 2 // nbytes, 1)
        if trips > most and (not by_rows or group > most):
            by_rows, group = True, fewest_left_over(trips, most)
    return replace(blocks, group=group, by_rows=by_rows)


def choose_sharing(found: Contraction, nanoseconds: float, room: int) -> tuple[int, bool]:
    """How many chunks there are for threads, and whether they are blocks of rows.

    A block of columns copies all of A, one of rows all of B. Fewer chunks copy less, more are
    shared out better where a core is slower than another. room: vectors of a panel of B.
    """
    plan = found.plan
    if nanoseconds < plan.target.alone_ns:
        return 1, False
    cores = max(plan.target.cores, 2)
    long = nanoseconds >= SHORT_NS * plan.target.cores
    others = points(found.outside)
    if others >= cores:
        return cores * (2 if long else 1), False
    rows, columns = found.rows.size * points(found.inside), found.lane.size
    products = rows * columns / (plan.lanes * plan.target.fma_per_cycle)
    a = rows * (FAR_A if found.rows.stride(found.a) == 1 else NEAR)
    b = columns * (NEAR if found.lane.stride(found.b) == 1 else FAR_B)
    panels = -(-columns // (plan.lanes * max(room, 1)))
    best = (float("inf"), 1, False)
    for several in (2, 1) if long else (1,):
        chunks = cores * several
        wanted = -(-chunks // others)
        waiting = products * WAITING if long and several == 1 else 0.0
        by_columns = a * max(panels, wanted) + b + waiting
        by_rows = a * panels + b * wanted + waiting + products * BY_ROWS
        best = min(best, (by_columns, chunks, False), (by_rows, chunks, True))
    return best[1:]


def recognise(plan: SumPlan) -> Contraction | None:
    """The parts of a contraction that is worth blocks; lanes run along what is written."""
    facts = plan.facts
    if len(facts.reductions) != 1 or facts.stages or facts.ordered or len(plan.reads) != 2:
        return None
    total = plan.main.node
    if total.arg.monoid.primitive is not Ops.ADD or total.src[0].op is not Ops.MUL:
        return None
    if not plan.target.masks or not all(isinstance(axis.extent, int) for axis in plan.axes):
        return None
    write = next(access for access in facts.accesses if access.write)
    lane = next((axis for axis in plan.axes if axis.stride(write) == 1), None)
    if lane is None or not lane.inside(plan.main.free):
        return None
    a, b = sorted(plan.reads, key=lambda access: lane.stride(access) != 0)
    own = plan.own()
    data = [axis for axis in plan.axes if not axis.reduced and axis.size > 1 and axis is not lane]
    if lane.reduced or lane.stride(a) != 0 or lane.stride(b) == 0 or len(own) != 1:
        return None
    axes = [*data, lane, *own]
    if any(not each.copyable or None in [axis.stride(each) for axis in axes] for each in (a, b)):
        return None
    alone = [axis for axis in data if axis.stride(b) == 0 and axis.stride(a) != 0]
    rows = max(alone, key=lambda axis: axis.size, default=None)
    instruction = dot_instruction(plan.main.node.src[0])
    dots = instruction in plan.target.dot_instructions
    least = LEAST_ROWS_OF_WORDS[instruction] if dots else LEAST_ROWS
    narrow = lane.size < plan.lanes // (NARROWER if dots else 1)
    if rows is None or rows.size < least or narrow:
        return None
    steps = own[0]
    if steps.size < LEAST_STEPS or 0 in (steps.stride(a), steps.stride(b)):
        return None
    outside = [axis for axis in data if axis is not rows and axis.stride(b) != 0]
    inside = [axis for axis in data if axis is not rows and axis.stride(b) == 0]
    together = in_word(a.array.dtype) if dots else 1
    return Contraction(plan, a, b, rows, lane, steps, outside, inside, together)


def choose_block_tile(found: Contraction, counts: list[tuple[int, int]]) -> tuple[int, int]:
    """Rows and vectors of the register tile that takes least time for the whole contraction.

    counts: for each number of vectors from 1 on, the tiles beside each other and those of a block.
    """
    plan, target = found.plan, found.plan.target
    best = (float("inf"), 1, 1)
    size = found.nbytes
    adjacent = found.rows.stride(found.a) == 1
    for vectors, (count, tiles) in enumerate(counts, start=1):
        columns = -(-count // tiles) * tiles
        most = (plan.registers - SPARE_REGISTERS - vectors) // vectors
        for rows in range(min(most, found.rows.size), 0, -1):
            products = rows * vectors
            # B's lines are asked for before they are read.
            loads = rows + 2 * vectors
            cycles = max(products / target.fma_per_cycle, loads / target.loads_per_cycle)
            streamed = vectors * plan.lanes * size / target.panel_bytes_per_cycle
            cycles = max(cycles, float(target.fma_latency), streamed)
            cycles += LOAD_CYCLES * loads + STEP_CYCLES
            cost = columns * -(-found.rows.size // rows) * cycles
            if found.rows.size % rows:
                cost *= 1.0 + MASK_PENALTY
            if merged(vectors, plan.lanes)[0] > 1:
                cost *= 1.0 + PARTS_PENALTY
            if adjacent and rows % ADJACENT_ROWS:
                cost *= 1.0 + ODD_ROWS_PENALTY
            if cost < best[0] * 0.999:
                best = (cost, rows, vectors)
    return best[1:]


def fewest_left_over(count: int, most: int) -> int:
    """How many of `count` tiles make a block, at most `most`: few tiles are made for nothing."""
    return min(range(most, most // 2, -1), key=lambda each: (-(-count // each) * each, -each))


def _schedule(plan: SumPlan, found: Contraction, blocks: Blocks) -> Schedule:
    n, k = found.lane.name, found.steps.name
    count, width = blocks.columns // plan.lanes, plan.lanes
    if found.together == 1:
        # An instruction that adds products of words is of one register.
        count, width = merged(count, width)
    lanes = {f"{n}u": count, f"{n}v": width} if count > 1 else {f"{n}v": width}
    word = {f"{k}d": found.together} if found.together > 1 else {}
    loops = cut_blocks(found, blocks, blocks.group > 1, lanes, "unroll", word)
    instruction = dot_instruction(plan.main.node.src[0])
    order: list[Step] = [Tensorize((name,), instruction) for name in word]
    order.append(Reorder((*loops.around, loops.inner, loops.row, *lanes)))
    copies = []
    if not _lies_well(found, blocks):
        panel = (loops.tile, loops.inner, *lanes)
        copy = _copy(found, found.b, panel, found.lane)
        copies.append(replace(copy, ahead=_ahead(found, blocks)))
    if not _rows_lie_well(found, blocks):
        near = [loops.row, loops.inner]
        if found.rows.stride(found.a) == 1:
            near = [loops.rows, loops.inner, loops.row]
        copies.append(_copy(found, found.a, tuple(near), found.rows))
    steps = blocked_schedule(found, blocks, loops, order, copies)
    if word and are_turned(found.a.array.dtype, found.b.array.dtype):
        # What a factor of the wrong sign makes too large: once for all rows.
        steps.append(StageReduce([*loops.outer, loops.inner][0], (loops.tile, *lanes)))
    return Schedule(tuple(steps))


def _lies_well(found: Contraction, blocks: Blocks) -> bool:
    """Whether the operand with lanes is as good where it lies: small, in whole tiles, read little.

    From some rows on its copy pays, as one stream of whole lines.
    """
    plan = found.plan
    if found.together > 1 or found.rows.size > MOST_ROWS_IN_PLACE:
        return False
    stride = found.steps.stride(found.b) or 0
    nbytes = found.steps.size * abs(stride) * itemsize(found.b.array.dtype)
    whole = found.lane.size % (blocks.columns * blocks.tiles) == 0
    whole = whole and found.steps.size % blocks.steps == 0
    return found.lane.stride(found.b) == 1 and whole and nbytes <= plan.target.l2_bytes // 4


def _rows_lie_well(found: Contraction, blocks: Blocks) -> bool:
    """Whether the rows of a tile are as good where they lie, each a stream of whole lines.

    Only a copy is 0 past the end of the steps, where the last block has fewer.
    """
    whole = found.steps.size % (blocks.steps * found.together) == 0
    return whole and _is_in_line(found) and rows_fit(found, blocks.rows)


def _is_in_line(found: Contraction) -> bool:
    """Whether A's elements lie one after the other along the steps, and are read as they are."""
    a, dtype = found.a, found.a.array.dtype
    if a.guarded or found.steps.stride(a) != 1:
        return False
    if found.together == 1:
        # Narrower elements are made wider once for all columns.
        return itemsize(dtype) >= WORD_NBYTES
    if are_turned(dtype, found.b.array.dtype) or a.array is found.b.array:
        return False
    return in_words(a, found.together)


def _copy(
    found: Contraction, access: ArrayAccess, axes: tuple[str, ...], other: PlannedAxis
) -> StageInput:
    """The copy of an operand's panel, in vectors where elements along k or m are adjacent."""
    near = found.steps.stride(access) == 1 or other.stride(access) == 1
    return StageInput(access.array.arg.slot, axes, found.plan.lanes if near else 0)


def _ahead(found: Contraction, blocks: Blocks) -> int:
    """How many bytes of B's panel before a step its lines are asked for; 0 if they are near.

    The machine sees by itself that a panel is read line by line, but too late for products that
    take so few cycles.
    """
    plan = found.plan
    row = blocks.columns * found.nbytes
    if row * blocks.steps * blocks.tiles <= plan.target.l1_bytes // 2:
        return 0
    products = blocks.rows * blocks.columns // plan.lanes
    cycles = max(products // plan.target.fma_per_cycle, plan.target.fma_latency)
    return row * -(-plan.target.l2_latency // cycles)
