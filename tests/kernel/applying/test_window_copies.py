"""Copies of what windows reach: each element once, with the zeros around, wherever windows lie."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from baregrad.base.errors import ScheduleError
from baregrad.ir.analysis.outline import outline
from baregrad.ir.core import index
from baregrad.ir.core.node import Node, alu, range_node
from baregrad.ir.core.op import Ops
from baregrad.kernel import lower, parse_schedule
from baregrad.target.cpu import cpu_row_named
from baregrad.tensor import Tensor
from tests.kernel import kernels as k
from tests.kernel.test_lowering import check

AVX512 = cpu_row_named("x86-64-avx512")


def windows(rows: int, taps: int, stride: int, dilation: int, pad: int, flip: bool) -> Node:
    """Sums over windows of the lines of a matrix, by a filter for each of four outputs."""
    reach = dilation * (taps - 1) + 1
    size = (rows - 1) * stride + reach - 2 * pad
    f, i, c, r = (range_node(e, p) for p, e in enumerate((4, rows, 3, taps)))
    tap = index.sub(taps - 1, r) if flip else r
    place = index.add(index.add(index.mul(i, stride), index.mul(tap, dilation)), -pad)
    value = k.at(k.param(1, 3, size), c, place)
    if pad:
        value = k.guard(index.inside(place, size), value)
    product = alu(Ops.MUL, value, k.at(k.param(2, 4, 3, taps), f, c, r))
    return k.kernel(k.out(k.param(0, 4, rows), k.reduce(Ops.ADD, product, c, r), f, i))


@pytest.mark.few(40)
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("pad", [0, 2])
@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (1, 3), (4, 2)])
@pytest.mark.parametrize("text", [
    "stage_input(1, 'r2', 'i1+r3')",
    "stage_input(1, 'i1+r3', 'r2')",
    "stage_input(1, 'r2', 'i1+r3', lanes=4)",
    "split('i1', outer='o', u=4), bind('u', 'unroll'), stage_input(1, 'r2', 'o+u+r3', lanes=8)",
    "split('i1', outer='o', u=3, tail='t'), reorder('o', 'i0', 'u'), bind('o', 'pool'), "
    "stage_input(1, 'u+r3', 'r2'), stage_input(1, 't+r3')",
])
def test_a_copy_of_what_windows_reach(
    text: str, stride: int, dilation: int, pad: int, flip: bool
) -> None:
    schedule = parse_schedule(f"Schedule({text})")
    assert parse_schedule(str(schedule)) == schedule
    check(windows(8, 3, stride, dilation, pad, flip), schedule)


def test_elements_that_windows_share_are_copied_once() -> None:
    schedule = parse_schedule("Schedule(stage_input(1, 'r2', 'i1+r3'))")
    text = str(outline(lower(windows(8, 3, 2, 1, 1, False), AVX512, schedule)))
    # 8 windows of 3 at steps of 2: 17 elements of each of 3 lines, where 24 would be read.
    assert [int(size) for size in re.findall(r"for \w+_copy of (\d+)", text)] == [3, 17]


def test_a_copy_takes_the_room_of_what_windows_reach() -> None:
    """3 lines of 17 elements, no more and no less; windows times taps would be 24 in each."""
    schedule = parse_schedule("Schedule(stage_input(1, 'r2', 'i1+r3'))")
    kernel = windows(8, 3, 2, 1, 1, False)
    check(kernel, schedule, replace(AVX512, l3_bytes=3 * 17 * 4))
    with pytest.raises(ScheduleError, match="no room in the caches"):
        lower(kernel, replace(AVX512, l3_bytes=3 * 17 * 4 - 1), schedule)


@pytest.mark.parametrize("axes", ["'i1+r2'", "'i0+i1'", "'i1+i1'", "'i1+r9'", "'i1+'", "'+'"])
def test_axes_that_do_not_move_an_input_alike_are_refused(axes: str) -> None:
    schedule = parse_schedule(f"Schedule(stage_input(1, {axes}))")
    with pytest.raises(ScheduleError):
        lower(windows(8, 3, 1, 1, 1, False), AVX512, schedule)


def test_axes_whose_steps_have_no_common_measure_are_refused() -> None:
    schedule = parse_schedule("Schedule(stage_input(1, 'r2', 'i1+r3'))")
    with pytest.raises(ScheduleError, match="no access of that input"):
        lower(windows(8, 3, 3, 2, 0, False), AVX512, schedule)


def test_chunks_of_the_pool_are_part_of_no_sum() -> None:
    schedule = parse_schedule("Schedule(bind('i1', 'pool'), stage_input(1, 'i1+r3'))")
    with pytest.raises(ScheduleError, match="no access of that input"):
        lower(windows(8, 3, 1, 1, 0, False), AVX512, schedule)


def test_a_tail_of_one_element_needs_no_copy() -> None:
    """A value that repeats along the sum, in rows of which one is left over."""
    random = np.random.default_rng(3)
    column, other = (random.integers(0, 9, shape, np.uint32) for shape in ((5, 1), (8, 2)))
    found = Tensor(column).repeat((1, 2)) @ Tensor(other).mT
    np.testing.assert_array_equal(found.numpy(), np.repeat(column, 2, 1) @ other.T)
