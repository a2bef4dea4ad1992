"""The model of what tiles of a product take: its choices fit the machine and the product."""

from __future__ import annotations

from typing import Any

import pytest

from baregrad.kernel import choose_schedule
from baregrad.kernel.planning.gpu.gemm_tiles import (
    CODE_BYTES,
    MOST_HELD,
    OPERATION_BYTES,
    TILES,
    Product,
    TileChoice,
    held,
    panel_nbytes,
    ranked_tiles,
)
from baregrad.target import gpu_row
from baregrad.target.gpu import NvidiaTarget
from tests.kernel.contractions import contraction
from tests.kernel.gpu_kernels import check_gpu

PANEL, GAP = 64, 8
WORDS, NO_WORDS = (True, True), (False, False)
HOPPER = gpu_row("sm_90a")
SIZES = tuple([
    Product(m, n, k, count)
    for m, n in ((8, 8192), (16, 8192), (48, 48), (768, 768), (4096, 4096), (1 << 18, 16))
    for k in (64, 4096) for count in (1, 96)
])  # fmt: skip


def best(target: NvidiaTarget, size: Product, *arguments: Any) -> TileChoice:
    """What the model takes."""
    return ranked_tiles(target, [size], *arguments)[0]


@pytest.mark.parametrize("row", ["sm_80", "sm_86", "sm_89", "sm_90a"])
@pytest.mark.parametrize("words", [WORDS, (True, False), NO_WORDS])
def test_a_multiprocessor_holds_what_is_chosen(row: str, words: tuple[bool, bool]) -> None:
    target: NvidiaTarget = gpu_row(row)
    for size in SIZES:
        tile, slots, _ = best(target, size, PANEL, GAP, words)
        assert slots * panel_nbytes(tile, PANEL, GAP) <= target.shared_bytes_per_block
        assert 32 * tile.warps * tile.registers <= target.registers_per_unit
        assert slots <= -(-size.k // PANEL)
        # Two slots are all that registers between them are good for.
        assert any(words) or slots <= 2
        assert slots == 1 or held(tile, PANEL, words) <= MOST_HELD


def test_tiles_are_as_large_as_the_grid_allows() -> None:
    def area(size: Product) -> int:
        tile = best(HOPPER, size, PANEL, GAP, WORDS).tile
        return tile.m * tile.n

    areas = [area(Product(size, size, 4096, 1)) for size in (256, 512, 1024, 8192)]
    assert areas == sorted(areas)
    assert areas[-1] == max(tile.m * tile.n for tile in TILES)


def test_few_rows_have_low_tiles() -> None:
    for m in (8, 16):
        tile = best(HOPPER, Product(m, 8192, 8192, 1), PANEL, GAP, WORDS).tile
        assert tile.m == 16
    assert best(HOPPER, Product(1 << 18, 8, 4096, 1), PANEL, GAP, WORDS).tile.n <= 16


def test_copies_of_no_words_need_smaller_tiles() -> None:
    size = Product(8192, 8192, 8192, 1)
    waiting = held(best(HOPPER, size, PANEL, GAP, NO_WORDS).tile, PANEL, NO_WORDS)
    assert waiting <= MOST_HELD
    assert held(TILES[0], PANEL, WORDS) == 0


def test_much_to_do_after_the_sums_is_done_beside_another_block() -> None:
    for depth, after in ((8192, 0), (768, 20)):
        size = Product(8192, 3072, depth, 1, after)
        tile, slots, _ = best(HOPPER, size, PANEL, GAP, WORDS)
        nbytes = slots * panel_nbytes(tile, PANEL, GAP)
        blocks = HOPPER.resident_blocks(tile.warps, tile.registers, nbytes)
        assert (blocks > 1) == (after > 0)


def test_lone_blocks_leave_no_room_for_a_second_one() -> None:
    """Two on one multiprocessor would take twice as long as one on each of two."""
    for size in (Product(1024, 1024, 1024, 1), Product(512, 3136, 4608, 1)):
        tile, slots, _ = best(HOPPER, size, PANEL, GAP, WORDS)
        nbytes = slots * panel_nbytes(tile, PANEL, GAP)
        assert -(-size.m // tile.m) * -(-size.n // tile.n) <= HOPPER.units
        assert HOPPER.resident_blocks(tile.warps, tile.registers, nbytes) == 1


@pytest.mark.parametrize(("columns", "depth"), ((3072, 768), (8192, 2048)))
def test_of_several_sizes_each_counts_by_its_rows(columns: int, depth: int) -> None:
    """A tile for the most rows leaves most of a machine idle where there are few."""
    every = (2048, 256, 32, 4, 1)
    sizes = [Product(rows, columns, depth, 1) for rows in every]
    lone = [ranked_tiles(HOPPER, [size], PANEL, GAP, WORDS) for size in sizes]
    times = [{each[:2]: each.cycles for each in ranked} for ranked in lone]

    def total(choice: TileChoice) -> float:
        parts = zip(every, times, strict=True)
        return sum(time[choice[:2]] * rows / every[0] for rows, time in parts)

    found = ranked_tiles(HOPPER, sizes, PANEL, GAP, WORDS)
    assert total(found[0]) == pytest.approx(min(map(total, found)))
    assert total(found[0]) <= total(lone[0][0])
    assert found[0].cycles == pytest.approx(total(found[0]))


def test_narrow_copies_are_fewer_at_once() -> None:
    size = Product(1024, 256, 1568, 8)
    wide, narrow = (
        ranked_tiles(HOPPER, [size], PANEL, GAP, WORDS, narrow)[0] for narrow in (False, True)
    )
    assert (wide.tile, wide.cycles) == (narrow.tile, narrow.cycles)
    assert 1 < narrow.slots < wide.slots


def test_what_is_read_for_each_result_is_read_by_many_lanes() -> None:
    """A lane waits for its elements: the more are read, the fewer results it has."""
    results = [
        best(HOPPER, Product(512, 50176, 256, 1, 3, 2, reads), PANEL, GAP, WORDS).tile.results
        for reads in (0, 2)
    ]
    assert results[1] < results[0]


def test_stores_of_one_block_run_beside_products_of_another() -> None:
    def area(depth: int) -> int:
        tile = best(HOPPER, Product(1 << 15, 8192, depth, 1, 0, 4), PANEL, GAP, WORDS).tile
        return tile.m * tile.n

    assert area(256) < area(8192)


@pytest.mark.parametrize("after", [40, 70, 120])
def test_the_code_of_what_follows_the_sums_is_kept(after: int) -> None:
    """It is written out for each result of a lane: of much there are few."""
    tile, *_ = best(HOPPER, Product(8192, 3072, 768, 1, after), PANEL, GAP, WORDS)
    assert tile.results * after * OPERATION_BYTES <= CODE_BYTES
    assert 2 * tile.results * after * OPERATION_BYTES > CODE_BYTES


@pytest.mark.parametrize(("sizes", "group"), [
    ((160, 96, 32), "m_g=10"), ((272, 160, 16), "n_g="), ((17 * 16, 40, 16), "m_o"),
])  # fmt: skip
def test_blocks_that_run_side_by_side_share_a_factor(
    sizes: tuple[int, int, int], group: str
) -> None:
    """In whatever order tiles are dealt out, each result is computed once."""
    m, n, k = sizes
    kernel = contraction((m,), (n,), (k,), "ax", "nx", "an")
    schedule = choose_schedule(kernel, HOPPER)
    assert group in str(schedule)
    check_gpu(kernel, schedule)


def test_all_multiprocessors_count() -> None:
    """392 tiles are three for nearly each of 132 of them, where 128 would have four."""
    size = Product(128, 50176, 1152, 1)
    tile = best(HOPPER, size, PANEL, GAP, WORDS).tile
    blocks = -(-size.m // tile.m) * -(-size.n // tile.n)
    turns = -(-blocks // HOPPER.units)
    assert blocks > 0.95 * turns * HOPPER.units
