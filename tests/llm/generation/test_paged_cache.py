"""Pages go to the host and come back with the same bits, wherever they lie afterwards."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from baregrad import Tensor
from baregrad.llm.generation.layer_pages import StepPlaces
from baregrad.llm.generation.paged_cache import PagedCache, cache_nbytes, pages_of, views
from baregrad.llm.models.traits import CacheRow

ROWS = [CacheRow(2, 32, 32, False), CacheRow(1, 64, 32, True)]


def filled(kind: str, pages: list[int]) -> PagedCache:
    """A cache in which pages hold what eager code has just written."""
    cache, rng = PagedCache(ROWS, 60, kind), np.random.default_rng(0)
    count = len(pages) * 16
    table = Tensor(np.array(pages, np.int32))
    places = StepPlaces(table, Tensor.arange(count, dtype="int32"))
    for row, view in zip(ROWS, views(cache.layers, places), strict=True):
        key, value = (
            Tensor(rng.normal(size=(count, row.heads, width)).astype(np.float32))
            for width in (row.key_width, row.value_width)
        )
        view.attend(key, key, None if row.is_shared else value, scale=1.0)
    return cache


def is_equal(saved: Any, other: Any) -> bool:
    return all(
        np.array_equal(x, y) for a, b in zip(saved, other, strict=True)
        for x, y in zip(a, b, strict=True)
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "q8_0"])
def test_pages_move_without_a_change(kind: str) -> None:
    pages = [3, 5, 9, 1, 2, 4, 6, 7, 8, 10, 11]
    cache = filled(kind, pages)
    saved = cache.copy_out(pages)
    assert len({x.tobytes() for part in saved for x in part}) == sum(map(len, saved))
    for begin in (20, 40, 25):
        moved = list(range(begin, begin + len(pages)))
        cache.copy_in(moved, saved)
        cache.clear(pages)
        assert is_equal(cache.copy_out(moved), saved)
        assert not any(x.any() for part in cache.copy_out(pages) for x in part)
        pages = moved


def test_sizes() -> None:
    assert pages_of(0) == 0
    assert pages_of(16) == 1
    assert pages_of(17) == 2
    assert cache_nbytes(ROWS, 17, "f16") == 2 * 32 * (2 * 64 + 64)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc tells of memory")
@pytest.mark.parametrize("kind", ["f16", "q8_0"])
def test_a_touched_cache_grows_no_more(kind: str) -> None:
    """A server's memory is the same before its cache is used and after."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    pages, rows = 1 << 11, [CacheRow(4, 128, 128, False)]
    nbytes = cache_nbytes(rows, pages * 16, kind)
    for is_touched in (False, True):
        before = resident()
        cache = PagedCache(rows, pages, kind, is_touched=is_touched)
        taken = resident() - before
        assert taken > 0.9 * nbytes if is_touched else taken < 0.1 * nbytes
        assert not any(array.numpy().any() for layer in cache.layers for array in layer.arrays)
