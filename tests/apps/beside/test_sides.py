"""Sides that fail, hang or end: their row fails, and the next one is done by a process anew."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from baregrad.apps.beside.two_sides import RowTask, TwoSides, _errors, _judged

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
    """Only where both have the same infinity, or both no number; else ours must be a number."""
    inf, nan = np.inf, np.nan
    exact, theirs = np.array([-9.0, 9.0, 1.0, 2.0]), np.array([inf, nan, 1.0, inf])
    assert _errors(exact, np.array([inf, nan, 1.0, 2.5]), theirs) == [0.25, 0.0]
    for ours in ([inf, nan, inf, 2.0], [nan, nan, 1.0, 2.0], [-inf, nan, 1.0, 2.0]):
        error, of_theirs = _errors(exact, np.array(ours, np.float16), theirs)
        assert error > 7000
        assert of_theirs == 0
    # One of the others is enough, whichever it is.
    for others in ((theirs, exact), (exact, theirs)):
        assert _errors(exact, np.array([inf, nan, 1.0, inf]), *others)[0] == 0


def test_infinities_are_right_from_where_a_dtype_rounds_to_them() -> None:
    exact = np.array([65000.0, 1e9])
    for ours, wanted in (([65504, np.inf], 504), ([np.inf, np.inf], 520), ([65024, 65504], 24)):
        found = _errors(exact, np.array(ours, np.float16), np.array([1e4, 1e4]))
        np.testing.assert_allclose(found[0], wanted / 65520, rtol=1e-4)


def test_a_gradient_that_cancels_away_excuses_no_loss() -> None:
    """Each array is judged by its own errors, and the one that is wrong is told."""
    exact = [np.array([1.0]), np.array([0.0, 1e-9])]
    theirs = [np.array([1.0]), np.array([0.0, 2e-9])]
    for loss, is_wrong in ((1.0, False), (1.01, True)):
        ours = [np.array([loss]), np.array([0.0, 2.5e-9])]
        found = _judged(1e-5, ours, exact, [theirs, theirs])
        assert found["wrong"] is is_wrong
        assert found["error"] == pytest.approx(0.01 if is_wrong else 1.5)


@pytest.mark.parametrize("row,is_wrong", [
    ("magnified", False), ("magnified, wrong", True), ("jumps", True),
])
def test_roundings_are_allowed_as_far_as_steps_magnify_them(
    contest: TwoSides, row: str, is_wrong: bool
) -> None:
    record = contest.run(task(row))
    assert record["wrong"] is is_wrong
    assert ("rounding_error" in record) is (row != "jumps")
