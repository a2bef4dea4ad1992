"""What the rules for contractions share, whatever unit does the products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod

from baregrad.ir.core import index
from baregrad.kernel.facts.analysis import ArrayAccess, itemsize
from baregrad.kernel.language.schedule import Bind, StageInput, StageReduce, Step
from baregrad.kernel.planning.common.tiling import PlannedAxis, loop_names, points
from baregrad.kernel.planning.cpu.sum_plan import SumPlan
from baregrad.target.cpu import PAGE_NBYTES

# Sums of up to this for each core are shared out evenly at once; longer ones in smaller chunks, as
# a core may be slower than another.
SHORT_NS = 400_000.0
# Ways of the first cache that are left for what streams past.
STREAMED_WAYS = 2


@dataclass(frozen=True, slots=True)
class Contraction:
    """A sum of products of two operands: `rows` moves A alone, `lane` B alone, `steps` both.

    together: the steps that one instruction does; their elements are one word.
    """

    plan: SumPlan
    a: ArrayAccess
    b: ArrayAccess
    rows: PlannedAxis
    lane: PlannedAxis
    steps: PlannedAxis
    outside: list[PlannedAxis]
    inside: list[PlannedAxis]
    together: int = 1

    @property
    def count(self) -> int:
        """Instructions one after the other that add up one element of the result."""
        return -(-self.steps.size // self.together)

    @property
    def nbytes(self) -> int:
        """Bytes of what one of them takes of an operand, for one element of the result."""
        return itemsize(self.b.array.dtype) * self.together


def rows_fit(found: Contraction, rows: int) -> bool:
    """Whether this many rows of A stay in the first cache where they lie, beside what streams past.

    Lines at a distance of whole pages meet in one set of it, which has as many ways as it pages.
    """
    nbytes = (found.rows.stride(found.a) or 0) * itemsize(found.a.array.dtype)
    apart = PAGE_NBYTES // gcd(nbytes, PAGE_NBYTES)
    return -(-rows // apart) <= found.plan.target.l1_bytes // PAGE_NBYTES - STREAMED_WAYS


def in_words(access: ArrayAccess, numbers: int) -> bool:
    """Whether an array is read in whole words, each at a multiple of its size."""
    offset = access.offset
    strides = [stride for stride in offset.strides.values() if stride != 1]
    sizes = [offset.constant, index.product(access.array.shape), *strides]
    whole = all(isinstance(size, int) and size % numbers == 0 for size in sizes)
    return whole and not offset.rest and len(offset.strides) == len(strides) + 1


@dataclass(frozen=True, slots=True)
class Blocks:
    """A tile of `rows` by `columns`, `tiles` of them in a block of columns, `steps` in a k block.

    group: the tiles of rows of a block of rows. chunks: what is to be shared out among threads;
    by_rows: as blocks of rows.
    """

    rows: int
    columns: int
    tiles: int
    steps: int
    group: int
    chunks: int
    by_rows: bool = False

    def waiting_nbytes(self, found: Contraction, itemsize: int) -> int:
        """Bytes of the sums of one row of a panel, which wait in memory for the next k block."""
        return self.tiles * self.columns * itemsize * points(found.inside)


@dataclass(frozen=True, slots=True)
class BlockLoops:
    """The loops of a contraction that was cut into blocks, by name.

    outer: over k blocks, if there are several. inner: over the steps of one. within: what runs
    inside `outer`. shared: what threads share.
    """

    tile: str
    rows: str
    row: str
    lanes: tuple[str, ...]
    outer: list[str]
    inner: str
    within: list[str]
    around: list[str]
    shared: str


def cut_blocks(
    found: Contraction, blocks: Blocks, grouped: bool, lanes: dict[str, int], unit: str,
    word: dict[str, int],
) -> BlockLoops:
    """Cut a contraction's axes into blocks.

    grouped: rows have blocks as well. lanes: the parts of a tile's columns, a vector innermost.
    unit: that of the rows of a tile. word: the parts of one step.
    """
    plan, m, n, k = found.plan, found.rows.name, found.lane.name, found.steps.name
    for axis in plan.axes:
        plan.keep(axis)
    block, tile, group, rows, row = f"{n}b", f"{n}t", f"{m}b", f"{m}o", f"{m}u"
    units = {name: "vector" if name == [*lanes][-1] else "unroll" for name in lanes}
    _cut(plan, found.lane, {block: 0, tile: blocks.tiles, **lanes}, units)
    parts = {group: 0, rows: blocks.group} if grouped else {rows: 0}
    _cut(plan, found.rows, {**parts, row: blocks.rows}, {} if unit == "loop" else {row: unit})
    several = blocks.steps < -(-found.steps.size // prod(word.values()))
    outer, inner = [f"{k}o"] if several else [], f"{k}i" if several or word else k
    parts = {outer[0]: 0, inner: blocks.steps} if several else {inner: 0}
    if several or word:
        _cut(plan, found.steps, {**parts, **word}, {})
    groups = [group] if grouped else []
    first = groups if blocks.by_rows else []
    inside = [*loop_names(found.inside), *([] if blocks.by_rows else groups), rows, tile]
    around = [*first, *loop_names(found.outside), block, *outer, *inside]
    shared = [*groups, rows][0] if blocks.by_rows else block
    return BlockLoops(tile, rows, row, tuple(lanes), outer, inner, inside, around, shared)


def _cut(plan: SumPlan, axis: PlannedAxis, parts: dict[str, int], units: dict[str, str]) -> None:
    """Split an axis into parts, the last one masked where they do not divide it."""
    size = prod([max(count, 1) for count in parts.values()])
    plan.cut(axis, parts, units, masked=axis.size % size != 0)


def blocked_schedule(
    found: Contraction, blocks: Blocks, loops: BlockLoops, order: Sequence[Step],
    copies: Sequence[StageInput],
) -> list[Step]:
    """The steps of a contraction in blocks: what threads share, `copies`, and sums that wait."""
    plan = found.plan
    steps = [*plan.steps, *order]
    pool = _shared_loop(found, blocks.chunks, loops.shared)
    if pool is not None:
        plan.because("threads share {}: {} chunks are enough", pool.axis, blocks.chunks)
        steps.append(pool)
    steps += copies
    if loops.outer:
        steps.append(StageReduce(loops.outer[0], (*loops.within, loops.row, *loops.lanes)))
    return steps


def _shared_loop(found: Contraction, chunks: int, block: str) -> Bind | None:
    """The loop that threads share, in `chunks` chunks: an outer one, or that over `block`s."""
    axis = next((axis for axis in found.outside if axis.size >= chunks), None)
    if axis is not None and chunks > 1:
        name, trips = axis.loops[0]
        return Bind(name, "pool", max(trips // (8 * chunks), 1))
    return Bind(block, "pool") if chunks > 1 else None
