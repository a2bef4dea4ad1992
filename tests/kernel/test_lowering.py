"""Schedules never change what a kernel computes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from baregrad.dtypes import DType, dtypes
from baregrad.ir.core import index
from baregrad.ir.core.node import Node, alu, cast, range_node, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.kernel_level import evaluate_kernel
from baregrad.ir.evaluate.loop_level import evaluate_loop
from baregrad.ir.verify.verify import verify
from baregrad.kernel import (
    Lowering,
    Schedule,
    apply_schedule,
    choose_schedule,
    lower,
    parse_schedule,
    prepare_pass,
)
from baregrad.target.cpu import cpu_row_named
from tests.kernel import kernels as k
from tests.kernel.random_schedules import any_kernel, any_schedule

AVX = cpu_row_named("x86-64-avx2")
# Caches so small that panels are split and columns summed in scratch memory at tests' sizes.
SMALL_CACHES = replace(AVX, name="small-caches", l1_bytes=2048, l2_bytes=4096)
TARGETS = (AVX, SMALL_CACHES, cpu_row_named("x86-64-avx512"), cpu_row_named("arm64-neon"))
EXTENTS = (1, 2, 7, 8, 9, 16, 17, 64, 100)


def check(kernel: Node, schedule: Schedule, target: Any = AVX, scale: float = 1.0) -> Node:
    """Both levels below `kernel` give what it gives; the loop level comes back."""
    arrays = k.arguments(kernel)
    expected = k.run_kernel(kernel, arrays)
    k.assert_equal(expected, k.run_kernel(apply_schedule(kernel, schedule), arrays), scale)
    loop = lower(kernel, target, schedule)
    verify(loop, "loop")
    k.assert_equal(expected, k.run_loop(loop, arrays), scale)
    return loop


FAMILIES: tuple[tuple[Callable[..., Node], tuple[Any, ...]], ...] = (
    (k.elementwise, (7, 9)),
    (k.bias, (5, 17)),
    (k.transpose, (9, 20)),
    (k.row_reduce, (5, 100)),
    (k.column_reduce, (9, 100)),
    (k.whole_reduce, (17, 9)),
    (k.softmax, (3, 41)),
    (k.layer_norm, (3, 41)),
    (k.sum_of_row_logs, (6, 41)),
    (k.sum_of_row_logs, (40, 5)),
    (k.smallest_column_sum, (16, 16)),
    (k.smallest_column_sum, (9, 40)),
    (k.rows_scaled_by_columns, (3, 17)),
    (k.arg_max, (5, 33)),
    (k.matmul, (13, 17, 9)),
    (k.conv, (1, 3, 4, 5, 9, 3, 1, 1)),
    (k.conv, (1, 4, 4, 7, 8, 3, 2, 0, 2)),
    (k.cumsum, (3, 20, 1)),
    (k.cumsum, (5, 20, 0)),
    (k.gather, (3, 9, 20)),
    (k.scatter_add, (3, 9, 20)),
    (k.pad_rows_of_sums, (3, 9, 2)),
)


@pytest.mark.parametrize(("make", "args"), FAMILIES)
def test_without_a_schedule(make: Callable[..., Node], args: tuple[Any, ...]) -> None:
    check(make(*args), Schedule())


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: str(target.name))
@pytest.mark.parametrize(("make", "args"), FAMILIES)
def test_with_the_first_schedule(
    make: Callable[..., Node], args: tuple[Any, ...], target: Any
) -> None:
    kernel = make(*args)
    schedule = choose_schedule(kernel, target)
    assert parse_schedule(str(schedule)) == schedule
    check(kernel, schedule, target)


@pytest.mark.parametrize("rows", [2, 3, 8, 9, 40])
@pytest.mark.parametrize("columns", [2, 5, 8, 41])
def test_lanes_of_two_reductions_never_meet(rows: int, columns: int) -> None:
    for make in (k.sum_of_row_logs, k.rows_scaled_by_columns, k.softmax):
        kernel = make(rows, columns)
        schedule = choose_schedule(kernel, AVX)
        for node in toposort(apply_schedule(kernel, schedule)):
            lanes = [axis for axis in node.ranges if axis.arg.bind == "vector"]
            assert len(lanes) < 2, str(schedule)


@pytest.mark.parametrize("extent", EXTENTS)
def test_every_extent(extent: int) -> None:
    for kernel in (
        k.elementwise(extent),
        k.row_reduce(3, extent),
        k.column_reduce(3, extent),
        k.softmax(2, extent),
        k.matmul(extent, 7, 5),
        k.matmul(7, extent, 5),
        k.matmul(7, 5, extent, False, True),
        k.transpose(extent, 9),
    ):
        check(kernel, choose_schedule(kernel, AVX))


def test_empty_extents() -> None:
    for kernel in (
        k.elementwise(0, 3),
        k.row_reduce(0, 5),
        k.row_reduce(5, 0),
        k.row_reduce(5, 0, Ops.MAX),
        k.matmul(4, 0, 3),
        k.matmul(4, 3, 0),
        k.whole_reduce(0, 4),
    ):
        check(kernel, Schedule())
        check(kernel, choose_schedule(kernel, AVX))


@pytest.mark.parametrize(
    "dtype",
    [dtypes.float64, dtypes.float16, dtypes.int8, dtypes.int64, dtypes.uint32],
    ids=str,
)
def test_dtypes(dtype: DType) -> None:
    scale = 50.0 if dtype is dtypes.float16 else 1.0
    for kernel in (
        k.elementwise(5, 20, dtype=dtype),
        k.row_reduce(3, 41, dtype=dtype),
        k.row_reduce(3, 41, Ops.MAX, dtype=dtype),
        k.column_reduce(41, 19, dtype=dtype),
        k.matmul(7, 17, 9, dtype=dtype),
    ):
        check(kernel, choose_schedule(kernel, AVX), scale=scale)


@pytest.mark.property
@pytest.mark.parametrize(
    ("seed", "count"), [(0, 30), *(pytest.param(s, 200, marks=pytest.mark.slow) for s in (1, 2))]
)
def test_random_schedules_change_nothing(seed: int, count: int) -> None:
    rng = random.Random(seed)
    for _ in range(count):
        make, args = any_kernel(rng, (1, 2, 3, 5, 8, 9) if count < 100 else (1, 2, 7, 9, 16, 17))
        kernel = make(*args)
        schedule = any_schedule(rng, kernel)
        try:
            check(kernel, schedule)
        except Exception as error:
            error.add_note(f"{make.__name__}{args}: {schedule}")
            raise


@pytest.mark.property
@pytest.mark.parametrize("seed", range(2))
def test_first_schedules_over_random_kernels(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(25):
        make, args = any_kernel(rng, EXTENTS[:7])
        kernel = make(*args)
        target = rng.choice(TARGETS)
        schedule = choose_schedule(kernel, target)
        try:
            check(kernel, schedule, target)
        except Exception as error:
            error.add_note(f"{make.__name__}{args} {target.name}: {schedule}")
            raise


@pytest.mark.parametrize("columns", [16, 40, 41, 100])
def test_an_expensive_value_of_two_loops_is_computed_once(columns: int) -> None:
    kernel = k.softmax(3, columns)
    for schedule in (Schedule(), choose_schedule(kernel, AVX)):
        loop = check(kernel, schedule)
        assert sum(node.op is Ops.EXP for node in toposort(loop)) == 1


@pytest.mark.parametrize(
    ("m", "n", "inner"), [(12, 32, 128), (13, 35, 96), (25, 16, 200), (8, 64, 67)]
)
@pytest.mark.parametrize("transposed", [False, True])
def test_sums_too_long_for_one_panel(m: int, n: int, inner: int, transposed: bool) -> None:
    kernel = k.matmul(m, n, inner, transposed, False)
    check(kernel, choose_schedule(kernel, SMALL_CACHES), SMALL_CACHES)


def test_the_gradient_of_a_convolutions_weight_is_summed_in_several_panels() -> None:
    kernel = k.conv_weight_gradient(4, 2, 24, 8, 8, 3, 1, 1)
    schedule = choose_schedule(kernel, replace(AVX, l2_bytes=1 << 14))
    assert "stage_reduce" in str(schedule)
    check(kernel, schedule)


def test_a_convolution_with_lanes_over_rows_and_columns() -> None:
    for kernel in (k.conv(1, 2, 16, 5, 5, 3, 1, 1), k.conv(1, 2, 16, 9, 9, 3, 2, 1)):
        check(kernel, choose_schedule(kernel, AVX))


def test_symbolic_extents() -> None:
    length = index.variable("n", 1, 64)
    for make in (
        lambda: k.elementwise(3, length),
        lambda: k.row_reduce(3, length),
        lambda: k.row_reduce(length, 5),
        lambda: k.column_reduce(length, 9),
        lambda: k.softmax(length, 20),
        lambda: k.softmax(3, length),
        lambda: k.matmul(length, 20, 5),
        lambda: k.matmul(5, length, 20),
        lambda: k.matmul(5, 20, length),
    ):
        kernel = make()
        loop = lower(kernel, AVX, choose_schedule(kernel, AVX))
        for value in (1, 8, 33):
            arrays = arguments_at(kernel, value)
            expected = {slot: np.array(array) for slot, array in arrays.items()}
            evaluate_kernel(kernel, expected, {"n": value})
            evaluate_loop(loop, [arrays[slot] for slot in sorted(arrays)], {"n": value})
            k.assert_equal(expected, arrays)


def arguments_at(kernel: Node, value: int) -> dict[int, Any]:
    rng = np.random.default_rng(value)
    found = {}
    for node in toposort(kernel):
        if node.op is Ops.PARAM:
            shape = [e if isinstance(e, int) else value for e in node.arg.shape]
            found[node.arg.slot] = rng.standard_normal(shape).astype(np.float32)
    return found


# --- structure ------------------------------------------------------------------------------------


def test_scatters_run_in_order() -> None:
    i = range_node(50, 0)
    place = cast(k.at(k.param(2, 50, dtype=dtypes.int64), i), dtypes.index)
    kernel = k.kernel(k.out(k.param(0, 3), k.at(k.param(1, 50), i), place))
    check(kernel, choose_schedule(kernel, AVX))


AVX512 = cpu_row_named("x86-64-avx512")


def sums_side_by_side(count: int, *shape: int) -> Node:
    """Sums over all axes but the second of x, x * x, ...: one pass over memory."""
    axes = [range_node(extent, place) for place, extent in enumerate(shape)]
    x = k.at(k.param(count, *shape), *axes)
    power, outs = x, []
    for slot in range(count):
        total = k.reduce(Ops.ADD, power, axes[0], *axes[2:])
        outs.append(k.out(k.param(slot, shape[1]), total, axes[1]))
        power = alu(Ops.MUL, power, x)
    return k.kernel(*outs)


@pytest.mark.parametrize("count", [1, 3, 8])
@pytest.mark.parametrize("rows", [49, 100, 784])
def test_sums_side_by_side_share_the_registers(count: int, rows: int) -> None:
    kernel = sums_side_by_side(count, 2, 3, rows)
    loop = check(kernel, choose_schedule(kernel, AVX512), AVX512, scale=50.0)
    held = {
        node: node.arg.shape for node in toposort(loop)
        if node.op is Ops.ALLOC and node.arg.shape
    }
    vectors = sum(-(-int(np.prod(shape)) // AVX512.lanes(4)) for shape in held.values())
    assert count <= vectors <= AVX512.vector_registers * 3 // 4


def test_each_pass_leaves_a_graph_of_its_level() -> None:
    kernel = k.softmax(8, 64)
    node, left = prepare_pass(AVX).run(kernel), []
    for each in Lowering(AVX, choose_schedule(kernel, AVX)).passes:
        node = each.run(node)
        left.append((each.name, node.op))
        if each.level_out == "loop":
            verify(node, "loop")
    assert node is lower(kernel, AVX)
    assert left == [(name, Ops.KERNEL) for name in (
        "apply-schedule", "to-loops", "join-reads", "delay-stores", "last-steps",
    )]
