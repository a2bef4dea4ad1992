"""Random schedules and products on GPUs.

Schedules that are accepted compute what the kernel computes, race-free. Products of any layout are
planned as what they can be lowered to, and computed right.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from baregrad.base.errors import ScheduleError
from baregrad.ir.core.node import Node
from baregrad.kernel import apply_schedule, choose, choose_schedule
from baregrad.kernel.facts.analysis import facts_of
from baregrad.kernel.facts.axis_table import AxisTable, table_for
from baregrad.kernel.language.schedule import (
    Bind,
    Pipeline,
    Reorder,
    Schedule,
    Split,
    StageInput,
    Step,
    parse_schedule,
)
from baregrad.kernel.loops.sharing import prepare
from baregrad.kernel.planning.common.decisions import Decisions
from baregrad.render.gpu import gpu_signature
from tests.kernel import kernels as k
from tests.kernel.gpu_kernels import HOPPER, check_gpu, lowered, run_threads
from tests.kernel.random_products import SMALL, any_product
from tests.kernel.random_schedules import any_kernel, drawn

UNITS = ("grid", "thread", "thread", "thread_y", "thread_y", "thread_z", "unroll")
SIZES = ((2,), (3,), (4,), (8,), (2, 4), (3, 2))
# Products whose strides and sizes look like those of boxes, and are not.
NO_BOXES = (1787, 2015, 2757)


def any_step(rng: random.Random, table: AxisTable, number: int) -> Step:
    names = list(table.axes)
    name = rng.choice(names)
    kind = rng.random()
    if kind < 0.45:
        inner = zip("abc", rng.choice(SIZES), strict=False)
        parts = ((f"s{number}o", 0), *((f"s{number}{letter}", size) for letter, size in inner))
        if rng.random() < 0.15:
            return Split(name, parts, f"s{number}t")
        return Split(name, parts, masked=True)
    if kind < 0.85:
        return Bind(name, rng.choice(UNITS))
    if kind < 0.93 and len(names) > 1:
        return Reorder(tuple(rng.sample(names, 2)))
    if kind > 0.97:
        return Pipeline(name, rng.choice((2, 3)), rng.choice(("lanes", "async")))
    count = min(len(names), rng.choice((1, 2)))
    return StageInput(rng.choice((1, 2)), tuple(rng.sample(names, count)))


def any_gpu_schedule(rng: random.Random, kernel: Node) -> Schedule:
    """Steps drawn at random, those that are refused at once left out."""
    return drawn(rng, table_for(facts_of(prepare(kernel, HOPPER)), HOPPER), 9, any_step)


def check_seed(seed: int) -> bool:
    """Run one random schedule; False where it is refused as a whole."""
    rng = random.Random(seed)
    make, args = any_kernel(rng, (1, 2, 7, 8, 9, 16, 17))
    kernel = make(*args)
    schedule = any_gpu_schedule(rng, kernel)
    assert parse_schedule(str(schedule)) == schedule
    try:
        applied = apply_schedule(kernel, schedule, HOPPER)
        loop, program = lowered(kernel, schedule)
    except ScheduleError:
        return False
    arrays = k.arguments(kernel)
    wanted = k.run_kernel(kernel, arrays)
    k.assert_equal(wanted, k.run_kernel(applied, arrays))
    k.assert_equal(wanted, k.run_loop(loop, arrays))
    k.assert_equal(wanted, run_threads(loop, program, arrays))
    return True


def test_some_random_schedules() -> None:
    assert sum(check_seed(seed) for seed in (101, 102, 103, 104, 113, 129)) > 2


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(8))
def test_many_random_schedules(batch: int) -> None:
    first = 1000 * (1 + batch)
    assert sum(check_seed(seed) for seed in range(first, first + 60)) > 30


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
            # One of each factor, as they are parameters.
            assert len(maps) <= 2
    return boxes


def run_seeds(seeds: range) -> int:
    """Run small products whose panels are boxes on every level; how many there are.

    Where blocks may run together, as such too.
    """
    boxes = 0
    for seed in seeds:
        kernel = any_product(random.Random(seed), SMALL)
        for cluster in ("apart", "2 along rows", "2 along columns"):
            schedule = choose(kernel, HOPPER, Decisions({"cluster": cluster})).schedule
            if cluster == "apart" and "'tma'" not in str(schedule):
                break
            if cluster == "apart" or "cluster" in str(schedule):
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
