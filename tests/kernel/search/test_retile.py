"""Sizes of a split changed, and with them all that a schedule says of its tail."""

from __future__ import annotations

import pytest

from baregrad.kernel import Schedule, parse_schedule
from baregrad.kernel.applying.axes import table_after
from baregrad.kernel.facts.analysis import facts_of
from baregrad.kernel.language.schedule import Split, parallelise, split, stage_input, vectorise
from baregrad.kernel.search.retile import descendants, names_of, renamed, retiled, without
from tests.kernel import kernels as k
from tests.kernel.coverage import once, reached
from tests.kernel.search.accepted import AVX, same


def test_another_size_makes_the_tail_anew() -> None:
    kernel = k.matmul(8, 40, 64)
    first = Schedule((
        split("i1", outer="n", nu=1, nv=8), vectorise("nv"), parallelise("n"),
        stage_input(2, "r2", "nv"),
    ))
    cut = first.steps[0]
    assert isinstance(cut, Split)
    changed = retiled(first, cut, (2, 16), 40)
    text = str(changed)
    # 40 is one tile of 32, and a vector of 8.
    assert "nu=2, nv=16, tail='nt'" in text
    assert "bind('nt', 'vector')" in text
    assert "stage_input(2, 'r2', 'nt')" in text
    assert same(kernel, changed)
    # And back: the tail goes, with all that was said of it.
    cut = changed.steps[0]
    assert isinstance(cut, Split)
    again = str(retiled(changed, cut, (1, 8), 40))
    assert "nt" not in again
    assert same(kernel, parse_schedule(again))


@pytest.mark.parametrize("sizes", [(1, 8), (2, 8), (3, 8), (2, 4), (1, 1), (4, 16)])
@pytest.mark.parametrize("extent", [16, 17, 40, 47, 63, 64])
def test_parts_and_tail_cover_the_axis_once(extent: int, sizes: tuple[int, ...]) -> None:
    kernel = k.elementwise(3, extent)
    first = parse_schedule(
        "Schedule(split('i1', outer='n', nu=2, nv=4, tail='nt'), bind('nu', 'unroll'),"
        "bind('nv', 'vector'), split('nt', outer='nto', ntv=2, tail='ntt'))"
    )
    cut = first.steps[0]
    assert isinstance(cut, Split)
    changed = retiled(first, cut, sizes, extent)
    facts = facts_of(kernel)
    table = table_after(facts, changed, AVX)
    assert reached(table, table.pieces_of(facts.data[1])) == once(extent)
    lanes = max(sizes[1], 1)
    assert all(axis.extent <= lanes for axis in table.axes.values() if axis.unit == "vector")


def test_a_masked_split_has_no_tail_and_no_mask_where_it_comes_out_even() -> None:
    first = Schedule((split("i1", outer="n", nv=16, masked=True), vectorise("nv")))
    cut = first.steps[0]
    assert isinstance(cut, Split)
    assert retiled(first, cut, (8,), 40).steps[0] == Split("i1", (("n", 0), ("nv", 8)))
    assert retiled(first, cut, (32,), 40).steps[0] == Split("i1", (("n", 0), ("nv", 32)), "", True)


def test_what_is_split_off_an_axis_is_found() -> None:
    text = "Schedule(split('a', outer='b', c=2, tail='d'), split('d', outer='e', f=2, tail='g'))"
    schedule = parse_schedule(text)
    assert descendants(schedule, "a") == {"a", "b", "c", "d", "e", "f", "g"}
    assert descendants(schedule, "d") == {"d", "e", "f", "g"}
    assert descendants(schedule, "b") == {"b"}
    assert descendants(schedule, "") == set()


def test_what_is_said_of_axes_that_go_is_left_out() -> None:
    schedule = parse_schedule(
        "Schedule(split('i', outer='o', u=4), bind('u', 'unroll'), bind('j', 'vector'),"
        "reorder('o', 'j', 'u'), stage_input(1, 'r', 'u'), stage_input(2, 'u'),"
        "stage_input(1, 't', 'j'), stage_reduce('u', 'j'), stage_reduce('r', 'j', 'u'))"
    )
    cut = schedule.steps[0]
    assert isinstance(cut, Split)
    assert str(without(schedule, {"u"}, {"t"}, cut)) == (
        "Schedule(bind('j', 'vector'), reorder('o', 'j'), stage_input(1, 'r'), "
        "stage_reduce('r', 'j'))"
    )
    assert names_of(parse_schedule("Schedule(stage_reduce('r', 'j'))").steps[0]) == ("r", "j")


def test_axes_are_renamed_wherever_a_step_speaks_of_them() -> None:
    names = {"a": "x", "b": "y"}
    for text, wanted in (
        ("bind('a', 'vector')", "bind('x', 'vector')"),
        ("reorder('b', 'c', 'a')", "reorder('y', 'c', 'x')"),
        ("stage_reduce('a', 'b', 'c')", "stage_reduce('x', 'y', 'c')"),
        ("stage_input(3, 'b', lanes=4)", "stage_input(3, 'y', lanes=4)"),
    ):
        (step,) = parse_schedule(f"Schedule({text})").steps
        assert str(Schedule((renamed(step, names),))) == f"Schedule({wanted})"
