"""Schedules that a search starts from: the target's own first, each legal and once."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad.base.errors import ScheduleError
from baregrad.ir.core.node import Node
from baregrad.kernel import Schedule, apply_schedule, choose_schedule
from baregrad.kernel.language.schedule import StreamTiles
from baregrad.kernel.search import candidates
from baregrad.kernel.search.candidates import check_schedule, planned, variants
from baregrad.testing.examples.nests import attended
from tests.kernel import kernels as k
from tests.kernel.applying.test_stream_tiles import arrays_of, attention
from tests.kernel.gpu_kernels import HOPPER, check_gpu, lowered, run_text
from tests.kernel.search.accepted import AVX, same


@pytest.mark.parametrize("kernel", [
    k.matmul(48, 40, 33), k.softmax(20, 70), k.column_reduce(60, 40), k.cumsum(5, 40),
], ids=lambda kernel: kernel.arg.name)
def test_starts_are_legal_and_the_first_is_the_targets_own(kernel: Node) -> None:
    found = candidates(kernel, AVX)
    assert found[0].schedule == choose_schedule(kernel, AVX)
    assert found[0].what == "the first schedule"
    schedules = [move.schedule for move in found]
    assert len(set(schedules)) == len(schedules)
    assert all(move.what for move in found)
    for schedule in schedules:
        apply_schedule(kernel, schedule, AVX)


def test_machines_unlike_it_give_schedules_that_compute_the_same() -> None:
    kernel = k.matmul(40, 36, 33)
    found = candidates(kernel, AVX)
    assert len(found) > 4
    for move in found[::3]:
        assert same(kernel, move.schedule)


@pytest.mark.parametrize("kernel", [
    k.elementwise(512, 1024), k.row_reduce(64, 300), k.column_reduce(600, 256),
    k.softmax(64, 256), k.matmul(64, 64, 64), k.cumsum(40, 500, along=0),
], ids=["elementwise", "rows", "columns", "softmax", "matmul", "scan"])  # fmt: skip
def test_a_gpus_are_what_its_planners_make_under_other_decisions(kernel: Node) -> None:
    first, *others = found = candidates(kernel, HOPPER)
    assert (first.schedule, first.what) == (choose_schedule(kernel, HOPPER), "the first schedule")
    assert others and len({each.schedule for each in found}) == len(found)
    times = [each.predicted_ns for each in others]
    assert times == sorted(times) and all(HOPPER.launch_ns <= ns < 1e9 for ns in times)
    for each in found:
        apply_schedule(kernel, each.schedule, HOPPER)
        assert each.why and each.made


@pytest.mark.parametrize("kernel", [
    k.elementwise(6, 70), k.row_reduce(5, 300), k.column_reduce(70, 40), k.softmax(9, 70),
    k.matmul(33, 34, 35), k.transpose(40, 50), k.cumsum(6, 70), k.column_reduce(600, 9),
    k.conv(1, 3, 3, 8, 12, 3, pad=1, groups=3),
], ids=[
    "elementwise", "rows", "columns", "softmax", "matmul", "transpose", "scan", "long columns",
    "windows",
])  # fmt: skip
def test_a_gpus_compute_the_same(kernel: Node) -> None:
    for each in candidates(kernel, HOPPER)[::3]:
        check_gpu(kernel, each.schedule)


def test_tiles_of_matrix_units_have_the_times_of_their_model() -> None:
    kernel = k.brain_product(256, 256, 256)
    first, *others = candidates(kernel, HOPPER)
    tile = first.made["warp tile"]
    assert tile.predicted == min(tile.cycles)
    assert first.predicted_ns == HOPPER.launch_ns + min(tile.cycles) / HOPPER.cycles_per_ns
    assert {"warp tile", "group", "contraction"} <= {each.what.split(":")[0] for each in others}


def test_decisions_follow_from_others() -> None:
    """Of a candidate its own variants are asked for: two decisions in one schedule."""
    kernel = k.elementwise(512, 1024)
    base = planned(kernel, HOPPER, {"lanes": "1"}, {"lanes": "1"})
    found = {each.what: each for each in variants(kernel, HOPPER, base)}
    both = found["lanes: 1, block: 64"].made
    assert (both["lanes"].taken, both["block"].taken) == ("1", "64")


@pytest.mark.parametrize("causal", [False, True])
def test_streams_pass_in_blocks_of_other_sizes(causal: bool) -> None:
    rows, keys, width = 130, 48, 16
    kernel = attended(rows, keys, width, causal)
    found = candidates(kernel, HOPPER)
    steps = [each.schedule.steps[0] for each in found]
    assert all(isinstance(step, StreamTiles) for step in steps)
    assert {step.warps for step in steps if isinstance(step, StreamTiles)} == {1, 2, 4, 8}
    wanted = attention(arrays_of(rows, keys, width), causal)
    for each in found[::5]:
        arrays = arrays_of(rows, keys, width)
        loop, program = lowered(kernel, each.schedule)
        np.testing.assert_allclose(
            run_text(loop, program, arrays)[0], wanted, rtol=2e-3, atol=2e-3
        )


def test_a_stream_is_checked_by_its_tiles() -> None:
    stream = Schedule((StreamTiles(1, 1, 16),))
    check_schedule(attended(32, 48, 16, False), stream, HOPPER)
    with pytest.raises(ScheduleError, match="one stream over keys"):
        check_schedule(k.row_reduce(4, 8), stream, HOPPER)
