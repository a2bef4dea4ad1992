"""Changes of schedules: legal ones compute the same, illegal ones are refused, all print."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baregrad.base.errors import ScheduleError
from baregrad.ir.core.node import Node
from baregrad.kernel import apply_schedule, choose_schedule, parse_schedule
from baregrad.kernel.facts.analysis import facts_of
from baregrad.kernel.language.schedule import Split
from baregrad.kernel.loops.sharing import prepare
from baregrad.kernel.search import candidates, neighbours, normal
from tests.kernel import kernels as k
from tests.kernel.random_schedules import any_kernel
from tests.kernel.search.accepted import AVX, same

SMALL = replace(AVX, name="small-caches", l1_bytes=2048, l2_bytes=4096)
EXTENTS = (1, 2, 7, 8, 9, 16, 17, 40)


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
    starts = [move.schedule for move in candidates(kernel, AVX)]
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
