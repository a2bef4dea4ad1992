"""Schedules of reductions: sums at once, short rows in turns, vectors from memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from baregrad.dtypes import DType, dtypes
from baregrad.ir.core import index
from baregrad.ir.core.node import alu, const, range_node
from baregrad.ir.core.op import Ops
from baregrad.kernel import choose_schedule
from baregrad.kernel.language.schedule import (
    Bind,
    Reorder,
    Schedule,
)
from baregrad.tensor import Tensor
from tests.kernel import kernels as k
from tests.kernel.planning.cpu.small_caches import HUGE, SMALL_CACHE, chunks_of, run
from tests.render.harness import host


@pytest.mark.parametrize("rows", (1, 2, 4))
def test_long_rows_are_summed_as_many_at_once_as_the_machine_reads_best(rows: int) -> None:
    target = replace(SMALL_CACHE, l3_bytes=HUGE, rows_from_memory=rows)
    kernel = k.row_reduce(64, 2048)
    schedule = choose_schedule(kernel, target)
    assert (f"i0u={rows}" in str(schedule)) == (rows > 1)
    assert rows > 1 or "i0u" not in str(schedule)
    x = np.random.default_rng(3).normal(size=(64, 2048)).astype(np.float32)
    found = np.zeros(64, np.float32)
    run(kernel, schedule, [found, x], chunks_of(schedule, 64 // rows))
    np.testing.assert_allclose(found, x.astype(np.float64).sum(1), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("nbytes", "columns"), ((32, 2048), (32, 1500), (64, 2048)))
def test_memory_is_read_in_vectors_as_wide_as_the_machine_reads_best(
    nbytes: int, columns: int
) -> None:
    """Lone sums of what no cache holds; others have the widest registers."""
    target = replace(SMALL_CACHE, rows_from_memory=1, vector_bytes_from_memory=nbytes)
    kernel = k.row_reduce(64, columns)
    schedule = choose_schedule(kernel, target)
    narrow = nbytes < target.vector_bytes
    assert (f"r1u=8, r1v={nbytes // 4}" in str(schedule)) == narrow
    x = np.random.default_rng(5).normal(size=(64, columns)).astype(np.float32)
    found = np.zeros(64, np.float32)
    run(kernel, schedule, [found, x], chunks_of(schedule, 64))
    np.testing.assert_allclose(found, x.astype(np.float64).sum(1), rtol=1e-5, atol=1e-4)
    wide = replace(target, vector_bytes_from_memory=64)
    for other in (k.softmax(64, columns), k.row_reduce(64, columns, Ops.MAX)):
        assert choose_schedule(other, target) == choose_schedule(other, wide)
    near = replace(target, l3_bytes=HUGE)
    assert choose_schedule(kernel, near) == choose_schedule(kernel, wide)


@pytest.mark.parametrize("shape", ((33, 17), (64, 64), (5, 100), (16, 16, 16)))
def test_a_sum_of_a_flipped_array_has_the_order_of_its_copy_s(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(7).normal(size=shape).astype(np.float32)
    for axis in range(len(shape)):
        for summed in range(len(shape)):
            flipped, copy = Tensor(x).realize().flip(axis), Tensor(np.flip(x, axis).copy())
            left, right = [(each * each * 0.3 + each).sum(summed) for each in (flipped, copy)]
            np.testing.assert_array_equal(left.numpy(), right.numpy())


def test_short_rows_take_turns() -> None:
    """Of 24 elements, each in one vector, four rows at a time; their exponentials as well."""
    kernel = k.softmax(64, 24)
    schedule = choose_schedule(kernel, host())
    if host().lanes(4) == 16:
        assert "i0u=4" in str(schedule)
    x = np.random.default_rng(4).normal(size=(64, 24)).astype(np.float32)
    found = np.zeros_like(x)
    run(kernel, schedule, [found, x], chunks_of(schedule, 16))
    exact = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(found, exact / exact.sum(1, keepdims=True), rtol=1e-5)


def test_a_row_is_folded_once_for_all_its_elements() -> None:
    """What runs along another axis than a fold's results stands inside, or it is done again."""
    rows, columns, steps = (k.range_node(size, place) for place, size in enumerate((64, 256, 256)))
    x, weights = k.param(1, 64, 256), k.param(2, 256)
    product = alu(Ops.MUL, k.at(x, rows, steps), k.at(weights, steps))
    total = k.reduce(Ops.ADD, product, steps)
    value = alu(Ops.MUL, k.at(x, rows, columns), total)
    kernel = k.kernel(k.out(k.param(0, 64, 256), value, rows, columns))
    schedule = choose_schedule(kernel, host())
    (order,) = [step.axes for step in schedule.steps if isinstance(step, Reorder)]
    assert min(order.index(name) for name in order if name.startswith("i0")) < min(
        order.index(name) for name in order if name.startswith("i1")
    )
    rng = np.random.default_rng(5)
    data = rng.normal(size=(64, 256)).astype(np.float32), rng.normal(size=256).astype(np.float32)
    found = np.zeros((64, 256), np.float32)
    run(kernel, schedule, [found, *data], chunks_of(schedule, 32))
    exact = data[0] * (data[0].astype(np.float64) @ data[1])[:, None]
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("length", [5, 8, 12, 16, 20, 33, 100, 513, 1024])
def test_a_sum_has_the_same_bits_whatever_is_computed_beside_it(length: int) -> None:
    x = Tensor(np.random.default_rng(length).standard_normal((8, length)).astype(np.float32))
    alone = x.realize().sum(1).numpy()
    for beside in (
        (x * x).sum(1), x.amax(1), x.var(1), x / x.sum(1, keepdim=True), x * 2,
    ):
        total = x.sum(1)
        total.realize(beside)
        np.testing.assert_array_equal(total.numpy(), alone)


