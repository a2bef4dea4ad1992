from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from baregrad.base.errors import ScheduleError
from baregrad.kernel import apply_schedule
from baregrad.kernel.language.schedule import (
    Schedule,
    StageInput,
    bind,
    collapse,
    parallelise,
    parse_schedule,
    pipeline,
    prefetch,
    reorder,
    split,
    stage_input,
    stage_reduce,
    stream_output,
    tensorize,
    unroll,
    vectorise,
)
from tests.kernel import kernels as k
from tests.kernel.random_schedules import any_kernel, any_schedule


def test_a_schedule_prints_as_python_and_parses_back() -> None:
    schedule = Schedule(
        (
            collapse("i0", "i1", name="m"),
            split("m", outer="mo", mu=6, mv=8, tail="mt"),
            unroll("mu"),
            vectorise("mv"),
            reorder("mo", "i2"),
            parallelise("mo", 4),
            bind("i2", "loop"),
            stage_input(2, "r3", "mv"),
        )
    )
    text = str(schedule)
    assert text.startswith("Schedule(collapse('i0', 'i1', name='m'), split('m', outer='mo', mu=6")
    assert parse_schedule(text) == schedule
    assert hash(parse_schedule(text)) == hash(schedule)


def test_random_schedules_survive_printing() -> None:
    rng = random.Random(1)
    for _ in range(50):
        make, args = any_kernel(rng, (1, 7, 16))
        schedule = any_schedule(rng, make(*args))
        assert parse_schedule(str(schedule)) == schedule


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Schedule(", "does not parse"),
        ("print('x')", "not a schedule"),
        ("Schedule(open('x'))", "not a step"),
        ("Schedule(split('a', outer='b', c=open('x')))", "wrong arguments"),
        ("Schedule(split('a'))", "wrong arguments"),
        ("Schedule(split('a', outer='b', c='8'))", "wrong type"),
        ("Schedule(bind('a', 3))", "wrong type"),
        ("Schedule(split('a', outer='b', c=0))", "wrong type"),
        ("Schedule(split('a', outer='b', c=2, c=3))", "each argument once"),
        ("Schedule(split(**{'axis': 'a', 'outer': 'b'}))", "each argument once"),
        ("Schedule(pipeline('a', depth=0))", "wrong type"),
        ("Schedule(stage_input(-1, 'a'))", "wrong type"),
        ("Schedule(" + "-" * 100_000 + "1)", "does not parse"),
        ("Schedule(bind('\ud800', 'vector'))", "does not parse"),
        (5, "parsed from text: found 5"),
        (None, "parsed from text: found None"),
        (b"Schedule()", "parsed from text"),
        (Schedule(), "parsed from text"),
    ],
)
def test_what_is_no_schedule_is_refused(text: Any, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        parse_schedule(text)


def test_every_word_parses() -> None:
    text = "Schedule(vectorise('a'), unroll('b'), parallelise('c', 3))"
    assert parse_schedule(text) == Schedule((vectorise("a"), unroll("b"), parallelise("c", 3)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: split("a", outer="b", c="x"),
        lambda: split("a", outer="b", c=2.5),
        lambda: split("a", outer="b", **{"two words": 2}),
        lambda: split("a", outer="b", **{"for": 2}),
        lambda: split(5, outer="b", c=2),
        lambda: bind("a", "pool", grain=0),
        lambda: collapse("a", "b", name=3),
        lambda: reorder("a", 3),
        lambda: stage_input("x", "a"),
        lambda: stage_input(1, "a", lanes=-1),
        lambda: stage_reduce("a", 1),
        lambda: stream_output("p0"),
        lambda: prefetch(1, 64, a=0),
        lambda: pipeline("a", depth="x"),
        lambda: tensorize(instruction="amx"),
        lambda: tensorize("a", instruction="none"),
    ],
)
def test_words_refuse_arguments_of_another_type(make: Callable[[], Any]) -> None:
    with pytest.raises(ScheduleError, match="arguments of the wrong type: found "):
        make()


def test_a_schedule_is_made_of_a_tuple_of_steps() -> None:
    with pytest.raises(ScheduleError, match=r"are a tuple: found \[Bind"):
        Schedule([bind("a", "vector")])  # type: ignore[arg-type]
    with pytest.raises(ScheduleError, match="not a step: found 'x', wanted bind, "):
        Schedule().then("x")  # type: ignore[arg-type]


def refusal(kernel: object, *steps: object) -> str:

    with pytest.raises(ScheduleError) as caught:
        apply_schedule(kernel, Schedule(steps))  # type: ignore[arg-type]
    return str(caught.value)


def test_illegal_steps_say_what_was_found_and_wanted() -> None:
    mm = k.matmul(8, 8, 8)
    assert "names an axis that is not there" in refusal(mm, split("zz", outer="a", b=2))
    assert "i0, i1, r2" in refusal(mm, vectorise("zz"))
    assert "do not divide" in refusal(mm, split("i0", outer="a", b=3))
    assert "cannot be shared out" in refusal(mm, parallelise("r2"))
    assert "one axis is the pool's" in refusal(mm, parallelise("i0"), parallelise("i1"))
    assert "bound already" in refusal(mm, vectorise("i1"), split("i1", outer="a", b=2))
    assert "there already" in refusal(mm, split("i0", outer="i1", b=2))
    assert "names an axis twice" in refusal(mm, reorder("i0", "i0"))
    assert "axes of one kind" in refusal(mm, collapse("i1", "r2", name="m"))
    # The mean and the variance are two reductions.
    assert "reduced together" in refusal(k.layer_norm(4, 6), collapse("r2", "r3", name="r"))
    assert "a unit that a CPU has not" in refusal(mm, bind("i0", "lane"))
    assert "no access of that input" in refusal(mm, stage_input(7, "i0"))


def test_scans_and_scatters_keep_their_order() -> None:
    scan = k.cumsum(4, 8)
    assert "a scan runs along the axis" in refusal(scan, split("i1", outer="a", b=2))
    assert "a scan runs along the axis" in refusal(scan, vectorise("i1"))
    assert "a scan runs along the axis" in refusal(scan, reorder("i1", "i0"))
    scatter = k.scatter_add(3, 8, 4)
    assert "keep their order" in refusal(scatter, parallelise("i0"))


@pytest.mark.parametrize("lanes", ["-1", "2.5", "'x'", "True"])
def test_lanes_are_a_count(lanes: str) -> None:
    with pytest.raises(ScheduleError):
        parse_schedule(f"Schedule(stage_input(1, 'i0', lanes={lanes}))")


def test_lanes_print_and_parse() -> None:
    text = "Schedule(stage_input(1, 'i0', 'i1', lanes=16), stage_input(2, 'i0'))"
    schedule = parse_schedule(text)
    assert schedule.steps == (StageInput(1, ("i0", "i1"), 16), StageInput(2, ("i0",)))
    assert parse_schedule(str(schedule)) == schedule


@pytest.mark.parametrize("ahead", ["-1", "2.5", "'x'", "True"])
def test_bytes_ahead_are_a_count(ahead: str) -> None:
    with pytest.raises(ScheduleError):
        parse_schedule(f"Schedule(stage_input(1, 'i0', ahead={ahead}))")
