"""Decisions: the first option unless another one is wanted, and noted only when asked for."""

from __future__ import annotations

from baregrad.kernel.planning.common.decisions import (
    MOST_OPTIONS,
    Decided,
    Decisions,
    powers_from,
)


def test_a_planner_takes_its_first_option() -> None:
    plain = Decisions()
    assert plain.pick("block", iter((256, 128))) == 256
    assert plain.made == {}


def test_a_search_takes_others_by_name() -> None:
    asked = Decisions({"block": "64", "lanes": "9"}, noted=True)
    assert asked.pick("block", (256, 128, 64)) == 64
    # What is no option any more is not taken.
    assert asked.pick("lanes", (4, 2)) == 4
    assert asked.made == {
        "block": Decided(("256", "128", "64"), "64"), "lanes": Decided(("4", "2"), "4"),
    }


def test_a_model_says_what_each_option_takes() -> None:
    asked = Decisions({"tile": "large"}, noted=True)
    options = {"small": 3.0, "large": 5.0}
    assert asked.pick("tile", options, cycles=options.__getitem__) == "large"
    made = asked.made["tile"]
    assert made.cycles == (3.0, 5.0) and made.predicted == 5.0
    assert Decided(("a",), "a").predicted is None


def test_the_worst_of_many_options_are_left_out() -> None:
    asked = Decisions(noted=True)
    asked.pick("tile", range(1000))
    assert len(asked.made["tile"].options) == MOST_OPTIONS


def test_options_of_one_name_are_one() -> None:
    asked = Decisions(noted=True)
    assert asked.pick("lanes", (4, 8, 4)) == 4
    assert asked.made["lanes"].options == ("4", "8")


def test_powers_begin_with_the_planners_own_and_its_neighbours() -> None:
    assert list(powers_from(8, 1, 32)) == [8, 16, 4, 32, 2, 1]
    assert list(powers_from(3, 1, 8)) == [3, 4, 2, 8, 1]
    assert list(powers_from(1, 1, 0)) == [1]
    assert list(powers_from(4, 3, 6)) == [4]
