"""Images that convolutions copy: bands of rows, the zeros around them, channels inside."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from baregrad.kernel.language.schedule import Bind, Reorder, StageInput
from baregrad.kernel.planning.first_schedule import choose_schedule
from baregrad.target.cpu import cpu_row_named
from baregrad.tensor import Tensor
from tests.kernel import kernels as k
from tests.kernel.test_lowering import check

AVX512 = cpu_row_named("x86-64-avx512")
# A second cache in which few rows of an image have room.
BANDS = replace(AVX512, name="bands", l2_bytes=1 << 15)


@pytest.mark.few(1)
@pytest.mark.parametrize("sizes", [
    (1, 16, 16, 10, 18, 3), (1, 20, 17, 8, 17, 3, 1, 1), (1, 16, 16, 10, 33, 3, 2, 1),
], ids=str)
def test_an_image_is_copied_in_bands_of_rows(sizes: tuple[int, ...]) -> None:
    kernel = k.conv(*sizes)
    schedule = choose_schedule(kernel, BANDS)
    (copied, *_) = [s for s in schedule.steps if isinstance(s, StageInput) and s.param == 1]
    assert copied.axes[:2] == ("i2i+r5", "r4")
    check(kernel, schedule, BANDS)


def test_channels_are_the_innermost_loop_and_a_small_filter_is_copied_once() -> None:
    schedule = choose_schedule(k.conv(8, 64, 64, 56, 56, 3, 1, 1), replace(AVX512, cores=2))
    (order,) = [step.axes for step in schedule.steps if isinstance(step, Reorder)]
    assert order == ("i0", "i2o", "i1o", "i2i", "i3o", "r5", "r6", "r4", "i3u", "i1v")
    (panel, image) = [step for step in schedule.steps if isinstance(step, StageInput)]
    assert panel == StageInput(2, ("i1o", "r5", "r6", "r4", "i1v"))
    assert image == StageInput(1, ("i2i+r5", "r4", "i3o+i3u+r6"), AVX512.vector_bytes // 4)
    assert [step.axis for step in schedule.steps if isinstance(step, Bind)][-1] == "i0"


def test_images_of_few_channels_are_copied_for_their_zeros_alone() -> None:
    plain = choose_schedule(k.conv(4, 3, 64, 34, 34, 7, 2), AVX512)
    assert [s.param for s in plain.steps if isinstance(s, StageInput)] == [2]
    padded = choose_schedule(k.conv(4, 3, 64, 28, 28, 7, 2, 3), AVX512)
    assert [s.param for s in padded.steps if isinstance(s, StageInput)] == [2, 1]


def test_conditions_that_windows_move_otherwise_are_no_zeros_around_an_image() -> None:
    """A column with ones beside it: rows and columns together move the address, not the ones."""
    column = np.array([[3], [1], [2], [7], [2]], np.uint64)
    padded = Tensor(column).pad((0, 2), value=1)
    wide = np.concatenate([column, np.ones((5, 2), np.uint64)], axis=1)
    np.testing.assert_array_equal((padded @ padded.mT).numpy(), wide @ wide.T)
