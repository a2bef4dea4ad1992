"""Donated arguments: which outputs are written over them."""

from __future__ import annotations

import pytest

from baregrad.dtypes import dtypes
from baregrad.schedule import Plan
from tests.schedule.graphs import I64, check, iota, param


def shared_param(plan: Plan, output: int) -> int | None:
    """The slot of the argument that an output is written over."""
    buffer = plan.buffers[plan.outputs[output]]
    return buffer.slot if buffer.kind == "param" else None


def test_elementwise_update_in_place() -> None:
    x, g = param(0, 50, 20), param(1, 50, 20)
    plan = check([x - g * 0.1], donate={0: 0})
    assert shared_param(plan, 0) == 0
    (step,) = plan.steps
    assert step.buffers.count(step.buffers[0]) == 2


def test_update_of_two_arrays_in_place_is_ordered() -> None:
    """The new momentum is needed for the new weights: the old momentum is overwritten last."""
    p, m, g = (param(i, 300) for i in range(3))
    m2 = m * 0.9 + g
    plan = check([m2, p - m2 * 0.1], kernels=1, donate={0: 1, 1: 0})
    assert shared_param(plan, 0) == 1
    assert shared_param(plan, 1) == 0
    order = [out.src[0].arg.slot for out in plan.kernels[0].src]
    assert [plan.steps[0].buffers[slot] for slot in order] == [0, 1]


def test_swap_is_not_done_in_place() -> None:
    x, y = param(0, 30), param(1, 30)
    plan = check([x * 1.0 + y, y * 1.0 - x], kernels=1, donate={0: 0, 1: 1})
    assert [shared_param(plan, 0), shared_param(plan, 1)].count(None) >= 1


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.flip(0) + 1.0,
        lambda x: x.permute(1, 0) * 2.0,
        lambda x: x.softmax(),
        lambda x: x.shrink((0, 19), (0, 20)).pad((1, 0), (0, 0)) + x,
    ],
)
def test_reads_of_other_elements_are_not_overwritten(make: object) -> None:
    x = param(0, 20, 20)
    plan = check([make(x)], donate={0: 0})  # type: ignore[operator]
    assert shared_param(plan, 0) is None


def test_later_reader_keeps_an_argument() -> None:
    x = param(0, 40)
    y = (x + 1.0).contiguous()
    plan = check([y, (y * 2.0).contiguous().flip(0) + x], donate={0: 0})
    assert shared_param(plan, 0) is None


def test_earlier_reader_does_not() -> None:
    x = param(0, 40)
    plan = check([x + x.scan(0).flip(0)], kernels=2, donate={0: 0})
    assert shared_param(plan, 0) == 0


@pytest.mark.parametrize("place", (0, 1))
def test_an_update_waits_for_those_that_still_read_the_weights(place: int) -> None:
    """Whichever comes first, the gradient passed on or the new weights."""
    w, x = param(0, 24, 40), param(1, 24, 40)
    outputs = [w - x * 0.1, w.flip(1).sum(0)]
    plan = check(outputs if not place else outputs[::-1], kernels=2, donate={place: 0})
    assert shared_param(plan, place) == 0


def test_an_update_that_others_need_does_not_wait() -> None:
    w, x = param(0, 24, 40), param(1, 24, 40)
    new = (w - x * 0.1).contiguous()
    plan = check([new, (new.flip(1) * w).sum(0)], donate={0: 0})
    assert shared_param(plan, 0) is None


def test_argument_that_is_an_output_stays() -> None:
    x = param(0, 40)
    plan = check([x + 1.0, x], donate={0: 0})
    assert shared_param(plan, 0) is None


def test_sizes_must_agree() -> None:
    x = param(0, 40)
    assert shared_param(check([x.shrink((0, 20)) + 1.0], donate={0: 0}), 0) is None
    assert shared_param(check([x.cast(dtypes.float64)], donate={0: 0}), 0) is None
    assert shared_param(check([(x + 1.0).cast(dtypes.int32)], donate={0: 0}), 0) is None
    assert shared_param(check([(x + 1.0).reshape(8, 5)], donate={0: 0}), 0) == 0


def test_write_into_a_cache_copies_nothing() -> None:
    cache, row, place = param(0, 64, 16), param(1, 1, 16), param(2, 1, dtype=I64)
    made = cache.scatter(row, place.reshape(1, 1), iota(16).reshape(1, 16))
    plan = check([made], donate={0: 0}, kernels=1)
    assert shared_param(plan, 0) == 0
    assert len(check([made]).kernels) == 2
