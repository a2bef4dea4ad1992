"""Register tiles of sums over windows, and what threads share of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baregrad.kernel.language.schedule import Bind, Split, StageReduce
from baregrad.kernel.planning.first_schedule import choose_schedule
from baregrad.target.cpu import cpu_row_named
from tests.kernel import kernels as k
from tests.kernel.planning.cpu.test_convolutions import is_shared
from tests.kernel.test_lowering import check

AVX512 = cpu_row_named("x86-64-avx512")


def test_panels_are_of_the_first_cache_where_the_second_holds_the_sums_of_a_tiles_lanes() -> None:
    schedule = choose_schedule(k.conv(4, 128, 128, 30, 30, 3), replace(AVX512, cores=2))
    (carried,) = [step for step in schedule.steps if isinstance(step, StageReduce)]
    assert carried.axis == "r4o"
    sizes = {
        name: size
        for step in schedule.steps if isinstance(step, Split)
        for name, size in step.parts
    }
    nbytes = sizes["i1v"] * 4
    assert nbytes * 4 * 28 * 28 <= AVX512.l2_bytes // 2
    assert nbytes * sizes["r4i"] * 9 <= AVX512.l1_bytes


def test_steps_that_read_far_apart_are_not_taken_where_the_first_cache_loses_their_lines() -> None:
    """Taps of one channel, beside each other in the image, rather than fourteen channels."""
    schedule = choose_schedule(k.conv_weight_gradient(4, 512, 512, 9, 9, 3), AVX512)
    bound = [step for step in schedule.steps if isinstance(step, Bind)]
    assert [step.axis for step in bound if step.unit == "unroll"] == ["i2", "i3"]


def test_threads_share_images_that_are_in_memory_and_read_once_for_each_panel() -> None:
    """Of a convolution of one tap: each thread reads its own images, once for all panels."""
    two = replace(AVX512, cores=2)
    schedule = choose_schedule(k.conv(4, 64, 128, 56, 56, 1, 2), two)
    assert [step.axis for step in schedule.steps if is_shared(step)] == ["i0"]
    # One that the second cache holds may be read again for each of another thread's channels.
    schedule = choose_schedule(k.conv(2, 64, 128, 28, 28, 1, 2), two)
    assert [step.axis for step in schedule.steps if is_shared(step)] == ["i1o"]


@pytest.mark.slow
def test_threads_share_the_steps_of_one_long_row() -> None:
    """A sequence has no other axis: its tiles are shared where no sums wait between panels."""
    kernel = k.conv(1, 17, 16, 3, 2050, 3)
    schedule = choose_schedule(kernel, replace(AVX512, cores=8))
    (shared,) = [step.axis for step in schedule.steps if is_shared(step)]
    (row,) = [
        step for step in schedule.steps
        if isinstance(step, Split) and shared in [name for name, _ in step.parts]
    ]
    assert row.axis == "i3" and row.parts[0] == (shared, 0)
    check(kernel, schedule, AVX512)
