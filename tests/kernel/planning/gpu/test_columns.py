"""Sums of columns on a GPU, alone or beside their rows': values at every level, and threads."""

from __future__ import annotations

import re

import numpy as np
import pytest

from baregrad import render
from baregrad.dtypes import dtypes
from baregrad.engine.compiler import Compiler
from baregrad.ir.core.attrs import Reduce
from baregrad.ir.core.monoid import scaled_sum
from baregrad.ir.core.node import Node, alu, const, range_node
from baregrad.ir.core.op import Op, Ops
from baregrad.kernel import choose_schedule
from baregrad.kernel.language.schedule import Bind, Schedule, Split
from baregrad.kernel.planning.gpu import columns as planner
from tests.kernel import kernels as k
from tests.kernel.gpu_kernels import HOPPER, check_gpu


def check(kernel: Node) -> None:
    check_gpu(kernel, choose_schedule(kernel, HOPPER))


@pytest.mark.parametrize("shape", [(3, 40), (31, 128), (64, 129), (300, 36), (257, 7), (1000, 1)])
def test_sums_and_maxima_of_columns(shape: tuple[int, int]) -> None:
    for op in (Ops.ADD, Ops.MAX):
        check(k.column_reduce(*shape, op))


@pytest.mark.parametrize("shape", [(256, 8), (600, 72), (1100, 31), (513, 3)])
def test_sums_and_maxima_of_long_columns(shape: tuple[int, int]) -> None:
    for op in (Ops.ADD, Ops.MAX):
        kernel = k.column_reduce(*shape, op)
        check(kernel)
    # How many threads share a sum is decided by its length.
    assert "r1_t1=64" in str(choose_schedule(k.column_reduce(*shape, Ops.ADD), HOPPER))


@pytest.mark.parametrize(
    ("shape", "lanes"), [((600, 3), 4), ((5000, 3), 4), ((3072, 5), 4), ((258, 3), 2)]
)
def test_threads_have_whole_rows_of_few_long_columns(shape: tuple[int, int], lanes: int) -> None:
    """So that each loads what lies together, and not one number of each row."""
    for op in (Ops.ADD, Ops.MAX):
        kernel = k.column_reduce(*shape, op)
        check(kernel)
        *_, last = Compiler(HOPPER, render.get("ptx"), None, None).stages(kernel)
        assert {*re.findall(r"ld\.global[.\w]*", str(last.result))} == {f"ld.global.v{lanes}.f32"}


def test_rows_that_no_access_fills_are_no_whole_rows() -> None:
    kernel = k.column_reduce(601, 3, Ops.ADD)
    check(kernel)
    assert "r1_t1=64" in str(choose_schedule(kernel, HOPPER))


def norm_and_products(rows: int, length: int, columns: int, turned: bool) -> Node:
    """Each row's sum of squares, and the products of the row over it with a few others.

    As the gradient of such a sum by a factor of what is squared is. turned: the others are columns
    of a matrix.
    """
    i, j, r, s = (range_node(size, at) for at, size in enumerate((rows, columns, length, length)))
    x = k.param(2, rows, length)
    w = k.param(3, *((length, columns) if turned else (columns, length)))
    norm = k.reduce(Ops.ADD, alu(Ops.MUL, k.at(x, i, r), k.at(x, i, r)), r)
    factor = k.at(w, s, j) if turned else k.at(w, j, s)
    scaled = alu(Ops.MUL, alu(Ops.MUL, k.at(x, i, s), norm), factor)
    return k.kernel(
        k.out(k.param(0, rows, columns), k.reduce(Ops.ADD, scaled, s), i, j),
        k.out(k.param(1, rows), norm, i),
    )


def sizes_of(kernel: Node, axis: str) -> dict[str, int]:
    """What the parts of an axis lie along, and how many points each has."""
    steps = choose_schedule(kernel, HOPPER).steps
    units = {step.axis: step.unit for step in steps if isinstance(step, Bind)}
    return {
        units.get(name, "loop"): size for step in steps
        if isinstance(step, Split) and step.axis == axis for name, size in step.parts
    }


@pytest.mark.parametrize("columns", [2, 3, 9])
def test_few_sums_beside_their_row_s_are_shared_by_all_its_threads(columns: int) -> None:
    """Each thread has a part of every sum: a thread for each sum would read all of a row."""
    kernel = norm_and_products(3, 300, columns, False)
    check(kernel)
    inner, outer = sizes_of(kernel, "r3"), sizes_of(kernel, "r2")
    assert inner == outer and inner["thread"] >= 8
    assert sizes_of(kernel, "i1")["unroll"] == min(columns, 4)
    many = norm_and_products(100000, 300, columns, False)
    assert sizes_of(many, "r3") == inner  # and as many whatever else there is


