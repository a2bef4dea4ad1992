"""Copies of inputs: their loops, vectors and layouts, and where an element is in them."""

from __future__ import annotations

import numpy as np

from baregrad.kernel import (
    parse_schedule,
)
from tests.kernel import kernels as k
from tests.kernel.planning.cpu.test_gemm_blocked import allocations
from tests.kernel.test_lowering import check


def test_a_copy_is_padded_to_whole_vectors() -> None:
    text = "Schedule(split('i0', outer='m', r=2), bind('r', 'unroll'), reorder('i1', 'm', 'r2'), "
    schedule = parse_schedule(text + "stage_input(1, 'r', 'r2', lanes=4))")
    loop = check(k.matmul(4, 3, 10), schedule)
    shapes = [node.arg.shape for node in allocations(loop) if node.arg.space == "scratch"]
    assert shapes == [(2, 3, 4)]


def test_a_copy_in_bands_of_rows_keeps_the_axes_that_are_unrolled() -> None:
    """Eight rows at a time, several axes outside, and one whose steps are taken together."""
    text = "Schedule(split('i0', outer='m', r=2), bind('r', 'unroll'), split('r2', outer='ko', "
    schedule = parse_schedule(text + "ki=8), stage_input(1, 'r', 'm', 'ko', 'ki', lanes=4))")
    loop = check(k.matmul(16, 3, 32), schedule)
    shapes = [node.arg.shape for node in allocations(loop) if node.arg.space == "scratch"]
    assert [np.prod(shape) for shape in shapes] == [16 * 32]
