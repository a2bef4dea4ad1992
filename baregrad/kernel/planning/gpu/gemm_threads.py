"""Schedules of contractions on GPUs: tiles of the output in registers, panels in shared memory.

Axes that only the one factor runs along are the tile's rows, those of the other its columns, those
of both are blocks. Each of the three kinds is one axis, however many the kernel has: a convolution
is a product of matrices whose panels are gathered as they are copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from baregrad.base.bits import previous_power_of_two
from baregrad.ir.core.node import Node, extent_of
from baregrad.ir.core.op import Ops
from baregrad.kernel.facts.analysis import Access, Reduction, in_bounds, itemsize, offset_of
from baregrad.kernel.language.schedule import Bind, Reorder, Split, StageInput
from baregrad.kernel.planning.gpu.gemm_mma import plan_matrix
from baregrad.kernel.planning.gpu.gpu_plan import GpuPlan


class Tile(NamedTuple):
    """A tile of a block: threads and registers along rows, threads and vectors along columns."""

    threads_m: int
    rows: int
    threads_n: int
    vectors: int

    @property
    def m(self) -> int:
        """Rows of the tile."""
        return self.threads_m * self.rows

    @property
    def n(self) -> int:
        """Columns of the tile."""
        return self.threads_n * self.vectors * LANES

    def covering(self, m: int, n: int) -> int:
        """How many tiles cover m rows and n columns."""
        return -(-m // self.m) * -(-n // self.n)


LANES = 4
DEPTH = 16
TILES = (Tile(16, 8, 16, 2), Tile(16, 4, 16, 1), Tile(8, 4, 16, 1), Tile(8, 4, 8, 1))
# Blocks that keep a GPU busy.
BLOCKS = 128
BUSY_THREADS = 1 << 17
MOST_GROUPS = 8
MOST_THREADS = 512
# Fewer products than this are not worth a panel.
LEAST_PRODUCTS = 1 << 15
LEAST_SIDE = 16
LEAST_DEPTH = 8
# Rows of a panel are so far apart, at most.
ROW_GAP_NBYTES = 16


class Factors(NamedTuple):
    """The reads of a product, and its axes: of the one alone, of the other, of both, summed."""

    left: Access
    right: Access
    rows: list[Node]
    columns: list[Node]
    shared: list[Node]
    depth: list[Node]


def plan_tiles(plan: GpuPlan) -> bool:
    """Bind a contraction's tiles; False where a kernel is none, or too small."""
    factors = _factors(plan)
    if factors is None:
        return False
    m, n = _size(factors.rows), _size(factors.columns)
    k, outside = _size(factors.depth), _size(factors.shared)
    if min(m, n) < LEAST_SIDE or k < LEAST_DEPTH or m * n * k < LEAST_PRODUCTS:
        return False
    sides = (factors.rows, factors.columns, factors.depth)
    if plan_matrix(plan, (factors.left, factors.right), sides, factors.shared):
        return True
    tile = _tile(m, n, outside)
    plan.grid(factors.shared)
    rows = plan.joined(plan.by_stride(factors.rows, plan.write))
    columns = plan.joined(plan.by_stride(factors.columns, plan.write))
    depth = plan.joined(factors.depth)
    depth_tile = min(DEPTH, previous_power_of_two(k))
    steps = plan.steps
    column_parts = [("n_o", 0), ("n_t", tile.threads_n), ("n_v", LANES)]
    if tile.vectors > 1:
        column_parts.insert(1, ("n_u", tile.vectors))
    steps.append(Split(rows, (("m_o", 0), ("m_t", tile.threads_m), ("m_u", tile.rows)), "", True))
    steps.append(Split(columns, tuple(column_parts), "", True))
    blocks = outside * tile.covering(m, n)
    room = plan.target.shared_bytes_per_block // _nbytes_of_group(tile, factors, depth_tile)
    groups = _groups(tile, blocks, min(k // (2 * depth_tile), room))
    inner = [("k_z", groups)] if groups > 1 else []
    steps.append(Split(depth, (("k_o", 0), *inner, ("k_i", depth_tile)), "", True))
    if groups > 1:
        steps.append(Bind("k_z", "thread_z"))
    steps.append(Reorder(("m_o", "n_o", "m_t", "n_t", "m_u", *_units(tile), "n_v")))
    for name, unit in (
        ("m_o", "grid"), ("n_o", "grid"), ("m_t", "thread_y"), ("n_t", "thread"),
        ("m_u", "unroll"), *((name, "unroll") for name in _units(tile)), ("n_v", "vector"),
    ):  # fmt: skip
        steps.append(Bind(name, unit))
    left, right = factors.left.array.arg.slot, factors.right.array.arg.slot
    along = (*(name for name, _ in inner), "k_i")
    steps.append(StageInput(left, (*along, "m_t", "m_u")))
    steps.append(StageInput(right, (*along, *_units(tile), "n_t", "n_v")))
    return True


def _units(tile: Tile) -> tuple[str, ...]:
    return ("n_u",) if tile.vectors > 1 else ()


def _tile(m: int, n: int, outside: int) -> Tile:
    """The largest tile that leaves blocks for the whole machine, and is not mostly empty."""
    for tile in TILES:
        blocks = outside * tile.covering(m, n)
        if blocks >= BLOCKS and 2 * m > tile.m and 2 * n > tile.n:
            return tile
    return TILES[-1]


def _groups(tile: Tile, blocks: int, most: int) -> int:
    """Groups of a block's threads that share the summed axis, where there are few blocks."""
    threads = tile.threads_m * tile.threads_n
    groups = 1
    while (
        2 * groups <= min(most, MOST_GROUPS)
        and 2 * groups * threads <= MOST_THREADS
        and blocks * threads * groups < BUSY_THREADS
    ):
        groups *= 2
    return groups


def _nbytes_of_group(tile: Tile, factors: Factors, depth: int) -> int:
    """Shared memory of a group: its panels, with what lies between rows, and its sums."""
    size = max(itemsize(read.array.dtype) for read in (factors.left, factors.right))
    rows = tile.threads_m + tile.threads_n * tile.vectors
    panels = depth * ((tile.m + tile.n) * size + rows * ROW_GAP_NBYTES)
    return panels + tile.threads_m * tile.threads_n * LANES * max(size, 4)


def _size(axes: Sequence[Node]) -> int:
    total = 1
    for axis in axes:
        extent = extent_of(axis)
        assert isinstance(extent, int)
        total *= extent
    return total


def _factors(plan: GpuPlan) -> Factors | None:
    """The factors of a kernel that is one sum of products of two arrays' elements."""
    facts = plan.facts
    if len(facts.reductions) != 1 or len(facts.outs) != 1:
        return None
    reduction = facts.reductions[0]
    reads = _reads(reduction)
    if reads is None or reads[0].array is reads[1].array:
        return None
    axes = [*facts.data, *reduction.own]
    if not all(isinstance(extent_of(axis), int) for axis in axes):
        return None
    if not frozenset(facts.data) <= reduction.free:
        return None
    rows: list[Node] = []
    columns: list[Node] = []
    shared: list[Node] = []
    for axis in facts.data:
        if extent_of(axis) == 1:
            continue
        a, b = (axis in read.axes for read in reads)
        (shared if a and b else rows if a else columns).append(axis)
    depth = [axis for axis in reduction.own if extent_of(axis) != 1]
    if not all(axis in read.axes for axis in depth for read in reads):
        return None
    if not rows or not columns or not depth:
        return None
    left, right = reads
    innermost = plan.by_stride([*rows, *columns], plan.write)[-1]
    if innermost in rows:
        left, right, rows, columns = right, left, columns, rows
    return Factors(left, right, rows, columns, shared, depth)


def _reads(reduction: Reduction) -> tuple[Access, Access] | None:
    """The two reads whose product is summed, if each may be copied."""
    monoid = reduction.node.arg.monoid
    value = reduction.node.src[0]
    if monoid.primitive is not Ops.ADD or value.dtype.kind not in ("float", "int", "uint"):
        return None
    while value.op in (Ops.CAST, Ops.GUARD):
        value = value.src[-1]
    if value.op is not Ops.MUL:
        return None
    found = []
    for side in value.src:
        while side.op is Ops.CAST:
            side = side.src[0]
        guarded = side.op is Ops.GUARD
        read = side.src[1] if guarded else side
        if read.op is not Ops.INDEX or read.src[0].op is not Ops.PARAM:
            return None
        if not guarded and not in_bounds(read):
            return None
        if any(place.has(Ops.INDEX) for place in read.src[1:]):
            return None
        axes = read.ranges | (side.ranges if guarded else frozenset())
        found.append(Access(read.src[0], offset_of(read), axes, False, side if guarded else None))
    return found[0], found[1]

