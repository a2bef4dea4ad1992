"""What a row's kernels are, and what they take at least."""

from __future__ import annotations

from baregrad.apps.beside.ours import opened
from baregrad.apps.sweep.plans import least_seconds, merged, noted
from baregrad.tensor import Tensor


def test_kernels_are_noted_with_what_they_move_and_do() -> None:
    with opened("CPU") as side:
        x = Tensor.arange(1000).float().realize()

        def run() -> None:
            (x * 2 + 1).realize()
            (x * 3 + 1).realize()

        (kernel,) = noted(side, run, has_plans=True)
        assert kernel["launches"] == 2
        assert kernel["nbytes"] == 8000
        assert kernel["operations"] >= 2000
        assert any("Schedule(" in line for line in kernel["plan"])
        assert not side.session.watching.observers


def test_kernels_that_differ_in_constants_alone_are_one() -> None:
    one = {"name": "map_2", "launches": 1, "nbytes": 8, "operations": 2}
    assert merged([one, one | {"launches": 3}, one | {"nbytes": 16}]) == [
        one | {"launches": 4}, one | {"nbytes": 16},
    ]
    assert one["launches"] == 1


def test_the_roofline_is_of_the_longer_of_bytes_and_operations() -> None:
    assert least_seconds({"nbytes": 1000, "operations": 10}, 100.0, 200.0) == 10.0
    assert least_seconds({"nbytes": 10, "operations": 4000}, 100.0, 200.0) == 20.0
