"""Schedules of maps: the axis of vectors, tiles that are transposed, pages in turns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from baregrad.kernel import choose_schedule
from tests.kernel import kernels as k
from tests.kernel.planning.cpu.small_caches import SMALL_CACHE, placed, run

WAYS = pytest.mark.parametrize("offset", (0, 1), ids=("aligned", "odd"))


@WAYS
@pytest.mark.parametrize(("rows", "columns"), [(64, 96), (50, 67), (16, 200), (7, 5)])
def test_a_streamed_transpose_is_a_transpose(rows: int, columns: int, offset: int) -> None:
    kernel = k.transpose(columns, rows)
    schedule = choose_schedule(kernel, SMALL_CACHE)
    data = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
    found = placed(np.zeros((columns, rows), np.float32), offset)
    text = run(kernel, schedule, [found, placed(data, 0)], 1)
    np.testing.assert_array_equal(found, data.T)
    whole = rows % 16 == 0 and columns >= 16 and "stream_output(0)" in str(schedule)
    assert ("nontemporal" in text) == whole


@WAYS
@pytest.mark.parametrize("count", [4096, 12288, 5000])
def test_a_streamed_map_writes_every_element(count: int, offset: int) -> None:
    kernel = k.elementwise(count)
    schedule = choose_schedule(kernel, SMALL_CACHE)
    assert "stream_output(0)" in str(schedule)
    assert ("i0w=4" in str(schedule)) == (count % 4096 == 0)
    rng = np.random.default_rng(1)
    arrays = {slot: rng.normal(size=count).astype(np.float32) for slot in k.arguments(kernel)}
    expected = k.run_kernel(kernel, {**arrays, 0: np.zeros(count, np.float32)})[0]
    found = placed(np.zeros(count, np.float32), offset)
    inputs = [placed(arrays[slot], 0) for slot in sorted(arrays) if slot]
    text = run(kernel, schedule, [found, *inputs], 1)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert "nontemporal" in text


def test_what_is_read_one_row_at_a_time_is_written_so() -> None:
    """Machines that read several rows at once fastest are given pages in turns."""
    for rows, pages in ((1, False), (4, True)):
        target = replace(SMALL_CACHE, rows_from_memory=rows)
        schedule = choose_schedule(k.elementwise(12288), target)
        assert "stream_output(0)" in str(schedule)
        assert ("i0w=4" in str(schedule)) == pages
