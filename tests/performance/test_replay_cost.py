"""What a replay costs has figures in the repository; this fails when they grow by a tenth."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from baregrad import Tensor, jit
from baregrad.apps.instructions import count, replay_row
from baregrad.base.options import options
from baregrad.engine.session import current_session

# The counts are exact; what is left is for a feature that costs a few lines.
GROWTH = 1.1

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="elsewhere command lists run in Python"
)


def test_a_replay_costs_what_it_did(figures: dict[str, Any], recorded: dict[str, Any]) -> None:
    found, kept = figures["replay"], recorded["replay"]
    assert found.keys() == kept.keys()
    for name, row in kept.items():
        assert found[name]["instructions"] <= GROWTH * row["instructions"], name
        for what in ("submissions", "commands", "allocations", "held_allocations"):
            assert found[name][what] == row[what], (name, what)


def test_a_further_kernel_costs_no_instruction(figures: dict[str, Any]) -> None:
    ten, hundred = (figures["replay"][f"{count} kernels"] for count in (10, 100))
    assert (ten["commands"], hundred["commands"]) == (10, 100)
    assert ten["instructions"] == hundred["instructions"]


# --- the counts themselves
# --------------------------------------------------------------------------------------


@pytest.fixture
def plus_one() -> Iterator[Callable[[], Tensor]]:
    """A call of a jitted function of one kernel."""
    with options.override(device="CPU", jit_check=False, debug=0):
        x = Tensor.zeros(16).contiguous().realize()
        call = jit(lambda x: x + 1)
        yield lambda: call(x)


def test_counts_repeat_and_add_up(plus_one: Callable[[], Tensor]) -> None:
    one = replay_row(plus_one)["instructions"]
    assert replay_row(plus_one)["instructions"] == one

    def twice() -> None:
        plus_one()
        plus_one()

    assert abs(count(twice) - 2 * one) < 20


def test_a_loop_is_counted_turn_by_turn() -> None:
    def loop(turns: int) -> int:
        total = 0
        for turn in range(turns):
            total += turn
        return total

    ten, twenty, thirty = (count(partial(loop, turns)) for turns in (10, 20, 30))
    assert thirty - twenty == twenty - ten >= 30


def test_a_planted_slip_is_seen(plus_one: Callable[[], Tensor]) -> None:
    """Of a kernel, an allocation or a submission more a call, and of a few more lines of Python."""
    before = replay_row(plus_one)
    device: Any = current_session().backend("CPU").device
    assert before["submissions"] == before["commands"] == before["held_allocations"] == 1

    x = Tensor.zeros(16).contiguous().realize()
    longer = jit(lambda: (x + 1).realize() * 2)
    assert replay_row(longer)["commands"] == 2

    def allocates() -> None:
        plus_one()
        device.allocate(64)

    assert replay_row(allocates)["allocations"] == before["allocations"] + 1
    assert replay_row(allocates)["instructions"] > GROWTH * before["instructions"]

    def submits() -> None:
        plus_one()
        device.submit(device.command_list())

    assert replay_row(submits)["submissions"] == 2

    def works() -> None:
        plus_one()
        for _ in range(40):
            pass

    assert replay_row(works)["instructions"] > GROWTH * before["instructions"]
