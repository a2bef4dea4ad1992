"""Sums of columns on a GPU, alone or beside their rows': values at every level, and threads."""

from __future__ import annotations

import re

import pytest

from baregrad import render
from baregrad.engine.compiler import Compiler
from baregrad.ir.core.node import Node, alu, range_node
from baregrad.ir.core.op import Ops
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
