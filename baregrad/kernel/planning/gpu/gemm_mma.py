"""Schedules of contractions on GPUs: the matrix unit of a warp, or of four, does a tile at once.

Single warps multiply 16-bit floats, tfloat32 and 8-bit integers, groups of four those and 8-bit
floats.

Each side's axes are one, and so is the depth. Panels of the factors come some iterations ahead, by
asynchronous copies where words lie together. They lie as the inputs do; rows are swizzled, or
padded where steps are across them, so that matrices are read without bank conflicts.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod
from typing import Any, NamedTuple

from baregrad.base.bits import greatest_divisor
from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.attrs import KernelInfo
from baregrad.ir.core.node import Node, extent_of, toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel.applying.apply import apply_chunked
from baregrad.kernel.facts.analysis import itemsize, iterations
from baregrad.kernel.gpu.boxes import ENGINE, is_of_boxes
from baregrad.kernel.gpu.shared_copies import VECTOR_BYTES
from baregrad.kernel.gpu.teams import MOST_TEAMS
from baregrad.kernel.instructions import wgmma
from baregrad.kernel.instructions.instruction import product_of, scaled_bits
from baregrad.kernel.instructions.mma_sync import (
    HALVES_PRODUCTS,
    INSTRUCTION,
    PRODUCTS,
    STEPS_NBYTES,
    M,
    N,
)
from baregrad.kernel.language.schedule import (
    Bind,
    Persist,
    Pipeline,
    Reorder,
    Split,
    StageFactor,
    Tensorize,
)
from baregrad.kernel.planning.common.decisions import powers_from
from baregrad.kernel.planning.gpu.gemm_copies import (
    CHUNK,
    CHUNK_NBYTES,
    FactorCopy,
    Orders,
    copies_of_groups,
    element_nbytes,
    held_first,
    in_boxes,
    in_walks,
    orders_of,
    run_of,
)
from baregrad.kernel.planning.gpu.gemm_factors import Factor, GemmFactors
from baregrad.kernel.planning.gpu.gemm_groups import (
    PAIR,
    GroupChoice,
    GroupTile,
    larger_first,
    pairs_that_pay,
    ranked_groups,
)
from baregrad.kernel.planning.gpu.gemm_tiles import (
    MatrixTile,
    Product,
    TileChoice,
    WarpTile,
    blocks_of,
    ranked_tiles,
)
from baregrad.kernel.planning.gpu.gpu_plan import GpuPlan
from baregrad.kernel.planning.gpu.packed_tiles import (
    UnpackedChoice,
    operations_of,
    ranked_unpacked,
)

# Steps of a sum, rows and columns, and products that are worth the unit; many columns are, however
# few rows they have, as the unit reads them once.
LEAST_DEPTH = 16
LEAST_SIDE, LONG_SIDE = 8, 64
LEAST_PRODUCTS = 1 << 12
# Bytes along a sum that copies for groups of warps take at once, at least.
LEAST_BYTES = 4
# Rows of tiles whose blocks run at about the same time: what they read meets in the second cache.
# Where rows have no such number, it is columns of tiles.
MOST_GROUP = 16
FEW_GROUP = 4
# As many columns of tiles, where other arrays say of which matrix each row of tiles reads them: on
# an H200 8,192 rows by 8 experts of 4,096 x 14,336 took 1,413 us with groups of 8 and of 4, 1,470
# with 14, 1,490 with 28. With rings of four slots in place of three they took 2 % less: what is new
# to the second cache takes longer to come. In bursts they took 1,313 us, and 1,279 where a table
# said which tile is next: matrix by matrix, column by column, all rows of it in turn; 1,260 where
# the cache was to forget the matrices first. Where every thread looked the ends of a matrix's rows
# up in the array itself, on and on they took 3 % longer than in groups.
CHOSEN_GROUP = 8
# Bits of factors whose tiles may be cut.
BITS = 16
# Rows of all banks in a panel whose sums are scaled: 8,192 cubed in blocks of 128 took an H200
# 4.4 ms with one and 3.3 with two, of 16-bit floats in tiles of 128 x 128 for 8 warps. And what
# three such panels take of shared memory.
SCALED, SCALED_NBYTES = 2, 3 << 16
# Lanes that have a row's results.
QUAD_LANES = 4
# What boxes take of what they would if an engine walks along places, and lanes store less of those
# at once than where threads copy: on an H200 a convolution 3x3 of 64x256x14x14 took 54 us by walks
# and 50 by threads. Where lanes store as much, walks cost no more than other boxes: 64x256x56x56
# took 357 us by them and 370 by threads, 64x512x7x7 68 and 83.
WALKED = 1.3
_AnyChoice = TileChoice | GroupChoice | UnpackedChoice
# Axes and their extents.
Sizes = Sequence[tuple[str, int]]


def plan_matrix(plan: GpuPlan, factors: GemmFactors) -> bool:
    """Give a contraction to matrix units; False where it is none of theirs."""
    what = product_of(plan.facts, wgmma.PRODUCTS, scaled_bits(plan.target))
    if not plan.target.async_copies or what is None:
        return False
    dtype, turns = what.left, what in HALVES_PRODUCTS
    if what not in PRODUCTS or (not turns and wgmma.has_groups(plan.target, dtype)):
        return _plan_along(plan, factors, dtype)
    # Steps of an instruction, and of a panel: as many as reach all banks. Elements of a copy.
    depth, full, chunk = (
        each // dtype.itemsize for each in (STEPS_NBYTES, wgmma.ROW_NBYTES, CHUNK_NBYTES)
    )
    if (dtype.name, depth) not in plan.target.warp_products:
        return False
    m, n, k, _ = factors.sizes()
    small = min(m, n) < LEAST_SIDE and max(m, n) < LONG_SIDE
    if small or k < LEAST_DEPTH or m * n * k < LEAST_PRODUCTS:
        plan.because("{} x {} results, sums of {}: too small for matrix units", m, n, k)
        return False
    orders = orders_of(plan, factors, chunk, (not turns, not turns))
    # Short sums have two panels: what is copied as it is read waits for each of its words.
    panel = full if k > full else -(-k // (2 * depth)) * depth
    has_room = plan.target.shared_bytes_per_block >= SCALED_NBYTES
    if factors.scale is not None and has_room and _is_long(orders.depth[-1], SCALED * full):
        panel = SCALED * full
    words = (
        _is_of_words(factors.left, orders.left, orders.rows, orders.depth, depth),
        _is_of_words(factors.right, orders.right, orders.columns, orders.depth, depth),
    )
    narrow = min(orders.left.lanes, orders.right.lanes) < chunk
    products = _products(plan, factors)
    ranked: list[_AnyChoice] = []
    engine: Orders | None = None
    near = orders.depth[-1]
    if factors.scale is not None and not _has_panels(plan, factors, orders, panel):
        return False
    operations = operations_of(factors.left, near), operations_of(factors.right, near)
    if turns and any(operations) and any(words) and factors.scale is None:
        ranked += ranked_unpacked(plan.target, products, operations, chunk, words)
    if not ranked:
        ranked += ranked_tiles(
            plan.target, products, panel, chunk, words, narrow, dtype.itemsize,
            factors.scale is not None or wgmma.adds_apart(dtype),
        )
        # Of fewer rows or columns the unit would multiply zeros.
        is_wide = min(m, n) >= wgmma.M and panel == full
        if is_wide and wgmma.has_groups(plan.target, dtype):
            engine = _of_engine(plan, factors, orders)
            ranked += _groups(plan, factors, orders, engine, products, words, dtype)
            ranked.sort(key=lambda each: each.cycles)
            ranked = larger_first(ranked)
    product = _Tiled(factors, orders, (panel, depth), words, products[0], engine, dtype)
    choice = _picked(plan, product, ranked)
    if choice is None:
        plan.because("no tile of {} has room: no products by warps", dtype)
        return False
    if isinstance(choice, UnpackedChoice):
        product = product._replace(steps=(choice.panel, depth))
    _finish(plan, product, choice)
    return True


def _plan_along(plan: GpuPlan, factors: GemmFactors, dtype: DType) -> bool:
    """Give a contraction to groups of warps, if its factors lie along its sums."""
    if not wgmma.has_groups(plan.target, dtype):
        return False
    factors = held_first(plan, factors, dtype)
    m, n, k, _ = factors.sizes()
    chunk, panel, depth = (
        each // dtype.itemsize for each in (CHUNK_NBYTES, wgmma.ROW_NBYTES, wgmma.STEPS_NBYTES)
    )
    if min(m, n) < wgmma.M or k < panel:
        plan.because("{} x {} results, sums of {}: too small for groups of warps", m, n, k)
        return False
    orders = orders_of(plan, factors, chunk, (dtype is not dtypes.tfloat32, True))
    words = (
        _is_of_words(factors.left, orders.left, orders.rows, orders.depth, depth),
        _is_of_words(factors.right, orders.right, orders.columns, orders.depth, depth),
    )
    if min(orders.left.lanes, orders.right.lanes) * dtype.itemsize < LEAST_BYTES:
        plan.because("what is summed does not lie together: no products of {} by groups", dtype)
        return False
    products = _products(plan, factors)
    engine = _of_engine(plan, factors, orders)
    ranked = _groups(plan, factors, orders, engine, products, words, dtype)
    if factors.scale is not None and not _has_panels(plan, factors, orders, panel):
        return False
    product = _Tiled(factors, orders, (panel, depth), words, products[0], engine, dtype)
    choice = _picked(plan, product, ranked)
    if choice is None:
        plan.because("no tile of {} has room: no products by groups", dtype)
        return False
    _finish(plan, product, choice)
    return True


def _is_long(axis: Node, panel: int) -> bool:
    """Whether whole panels of so many steps lie along an axis."""
    length = extent_of(axis)
    return isinstance(length, int) and length % panel == 0


def _has_panels(plan: GpuPlan, factors: GemmFactors, orders: Orders, panel: int) -> bool:
    """Whether scales are those of whole panels: by groups of one, as threads add up each anyway."""
    assert factors.scale is not None
    near = orders.depth[-1]
    is_whole = _is_long(near, panel)
    if plan.target.warpgroup_warps:
        is_whole = extent_of(near) == panel
    if not is_whole or near in factors.scale.ranges:
        plan.because("scales are not those of whole panels: no products by matrix units")
        return False
    return True


class _Tiled(NamedTuple):
    """A product whose tile is chosen.

    steps: those of a panel, and of an instruction. words: as of `ranked_tiles`. engine: as of
    `_of_engine`. dtype: that of the factors.
    """

    factors: GemmFactors
    orders: Orders
    steps: tuple[int, int]
    words: tuple[bool, bool]
    largest: Product
    engine: Orders | None
    dtype: DType


def _picked(plan: GpuPlan, product: _Tiled, ranked: Sequence[_AnyChoice]) -> Any:
    """The choice of least time whose panels are copied as it says; None where there is none."""
    while ranked and _has_boxes(ranked[0]) and not _are_boxes(plan, product, ranked[0]):
        tile = ranked[0].tile
        ranked = larger_first([
            one for one in ranked if one.tile != tile or not _has_boxes(one)
        ])
    return plan.pick("warp tile", ranked, cycles=lambda each: each.cycles) if ranked else None


def _has_boxes(choice: _AnyChoice) -> bool:
    return isinstance(choice, GroupChoice) and choice.boxes


def _are_boxes(plan: GpuPlan, product: _Tiled, choice: _AnyChoice) -> bool:
    """Whether both panels are boxes of maps as a choice's tile cuts them: asked of the copies."""
    trial = plan.fork()
    _finish(trial, product, choice)
    kernel = Node(Ops.KERNEL, dtypes.token, plan.facts.outs, KernelInfo())
    applied = apply_chunked(kernel, trial.schedule(), plan.target)
    return all(is_of_boxes(node) for node in toposort(applied) if node.op is Ops.STAGE)


