"""Products of any layout are planned as what they can be lowered to, and computed right."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from baregrad.kernel import choose_schedule
from baregrad.kernel.gpu.boxes import MOST_MAPS
from baregrad.render.gpu import gpu_signature
from tests.kernel.gpu_kernels import HOPPER, check_gpu, lowered
from tests.kernel.random_products import SMALL, any_product

# Products whose strides and sizes look like those of boxes, and are not.
NO_BOXES = (1787, 2015, 2757)


def lower_seeds(seeds: Iterable[int], every: bool = False) -> int:
    """Plan products and lower those of boxes, or every one; how many are of boxes."""
    boxes = 0
    for seed in seeds:
        kernel = any_product(random.Random(seed))
        schedule = choose_schedule(kernel, HOPPER)
        of_boxes = "'tma'" in str(schedule)
        boxes += of_boxes
        if of_boxes or every:
            program = lowered(kernel, schedule)[1]
            maps = gpu_signature(program).boxes if of_boxes else ()
            # Beside a few addresses, so many fit the parameters that a kernel may have.
            assert len(maps) <= 2 * MOST_MAPS and 128 * len(maps) <= 4096
    return boxes


def run_seeds(seeds: range) -> int:
    """Run small products whose panels are boxes on every level; how many there are."""
    boxes = 0
    for seed in seeds:
        kernel = any_product(random.Random(seed), SMALL)
        schedule = choose_schedule(kernel, HOPPER)
        if "'tma'" in str(schedule):
            boxes += 1
            check_gpu(kernel, schedule)
    return boxes


def test_what_is_planned_as_boxes_is_of_boxes() -> None:
    """Of windows that overlap, and of edges that part columns, too."""
    assert lower_seeds((*range(450), *NO_BOXES)) > 5


def test_some_products_of_boxes() -> None:
    assert run_seeds(range(150)) > 2


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(8))
def test_many_products_are_lowered(batch: int) -> None:
    first = 10_000 * (1 + batch)
    assert lower_seeds(range(first, first + 1000), every=True) > 10
    assert run_seeds(range(first, first + 1500)) > 8
