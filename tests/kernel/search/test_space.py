"""What a search can try next: changes that are legal, with predictions of what they take."""

from __future__ import annotations

import math

from baregrad.kernel import Schedule, apply_schedule, choose_schedule
from baregrad.kernel.language.schedule import vectorise
from baregrad.kernel.search import candidates
from baregrad.kernel.search.space import CpuSpace, GpuSpace
from tests.kernel import kernels as k
from tests.kernel.gpu_kernels import HOPPER
from tests.kernel.search.accepted import AVX

KERNEL = k.row_reduce(256, 1024)


def test_on_a_gpu_changes_are_decisions() -> None:
    # Shorter rows are shared as their tile says, but for the threads.
    kernel = k.row_reduce(256, 1 << 16)
    first = candidates(kernel, HOPPER)[0]
    space = GpuSpace(kernel, HOPPER, first)
    changes = list(space.changes(first.schedule))
    assert {"threads of a row", "steps", "lanes"} <= {each.what.split(":")[0] for each in changes}
    for each in changes:
        apply_schedule(kernel, each.schedule, HOPPER)
        assert math.isfinite(space.predicted_ns(each.schedule))
    # Of each of them others are a change away, the first among them.
    again = [move.schedule for move in space.changes(changes[0].schedule)]
    assert first.schedule in again and changes[0].schedule not in again


def test_on_a_gpu_schedules_from_elsewhere_are_tried_as_they_are() -> None:
    space = GpuSpace(KERNEL, HOPPER, candidates(KERNEL, HOPPER)[0])
    plain = Schedule()
    assert space.holds(plain) and not space.holds(Schedule((vectorise("i9"),)))
    assert list(space.changes(plain)) == [] and space.predicted_ns(plain) > 0


def test_on_a_cpu_changes_are_of_steps() -> None:
    space = CpuSpace(KERNEL, AVX)
    first = choose_schedule(KERNEL, AVX)
    assert space.holds(first) and not space.holds(Schedule((vectorise("i9"),)))
    changes = [move.schedule for move in space.changes(first)]
    assert changes and first not in changes
    assert all(space.predicted_ns(each) > 0 for each in changes[:5])