def _finish(plan: GpuPlan, product: _Tiled, choice: _AnyChoice) -> None:
    """The steps of a schedule."""
    factors, orders, (panel, depth), words, largest, engine, dtype = product
    if isinstance(choice, GroupChoice) and choice.boxes:
        assert engine is not None
        orders = engine
    tile = choice.tile
    beside = _beside(plan, orders, tile)
    if orders.right.is_in_order and factors.scale is not None and isinstance(tile, WarpTile):
        # Lanes would exchange what they have of each panel.
        beside = 1
    if isinstance(choice, GroupChoice) and choice.boxes and not orders.right.is_in_order:
        # Columns that take turns are dimensions of a box: the edge must not part them.
        tiles, left = divmod(iterations(orders.columns), N)
        beside = 1 if left else gcd(beside, tiles)
    chosen = _chosen(plan, factors)
    plan.grid([axis for axis in factors.shared if axis not in chosen])
    cut = isinstance(choice, GroupChoice) and choice.cut
    alone = chosen or cut
    cluster = (1, 1) if alone else _cluster(plan, orders, choice, largest, dtype)
    _tiles(plan, orders, choice.tile, (panel, depth), beside, chosen, cluster)
    if isinstance(choice, GroupChoice):
        copies_of_groups(plan, factors, orders, choice.tile.columns, beside)
        blocks = blocks_of(largest, choice.tile)
        if cut or (choice.resident == 1 and blocks > plan.target.units):
            # One block of a multiprocessor after the other would each begin with nothing copied.
            together = plan.target.units // max(cluster) * max(cluster)
            plan.steps.append(Persist(together, choice.teams, cut))
    else:
        assert isinstance(tile, WarpTile)
        _copies(plan, factors, orders, tile, (panel, depth), beside)
    if isinstance(choice, GroupChoice) and choice.boxes:
        plan.steps.append(Pipeline("k_o", choice.slots, ENGINE))
        plan.steps.append(choice.parted.step(choice.teams * tile.warps))
    elif choice.slots > 1:
        copier = "async" if any(words) else "lanes"
        plan.steps.append(Pipeline("k_o", choice.slots, copier))
    plan.because(
        "matrix units: {} x {} results for {} {}, {} panels of {} steps at once, "
        "copies of {} and {} elements",
        tile.m, tile.n, tile.warps, "warps" if isinstance(tile, WarpTile) else "warps in groups",
        choice.slots, panel, orders.left.lanes, orders.right.lanes,
    )
    if isinstance(choice, GroupChoice):
        _tell(plan, choice, orders, engine)


