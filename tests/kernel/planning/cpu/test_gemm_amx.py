"""Contractions on a core's matrix unit: what is copied, and where sums wait."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel import choose_schedule, lower, parse_schedule
from baregrad.kernel.language.schedule import StageInput, StageReduce, Tensorize
from tests.kernel import kernels as k
from tests.kernel.instructions.test_amx import AMX, SMALL, check


@pytest.mark.parametrize(
    ("m", "n", "inner", "a_t", "b_t", "target"),
    [
        (32, 32, 64, False, False, AMX), (25, 17, 36, False, True, AMX),
        (26, 40, 71, False, False, AMX), (33, 17, 67, False, True, SMALL),
        pytest.param(33, 40, 70, True, False, AMX, marks=pytest.mark.slow),
        pytest.param(33, 70, 290, False, False, SMALL, marks=pytest.mark.slow),
        pytest.param(24, 40, 266, True, True, SMALL, marks=pytest.mark.slow),
    ],
)
def test_the_first_schedule(
    m: int, n: int, inner: int, a_t: bool, b_t: bool, target: Any
) -> None:
    for kernel in (k.byte_product(m, n, inner, a_t, b_t), k.brain_product(m, n, inner, a_t, b_t)):
        schedule = choose_schedule(kernel, target)
        assert any(isinstance(s, Tensorize) and s.instruction == "amx" for s in schedule.steps)
        assert parse_schedule(str(schedule)) == schedule
        check(kernel, schedule, target, a_t, b_t)


def test_rows_are_read_in_place_where_they_lie_well() -> None:
    def copied(kernel: Node) -> set[int]:
        steps = choose_schedule(kernel, AMX).steps
        return {step.param for step in steps if isinstance(step, StageInput)}

    assert copied(k.byte_product(64, 64, 1024)) == {2}
    # Lines 2048 bytes apart meet in two sets of the first cache; 1000 bytes are no whole steps.
    assert copied(k.byte_product(64, 64, 2048)) == {1, 2}
    assert copied(k.byte_product(64, 64, 1000)) == {1, 2}
    assert copied(k.brain_product(64, 64, 1024)) == {1, 2}


def test_a_group_of_fewer_tiles_than_others_is_copied_too() -> None:
    """Its missing tiles are masked, and a run reads no masked rows where they lie."""
    several = replace(AMX, cores=4, alone_ns=0)
    kernel = k.byte_product(13 * 32, 32, 64)
    schedule = choose_schedule(kernel, several)
    check(kernel, schedule, several)
    even = choose_schedule(k.byte_product(16 * 32, 32, 64), several).steps
    assert [s.param for s in schedule.steps if isinstance(s, StageInput)] == [2, 1]
    assert [s.param for s in even if isinstance(s, StageInput)] == [2]


def test_sums_alone_are_made_where_they_are_written() -> None:
    """Whole tiles of int32 need no array of their own; others and partial ones do."""
    def arrays(kernel: Node) -> int:
        loop = lower(kernel, AMX, choose_schedule(kernel, AMX))
        return sum(node.op is Ops.ALLOC for node in toposort(loop))

    assert arrays(k.byte_product(64, 64, 64)) == 1
    assert arrays(k.byte_product(64, 63, 64)) == 2
    assert arrays(k.brain_product(64, 64, 512)) == 2


def test_long_sums_wait_in_an_array_between_blocks() -> None:
    schedule = choose_schedule(k.byte_product(32, 64, 700), SMALL)
    (kept,) = [step for step in schedule.steps if isinstance(step, StageReduce)]
    assert kept.axis == "r2o"