@pytest.mark.parametrize(("rows", "columns"), [(3, 5), (1, 40), (2, 72)])
def test_sums_of_columns_beside_a_sum_of_their_row_have_warps_along_them(
    rows: int, columns: int
) -> None:
    kernel = norm_and_products(rows, 300, columns, True)
    check(kernel)
    assert sizes_of(kernel, "r3")["thread_y"] == 32
    assert sizes_of(kernel, "i1")["thread"] <= HOPPER.warp_lanes
    many = norm_and_products(100000, 300, columns, True)
    assert sizes_of(many, "r3") == sizes_of(kernel, "r3")


def test_many_results_of_short_sums_have_a_thread_each() -> None:
    kernel = norm_and_products(2, 20, 300, True)
    check(kernel)
    assert sizes_of(kernel, "r3") == {}
    assert sizes_of(kernel, "i1")["thread"] > 1


def row_block(schedule: Schedule) -> list[dict[str, int]]:
    """Of each axis of the output, what its parts lie along, and how many points each has."""
    units = {step.axis: step.unit for step in schedule.steps if isinstance(step, Bind)}
    return [
        {units.get(name, "loop"): size for name, size in step.parts}
        for step in schedule.steps if isinstance(step, Split) and step.axis.startswith("i")
    ]


@pytest.mark.parametrize(("m", "n", "wide"), [(4096, 5, 3), (5, 4096, 3), (2480, 15, 4)])
def test_rows_that_read_the_same_of_a_large_array_are_a_thread_s(
    m: int, n: int, wide: int
) -> None:
    """Those along the short side: each block would read as much again from the second cache."""
    kernel = k.matmul(m, n, 796, False, True, batch=4)
    long, short = row_block(choose_schedule(kernel, HOPPER))
    assert (long["unroll"], short["unroll"]) == (4, wide)
    assert short["thread_z"] == -(-min(m, n) // wide)
    # How a sum is shared does not depend on what else there is.
    few = k.matmul(40, 6, 796, False, True)
    assert sizes_of(kernel, "r3") == sizes_of(few, "r2")
    assert all("thread_z" not in sizes for sizes in row_block(choose_schedule(few, HOPPER)))


@pytest.mark.parametrize(("kernel", "least"), [
    (k.matmul(20, 3, 100, False, True), 0), (k.matmul(5, 24, 260, False, True, batch=2), 0),
    (k.matmul(9, 6, 130, False, True), 1), (k.matmul(13, 5, 900, False, True), 0),
])  # fmt: skip
def test_blocks_of_rows(kernel: Node, least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "MUCH_AGAIN", 1)
    monkeypatch.setattr(planner, "TURN_WARPS", least)
    schedule = choose_schedule(kernel, HOPPER)
    long, short = row_block(schedule)
    assert ("unroll" in long) == ("unroll" in short) == (least == 0)
    check_gpu(kernel, schedule)


@pytest.mark.parametrize(("length", "threads"), [(20_000, 512), (8192, 64)])
def test_the_longest_columns_of_few_have_more_threads(length: int, threads: int) -> None:
    """Each of 64 would wait for hundreds of reads, one round after the other."""
    i, j, c = (range_node(size, at) for at, size in enumerate((3, length, 2)))
    total = k.reduce(Ops.ADD, k.at(k.param(1, 3, length, 2), i, j, c), j)
    kernel = k.kernel(k.out(k.param(0, 3, 2), total, i, c))
    found = sizes_of(kernel, "r1")
    assert found.get("thread", 1) * found["thread_y"] == threads
    check(kernel)


@pytest.mark.parametrize("op", [Ops.ADD, Ops.MAX])
@pytest.mark.parametrize("shape", [(3, 32, 70, 3), (2, 64, 40, 5), (1, 600, 33, 2), (2, 7, 64, 4)])
def test_short_rows_that_results_lie_across_are_whole_in_a_thread(
    op: Op, shape: tuple[int, int, int, int]
) -> None:
    """Threads lie along the longer axis, of which the results are neighbours."""
    b, r, d, c = (range_node(size, at) for at, size in enumerate(shape))
    value = k.reduce(op, k.at(k.param(1, *shape), b, r, d, c), r)
    kernel = k.kernel(k.out(k.param(0, shape[0], shape[3], shape[2]), value, b, c, d))
    schedule = choose_schedule(kernel, HOPPER)
    units = {step.axis: step.unit for step in schedule.steps if isinstance(step, Bind)}
    assert units["i3"] == "unroll"
    assert any(unit == "thread" for axis, unit in units.items() if axis.startswith(("i2_", "f0_")))
    check(kernel)


@pytest.mark.parametrize(("columns", "length"), [(3, 4096), (2, 1500)])
def test_long_states_of_few_columns_have_a_block_each(columns: int, length: int) -> None:
    """Threads along them are as few: 32 of them had 512 steps each of 4,096."""
    i, j = range_node(columns, 0), range_node(length, 1)
    value = k.at(k.param(1, length, columns), j, i)
    how = Reduce(scaled_sum(dtypes.float32))
    both = Node(Ops.REDUCE, dtypes.float32, (value, const(1, dtypes.float32), j), how)
    found = alu(Ops.ADD, alu(Ops.LOG, Node(Ops.PROJ, dtypes.float32, (both,), 1)),
                Node(Ops.PROJ, dtypes.float32, (both,), 0))  # fmt: skip
    kernel = k.kernel(k.out(k.param(0, columns), found, i))
    steps = choose_schedule(kernel, HOPPER).steps
    units = {step.axis: step.unit for step in steps if isinstance(step, Bind)}
    assert units["i0"] == "grid"
    sizes = [n for step in steps if isinstance(step, Split) for _, n in step.parts if n]
    assert np.prod(sizes) >= length // 32, steps
    check(kernel)


# --- short sums within others -------------------------------------------------------------------


def norms_within(n: int, c: int, p: int) -> Node:
    """Of each image: the sum of the squares of all numbers less what parts say of their channel."""
    i, f, j, b = (range_node(size, at) for at, size in enumerate((n, c, p, n)))
    mean = k.reduce(Ops.ADD, k.at(k.param(2, n, c), b, f), b)
    less = alu(Ops.SUB, k.at(k.param(1, n, c, p), i, f, j), mean)
    return k.kernel(k.out(k.param(0, n), k.reduce(Ops.ADD, alu(Ops.MUL, less, less), f, j), i))


def squares_of_sums(m: int, down: int, n: int) -> Node:
    """Of each matrix of a batch: the sum of the squares of the sums of its columns."""
    i, j, r = (range_node(size, at) for at, size in enumerate((m, n, down)))
    total = k.reduce(Ops.ADD, k.at(k.param(1, m, down, n), i, r, j), r)
    return k.kernel(k.out(k.param(0, m), k.reduce(Ops.ADD, alu(Ops.MUL, total, total), j), i))


@pytest.mark.parametrize(("kernel", "least"), [
    (norms_within(6, 4, 1369), 512), (norms_within(3, 5, 40), 64), (squares_of_sums(9, 12, 21), 8),
    (squares_of_sums(2, 25, 2000), 256), (squares_of_sums(5, 3, 10), 8),
])
def test_what_a_short_sum_is_within_is_shared_by_many_threads(kernel: Node, least: int) -> None:
    """No thread has all elements of a sum for the sake of the short sums that they are."""
    steps = choose_schedule(kernel, HOPPER).steps
    units = {step.axis: step.unit for step in steps if isinstance(step, Bind)}
    sizes = [
        size for step in steps if isinstance(step, Split) and not step.axis.startswith("i")
        for name, size in step.parts if units.get(name, "").startswith("thread")
    ]
    assert np.prod(sizes) >= least, steps
    check(kernel)


@pytest.mark.parametrize("shape", [(40, 3, 256), (600, 2, 64), (5, 4, 7), (700, 6, 3)])
def test_short_sums_within_sums_of_columns(shape: tuple[int, int, int]) -> None:
    """Threads lie along the results, which are neighbours in memory."""
    i, r, j = (range_node(size, at) for at, size in enumerate(shape))
    total = k.reduce(Ops.ADD, k.at(k.param(1, *shape), i, r, j), r)
    squares = k.reduce(Ops.ADD, alu(Ops.MUL, total, total), i)
    kernel = k.kernel(k.out(k.param(0, shape[2]), squares, j))
    steps = choose_schedule(kernel, HOPPER).steps
    units = {step.axis: step.unit for step in steps if isinstance(step, Bind)}
    assert any(unit == "thread" for name, unit in units.items() if name.startswith("i"))
    check(kernel)


# --- what is normalised along columns ------------------------------------------------------------


@pytest.mark.parametrize(("rows", "length", "along", "down"), [
    (183, 871, 8, 32), (60_000, 871, 32, 32), (183, 300, 8, 16), (60_000, 300, 32, 16),
])
def test_few_normalised_columns_are_many_blocks(
    rows: int, length: int, along: int, down: int
) -> None:
    """Each column is shared among as many threads, however many are beside it in a block."""
    i, j, r = range_node(rows, 0), range_node(length, 1), range_node(length, 2)
    x = k.param(1, length, rows)
    total = k.reduce(Ops.ADD, k.at(x, r, i), r)
    kernel = k.kernel(k.out(k.param(0, rows, length), alu(Ops.DIV, k.at(x, j, i), total), i, j))
    schedule = choose_schedule(kernel, HOPPER)
    parts = {step.axis: dict(step.parts) for step in schedule.steps if isinstance(step, Split)}
    assert along in parts["i0"].values()
    assert down in parts["i1"].values() and down in parts["r2"].values()
    if rows < 1000:
        check(kernel)


@pytest.mark.parametrize("columns", [2, 4])
def test_lanes_fold_columns_so_few_that_a_thread_has_all(columns: int) -> None:
    """No thread reads what hundreds have found of each: that took all registers, and more."""
    kernel = k.places_of_minima(1000, columns)
    check(kernel)
    *_, last = Compiler(HOPPER, render.get("ptx"), None, None).stages(kernel)
    text = str(last.result)
    assert "shfl.sync" in text and f"ld.global.v{columns}.f32" in text
    # Eight warps' numbers and places.
    assert len(re.findall(r"ld\.shared", text)) <= 2 * 8 * columns