def _tell(plan: GpuPlan, choice: GroupChoice, orders: Orders, engine: Orders | None) -> None:
    """Say what else is to be said of groups of warps."""
    if choice.cut:
        plan.because("tiles of the last round are cut along the sums: all blocks sum as long")
    if choice.teams > 1:
        plan.because(
            "each of {} teams of a block has such tiles: one stores while another multiplies",
            choice.teams,
        )
    if choice.boxes:
        walks = orders.left.walks or orders.right.walks
        in_part = orders.right.turned and choice.tile.n % wgmma.PANEL
        plan.because(
            "an engine copies panels as boxes{}{}, for a warp of its own",
            ", or walks along places of an image" if walks else "",
            f" of {wgmma.PANEL} columns, the last of which is read in part" if in_part else "",
        )
    elif plan.target.bulk_copies:
        plan.because(
            "threads copy panels: {}", "that takes less time than boxes would" if engine
            else "not both are boxes of arrays of known sizes",
        )


def _groups(
    plan: GpuPlan, factors: GemmFactors, orders: Orders, engine: Orders | None,
    products: Sequence[Product], words: tuple[bool, bool], dtype: DType,
) -> list[GroupChoice]:  # fmt: skip
    """Tiles for groups of warps, whose panels threads copy, or an engine where boxes suit.

    orders: those in which threads copy. engine: as of `_of_engine`.
    """
    left, right = (
        any(read.guard is not None for read in factor.reads)
        for factor in (factors.left, factors.right)
    )
    found = ranked_groups(plan.target, products, words, dtype, asked=(left, right))
    if engine is not None:
        # What lanes read they wait for, and another group is to multiply meanwhile.
        by_lanes = wgmma.is_read_by_lanes(dtype, not engine.left.turned)
        chosen = bool(_chosen(plan, factors))
        uneven = chosen or wgmma.adds_apart(dtype) or by_lanes
        free = not (engine.right.walks or chosen or by_lanes)
        whole = (wgmma.PANEL if engine.right.turned else N) * free
        even = not (uneven or engine.left.walks or engine.right.walks)
        # Of other dtypes nothing was measured.
        cut = even and factors.may_cut and dtype.bits == BITS
        by_boxes = ranked_groups(plan.target, products, words, dtype, True, whole=whole, cut=cut)
        if even:
            by_boxes += ranked_groups(plan.target, products, words, dtype, True, teams=MOST_TEAMS)
            by_boxes.sort(key=lambda choice: choice.cycles)
        if uneven:
            # Panels come unevenly, or are read so.
            most = {one.tile: max(each.slots for each in by_boxes if each.tile == one.tile)
                    for one in by_boxes}  # fmt: skip
            by_boxes = [one for one in by_boxes if one.slots == most[one.tile]]
        if _stores_less(plan, engine, orders):
            by_boxes = [one._replace(cycles=WALKED * one.cycles) for one in by_boxes]
        # What the engine rounds on its way threads would hold, round and store instead.
        rounds = factors.left.is_rounded or factors.right.is_rounded
        if rounds:
            return [*larger_first(by_boxes), *found]
        found = [*found, *by_boxes]
    return larger_first(sorted(found, key=lambda choice: choice.cycles))


