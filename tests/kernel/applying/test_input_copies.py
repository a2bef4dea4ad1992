"""Copies of inputs: their loops, vectors and layouts, and where an element is in them."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.node import const, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.core.substitution import substitute
from baregrad.kernel import (
    apply_schedule,
    parse_schedule,
)
from baregrad.kernel.facts.analysis import by_id
from tests.kernel import kernels as k
from tests.kernel.planning.cpu.test_gemm_blocked import allocations
from tests.kernel.test_lowering import check


def test_a_copy_is_padded_to_whole_vectors() -> None:
    text = "Schedule(split('i0', outer='m', r=2), bind('r', 'unroll'), reorder('i1', 'm', 'r2'), "
    schedule = parse_schedule(text + "stage_input(1, 'r', 'r2', lanes=4))")
    loop = check(k.matmul(4, 3, 10), schedule)
    shapes = [node.arg.shape for node in allocations(loop) if node.arg.space == "scratch"]
    assert shapes == [(2, 3, 4)]


def test_a_copy_in_bands_of_rows_keeps_the_axes_that_are_unrolled() -> None:
    """Eight rows at a time, several axes outside, and one whose steps are taken together."""
    text = "Schedule(split('i0', outer='m', r=2), bind('r', 'unroll'), split('r2', outer='ko', "
    schedule = parse_schedule(text + "ki=8), stage_input(1, 'r', 'm', 'ko', 'ki', lanes=4))")
    loop = check(k.matmul(16, 3, 32), schedule)
    shapes = [node.arg.shape for node in allocations(loop) if node.arg.space == "scratch"]
    assert [np.prod(shape) for shape in shapes] == [16 * 32]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("copy", [
    "stage_input(1, 'r2', 'i0')", "stage_input(1, 'i0', 'r2')",
    "stage_input(1, 'i0', 'r2', lanes=4)", "stage_input(1, 'r2', 'i0', lanes=8)",
    "stage_input(2, 'i1', 'r2', lanes=4)",
])
def test_copies_of_any_order_hold_the_same(copy: str, transposed: bool) -> None:
    check(k.matmul(6, 10, 9, transposed, transposed), parse_schedule(f"Schedule({copy})"))


def test_copies_run_in_the_order_in_which_the_input_lies() -> None:
    """Whatever the order of the copy: the loop over adjacent elements is the innermost."""
    for copy in ("'r2', 'i0'", "'i0', 'r2'"):
        for transposed, inner in ((False, "r2_copy"), (True, "i0_copy")):
            kernel = k.matmul(6, 10, 9, transposed)
            applied = apply_schedule(kernel, parse_schedule(f"Schedule(stage_input(1, {copy}))"))
            (stage,) = [node for node in toposort(applied) if node.op is Ops.STAGE]
            assert by_id(set(stage.src[1:]))[-1].arg.axis == inner
            # The axes of its array are in the order that was asked for.
            names = [axis.arg.axis.removesuffix("_copy") for axis in stage.src[1:]]
            assert names == [name.strip(" '") for name in copy.split(",")]


def test_an_element_is_where_the_copy_put_it() -> None:
    """By vectors of four, of which the last is padded: a place for each axis of the array."""
    text = "Schedule(stage_input(1, 'i0', 'r2', lanes=4))"
    applied = apply_schedule(k.matmul(3, 5, 10), parse_schedule(text))
    (read,) = [node for node in toposort(applied)
               if node.op is Ops.INDEX and node.src[0].op is Ops.STAGE]
    stage, *places = read.src
    assert [index.upper(axis.src[0]) for axis in stage.src[1:]] == [3, 3, 4]
    row, step = by_id(read.ranges)
    for i, r in product(range(3), range(10)):
        at = {row: const(i, dtypes.index), step: const(r, dtypes.index)}
        found = [index.as_dim(substitute(place, at)) for place in places]
        assert found == [i, r // 4, r % 4]
