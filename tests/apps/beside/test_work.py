"""Timing and what is kept of results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from baregrad.apps.beside import work
from baregrad.apps.beside.work import KEPT, SideWork, kept, time_work, warm_up


def counted(calls: int = 1) -> tuple[SideWork, list[int], list[int]]:
    runs: list[int] = []
    waits: list[int] = []
    return SideWork(lambda: runs.append(1), list, calls), runs, waits


def test_blocks_of_calls_end_in_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "WARM_S", 0.0)
    made, runs, waits = counted()
    times = time_work(made, lambda: waits.append(1), once=work.BLOCK_S / 4)
    assert len(times) == work.BLOCKS
    # A short block warms up.
    assert len(runs) == 1 + 4 * work.BLOCKS
    assert len(waits) == 2 * (1 + work.BLOCKS)


def test_work_goes_on_for_a_while_before_it_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clocks of a GPU that was idle rise under work alone."""
    now = [0.0]

    def run() -> None:
        now[0] += 1.0 if now[0] < 100 * work.WARM_S else 0.01 * work.WARM_S

    monkeypatch.setattr(work.time, "perf_counter", lambda: now[0] / 100)
    made = SideWork(run, list)
    times = time_work(made, lambda: None, once=work.BLOCK_S)
    assert max(times) == pytest.approx(0.0001 * work.WARM_S)


def test_both_sides_may_rest_before_each_block(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(work.time, "sleep", told.append)
    monkeypatch.setattr(work, "_block", lambda *_: told.append("block") or 1.0)
    monkeypatch.setattr(work, "WARM_S", 0.0)
    time_work(counted()[0], lambda: None, work.BLOCK_S, pause_s=0.5)
    assert told == [work.PAUSE_S, "block", *[0.5, "block"] * work.BLOCKS]


@pytest.mark.parametrize("once,is_brief", [(2 * work.LONG_S, False), (1e-6, True)])
def test_long_and_brief_work_is_timed_once(once: float, is_brief: bool) -> None:
    made, runs, _ = counted()
    assert len(time_work(made, lambda: None, once, is_brief)) == 1
    assert len(runs) == 1


def test_a_time_is_of_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 18.0])
    monkeypatch.setattr(work.time, "perf_counter", lambda: next(clock))
    made, _, _ = counted(calls=4)
    assert time_work(made, lambda: None, 1.0, is_brief=True) == [2.0]


def test_warming_up_stops_early_where_a_run_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    made, runs, _ = counted()
    assert warm_up(made, lambda: None) > 0
    assert len(runs) == work.WARM_CALLS
    monkeypatch.setattr(work, "LONG_S", 0.0)
    warm_up(made, lambda: None)
    assert len(runs) == work.WARM_CALLS + 3


def test_a_run_that_captures_does_not_count_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    took = iter([5.0, 3.0, 0.25, 0.25, 0.25])
    now = [0.0]
    monkeypatch.setattr(work.time, "perf_counter", lambda: now[0])

    def run() -> None:
        now[0] += next(took)

    assert warm_up(SideWork(run, list), lambda: None) == 0.25


def test_of_large_results_both_ends_and_a_part_are_kept() -> None:
    small = np.arange(12).reshape(3, 4)
    large = np.arange(5 * KEPT, dtype=np.float32).reshape(5, KEPT)
    found, sampled = kept([small, large])
    assert found is small
    assert sampled[0] == 0
    assert sampled[-1] == 5 * KEPT - 1
    assert KEPT / 2 < sampled.size < 2 * KEPT