def _stores_less(plan: GpuPlan, engine: Orders, orders: Orders) -> bool:
    """Whether an engine walks along columns, and lanes have fewer of these together so."""
    tile = GroupTile(1, 1, 1, wgmma.PANEL)
    return engine.right.walks and _beside(plan, engine, tile) < _beside(plan, orders, tile)


def _of_engine(plan: GpuPlan, factors: GemmFactors, orders: Orders) -> Orders | None:
    """The orders in which an engine copies panels of both factors; None where it does not.

    As boxes, or along places of an image where they are none.
    """
    if not plan.target.bulk_copies:
        return None
    found = []
    for factor, copy, own in (
        (factors.left, orders.left, orders.rows), (factors.right, orders.right, orders.columns),
    ):  # fmt: skip
        chunk = CHUNK_NBYTES // element_nbytes(factor)
        is_box = in_boxes(factor, own, orders.depth, copy, chunk)
        in_halves = copy.turned and chunk == CHUNK // 2
        walks = not (is_box or in_halves) and in_walks(factor, own, orders.depth, copy, chunk)
        if not (is_box or walks):
            return None
        found.append(copy._replace(walks=walks))
    return orders._replace(left=found[0], right=found[1])


def _chosen(plan: GpuPlan, factors: GemmFactors) -> list[Node]:
    """Axes of which each point has a matrix of columns that other arrays name."""
    said = {axis for read in factors.right.reads for atom, _ in read.offset.rest
            if atom.has(Ops.INDEX) for axis in atom.ranges}  # fmt: skip
    return [axis for axis in factors.shared if axis in said and axis not in plan.uncertain]


