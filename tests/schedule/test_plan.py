"""What a plan says of itself: equal graphs have equal plans, and launches have origins."""

from __future__ import annotations

from baregrad.schedule import make_plan
from tests.schedule.graphs import A, param, sink


def test_plans_of_equal_graphs_are_equal() -> None:
    def make() -> A:
        x = param(0, 20, 30)
        return x.softmax() @ param(1, 30, 5)

    assert make_plan(sink(make())) == make_plan(sink(make()))


def test_origins_name_what_a_launch_computes() -> None:
    x = param(0, 20, 30)
    total = x.sum(1)
    wanted = sink(total * 2.0)
    assert total.node in make_plan(wanted, origins={}).steps[0].origins
    assert make_plan(wanted).steps[0].origins == ()  # where nobody asks
