"""Products that groups of four warps make: when they are planned, with which tiles, and results."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

from baregrad.dtypes import dtypes
from baregrad.ir.core.index import variable
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.alu import to_array
from baregrad.kernel import choose, lower
from baregrad.kernel.language.schedule import Persist, Pipeline, Schedule, Split, Tensorize
from baregrad.kernel.planning.common.decisions import Decisions
from baregrad.kernel.planning.gpu import gemm_groups, gemm_mma
from baregrad.kernel.planning.gpu.gemm_groups import (
    MOST_SLOTS,
    TILES,
    GroupChoice,
    GroupTile,
    larger_first,
    ranked_groups,
)
from baregrad.kernel.planning.gpu.gemm_tiles import Product
from baregrad.target import gpu_row
from tests.kernel import kernels as k
from tests.kernel.contractions import HALF, contraction, packed_convolution
from tests.kernel.gpu.test_roles import by_experts
from tests.kernel.gpu_kernels import HOPPER, check_gpu, lowered, run_text
from tests.kernel.instructions.test_mma_sync import product
from tests.kernel.instructions.test_wgmma import CUT_OFF, E4M3, bytes_product

WORDS = (True, True)
Sizes = tuple[int, ...]


def instruction(kernel: Node, target: object = HOPPER) -> str:
    found = choose(kernel, target)
    (step,) = [step for step in found.schedule.steps if isinstance(step, Tensorize)]
    return step.instruction


@pytest.mark.parametrize("left", ["ax", "xa"])
@pytest.mark.parametrize("right", ["nx", "xn"])
@pytest.mark.parametrize("size", [1024, 2048, 4096, 8192])
def test_large_products_are_theirs_in_any_order(size: int, left: str, right: str) -> None:
    assert instruction(contraction((size,), (size,), (size,), left, right, "an")) == "wgmma"


@pytest.mark.parametrize("sizes", [(16, 8192, 8192), (4096, 4096, 32), (64, 48, 64)])
def test_few_rows_and_short_sums_are_those_of_single_warps(sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    assert instruction(contraction((m,), (n,), (k,), "ax", "nx", "an")) == "mma"


def test_a_machine_without_the_unit_keeps_single_warps() -> None:
    """By the row of the machine alone, whatever its name is."""
    kernel = contraction((4096,), (4096,), (4096,), "ax", "nx", "an")
    for target in (replace(HOPPER, matrix_shapes=()), gpu_row("sm_80"), gpu_row("sm_120")):
        assert instruction(kernel, target) == "mma"


def test_what_is_ranked_fits_a_multiprocessor() -> None:
    for sizes in ((4096, 4096, 4096), (512, 512, 512), (100, 3000, 64)):
        for choice in ranked_groups(HOPPER, [Product(*sizes, 1)], WORDS, HALF):
            tile = choice.tile
            assert tile in TILES and choice.slots * (tile.m + tile.n) * 128 <= 227 << 10
            assert tile.warps % 4 == 0 and tile.n % 64 == 0 and choice.cycles > 0


def test_two_panels_come_through_registers_where_no_copies_go_by_themselves() -> None:
    found = ranked_groups(HOPPER, [Product(4096, 4096, 4096, 1)], (False, False), HALF)
    assert found and all(choice.slots <= 2 for choice in found)
    # A lane cannot hold what a large tile's panel has for it.
    assert GroupTile(2, 1, 1, 256) not in [choice.tile for choice in found if choice.slots == 2]


@pytest.mark.parametrize(("rows", "columns", "depth", "letters"), [
    ((128,), (264,), (192,), ("ax", "nx", "an")),
    ((2, 72), (3, 64), (136,), ("abx", "xno", "abno")),
    ((130,), (64,), (3, 48), ("xya", "xyn", "an")),
    ((127,), (64,), (151,), ("ax", "xn", "an")),
], ids=str)  # fmt: skip
def test_results_at_every_level(
    rows: Sizes, columns: Sizes, depth: Sizes, letters: tuple[str, ...]
) -> None:
    kernel = contraction(rows, columns, depth, *letters)
    wanted = {"warp tile": "64x64 for 1x1 groups, 3 panels"}
    found = choose(kernel, HOPPER, Decisions(wanted))
    assert "warps in groups" in found.why()[0]
    check_gpu(kernel, found.schedule)
    # Lanes exchange their columns of each tile that a block does.
    check_gpu(kernel, found.schedule.then(Persist(2)))


def test_blocks_do_several_tiles_where_one_fills_a_multiprocessor() -> None:
    steps = {
        size: choose(contraction((size,), (size,), (size,), "ax", "nx", "an"), HOPPER).schedule
        for size in (2048, 4096)
    }
    blocks = {size: [step for step in found.steps if isinstance(step, Persist)]
              for size, found in steps.items()}  # fmt: skip
    assert blocks == {2048: [], 4096: [Persist(HOPPER.units)]}


def test_much_work_on_results_is_that_of_many_warps() -> None:
    """Of tiles of one size those of more warps are first where each result takes long."""
    plain, dear = (
        ranked_groups(HOPPER, [Product(8192, 3072, 768, 1, after)], WORDS, HALF)
        for after in (0, 20)
    )
    sizes = [
        [choice.tile.warps for choice in found if (choice.tile.m, choice.tile.n) == (128, 256)]
        for found in (plain, dear)
    ]
    assert sizes[0][0] == 8 and sizes[1][0] == 16


def test_chunks_of_an_image_are_there_or_zeros() -> None:
    """A convolution reads its image as it lies, without the zeros around it."""
    kernel = packed_convolution(1, 64, 8, 64, 3)
    assert instruction(kernel) == "wgmma"
    by_threads = replace(HOPPER, barrier_transfer_bytes=0)
    program = check_gpu(kernel, choose(kernel, by_threads).schedule)
    copies = [n for n in program.src if n.op is Ops.MACHINE and n.arg.name == "cp.async"]
    # Those of the image have a condition beside their places.
    assert {len(node.src) for node in copies} == {4, 5}


def test_fewer_places_of_an_image_are_in_a_tile_than_filters() -> None:
    """Of tiles that take as long: each chunk of an image has a condition."""
    product = [Product(200704, 256, 2304, 1)]
    for asked, sizes in (((True, False), (128, 256)), ((False, True), (256, 128))):
        found = ranked_groups(HOPPER, product, WORDS, HALF, asked=asked)
        assert (found[0].tile.m, found[0].tile.n) == sizes
    threads = replace(HOPPER, barrier_transfer_bytes=0)
    schedule = choose(packed_convolution(64, 256, 56, 256, 3), threads).schedule
    (rows,) = [step for step in schedule.steps if isinstance(step, Split) and step.axis == "i1"]
    assert prod([size for _, size in rows.parts[1:]]) == 256


def test_an_engine_copies_what_is_a_box() -> None:
    """Of two factors that lie whole words apart; else threads do, as without an engine."""
    def engine(depth: int, left: str = "ax", target: object = HOPPER) -> tuple[str, list[str]]:
        kernel = contraction((4096,), (4096,), (depth,), left, "nx", "an")
        found = choose(kernel, target)
        (step,) = [one for one in found.schedule.steps if isinstance(one, Pipeline)]
        lower(kernel, target, found.schedule)
        return step.engine, [text.format(*rest) for text, *rest in found.reasons]

    for left in ("ax", "xa"):
        name, reasons = engine(1024, left)
        assert name == "tma" and any(one.startswith("an engine copies") for one in reasons)
    assert engine(8192)[0] == "tma"
    name, reasons = engine(1028)
    assert name != "tma" and any(one.startswith("threads copy") for one in reasons)
    assert engine(1024, target=replace(HOPPER, barrier_transfer_bytes=0))[0] == "async"


@pytest.mark.parametrize("columns", [96, 80, 72, 70])
def test_an_engine_copies_columns_whatever_their_number(columns: int) -> None:
    """Fewer tiles' take turns where the edge would part those of more."""
    kernel = contraction((128,), (columns,), (136,), "ax", "nx", "an")
    schedule = choose(kernel, HOPPER).schedule
    (ring,) = [step for step in schedule.steps if isinstance(step, Pipeline)]
    assert ring.engine == "tma"
    check_gpu(kernel, schedule)


