"""How each op hands its index on to its sources."""

from __future__ import annotations

import numpy as np

from baregrad.schedule import make_plan
from tests.schedule.graphs import I64, check, param, run_plan, sink


def test_scan_reads_and_is_read_elementwise() -> None:
    check([(param(0, 8, 30) * 2.0).scan(1) + 1.0], kernels=1)
    check([param(0, 8, 30).scan(1).flip(1)], kernels=2)


def test_guards_that_read_stay_inside_others() -> None:
    """A condition that loads an index must not be evaluated where the index itself is a pad."""
    x, places = param(0, 9), param(1, 4, dtype=I64)
    check([x.gather(places).pad((2, 2)).window(0, 3).sum(1)])


def test_out_of_range_reads_are_zero() -> None:
    x, places = param(0, 5), param(1, 4, dtype=I64)
    found = run_plan(
        make_plan(sink(x.gather(places))),
        {0: np.arange(5, dtype=np.float32) + 1, 1: np.array([0, 7, -1, 4])},
    )
    assert found[0].tolist() == [1.0, 0.0, 0.0, 5.0]
