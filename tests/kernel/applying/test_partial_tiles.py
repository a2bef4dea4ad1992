"""Partial tiles: what lies past their ends reads nothing and adds nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from baregrad.base.errors import ScheduleError
from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.attrs import StageInfo
from baregrad.ir.core.monoid import arg_extreme, primitive
from baregrad.ir.core.node import Node, alu, const, range_node, toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel import (
    parse_schedule,
)
from baregrad.kernel.applying.axes import table_after
from baregrad.kernel.applying.partial_tiles import (
    TRUE,
    check_threads,
    guards_reads,
    is_padded_copy,
    is_staged_product,
    within,
)
from baregrad.kernel.facts.analysis import facts_of
from baregrad.target.gpu import gpu_row
from tests.kernel import kernels as k
from tests.kernel.kernels import F32
from tests.kernel.planning.cpu.test_gemm_blocked import IN_PLACE, SMALL
from tests.kernel.test_lowering import AVX, AVX512, check
from tests.render.harness import check as differential

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


@pytest.mark.parametrize("b", [False, True])
@pytest.mark.parametrize(("m", "n"), [(6, 32), (7, 35), (2, 5)])
def test_rows_past_the_end_are_read_without_conditions(m: int, n: int, b: bool) -> None:
    """What reads the last row in their place adds up what is not written."""
    loop = check(k.matmul(m, n, 16, False, b), parse_schedule(IN_PLACE.format(ki=8)), SMALL)
    products = [node for node in toposort(loop) if node.op is Ops.FMA]
    assert products
    assert not any(node.has(Ops.GUARD) for product in products for node in product.src[:2])


def test_rows_in_place_have_conditions_where_steps_are_left_over() -> None:
    """Past the end of a row lies the next one, and B's zeros make no 0 of its infinities."""
    check(k.matmul(7, 35, 19), parse_schedule(IN_PLACE.format(ki=8)), SMALL)


HERE = index.less(range_node(8, 0), 5)
X = k.at(k.param(1, 8), range_node(8, 0))


def test_what_lies_past_the_end_changes_no_fold() -> None:
    for op, start in ((Ops.ADD, 0.0), (Ops.MAX, -np.inf), (Ops.MUL, 1.0), (Ops.MIN, np.inf)):
        (value,) = within(primitive(op, F32), (X,), HERE)
        if op is Ops.ADD:
            assert value.op is Ops.GUARD
        else:
            assert (value.op, value.src[2].arg) == (Ops.WHERE, start)
        assert within(primitive(op, F32), (X,), TRUE) == (X,)


def test_a_fold_without_a_neutral_element_is_not_masked() -> None:
    """An argmax lifts an element and its place as they are; a monoid of our own may not."""
    first = arg_extreme(Ops.MAX, F32)
    value, place = within(first, (X, const(3, dtypes.int64)), HERE)
    assert value.src[2].arg == -np.inf and place.op is Ops.WHERE
    lifting = first._replace(lift=(alu(Ops.MUL, first.lift[0], first.lift[0]), first.lift[1]))
    with pytest.raises(ScheduleError, match="neutral element"):
        within(lifting, (X, const(3, dtypes.int64)), HERE)


def test_products_of_copies_are_0_past_the_end_of_their_axes() -> None:
    """Each factor has to run along the axis: infinity times 0 is no 0."""
    i, j = range_node(8, 0), range_node(4, 1)
    c, d = range_node(8, 10), range_node(4, 11)
    copy = Node(Ops.STAGE, F32, (k.at(k.param(1, 8, 4), c, d), c, d), StageInfo("scratch"))
    other = Node(Ops.STAGE, F32, (k.at(k.param(2, 4), d), d), StageInfo("scratch"))
    left, right = k.at(copy, i, j), k.at(other, j)
    product = alu(Ops.MUL, left, right)
    assert is_staged_product(product, frozenset((j,)))
    assert not is_staged_product(product, frozenset((i,)))
    assert not is_staged_product(alu(Ops.ADD, left, right), frozenset((j,)))
    assert not is_staged_product(alu(Ops.MUL, left, k.at(k.param(3, 4), j)), frozenset((j,)))
    made = Node(Ops.STAGE, F32, (alu(Ops.EXP, k.at(k.param(1, 4), d)), d), StageInfo("scratch"))
    assert not is_padded_copy(made) and is_padded_copy(copy)


@pytest.mark.parametrize(("text", "guarded"), [
    ("split('r1', outer='o', u=8, masked=True)", False),
    ("split('i0', outer='o', u=2, masked=True)", True),
    ("split('i0', outer='o', u=5, masked=True)", False),  # it comes out even
])  # fmt: skip
def test_reads_have_guards_where_the_output_has_partial_tiles(text: str, guarded: bool) -> None:
    facts = facts_of(k.row_reduce(5, 37))
    schedule = parse_schedule(f"Schedule({text})")
    assert guards_reads(table_after(facts, schedule, AVX)) == guarded
    on_gpu = table_after(facts, schedule, gpu_row("sm_90a"))
    assert guards_reads(on_gpu)


def test_an_expression_lies_across_each_thread_once() -> None:
    x, y = range_node(8, 0, "x", "thread"), range_node(8, 1, "y", "thread")
    alone = k.kernel(k.out(k.param(0, 8), k.at(k.param(1, 8), x), x))
    check_threads(alone)
    both = k.kernel(k.out(k.param(0, 8, 8), k.at(k.param(1, 8, 8), x, y), x, y))
    with pytest.raises(ScheduleError, match="lie across the same threads"):
        check_threads(both)
