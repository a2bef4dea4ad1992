"""Sums along rows on GPUs: one order for a length and a dtype, whatever is computed beside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from baregrad.dtypes import dtypes
from baregrad.kernel.facts.analysis import facts_of
from baregrad.kernel.facts.row_tile import MOST_WARPS, RowTile, is_short, row_tile
from baregrad.tensor import Tensor
from baregrad.testing.ptx_device import ptx_session
from tests.kernel import kernels as k
from tests.kernel.gpu_kernels import HOPPER


def tile_of(length: int, rows: int = 4) -> RowTile | None:
    facts = facts_of(k.row_reduce(rows, length))
    (reduction,) = facts.reductions
    return row_tile(facts, reduction, HOPPER)


@pytest.mark.parametrize("length", [25, 31, 32, 100, 128, 257, 1000, 1025, 3001, 8192, 32768])
def test_a_tile_has_every_element_once_and_wastes_little(length: int) -> None:
    tile = tile_of(length)
    assert tile is not None
    assert length <= tile.size
    # No whole step lies past the end.
    assert tile.size - tile.size // tile.steps < length
    assert tile.threads <= HOPPER.warp_lanes and tile.warps <= MOST_WARPS
    assert length % tile.lanes == 0


@pytest.mark.parametrize(("length", "wanted"), [
    (25, (4, 1, 8, 1)), (31, (4, 1, 8, 1)), (35, (5, 1, 8, 1)), (39, (5, 1, 8, 1)),
    (49, (7, 1, 8, 1)), (63, (4, 1, 16, 1)), (64, (1, 1, 16, 4)), (70, (5, 1, 8, 2)),
    (75, (5, 1, 16, 1)), (257, (9, 1, 32, 1)),
])  # fmt: skip
def test_few_lanes_have_nothing_of_an_odd_row(length: int, wanted: tuple[int, ...]) -> None:
    """Fewer threads have some accesses more each, and a warp more rows."""
    assert tile_of(length) == wanted


def test_rows_that_are_short_or_long_have_no_tile() -> None:
    assert [tile_of(length) for length in (1, 24, 1 << 16)] == [None, None, None]
    facts = facts_of(k.column_reduce(64, 100))
    assert is_short(facts, facts.reductions[0])


def test_a_tile_depends_on_no_number_of_rows() -> None:
    assert len({tile_of(1000, rows) for rows in (1, 2, 33, 100_000)}) == 1


def centred(x: Tensor) -> Tensor:
    return x - x.mean(1, keepdim=True)


BESIDE: dict[str, Callable[[Tensor], Any]] = {
    "variance": lambda x: x.var(1),
    "largest": lambda x: x.amax(1),
    "sum of squares": lambda x: (x * x).sum(1),
    "shares": lambda x: x / x.sum(1, keepdim=True),
    "norm": lambda x: centred(x) * (centred(x) ** 2).mean(1, keepdim=True).rsqrt(),
    "twice": lambda x: x * 2,
}


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("length", [7, 20, 33, 100, 513, 1025])
def test_a_sum_has_the_same_bits_whatever_is_computed_beside_it(length: int, dtype: Any) -> None:
    data = np.random.default_rng(length).standard_normal((2, length)).astype(np.float32)
    with ptx_session():
        x = Tensor(data).cast(dtype).realize()
        alone = x.cast("float32").sum(1).numpy()
        for name, beside in BESIDE.items():
            total = x.cast("float32").sum(1)
            total.realize(beside(x))
            np.testing.assert_array_equal(total.numpy(), alone, name)
        later = (x.cast("float32").sum(1) * 2 + 1).numpy()
        np.testing.assert_array_equal(later, alone * 2 + np.float32(1))
        single = x[:1].cast("float32").sum(1).numpy()
        np.testing.assert_array_equal(single, alone[:1])