def test_of_boxes_that_take_as_long_the_larger_tile_is_taken() -> None:
    """128 x 192 has fewer results past an edge, and reads more of the second cache.

    Of as many slots as there is room for.
    """
    ranked = ranked_groups(HOPPER, [Product(8192, 8192, 8192, 1)], WORDS, HALF, boxes=True)
    assert ranked[0].tile.columns == 192 and ranked[0].slots == 5
    first, *rest = larger_first(ranked)
    assert (first.tile.m, first.tile.n, first.slots) == (128, 256, 4)
    assert sorted([*rest, first]) == sorted(ranked)
    threads = ranked_groups(HOPPER, [Product(8192, 8192, 8192, 1)], WORDS, HALF)
    assert larger_first(threads) == threads


def columns_of(schedule: Schedule) -> int:
    """Columns of a block's tile."""
    (columns,) = [
        dict(step.parts) for step in schedule.steps
        if isinstance(step, Split) and "n_i" in dict(step.parts)
    ]
    return prod([size for name, size in columns.items() if name not in ("n_o", "n_g", "n_c")])


@pytest.mark.parametrize(("size", "depth", "waves", "right"), [
    (1536, 8192, 1, "nx"), (1792, 7168, 1, "nx"), (2304, 4096, 2, "nx"), (2560, 2560, 2, "nx"),
    (1536, 8192, 1, "xn"), (1792, 7168, 1, "xn"), (2560, 2560, 2, "xn"),
])  # fmt: skip
def test_columns_fill_the_last_wave(size: int, depth: int, waves: int, right: str) -> None:
    """They are fewer than in whole panels, the narrowest of as many waves, and in no more waves."""
    def blocks(columns: int) -> int:
        return -(-size // 128) * -(-size // columns)

    kernel = contraction((size,), (size,), (depth,), "ax", right, "an", written=HALF)
    found = columns_of(choose(kernel, HOPPER).schedule)
    most = waves * HOPPER.units
    assert blocks(found) <= most
    assert found < min(columns for columns in range(64, 257, 64) if blocks(columns) <= most)


def check_columns(monkeypatch: pytest.MonkeyPatch, columns: int, kernel: Node) -> None:
    """An engine brings boxes for tiles of so many columns, and results are right."""
    force_columns(monkeypatch, columns)
    schedule = choose(kernel, HOPPER).schedule
    (ring,) = [step for step in schedule.steps if isinstance(step, Pipeline)]
    assert ring.engine == "tma" and columns_of(schedule) == columns
    check_gpu(kernel, schedule.then(Persist(2)))


@pytest.mark.parametrize(("columns", "kernel"), [
    (144, contraction((128,), (152,), (192,), "ax", "nx", "an")),
    (96, contraction((136,), (200,), (136,), "xa", "nx", "an")),
    (112, contraction((127,), (125,), (136,), "ax", "nx", "na")),
    (240, product(100, 248, 136, b_t=True, bias=True)),
    (176, bytes_product(128, 184, 256, (dtypes.int8, dtypes.int8))),
], ids=("row", "turned", "odd", "bias", "bytes"))  # fmt: skip
def test_columns_along_the_sums_need_be_no_whole_panels(
    columns: int, kernel: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_columns(monkeypatch, columns, kernel)


@pytest.mark.parametrize(("columns", "kernel"), [
    (160, contraction((128,), (168,), (192,), "ax", "xn", "an")),
    (160, contraction((136,), (200,), (136,), "xa", "xn", "an")),
    (160, contraction((128,), (320,), (192,), "ax", "xn", "an")),
    (160, contraction((72,), (160,), (136,), "xa", "xn", "an")),
    (160, contraction((200,), (136,), (136,), "xa", "nx", "na")),
    (224, product(100, 248, 136, bias=True)),
    (224, product(200, 448, 136, bias=True, dtype=dtypes.bfloat16)),
], ids=("row", "turned", "even", "whole", "transposed", "bias", "rows"))  # fmt: skip
def test_boxes_of_columns_across_the_sums_are_whole_panels(
    columns: int, kernel: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last of them is read in part, and nothing past the end of the array."""
    check_columns(monkeypatch, columns, kernel)


def test_parts_of_sums_of_such_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The unit keeps few bits of sums of 8-bit floats."""
    force_columns(monkeypatch, 144)
    kernel = bytes_product(128, 152, 256, (E4M3, E4M3))
    schedule = choose(kernel, HOPPER).schedule
    assert columns_of(schedule) == 144
    loop, program = lowered(kernel, schedule)
    arrays = k.arguments(kernel)
    left, right = (to_array(arrays[slot], E4M3).astype(np.float64) for slot in (1, 2))
    bound = CUT_OFF * (np.abs(left) @ np.abs(right).T)
    assert (np.abs(run_text(loop, program, arrays)[0] - left @ right.T) <= bound).all()


def test_across_the_sums_whole_panels_stay_where_factors_are_small() -> None:
    """Those of which the last is read in part come slower, and nothing else is waited for."""
    for depth, columns in ((8192, 160), (2304, 192)):
        kernel = contraction((1536,), (1536,), (depth,), "ax", "xn", "an", written=HALF)
        assert columns_of(choose(kernel, HOPPER).schedule) == columns


def force_columns(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    """Have the planner know one tile by boxes alone."""
    def alone(*given: Any, **how: Any) -> list[GroupChoice]:
        return [one for one in ranked_groups(*given, **how)
                if one.boxes and one.tile.n == columns and one.slots == 2]  # fmt: skip

    monkeypatch.setattr(gemm_groups, "FROM_MEMORY", 0)
    monkeypatch.setattr(gemm_mma, "ranked_groups", alone)
    monkeypatch.setattr(gemm_mma, "ranked_tiles", lambda *_, **__: [])


def test_tiles_that_may_read_one_matrix_follow_each_other() -> None:
    """Within a few columns of each matrix, and with as many slots as there is room for."""
    schedule = str(choose(by_experts(71, 128, 14336, 4096, 8), HOPPER).schedule)
    assert "reorder('n_o', 'i0', 'm_o', 'n_g'" in schedule and "n_g=8" in schedule
    assert "pipeline('k_o', depth=4, engine='tma')" in schedule


@pytest.mark.parametrize(("rows", "columns", "offered"), [
    (4096, 4096, {"2 along rows", "2 along columns"}), (384, 4096, {"2 along columns"}),
])  # fmt: skip
def test_blocks_may_run_together_where_tiles_are_pairs(
    rows: int, columns: int, offered: set[str]
) -> None:
    """These do not of themselves; BEAM asks for each that there is."""
    kernel = contraction((rows,), (columns,), (8192,), "ax", "xn", "an")
    decisions = Decisions(noted=True)
    first = choose(kernel, HOPPER, decisions).schedule
    assert "cluster" not in str(first)
    assert set(decisions.made["cluster"].options) == {"apart", *offered}
    for one in offered:
        schedule = choose(kernel, HOPPER, Decisions({"cluster": one})).schedule
        side = "m" if one == "2 along rows" else "n"
        assert f"bind('{side}_c', 'cluster')" in str(schedule) and f"{side}_c=2" in str(schedule)


@pytest.mark.parametrize(("size", "depth", "paired"), [
    (8192, 4096, True), (8192, 8192, False), (2048, 1024, False),
])  # fmt: skip
def test_large_results_of_short_sums_are_those_of_pairs(
    size: int, depth: int, paired: bool
) -> None:
    """They share columns. Results are of float32."""
    schedule = choose(contraction((size,), (size,), (depth,), "ax", "xn", "an"), HOPPER).schedule
    assert ("bind('m_c', 'cluster')" in str(schedule)) == paired


@pytest.mark.parametrize(("depth", "teams"), [(512, 2), (1024, 2), (8192, 1)])
def test_tiles_of_short_sums_are_those_of_teams(depth: int, teams: int) -> None:
    """A ring that they share has as many slots as there may be."""
    kernel = contraction((8192,), (8192,), (depth,), "ax", "nx", "an")
    schedule = choose(kernel, HOPPER).schedule
    (ring,) = [step for step in schedule.steps if isinstance(step, Pipeline)]
    (blocks,) = [step for step in schedule.steps if isinstance(step, Persist)]
    assert blocks.teams == teams and ring.engine == "tma"
    assert teams == 1 or ring.depth == MOST_SLOTS


def test_teams_that_add_up_parts_or_find_no_second_tile_or_few_panels_are_none() -> None:
    for kernel in (
        bytes_product(8192, 8192, 1024, (E4M3, E4M3)), by_experts(71, 128, 14336, 512, 8),
        contraction((512,), (512,), (512,), "ax", "nx", "an"),
        contraction((8192,), (8192,), (256,), "ax", "nx", "an"),
    ):
        steps = choose(kernel, HOPPER).schedule.steps
        assert all(step.teams == 1 for step in steps if isinstance(step, Persist))


@pytest.mark.parametrize(("rows", "columns", "depth", "cut"), [
    (5120, 1280, 32768, True), (1536, 1536, 1536, False), (4096, 4096, 20480, False),
    # Of other widths all blocks are busy; of few tiles there would be many parts.
    (1536, 1536, 16384, False), (1024, 1024, 32768, False),
    # It would pay, but for a batch's rows.
    (5120, 1280, 20480, False),
])  # fmt: skip
def test_last_tiles_of_deep_products_are_cut(
    rows: int, columns: int, depth: int, cut: bool
) -> None:
    kernel = contraction((rows,), (columns,), (depth,), "ax", "nx", "an", written=HALF)
    choice = choose(kernel, HOPPER)
    blocks = [step for step in choice.schedule.steps if isinstance(step, Persist)]
    assert any(step.cut for step in blocks) == cut
    assert any("cut along the sums" in reason for reason in choice.why()) == cut


def test_what_has_any_number_of_rows_is_not_cut() -> None:
    """Nor what is as deep as that: sums of a row are those of the same row among others."""
    rows = variable("rows", 1, 5120)
    kernel = contraction((rows,), (1280,), (32768,), "ax", "nx", "an", written=HALF)
    assert "cut=" not in str(choose(kernel, HOPPER).schedule)


@pytest.mark.parametrize(("size", "paired"), [(8192, True), (2048, False)])
def test_large_products_of_8_bit_floats_are_those_of_pairs(size: int, paired: bool) -> None:
    """They share rows, of which a block's tile has twice as many as columns."""
    schedule = str(choose(bytes_product(size, size, 8192, (E4M3, E4M3)), HOPPER).schedule)
    assert ("bind('n_c', 'cluster')" in schedule) == paired
