"""Padded images and filters that convolutions read where they lie."""

from __future__ import annotations

import pytest

from baregrad.dtypes import dtypes
from baregrad.graph import canonicalise
from baregrad.kernel import choose
from baregrad.schedule import make_plan
from baregrad.target import gpu_row
from tests.schedule.graphs import A, check, largest_buffer, param, sink
from tests.schedule.whole.resnet import convolve, input_gradient


def test_a_padded_image_in_memory_is_read_where_it_lies() -> None:
    x, k, more = param(0, 2, 4, 10, 10), param(1, 16, 4, 3, 3), param(2, 16, 4, 3, 3)
    check([convolve(x, k)], kernels=1)
    # Two convolutions share one that is stored; few outputs are no vector.
    check([convolve(x, k), convolve(x, more)], kernels=3)
    check([convolve(x, param(1, 4, 4, 3, 3))], kernels=2)


@pytest.mark.parametrize("first", (0, 1, 2))
def test_a_padded_part_of_a_tuple_is_filled_up_whole(first: int) -> None:
    """The kernel of another part has too few loops for what lies between zeros."""
    top, place = param(0, 1, 16, 4, 4, 9).argmax(4)
    result = convolve(convolve(top, param(1, 16, 16, 3, 3)), param(2, 16, 16, 3, 3))
    outputs = [result, top, place]
    check([*outputs[first:], *outputs[:first]], tolerance=1e-3)


@pytest.mark.parametrize("extent", [8, 9])
def test_taps_of_residues_are_read_where_they_lie(extent: int) -> None:
    x, k = param(0, 2, 16, extent, extent), param(1, 8, 16, 3, 3)
    dy = param(2, 2, 8, (extent + 1) // 2, (extent + 1) // 2)
    plan = check([input_gradient(x, k, dy, 1, 2, 1)], kernels=1)
    assert largest_buffer(plan) == 4 * 2 * 16 * extent * extent


def depthwise(x: A, k: A, pad: int) -> A:
    """(N, C, H, W), (C, K, L) -> (N, C, H', W')."""
    c, kh, kw = k.shape
    padded = x.pad((0, 0), (0, 0), (pad, pad), (pad, pad))
    slid = padded.window(2, kh, 1, 1).window(3, kw, 1, 1)
    return (slid * k.reshape(1, c, 1, 1, kh, kw)).sum(4, 5)


@pytest.mark.parametrize("taps", [3, 7])
def test_a_gpu_reads_padded_images_by_short_windows_where_they_lie(taps: int) -> None:
    target = gpu_row("sm_90a")
    y = depthwise(param(0, 64, 96, 56, 56), param(1, 96, taps, taps), taps // 2)
    plan = make_plan(canonicalise(sink(y), None, target), donate={}, target=target)
    assert len(plan.kernels) == 1
    check([depthwise(param(0, 2, 3, 9, 8), param(1, 3, taps, taps), taps // 2)], target=target)


def test_a_gpu_s_matrix_units_read_images_between_zeros_that_nobody_stores() -> None:
    """Channels lie innermost: of each chunk of them one condition says whether it is there."""
    target = gpu_row("sm_90a")
    x, k = (param(slot, *shape, dtype=dtypes.bfloat16).cast(dtypes.float32)
            for slot, shape in enumerate(((64, 64, 56, 56), (64, 64, 3, 3))))  # fmt: skip
    y = convolve(x, k).cast(dtypes.bfloat16)
    plan = make_plan(canonicalise(sink(y), None, target), donate={}, target=target)
    # The image is turned, and so are the filters.
    *turned, product = plan.kernels
    assert len(turned) == 2
    assert largest_buffer(plan) == 2 * 64 * 64 * 56 * 56
    assert any("copies of 8 and 8 elements" in why for why in choose(product, target).why())


def test_images_and_filters_whose_channels_lie_innermost_are_not_copied() -> None:
    target = gpu_row("sm_90a")
    x, k = (param(slot, *shape, dtype=dtypes.bfloat16).permute(0, 3, 1, 2).cast(dtypes.float32)
            for slot, shape in enumerate(((64, 56, 56, 64), (64, 3, 3, 64))))  # fmt: skip
    y = convolve(x, k).cast(dtypes.bfloat16)
    plan = make_plan(canonicalise(sink(y), None, target), donate={}, target=target)
    (product,) = plan.kernels
    assert any("copies of 8 and 8 elements" in why for why in choose(product, target).why())


@pytest.mark.parametrize(("results", "kernels"), [(4096, 1), (16384, 2)])
def test_padded_rows_of_very_many_results_are_stored_for_an_engine(
    results: int, kernels: int
) -> None:
    """Those of fewer an engine reads where they lie: it walks along them and past their ends."""
    target = gpu_row("sm_90a")
    x, w = (param(slot, *shape, dtype=dtypes.bfloat16)
            for slot, shape in enumerate(((500, 1024), (1024, results))))  # fmt: skip
    left = x.pad((4, 8), (0, 0)).cast(dtypes.float32).reshape(512, 1024, 1)
    right = w.cast(dtypes.float32).reshape(1, 1024, results)
    shape = (512, 1024, results)
    y = (left.expand(*shape) * right.expand(*shape)).sum(1).cast(dtypes.bfloat16)
    plan = make_plan(canonicalise(sink(y), None, target), donate={}, target=target)
    assert len(plan.kernels) == kernels
    why = choose(plan.kernels[-1], target).why()
    assert any("as boxes" in one for one in why)
    assert any("walks along places" in one for one in why) == (kernels == 1)
