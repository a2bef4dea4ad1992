"""The walk that fuses: every value once, readers first; what takes no kernel, and no cycles."""

from __future__ import annotations

import pytest

from baregrad.dtypes import dtypes
from tests.schedule.graphs import A, check, iota, param, value


def test_contiguous_forces_a_kernel() -> None:
    check([(param(0, 10) + 1.0).contiguous() * 2.0], kernels=2)


def test_diamond_does_not_make_a_cycle() -> None:
    """b needs c, which needs a; a and b would like to be one kernel."""
    x = param(0, 64, 64)
    a = (x * 2.0).contiguous()
    c = a.sum(0)
    b = a + (c * 3.0).exp().reshape(64, 1).expand(64, 64)
    check([a, b, b.sum(1)])


def test_outputs_that_are_arguments_take_no_kernel() -> None:
    x = param(0, 6, 4)
    plan = check([x, x.reshape(24), x.contiguous()], kernels=0)
    assert [plan.buffers[i].kind for i in plan.outputs] == ["param"] * 3


def test_outputs_of_constants_and_views() -> None:
    x = param(0, 6, 4)
    check([value(3).to((2, 2)), x.permute(1, 0), iota(5), x.permute(1, 0)], kernels=3)


@pytest.mark.parametrize(
    "constants",
    [
        iota(9).cast(dtypes.float32),
        value(2).to((3, 5)).pad((1, 2), (0, 1)),
        iota(9).cast(dtypes.float32).reshape(3, 3).permute(1, 0).pad((1, 0), (0, 2)),
    ],
)
def test_an_output_of_constants_changes_no_other_kernel(constants: A) -> None:
    # Nor may it: once it lies in memory, a graph that holds it is planned as if it did not.
    alone = check([constants.softmax()], kernels=1)
    beside = check([constants, constants.softmax()], kernels=2)
    assert set(alone.kernels) < set(beside.kernels)


def test_what_others_read_from_memory_is_a_result_as_it_is() -> None:
    kept = (param(0, 64, 8) * 2.0).contiguous()
    plan = check([kept, (kept + 1.0).sum(0)])
    written = {place for step in plan.steps for place in step.buffers[: len(step.kernel.src)]}
    # One array of that size, and the sum.
    assert sorted(plan.buffers[place].nbytes for place in written) == [32, 2048]
