"""Padded images and filters that convolutions read where they lie."""

from __future__ import annotations

import pytest

from tests.schedule.graphs import check, largest_buffer, param
from tests.schedule.whole.resnet import convolve, input_gradient


def test_a_padded_image_in_memory_is_read_where_it_lies() -> None:
    x, k, more = param(0, 2, 4, 10, 10), param(1, 16, 4, 3, 3), param(2, 16, 4, 3, 3)
    check([convolve(x, k)], kernels=1)
    # Two convolutions share one that is stored; few outputs are no vector.
    check([convolve(x, k), convolve(x, more)], kernels=3)
    check([convolve(x, param(1, 4, 4, 3, 3))], kernels=2)


@pytest.mark.parametrize("extent", [8, 9])
def test_taps_of_residues_are_read_where_they_lie(extent: int) -> None:
    x, k = param(0, 2, 16, extent, extent), param(1, 8, 16, 3, 3)
    dy = param(2, 2, 8, (extent + 1) // 2, (extent + 1) // 2)
    plan = check([input_gradient(x, k, dy, 1, 2, 1)], kernels=1)
    assert largest_buffer(plan) == 4 * 2 * 16 * extent * extent
