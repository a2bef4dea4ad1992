"""Schedules that a search starts from: the target's own first, each legal and once."""

from __future__ import annotations

import pytest

from baregrad.ir.core.node import Node
from baregrad.kernel import apply_schedule, choose_schedule
from baregrad.kernel.search import seeds
from tests.kernel import kernels as k
from tests.kernel.gpu_kernels import HOPPER
from tests.kernel.search.accepted import AVX, same


@pytest.mark.parametrize("kernel", [
    k.matmul(48, 40, 33), k.softmax(20, 70), k.column_reduce(60, 40), k.cumsum(5, 40),
], ids=lambda kernel: kernel.arg.name)
def test_starts_are_legal_and_the_first_is_the_targets_own(kernel: Node) -> None:
    found = list(seeds(kernel, AVX))
    assert found[0].schedule == choose_schedule(kernel, AVX)
    assert found[0].what == "the first schedule"
    schedules = [move.schedule for move in found]
    assert len(set(schedules)) == len(schedules)
    assert all(move.what for move in found)
    for schedule in schedules:
        apply_schedule(kernel, schedule, AVX)


def test_machines_unlike_it_give_schedules_that_compute_the_same() -> None:
    kernel = k.matmul(40, 36, 33)
    found = list(seeds(kernel, AVX))
    assert len(found) > 4
    for move in found[::3]:
        assert same(kernel, move.schedule)


def test_a_gpu_has_one() -> None:
    kernel = k.row_reduce(64, 300)
    (only,) = seeds(kernel, HOPPER)
    assert only.schedule == choose_schedule(kernel, HOPPER)