@pytest.mark.parametrize("columns", (97, 128, 1000))
def test_rows_that_are_kept_and_read_twice_are_summed_along_themselves(columns: int) -> None:
    """What is kept is made anew for each row: rows do not share it, and lanes are no rows."""
    i, *others = [range_node(extent, at) for at, extent in enumerate((64, columns, columns))]
    rows = k.param(1, 64, columns)
    first, second = [alu(Ops.EXP, k.at(rows, i, j)) for j in others]
    mean = alu(Ops.MUL, k.reduce(Ops.ADD, first, others[0]), const(1 / columns, dtypes.float32))
    away = alu(Ops.SUB, second, mean)
    total = k.reduce(Ops.ADD, alu(Ops.MUL, away, away), others[1])
    kernel = k.kernel(k.out(k.param(0, 64), total, i))
    schedule = choose_schedule(kernel, host())
    assert not any(step.axis.startswith("i0") for step in schedule.steps
                   if isinstance(step, Bind) and step.unit == "vector")
    x = np.random.default_rng(5).normal(size=(64, columns)).astype(np.float32)
    found = np.zeros(64, np.float32)
    run(kernel, schedule, [found, x], chunks_of(schedule, 64))
    exact = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(found, exact.var(1) * columns, rtol=1e-4)


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16], ids=str)
def test_functions_of_elements_that_lie_apart_are_summed_in_lanes(dtype: DType) -> None:
    x = Tensor(np.random.default_rng(9).normal(size=(701, 6)).astype(np.float32)).cast(dtype)
    found = x.realize()[:, 1:4].float().exp().sum()
    wanted = np.exp(x.float().numpy()[:, 1:4].astype(np.float64)).sum()
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-6)


def test_scalars_are_summed_side_by_side_in_the_order_of_one_sum() -> None:
    """Of rows in reach of a filter's 5 taps, too short for lanes, the taps' sums wait in turns."""
    taps, steps, columns = (k.range_node(size, place) for place, size in enumerate((5, 16, 3)))
    place = index.add(columns, taps)
    read = k.guard(index.inside(place, 6), k.at(k.param(1, 16, 6), steps, place))
    product = alu(Ops.MUL, read, k.at(k.param(2, 16, 3), steps, columns))
    kernel = k.kernel(k.out(k.param(0, 5), k.reduce(Ops.ADD, product, steps, columns), taps))
    schedule = choose_schedule(kernel, host())
    side_by_side = [step for step in schedule.steps if step == Bind("i0", "unroll")]
    assert len(side_by_side) == 1
    alone = Schedule(tuple(step for step in schedule.steps if step not in side_by_side))
    generator = np.random.default_rng(5)
    x, weights = (generator.normal(size=size).astype(np.float32) for size in ((16, 6), (16, 3)))
    found, wanted = np.zeros(5, np.float32), np.zeros(5, np.float32)
    run(kernel, schedule, [found, x, weights], 1)
    run(kernel, alone, [wanted, x, weights], 1)
    assert found.tobytes() == wanted.tobytes()
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 2)))
    exact = [(padded[:, tap : tap + 3] * weights).sum() for tap in range(5)]
    np.testing.assert_allclose(found, exact, rtol=1e-5)