def _copies(
    plan: GpuPlan, factors: GemmFactors, orders: Orders, tile: WarpTile, sizes: tuple[int, int],
    beside: int,
) -> None:  # fmt: skip
    """How both factors lie in shared memory for products of single warps.

    sizes: the steps of a panel, and of an instruction.
    """
    panel, depth = sizes
    full = depth * wgmma.ROW_NBYTES // STEPS_NBYTES
    steps = ("k_u", panel // depth), ("k_i", depth)
    for factor, copy, side, warps, tiles, turns in (
        (factors.left, orders.left, "m", tile.warps_m, tile.tiles_m, 1),
        (factors.right, orders.right, "n", tile.warps_n, tile.tiles_n, beside),
    ):
        each = f"{side}_i", M if side == "m" else N
        own = [(f"{side}_w", warps), (f"{side}_u", tiles // turns)]
        own += [(f"{side}_v", turns)] if turns > 1 else []
        if copy.turned:
            row = (*own[1:], each)
            plan.steps.append(_across(factor.place, "k_i", row, (own[0], steps[0]), full))
        elif panel < full:
            plan.steps.append(_across(factor.place, each[0], steps, own[::-1], full))
        else:
            axes = tuple([name for name, _ in (*own, each, *steps)])
            plan.steps.append(StageFactor(factor.place, axes, swizzle=3))


def _products(plan: GpuPlan, factors: GemmFactors) -> list[Product]:
    """The sizes that the product may have, the largest first, and what is done with its results."""
    facts = plan.facts
    every = frozenset(facts.data)
    written = [access for access in facts.accesses if access.write]
    # A factor lacks the axes of the other side.
    reads = [access for access in facts.accesses if not access.write and access.axes >= every]
    nbytes = sum(itemsize(access.array.dtype) for access in written)
    after = facts.work.get(every, 0), nbytes, len(reads)
    return [Product(*sizes, *after) for sizes in factors.all_sizes()]


def _is_of_words(
    factor: Factor, copy: FactorCopy, own: Sequence[Node], depth: Sequence[Node], steps: int
) -> bool:
    """Whether copies of a factor go by themselves: of words, and none lies across an edge."""
    axes, part = (own, M) if copy.turned else (depth, steps)
    known = [extent for axis in axes if isinstance(extent := extent_of(axis), int)]
    return factor.is_plain and copy.lanes > 1 and prod(known) % part == 0


def _across(place: int, across: str, row: Sizes, others: Sizes, full: int) -> StageFactor:
    """A copy whose matrices have eight steps of an axis `across`, in rows that reach all banks.

    full: elements of a row that reaches all banks. As many of `others`, innermost first, fill `row`
    up, and all else is outside, in their order. Rows of whole lines of all banks are swizzled, so
    that a copy's words stay in whole lines. Elsewhere, and where steps lie side by side, a pad is
    between them; rows of one chunk need none.
    """
    count, columns = 0, prod([size for _, size in row])
    while count < len(others) and columns < full:
        columns *= others[count][1]
        count += 1
    filling, outside = others[:count], others[count:]
    parts = (*outside, (across, 0), *reversed(filling), *row)
    axes = tuple([name for name, _ in parts])
    steps_beside = any(name.startswith("k") for name, _ in (*filling, *row))
    if not steps_beside and columns % full == 0:
        return StageFactor(place, axes, swizzle=3)
    chunk = full * CHUNK_NBYTES // wgmma.ROW_NBYTES
    return StageFactor(place, axes, chunk if columns > chunk else 0)


def _beside(plan: GpuPlan, orders: Orders, tile: MatrixTile) -> int:
    """Tiles of which a lane's columns lie together in every output; 1 for none.

    A lane has two columns of each, which take turns with those of the others. Where columns come
    together they cannot: then four lanes exchange theirs of four tiles.
    """
    writes = [access for access in plan.facts.accesses if access.write]
    together = gcd(*[iterations(run_of(write, orders.columns)) for write in writes])
    if orders.right.is_in_order:
        return QUAD_LANES if together % N == 0 and tile.tiles_n % QUAD_LANES == 0 else 1
    if together % 2:
        return 1
    widest = max(itemsize(write.array.dtype) for write in writes)
    return gcd(VECTOR_BYTES // (2 * widest), together // 2, tile.tiles_n)


def _cluster(
    plan: GpuPlan, orders: Orders, choice: _AnyChoice, size: Product, dtype: DType
) -> tuple[int, int]:
    """Blocks along rows and columns that run together and share boxes; (1, 1) for none."""
    if not isinstance(choice, GroupChoice) or not choice.boxes:
        return 1, 1
    found = {"apart": (1, 1)}
    tile = choice.tile
    if _tiles_along(orders.rows, tile.m) % PAIR == 0 and _has_slices(orders.right, tile.n):
        found[f"{PAIR} along rows"] = PAIR, 1
    if _tiles_along(orders.columns, tile.n) % PAIR == 0 and _has_slices(orders.left, tile.m):
        found[f"{PAIR} along columns"] = 1, PAIR
    pays = pairs_that_pay(plan.target, size, choice.tile, dtype)
    first = next((name for name, pair in found.items() if pair == pays), "apart")
    return found[plan.pick("cluster", sorted(found, key=lambda name: name != first))]


def _has_slices(copy: FactorCopy, size: int) -> bool:
    """Whether a side's box is cut in a slice for each block of a pair."""
    # What an engine walks along is cut in none, columns that are innermost between panels.
    return not copy.walks and (not copy.turned or size % (PAIR * wgmma.PANEL) == 0)


def _tiles_along(axes: Sequence[Node], size: int) -> int:
    """Tiles of a side; 1 where nobody knows how many there are: some of a group would be empty."""
    is_fixed = all(isinstance(extent_of(axis), int) for axis in axes)
    return -(-iterations(axes) // size) if is_fixed else 1


def _tiles(
    plan: GpuPlan, orders: Orders, tile: WarpTile | GroupTile, steps: tuple[int, int], beside: int,
    chosen: Sequence[Node] = (), cluster: tuple[int, int] = (1, 1),
) -> None:
    """Split the sides, which are one axis each, and bind their parts to blocks and warps.

    chosen: axes of blocks along which other arrays say which columns are read. cluster: blocks
    along rows and columns that run together.
    """
    panel, depth = steps
    most = plan.pick("group", powers_from(MOST_GROUP, 1, 2 * MOST_GROUP))
    by_rows = greatest_divisor(_tiles_along(orders.rows, tile.m * cluster[0]), most)
    by_columns = greatest_divisor(_tiles_along(orders.columns, tile.n * cluster[1]), most)
    grid: tuple[str, ...] = ("m_o", "n_o", "m_g")
    if chosen:
        by_columns = greatest_divisor(_tiles_along(orders.columns, tile.n), min(most, CHOSEN_GROUP))
        # Neighbours mostly read the same matrix: a group of its columns serves them all.
        grid = ("n_o", *map(plan.name, chosen), "m_o", "n_g")
    elif by_rows < min(by_columns, FEW_GROUP):
        grid = ("n_o", "m_o", "n_g")
    rows = [("m_g", by_rows)] if "m_g" in grid else []
    columns = [("n_g", by_columns)] if "n_g" in grid else []
    together = "m_c" if cluster[0] > 1 else "n_c"
    if max(cluster) > 1:
        (rows if cluster[0] > 1 else columns).append((together, max(cluster)))
        grid += (together,)
    panels: tuple[tuple[str, int], ...] = ()
    if isinstance(tile, GroupTile):
        instruction, each = wgmma.INSTRUCTION, wgmma.M
        warps_m, warps_n = tile.groups_m, tile.groups_n
        # Rows of steps need be no whole panels.
        whole = wgmma.PANEL if tile.columns % wgmma.PANEL == 0 else tile.columns
        panels = (("n_p", tile.columns // whole),)
        beside_each = whole // N
    else:
        instruction, each = INSTRUCTION, M
        warps_m, warps_n = tile.warps_m, tile.warps_n
        beside_each = tile.tiles_n
    warps = ("m_w", warps_m), ("m_u", tile.tiles_m), ("m_i", each)
    turns = (("n_v", beside),) if beside > 1 else ()
    columns_of_tile = (*turns, ("n_i", N)) if orders.right.is_in_order else (("n_i", N), *turns)
    for axes, parts in (
        (orders.rows, (("m_o", 0), *rows, *warps)),
        (orders.columns, (("n_o", 0), *columns, ("n_w", warps_n), *panels,
                          ("n_u", beside_each // beside), *columns_of_tile)),
        (orders.depth, (("k_o", 0), ("k_u", panel // depth), ("k_i", depth))),
    ):  # fmt: skip
        plan.steps.append(Split(plan.joined(axes), parts, "", True))
    # Each step of a panel is multiplied with all tiles of a warp before the next one is read.
    vectors = [name for name, _ in turns]
    names = [name for name, _ in panels]
    inner = ("m_w", "n_w", "k_o", "k_u", "m_u", *names, "n_u", *vectors, "m_i", "n_i", "k_i")
    plan.steps.append(Reorder((*grid, *inner)))
    units = {**dict.fromkeys(grid, "grid"), "m_w": "thread_z", "n_w": "thread_y",
             **dict.fromkeys(("m_u", *names, "n_u"), "unroll"),
             **dict.fromkeys(vectors, "vector")}  # fmt: skip
    if together in grid:
        units[together] = "cluster"
    plan.steps.extend(Bind(axis, unit) for axis, unit in units.items())
    plan.steps.append(Tensorize(("m_i", "n_i", "k_i"), instruction))
