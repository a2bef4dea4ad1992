"""Changes of schedules: legal ones compute the same, illegal ones are refused, all print."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baregrad.base.errors import ScheduleError
from baregrad.ir.core.node import Node
from baregrad.ir.verify.verify import verify
from baregrad.kernel import Schedule, apply_schedule, choose_schedule, lower, parse_schedule
from baregrad.kernel.facts.analysis import facts_of
from baregrad.kernel.language.schedule import Split, parallelise, split, stage_input, vectorise
from baregrad.kernel.loops.sharing import prepare
from baregrad.kernel.search import beam_search, estimated_ns, neighbours, normal, seeds
from baregrad.kernel.search.retile import retiled
from baregrad.target.cpu import cpu_row_named
from tests.kernel import kernels as k
from tests.kernel.random_schedules import any_kernel

AVX = cpu_row_named("x86-64-avx2")
SMALL = replace(AVX, name="small-caches", l1_bytes=2048, l2_bytes=4096)
EXTENTS = (1, 2, 7, 8, 9, 16, 17, 40)


def same(kernel: Node, schedule: Schedule, target: object = AVX) -> bool:
    """That a schedule computes what its kernel does; False where it is refused as a whole."""
    arrays = k.arguments(kernel)
    wanted = k.run_kernel(kernel, arrays)
    try:
        applied = apply_schedule(kernel, schedule, AVX)
        loop = lower(kernel, AVX, schedule)
    except ScheduleError as error:
        assert str(error)
        return False
    verify(loop, "loop")
    k.assert_equal(wanted, k.run_kernel(applied, arrays))
    k.assert_equal(wanted, k.run_loop(loop, arrays))
    return True


@settings(max_examples=12)
@given(st.integers(0, 1 << 30))
def test_a_walk_over_neighbours_never_changes_what_is_computed(seed: int) -> None:
    rng = random.Random(seed)
    make, args = any_kernel(rng, EXTENTS)
    kernel = make(*args)
    facts = facts_of(prepare(kernel, AVX))
    schedule = choose_schedule(kernel, rng.choice((AVX, SMALL)))
    for _ in range(3):
        moves = list(neighbours(facts, schedule, AVX))
        if not moves:
            return
        move = rng.choice(moves)
        assert parse_schedule(str(move.schedule)) == move.schedule
        assert normal(move.schedule) == move.schedule
        if same(kernel, move.schedule):
            schedule = move.schedule


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(6))
def test_many_walks(batch: int) -> None:
    rng = random.Random(batch)
    accepted = 0
    for _ in range(60):
        make, args = any_kernel(rng, EXTENTS)
        kernel = make(*args)
        facts = facts_of(prepare(kernel, AVX))
        schedule = choose_schedule(kernel, rng.choice((AVX, SMALL)))
        for _ in range(5):
            moves = list(neighbours(facts, schedule, AVX))
            if moves and same(kernel, (move := rng.choice(moves)).schedule):
                schedule = move.schedule
                accepted += 1
    assert accepted > 100


@pytest.mark.parametrize("kernel", [
    k.matmul(64, 64, 64), k.conv(2, 8, 16, 14, 14, 3, 1, 1), k.softmax(30, 100),
    k.column_reduce(100, 40), k.transpose(40, 60), k.elementwise(33, 65),
], ids=lambda kernel: kernel.arg.name)
def test_there_is_much_to_try_and_nearly_all_of_it_is_legal(kernel: Node) -> None:
    facts = facts_of(prepare(kernel, AVX))
    first = choose_schedule(kernel, AVX)
    moves = list(neighbours(facts, first, AVX))
    assert len({move.schedule for move in moves}) == len(moves) > 10
    refused = 0
    for move in moves:
        try:
            apply_schedule(kernel, move.schedule, AVX)
        except ScheduleError:
            refused += 1
    assert refused <= len(moves) // 5
    starts = [move.schedule for move in seeds(kernel, AVX)]
    assert starts[0] == first
    assert len(set(starts)) == len(starts) > 1


def test_a_tile_of_wide_vectors_is_tried_with_other_proportions() -> None:
    kernel = k.matmul(64, 128, 64)
    first = parse_schedule(
        "Schedule(split('i0', outer='m', mu=4), split('i1', outer='n', nv=32), "
        "bind('mu', 'unroll'), bind('nv', 'vector'), reorder('n', 'm', 'r2', 'mu', 'nv'))"
    )
    cuts = []
    for move in neighbours(facts_of(prepare(kernel, AVX)), first, AVX):
        parts = [part for step in move.schedule.steps if isinstance(step, Split)
                 for part in step.parts if part[0] in ("mu", "nv")]
        cuts.append(parts)
        if parts == [("mu", 8), ("nv", 16)]:
            assert same(kernel, move.schedule)
    assert [("mu", 8), ("nv", 16)] in cuts
    assert [("mu", 2), ("nv", 64)] in cuts
    assert all(size & (size - 1) == 0 for parts in cuts for name, size in parts if name == "nv")


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


def test_the_estimate_knows_good_from_bad() -> None:
    target = replace(AVX, cores=4)
    matmul = k.matmul(512, 512, 512)
    good = estimated_ns(matmul, choose_schedule(matmul, target), target)
    assert good < 0.3 * estimated_ns(matmul, Schedule(), target)
    ew = k.elementwise(2048, 2048)
    chosen = choose_schedule(ew, target)
    alone = Schedule(tuple(s for s in chosen.steps if getattr(s, "unit", "") != "pool"))
    assert estimated_ns(ew, chosen, target) < 0.5 * estimated_ns(ew, alone, target)
    # Along a column each element is a line of its own.
    rows = Schedule((split("i1", outer="o", v=8), vectorise("v")))
    columns = Schedule((split("i0", outer="o", v=8), vectorise("v")))
    assert estimated_ns(ew, rows, target) < 0.5 * estimated_ns(ew, columns, target)


def test_a_search_finds_what_is_measured_to_be_best() -> None:
    kernel = k.matmul(64, 64, 64)
    seen: list[Schedule] = []

    def measure(schedules: list[Schedule]) -> list[float]:
        """Long schedules are fast ones, in this world, and those with copies do not work."""
        seen.extend(schedules)
        return [
            math.inf if "stage_input" in str(s) and number else 1000.0 / len(str(s))
            for number, s in enumerate(schedules)
        ]

    trials = beam_search(kernel, AVX, 2, measure, lambda: len(seen) < 60)  # type: ignore[arg-type]
    assert len(seen) == len({normal(s) for s in seen})
    assert trials[0].ns == min(trial.ns for trial in trials)
    assert len(str(trials[0].schedule)) > len(str(choose_schedule(kernel, AVX)))
    assert all(math.isfinite(trial.ns) for trial in trials)


def test_a_search_without_a_first_schedule_ends_at_once() -> None:
    trials = beam_search(k.matmul(8, 8, 8), AVX, 4, lambda all: [math.inf] * len(all), lambda: True)
    assert len(trials) == 1
