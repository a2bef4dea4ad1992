"""Schedules never change what a kernel computes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from baregrad.dtypes import DType, dtypes
from baregrad.ir.algebra.passes import check_order
from baregrad.ir.core import index
from baregrad.ir.core.node import Node, alu, cast, const, range_node, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.kernel_level import evaluate_kernel
from baregrad.ir.evaluate.linear_level import evaluate_linear
from baregrad.ir.evaluate.loop_level import evaluate_loop
from baregrad.ir.verify.verify import verify
from baregrad.kernel import (
    Lowering,
    Schedule,
    apply_schedule,
    choose_schedule,
    codegen_passes,
    lower,
    parse_schedule,
    prepare_pass,
)
from baregrad.kernel.language.schedule import parallelise, vectorise
from baregrad.target.cpu import cpu_row_named
from baregrad.target.gpu import gpu_row
from tests.kernel import kernels as k
from tests.kernel.random_schedules import any_kernel, any_schedule
from tests.render.harness import check as differential
from tests.render.harness import compiled
from tests.render.harness import lower as linearised

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


def packed(a: bool, b: bool) -> Schedule:
    """A matmul with copied panels of both operands and every tail."""
    return parse_schedule(
        "Schedule(split('i1', outer='i1o', i1u=2, i1v=8, tail='i1t'), bind('i1u', 'unroll'), "
        "bind('i1v', 'vector'), bind('i1t', 'vector'), split('i0', outer='i0o', i0u=3, "
        "tail='i0t'), bind('i0u', 'unroll'), bind('i0t', 'unroll'), split('i1o', outer='i1p', "
        "i1q=2, tail='i1r'), reorder('i1p', 'i0o', 'i1q'), bind('i1p', 'pool'), "
        "stage_input(2, 'i1q', 'r2', 'i1u', 'i1v'), stage_input(1, 'r2', 'i0u'))"
    )


@pytest.mark.parametrize("a", [False, True])
@pytest.mark.parametrize("b", [False, True])
def test_a_packed_matmul(a: bool, b: bool) -> None:
    loop = check(k.matmul(11, 87, 13, a, b), packed(a, b))
    scratch = [n for n in toposort(loop) if n.op is Ops.ALLOC and n.arg.space == "scratch"]
    assert len(scratch) >= 2


@pytest.mark.parametrize(("rows", "columns"), [(16, 64), (19, 70), (16, 33)])
def test_columns_summed_in_scratch_memory(rows: int, columns: int) -> None:
    schedule = parse_schedule(
        "Schedule(split('i0', outer='p', q=2, u=2, v=8, tail='t'), bind('u', 'unroll'), "
        "bind('v', 'vector'), split('r1', outer='ro', ru=4, tail='rt'), bind('ru', 'unroll'), "
        "bind('p', 'pool'), stage_reduce('ro', 'q', 'u', 'v'), stage_reduce('rt', 'q', 'u', 'v'))"
    )
    loop = check(k.column_reduce(rows, columns), schedule)
    outer = [n for n in loops(loop) if n.src[0].arg.axis == "ro"]
    assert any(loops(n.src[1]) for n in outer)


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


def test_a_guarded_read_is_copied_with_its_guard() -> None:
    kernel = k.conv(1, 3, 8, 9, 16, 3, 1, 1)
    schedule = parse_schedule(
        "Schedule(split('i3', outer='i3o', i3v=8), bind('i3v', 'vector'), "
        "bind('i1', 'unroll'), reorder('i3o', 'i2'), stage_input(1, 'r4', 'r5', 'r6', 'i3v'))"
    )
    loop = check(kernel, schedule)
    for node in toposort(loop):
        if node.op is Ops.STORE and node.src[1].op is Ops.FMA:
            assert not node.src[1].has(Ops.GUARD)


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


@pytest.mark.parametrize("grain", [256, 1])
def test_a_symbolic_parallel_axis_of_no_iterations_runs_its_tail_alone(grain: int) -> None:
    length = index.variable("n", 0, 1 << 20)
    kernel = k.elementwise(length)
    schedule = choose_schedule(kernel, AVX)
    assert "pool" in str(schedule)
    steps = [replace(s, grain=grain) if "pool" in str(s) else s for s in schedule.steps]
    loop = lower(kernel, AVX, Schedule(tuple(steps)))
    for value in (0, 3, 31, 70):
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


def loops(node: Node) -> list[Node]:
    return [below for below in toposort(node) if below.op is Ops.LOOP]


def test_reductions_over_one_axis_share_a_loop() -> None:
    i, j = range_node(5, 0), range_node(9, 1)
    x = k.at(k.param(2, 5, 9), i, j)
    total, top = k.reduce(Ops.ADD, x, j), k.reduce(Ops.MAX, x, j)
    kernel = k.kernel(k.out(k.param(0, 5), total, i), k.out(k.param(1, 5), top, i))
    assert len(loops(check(kernel, Schedule()))) == 2


def test_a_reduction_that_reads_another_has_a_loop_of_its_own() -> None:
    i, j = range_node(5, 0), range_node(9, 1)
    x = k.at(k.param(1, 5, 9), i, j)
    away = alu(Ops.SUB, x, k.reduce(Ops.MAX, x, j))
    kernel = k.kernel(k.out(k.param(0, 5), k.reduce(Ops.ADD, away, j), i))
    loop = check(kernel, Schedule())
    outer = next(n for n in toposort(loop) if n.op is Ops.LOOP and n.src[0].arg.axis == "i0")
    assert sum(item.op is Ops.LOOP for item in outer.src[1].src) == 2


def test_what_does_not_depend_on_a_loop_stands_outside_it() -> None:
    loop = check(k.softmax(3, 9), Schedule())
    row = loops(loop)[-1]
    assert row.src[0].arg.axis == "i0"
    assert sum(item.op is Ops.LOOP for item in row.src[1].src) == 3


def test_a_guard_that_is_the_same_for_a_loop_becomes_an_if() -> None:
    i, j = range_node(6, 0), range_node(9, 1)
    shifted = index.add(i, -2)
    x = k.at(k.param(1, 6, 9), shifted, j)
    value = k.guard(index.inside(shifted, 6), alu(Ops.MUL, x, x))
    kernel = k.kernel(k.out(k.param(0, 6), k.reduce(Ops.ADD, value, j), i))
    loop = check(kernel, Schedule())
    test = next(node for node in toposort(loop) if node.op is Ops.IF)
    assert test.src[1].op is Ops.LOOP
    assert not loop.has(Ops.GUARD)


def test_a_guarded_factor_stays_guarded_since_zero_times_infinity_is_no_zero() -> None:
    loop = check(k.conv(1, 1, 2, 4, 4, 3, 1, 1), Schedule())
    assert loop.has(Ops.GUARD)
    assert not loop.has(Ops.IF)


@pytest.mark.parametrize("lanes", ["", "i0", "r1"])
def test_a_product_of_two_constants_stays_guarded(lanes: str) -> None:
    """One constant needs no guard where the other factor has it; two of them need one."""
    i, j = range_node(6, 0), range_node(4, 1)
    two, eighth = const(2.0, dtypes.float32), const(0.125, dtypes.float32)
    product = Node(Ops.MUL, dtypes.float32, (two, eighth))
    total = k.reduce(Ops.ADD, k.guard(alu(Ops.CMPLT, j, i), product), j)
    kernel = k.kernel(k.out(k.param(0, 6), total, i))
    loop = check(kernel, Schedule((vectorise(lanes),) if lanes else ()))
    assert loop.has(Ops.FMA)
    found = np.zeros(6, np.float32)
    evaluate_loop(loop, {0: found})
    np.testing.assert_array_equal(found, 0.25 * np.minimum(np.arange(6), 4))


def test_products_are_summed_with_one_rounding_where_the_target_can() -> None:
    kernel = k.matmul(4, 4, 4)
    assert lower(kernel, AVX, Schedule()).has(Ops.FMA)
    assert not lower(kernel, replace(AVX, fma=False), Schedule()).has(Ops.FMA)
    assert not lower(k.matmul(4, 4, 4, dtype=dtypes.int32), AVX, Schedule()).has(Ops.FMA)


def test_narrow_floats_are_summed_in_float32() -> None:
    loop = lower(k.row_reduce(3, 9, dtype=dtypes.float16), AVX, Schedule())
    allocs = {node.dtype for node in toposort(loop) if node.op is Ops.ALLOC}
    assert allocs == {dtypes.float32}


@pytest.mark.parametrize("lanes", ["", "i0", "r1", "r2"])
def test_a_sum_whose_axes_come_from_the_sum_that_it_reads_alone(lanes: str) -> None:
    i, j, n = range_node(8, 0), range_node(8, 1), range_node(8, 2)
    inner = k.reduce(Ops.ADD, k.at(k.param(2, 8, 8), i, n), n)
    outer = k.reduce(Ops.ADD, alu(Ops.MUL, k.at(k.param(1, 8), j), inner), j)
    both = alu(Ops.ADD, outer, inner)
    kernel = k.kernel(k.out(k.param(0, 8), both, i))
    check(kernel, Schedule((vectorise(lanes),) if lanes else ()))


@pytest.mark.parametrize("rows", [11, 12])
@pytest.mark.parametrize("grain", [1, 2, 3, 5, 12, 100])
def test_chunks_together_make_the_whole(rows: int, grain: int) -> None:
    kernel = k.row_reduce(rows, 6)
    loop = lower(kernel, AVX, Schedule((parallelise("i0", grain),)))
    trips = next(n for n in loops(loop) if n.src[0].arg.bind == "pool").src[0].src[0].arg
    chunks = trips // loop.arg.grain
    assert chunks == -(-rows // grain)
    arrays = k.arguments(kernel)
    expected = k.run_kernel(kernel, arrays)
    for chunk in reversed(range(chunks)):
        evaluate_loop(loop, [arrays[0], arrays[1]], chunks=(chunk, chunk + 1))
    k.assert_equal(expected, arrays)


@pytest.mark.parametrize("route", ["linear", "llvm", "c"])
@pytest.mark.parametrize(("rows", "grain"), [(12, 4), (11, 4), (12, 1)])
def test_a_chunk_is_the_same_rows_at_every_level(rows: int, grain: int, route: str) -> None:
    kernel = k.row_reduce(rows, 6)
    loop = lower(kernel, AVX, Schedule((parallelise("i0", grain),)))
    assert loop.arg.grain == (grain if rows % grain == 0 else 1)
    arrays = k.arguments(kernel)
    expected = k.run_kernel(kernel, arrays)[0]
    found = [np.full_like(arrays[0], np.nan), arrays[1]]
    program = linearised(loop)
    if route == "linear":
        evaluate_linear(program, found, chunks=(1, 2))
    else:
        compiled(program, route)(found, chunks=(1, 2))
    done = slice(grain, 2 * grain)
    np.testing.assert_allclose(found[0][done], expected[done], rtol=1e-5)
    assert np.isnan(np.delete(found[0], done, 0)).all()


def test_an_output_off_the_parallel_axis_is_written_once() -> None:
    i, j = range_node(6, 0), range_node(4, 1)
    x = k.param(2, 6)
    first = k.out(k.param(0, 6), k.at(x, i), i)
    other = k.out(k.param(1, 4), cast(const(3, dtypes.int64), dtypes.float32), j)
    kernel = k.kernel(first, other)
    loop = lower(kernel, AVX, Schedule((parallelise("i0"),)))
    arrays = k.arguments(kernel)
    arrays[1][:] = 0
    evaluate_loop(loop, [arrays[s] for s in range(3)], chunks=(0, 5))
    assert (arrays[1] == 0).all()
    evaluate_loop(loop, [arrays[s] for s in range(3)], chunks=(5, 6))
    assert (arrays[1] == 3).all()


def test_scatters_run_in_order() -> None:
    i = range_node(50, 0)
    place = cast(k.at(k.param(2, 50, dtype=dtypes.int64), i), dtypes.index)
    kernel = k.kernel(k.out(k.param(0, 3), k.at(k.param(1, 50), i), place))
    check(kernel, choose_schedule(kernel, AVX))


AVX512 = cpu_row_named("x86-64-avx512")
MASKED = (
    (k.row_reduce(5, 49), "r1"),
    (k.row_reduce(5, 49, Ops.MAX), "r1"),
    (k.row_reduce(5, 49, Ops.MUL), "r1"),
    (k.row_reduce(3, 9, Ops.MIN), "r1"),
    (k.row_reduce(3, 33, Ops.XOR, dtypes.int32), "r1"),
    (k.row_reduce(3, 33, Ops.AND, dtypes.int32), "r1"),
    (k.column_reduce(9, 40), "r1"),
    (k.smallest_column_sum(9, 40), "r1"),
    (k.sum_of_row_logs(6, 41), "r0"),
    (k.sum_of_row_logs(6, 41), "r1"),
    (k.layer_norm(3, 41), "r2"),
    (k.layer_norm(3, 41), "r3"),
)


@pytest.mark.parametrize(("kernel", "axis"), MASKED)
@pytest.mark.parametrize("lanes", [8, 64])
@pytest.mark.parametrize("target", [AVX, AVX512], ids=lambda target: str(target.name))
def test_masked_lanes_of_a_reduction(kernel: Node, axis: str, lanes: int, target: Any) -> None:
    """What lies past the end of a reduced axis is neither read nor folded in."""
    schedule = parse_schedule(
        f"Schedule(split({axis!r}, outer='o', v={lanes}, masked=True), bind('v', 'vector'))"
    )
    loop = check(kernel, schedule, target)
    arrays = k.arguments(kernel)
    differential(loop, [arrays[slot] for slot in sorted(arrays)], routes=("loop", "linear"))


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
    assert count <= vectors <= AVX512.vector_registers // 2


@pytest.mark.parametrize("target", [AVX, gpu_row("sm_90a")], ids=["cpu", "gpu"])
def test_passes_join_up_from_the_kernel_level_to_the_linear_level(target: Any) -> None:
    lowering = Lowering(target, Schedule())
    check_order((prepare_pass(target), *lowering.passes, *codegen_passes(target)), "kernel")


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
        "apply-schedule", "to-loops", "join-reads", "delay-stores",
    )]
