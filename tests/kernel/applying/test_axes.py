"""Steps and the table of axes: what each does, and when it is not legal."""

from __future__ import annotations

import math

import pytest

from baregrad.base.errors import ScheduleError
from baregrad.ir.core.node import Node
from baregrad.ir.verify.verify import verify
from baregrad.kernel import lower, parse_schedule
from baregrad.kernel.applying.axes import table_after
from baregrad.kernel.facts.analysis import facts_of
from baregrad.kernel.facts.axis_table import AxisTable
from tests.kernel import kernels as k
from tests.kernel.coverage import once, reached
from tests.kernel.test_lowering import AVX


def refusal(kernel: Node, text: str) -> str:
    """What is said of a schedule that is not legal."""
    with pytest.raises(ScheduleError) as caught:
        lower(kernel, AVX, parse_schedule(text))
    return str(caught.value)


def test_copies_lie_over_axes_that_stay() -> None:
    mm = k.matmul(8, 16, 8)
    staged = "stage_input(2, 'r2', 'i1')"
    assert "a copy lies over the axis" in refusal(
        mm, f"Schedule({staged}, split('i1', outer='o', v=8))"
    )
    # Threads may share what a copy lies over where each chunk has as much of it.
    bad = f"Schedule(bind('i1', 'pool', grain=5), {staged})"
    assert "the last chunk is shorter" in refusal(mm, bad)
    good = parse_schedule(f"Schedule(bind('i1', 'pool', grain=4), {staged})")
    loop = lower(mm, AVX, good)
    verify(loop, "loop")
    arrays = k.arguments(mm)
    k.assert_equal(k.run_kernel(mm, arrays), k.run_loop(loop, arrays))


SPLITS = ((2,), (3,), (8,), (2, 4), (3, 2), (1,))


def table_of(kernel: Node, text: str) -> AxisTable:
    return table_after(facts_of(kernel), parse_schedule(f"Schedule({text})"), AVX)


@pytest.mark.parametrize("how", ["tail='t'", "masked=True"])
@pytest.mark.parametrize("sizes", SPLITS, ids=str)
@pytest.mark.parametrize("extent", [1, 7, 8, 24, 25])
def test_parts_reach_each_element_once(extent: int, sizes: tuple[int, ...], how: str) -> None:
    """With a tail for the rest, or a last tile that is partial."""
    inner = ", ".join(f"p{number}={size}" for number, size in enumerate(sizes))
    kernel = k.elementwise(extent)
    table = table_of(kernel, f"split('i0', outer='o', {inner}, {how})")
    (axis,) = facts_of(kernel).data
    assert reached(table, table.pieces_of(axis)) == once(extent)
    assert table.masked == (how.startswith("m") and extent % math.prod(sizes) != 0)


def test_parts_of_parts_reach_each_element_once() -> None:
    kernel = k.elementwise(77)
    for more in ("split('o', outer='oo', x=2, tail='y')", "split('t', outer='to', x=2, tail='y')"):
        table = table_of(kernel, f"split('i0', outer='o', u=3, v=2, tail='t'), {more}")
        (axis,) = facts_of(kernel).data
        assert reached(table, table.pieces_of(axis)) == once(77)


def test_collapsed_axes_are_one_of_all_their_elements() -> None:
    kernel = k.elementwise(5, 7)
    table = table_of(kernel, "collapse('i0', 'i1', name='f'), split('f', outer='o', u=4, tail='t')")
    i, j = facts_of(kernel).data
    assert reached(table, table.pieces_of(i)) == once(35)
    assert table.merged == {i: ("f", 7, 5), j: ("f", 1, 7)}
    assert table.groups == {"f": (j, i)}
    assert table.order == ["o", "u", "t"]


@pytest.mark.parametrize(("steps", "order"), [
    ("reorder('r2', 'i0')", ["r2", "i1", "i0"]),
    ("reorder('i1', 'i0', 'r2')", ["i1", "i0", "r2"]),
    ("split('i1', outer='o', u=2), reorder('u', 'i0')", ["u", "o", "i0", "r2"]),
    # What is not named stays where it is.
    ("split('r2', outer='a', b=2), reorder('a', 'i0')", ["a", "i1", "i0", "b"]),
])  # fmt: skip
def test_named_loops_change_places_with_each_other(steps: str, order: list[str]) -> None:
    assert table_of(k.matmul(4, 6, 8), steps).order == order


@pytest.mark.parametrize(("text", "said"), [
    ("split('i0', outer='o', u=3)", "the sizes do not divide the extent"),
    ("split('i0', outer='i1', u=2)", "there already"),
    ("split('i0', outer='a b', u=2)", "no identifier"),
    ("bind('i0', 'unroll'), split('i0', outer='o', u=2)", "bound already"),
    ("bind('r2', 'pool')", "cannot be shared out"),
    ("bind('i0', 'pool'), bind('i1', 'pool')", "one axis is the pool's"),
    ("bind('i0', 'grid')", "a unit that a CPU has not"),
    ("reorder('i0', 'i0')", "names an axis twice"),
    ("reorder('i0', 'x')", "not there"),
    ("collapse('i0', 'r2', name='f')", "two or more axes of one kind"),
    ("collapse('i0', name='f')", "two or more axes"),
    ("split('i0', outer='o', u=2), collapse('o', 'i1', name='f')", "the axis was changed"),
    ("stage_input(1, 'i0', 'i0')", "names an axis twice"),
    ("split('i0', outer='o', u=3, tail='t', masked=True)", "a tail or a mask, not both"),
])  # fmt: skip
def test_steps_that_are_not_legal(text: str, said: str) -> None:
    with pytest.raises(ScheduleError, match=said):
        table_of(k.matmul(4, 6, 8), text)


def test_scans_run_whole_and_inside_other_loops() -> None:
    kernel = k.cumsum(5, 20, 1)
    for text in ("split('i1', outer='o', u=4)", "bind('i1', 'vector')", "reorder('i1', 'i0')"):
        with pytest.raises(ScheduleError, match="a scan runs along the axis"):
            table_of(kernel, text)
    assert table_of(kernel, "bind('i0', 'vector')").axes["i0"].unit == "vector"


def test_scattered_writes_keep_their_order() -> None:
    kernel = k.scatter_add(4, 6, 8)
    with pytest.raises(ScheduleError, match="keep their order"):
        table_of(kernel, "bind('i0', 'unroll')")
    assert table_of(kernel, "bind('i1', 'vector')").axes["i1"].unit == "vector"
