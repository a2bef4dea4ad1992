"""Sides that fail, hang or end: their row fails, and the next one is done by a process anew."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from baregrad.apps.beside.two_sides import RowTask, TwoSides, _overflow

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def contest() -> Iterator[TwoSides]:
    with TwoSides("CPU", "cpu", 1) as made:
        yield made


def task(row: str, limit_s: float = 60.0) -> RowTask:
    question = {"module": "tests.apps.beside.cases", "row": row}
    return RowTask(row, question, 1e-5, limit_s=limit_s, is_brief=True)


def test_times_and_errors_are_found(contest: TwoSides) -> None:
    record = contest.run(task("fine"))
    assert record["error"] == record["peer_error"] == 0
    assert not record["wrong"]
    assert record["ours_s"] > 0
    assert record["torch_s"] > 0
    assert record["flops"] == 8


def test_a_wrong_result_is_told(contest: TwoSides) -> None:
    record = contest.run(task("wrong"))
    assert record["wrong"]
    assert record["error"] == 0.5


@pytest.mark.parametrize("row,is_wrong", [
    ("overflows", False), ("overflows elsewhere", True), ("overflows down", True),
])
def test_infinities_where_a_dtype_ends_are_right_where_both_have_them(
    contest: TwoSides, row: str, is_wrong: bool
) -> None:
    record = contest.run(task(row))
    assert record["wrong"] is is_wrong
    assert is_wrong or record["error"] == record["peer_error"] == 0


@pytest.mark.parametrize("row,told", [
    ("fails", "ValueError: no such luck"), ("hangs", "took more than 1 s"),
    ("exits", "the process ended with status 7"),
])
def test_what_fails_ends_its_row_alone(contest: TwoSides, row: str, told: str) -> None:
    contest.run(task("fine"))
    starts = contest.ours.starts, contest.peer.starts
    record = contest.run(task(row, 1.0))
    assert record["failed"] == told
    assert record["torch_s"] > 0
    assert "ours_s" not in record
    assert contest.run(task("fine"))["ours_s"] > 0
    assert (contest.ours.starts, contest.peer.starts) == (starts[0] + 1, starts[1])


def test_a_side_that_cannot_begin_says_why() -> None:
    with TwoSides("MOON", "cpu", 1) as contest:
        record = contest.run(task("fine"))
    assert "found 'MOON', wanted CPU" in record["failed"]


def test_what_overflows_on_both_sides_is_not_compared() -> None:
    """Only where both have the same infinity, or both no number."""
    inf, nan = np.inf, np.nan
    exact, ours, theirs = (
        np.array(row)
        for row in ([9e4, 9e4, 1.0, 1.0, -9e4], [inf, nan, inf, nan, -inf],
                    [inf, nan, 1.0, inf, inf])
    )  # fmt: skip
    _overflow(exact, ours, theirs)
    np.testing.assert_array_equal(exact, [0, 0, 1, 1, -9e4])
    np.testing.assert_array_equal(ours, [0, 0, inf, nan, -inf])
    np.testing.assert_array_equal(theirs, [0, 0, 1, inf, inf])
