"""Packing by hand and on random intervals."""

from __future__ import annotations

import random
from functools import partial

import pytest

from baregrad.apps.instructions import count
from baregrad.base.bits import round_up
from baregrad.base.errors import CompilerBug
from baregrad.ir.analysis.liveness import Interval, pack


def test_chain_takes_two_buffers() -> None:
    # Each step reads what the one before wrote, so two buffers take turns.
    chain = [Interval(step, step + 1, 1000) for step in range(50)]
    assert pack(chain).nbytes == 2 * 1024


def test_small_ones_fill_the_gap_beside_a_long_one() -> None:
    found = pack([Interval(0, 9, 64), Interval(0, 4, 128), Interval(5, 9, 128)])
    assert found.nbytes == 192
    assert found.offsets[1] == found.offsets[2]


def test_alignment_and_empty_intervals() -> None:
    found = pack([Interval(0, 1, 3), Interval(1, 2, 0), Interval(0, 1, 5)], alignment=256)
    assert found.nbytes == 512 and all(offset % 256 == 0 for offset in found.offsets)
    assert pack([]).nbytes == 0


def test_the_smallest_may_have_memory_of_their_own() -> None:
    intervals = [Interval(0, 1, 6400), Interval(0, 0, 64), Interval(1, 1, 64), Interval(1, 1, 128)]
    assert pack(intervals).nbytes == 6400 + 192
    found = pack(intervals, spare=0.02)
    assert found.nbytes == 6400 + 128 + 128
    assert found.offsets[1] != found.offsets[2]


def test_malformed_interval() -> None:
    with pytest.raises(CompilerBug, match="not one"):
        pack([Interval(3, 2, 8)])


@pytest.mark.property
def test_random_intervals_never_share_a_byte() -> None:
    rng = random.Random(5)
    wasted = []
    for _ in range(300):
        intervals = []
        for _ in range(rng.randrange(1, 60)):
            first = rng.randrange(40)
            nbytes = rng.choice((0, 1, 64, 100, 4096, rng.randrange(1, 10_000)))
            intervals.append(Interval(first, first + rng.randrange(12), nbytes))
        spare = rng.choice((0.0, 0.25))
        found = pack(intervals, spare=spare)
        largest = max(round_up(one.nbytes, 64) for one in intervals)
        assert found.nbytes <= pack(intervals).nbytes + spare * largest
        for one, (a, offset) in enumerate(zip(intervals, found.offsets, strict=True)):
            assert offset % 64 == 0 and offset + a.nbytes <= found.nbytes
            for b, other in zip(intervals[:one], found.offsets[:one], strict=True):
                if a.first <= b.last and b.first <= a.last:
                    assert offset + a.nbytes <= other or other + b.nbytes <= offset
        assert found.nbytes <= sum(round_up(interval.nbytes, 64) for interval in intervals)
        # What is live at one step shares no byte, so no packing takes less than its sum.
        least = max(
            sum(round_up(one.nbytes, 64) for one in intervals if one.first <= step <= one.last)
            for step in range(52)
        )
        assert found.nbytes >= least
        wasted.append(found.nbytes / least if least else 1.0)
    assert sum(wasted) / len(wasted) < 1.05


def test_packing_costs_by_what_is_live_at_once_not_by_how_many_there_are() -> None:
    rng = random.Random(2)
    intervals = []
    for step in range(4_000):
        intervals.append(Interval(step, step + rng.randrange(1, 30), rng.randrange(1, 1 << 20)))
    half, whole = (count(partial(pack, intervals[:size])) for size in (2_000, 4_000))
    assert whole < 2.2 * half
