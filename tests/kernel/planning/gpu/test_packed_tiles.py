"""Tiles of products whose factor is unpacked for them: right at every level, and as rows want."""

from __future__ import annotations

import pytest

from baregrad.dtypes import dtypes
from baregrad.ir.core.node import Node
from baregrad.kernel.facts.analysis import facts_of
from baregrad.kernel.loops.sharing import prepare
from baregrad.kernel.planning.first_schedule import choose
from baregrad.kernel.planning.gpu import packed_tiles
from baregrad.kernel.planning.gpu.gemm_factors import gemm_factors
from baregrad.kernel.planning.gpu.gemm_tiles import (
    MOST_HELD,
    Product,
    WarpTile,
    held,
    panel_nbytes,
)
from baregrad.kernel.planning.gpu.gpu_plan import GpuPlan
from baregrad.kernel.planning.gpu.packed_tiles import operations_of, ranked_unpacked
from tests.kernel.contractions import contraction
from tests.kernel.gpu_kernels import HOPPER, check_gpu
from tests.kernel.packed_products import packed_product

GAP, WORDS = 8, (True, False)


def factors_of(kernel: Node) -> list[float]:
    found = gemm_factors(GpuPlan(facts_of(prepare(kernel, HOPPER)), HOPPER))
    assert found is not None
    near = found.depth[-1]
    return [operations_of(found.left, near), operations_of(found.right, near)]


@pytest.mark.parametrize("name", ["Q6_K", "Q4_K", "Q8_0"])
@pytest.mark.parametrize(
    ("tile", "panel"), [((4, 1, 1, 2), 256), ((2, 1, 2, 2), 128), ((1, 1, 4, 2), 64)]
)
def test_tiles_with_long_panels(
    name: str, tile: tuple[int, ...], panel: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_tiles, "TILES", (WarpTile(*tile),))
    monkeypatch.setattr(packed_tiles, "PANELS", (panel,))
    kernel = packed_product(name, 20, 24, 512, dtypes.bfloat16)
    found = choose(kernel, HOPPER)
    assert f"of {panel} steps at once" in " ".join(found.why())
    check_gpu(kernel, found.schedule)


def test_what_is_unpacked_counts_and_what_is_read_does_not() -> None:
    assert sorted(factors_of(packed_product("Q6_K", 16, 16, 256, dtypes.bfloat16)))[0] == 0
    four, six = (
        max(factors_of(packed_product(name, 16, 16, 256, dtypes.bfloat16)))
        for name in ("Q4_0", "Q6_K")
    )
    assert 4 < four < six
    assert factors_of(contraction((16,), (16,), (32,), "ax", "xn", "an")) == [0, 0]


@pytest.mark.parametrize("rows", [1, 16, 64, 256])
@pytest.mark.parametrize("size", [(2048, 8192), (8192, 2048), (128256, 2048)])
def test_a_multiprocessor_holds_what_is_chosen(rows: int, size: tuple[int, int]) -> None:
    sizes = [Product(rows, *size, 1)]
    for choice in ranked_unpacked(HOPPER, sizes, (0, 16), GAP, WORDS):
        assert held(choice.tile, choice.panel, WORDS) <= MOST_HELD
        nbytes = choice.slots * panel_nbytes(choice.tile, choice.panel, GAP)
        assert nbytes <= HOPPER.shared_bytes_per_block
        assert choice.slots * choice.panel <= size[1]


def test_few_rows_are_unpacked_for_once() -> None:
    for rows in (16, 64):
        best = ranked_unpacked(HOPPER, [Product(rows, 2048, 8192, 1)], (0, 16), GAP, WORDS)[0]
        assert best.tile.m >= rows
    # What few blocks wait for comes in long panels.
    assert best.panel > 64
