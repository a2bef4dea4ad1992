"""Kernels of every family as PTX, run on the interpreter by one thread, against the evaluator."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from baregrad import render
from baregrad.base.errors import ScheduleError
from baregrad.dtypes import dtypes
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.kernel_level import evaluate_kernel
from baregrad.ir.evaluate.linear_level import evaluate_linear
from baregrad.kernel.language.schedule import Schedule
from baregrad.kernel.lowering import lower as to_loop
from baregrad.target.cpu import CPU_ROWS
from baregrad.target.gpu import NvidiaTarget, gpu_row
from tests.kernel import kernels as k
from tests.kernel.random_schedules import any_kernel, any_schedule
from tests.render.gpu_harness import HOPPER, lower, run_ptx, scheduled, serial
from tests.render.harness import same_bits

pytestmark = pytest.mark.differential


def lowered(kernel: Node, schedule: Schedule) -> Node:
    """The PROGRAM of a kernel under a schedule, for one thread."""
    return serial(lower(to_loop(kernel, CPU_ROWS[0], schedule)))


def check(kernel: Node, schedule: Schedule, seed: int = 0) -> str:
    """Assert that the evaluator and the PTX leave the same bits; the text."""
    program = lowered(kernel, schedule)
    arrays = k.arguments(kernel, seed)
    expected = [np.array(arrays[slot]) for slot in range(len(arrays))]
    found = [np.array(array) for array in expected]
    evaluate_linear(program, expected)
    run_ptx(program, found)
    for left, right in zip(expected, found, strict=True):
        assert same_bits(left, right)
    return render.get("ptx").render(program, HOPPER)


FAMILIES: list[tuple[Any, tuple[Any, ...]]] = [
    (k.elementwise, (3, 5)),
    (k.bias, (3, 5)),
    (k.transpose, (4, 3)),
    (k.row_reduce, (3, 7)),
    (k.column_reduce, (7, 3)),
    (k.whole_reduce, (4, 5)),
    (k.softmax, (3, 6)),
    (k.sum_of_row_logs, (2, 5)),
    (k.rows_scaled_by_columns, (3, 4)),
    (k.layer_norm, (2, 6)),
    (k.arg_max, (3, 6)),
    (k.matmul, (3, 4, 5)),
    (k.matmul, (3, 4, 5, True, True, 2)),
    (k.conv, (1, 2, 3, 5, 6, 3, 1, 1)),
    (k.cumsum, (3, 5)),
    (k.gather, (3, 4, 5)),
    (k.scatter_add, (3, 4, 5)),
    (k.pad_rows_of_sums, (3, 4, 2)),
    (k.row_reduce, (3, 0)),
]


@pytest.mark.parametrize("make,sizes", FAMILIES, ids=lambda one: getattr(one, "__name__", None))
def test_families_run_as_they_stand(make: Any, sizes: tuple[Any, ...]) -> None:
    check(make(*sizes), Schedule())


LARGER: list[tuple[Any, tuple[Any, ...]]] = [
    (k.elementwise, (64, 130)),
    (k.transpose, (40, 48)),
    (k.row_reduce, (3, 2100)),
    (k.row_reduce, (5, 300, Ops.ADD, dtypes.float16)),
    (k.column_reduce, (300, 40)),
    (k.whole_reduce, (64, 50)),
    (k.softmax, (7, 300)),
    (k.layer_norm, (6, 128)),
    (k.arg_max, (5, 100)),
    (k.matmul, (32, 48, 40)),
    (k.conv, (1, 4, 8, 12, 12, 3, 1, 1)),
    (k.cumsum, (6, 50)),
    (k.gather, (5, 30, 40)),
    (k.scatter_add, (3, 20, 30)),
]


@pytest.mark.parametrize("row", (HOPPER, gpu_row("sm_75")), ids=lambda row: row.name)
@pytest.mark.parametrize(
    "make,sizes", [*FAMILIES, *LARGER], ids=lambda one: getattr(one, "__name__", None)
)
def test_families_run_as_gpus_run_them(
    make: Any, sizes: tuple[Any, ...], row: NvidiaTarget
) -> None:
    """With blocks, threads, shuffles and shared memory; sums are in another order."""
    kernel = make(*sizes)
    program, blocks = scheduled(kernel, row)
    arrays = k.arguments(kernel)
    expected = {slot: np.array(array) for slot, array in arrays.items()}
    evaluate_kernel(kernel, expected)
    found = [np.array(arrays[slot]) for slot in range(len(arrays))]
    run_ptx(program, found, target=row, grid=blocks)
    k.assert_equal(expected, dict(enumerate(found)), 10)


@pytest.mark.parametrize("seed", range(24))
def test_random_schedules(seed: int) -> None:
    """Vectors, unrolled loops, tails and masks as schedules of CPUs make them."""
    rng = random.Random(seed)
    make, sizes = any_kernel(rng, (1, 2, 3, 5, 8))
    kernel = make(*sizes)
    try:
        program = lowered(kernel, schedule := any_schedule(rng, kernel))
    except ScheduleError:
        pytest.skip("the schedule that was drawn is not legal")
    assert program is not None
    check(kernel, schedule, seed)


def test_equal_programs_give_equal_texts() -> None:
    texts = {
        render.get("ptx").render(lowered(k.softmax(3, 6), Schedule()), HOPPER) for _ in range(3)
    }
    assert len(texts) == 1
