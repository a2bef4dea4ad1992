"""First schedules of convolutions: what they give, and what they choose."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel import lower
from baregrad.kernel.language.schedule import Bind, Split, StageInput, StageReduce, parse_schedule
from baregrad.kernel.planning.first_schedule import choose_schedule
from baregrad.target.cpu import cpu_row_named
from tests.kernel import kernels as k
from tests.kernel.test_lowering import check

AVX2 = cpu_row_named("x86-64-avx2")
AVX512 = cpu_row_named("x86-64-avx512")
# Caches so small that filters are cut into panels at tests' sizes.
SMALL = replace(AVX512, name="small-caches", l1_bytes=2048, l2_bytes=1 << 16)
TARGETS = (AVX2, AVX512, SMALL)
FORWARD = (
    (2, 3, 16, 7, 7, 3),
    (1, 5, 32, 6, 18, 3),
    (2, 2, 20, 9, 9, 3, 2),
    (1, 3, 24, 13, 11, 5, 3),
    (2, 4, 16, 5, 6, 1, 2),
    (1, 2, 8, 4, 5, 3, 1, 0, 2),
    (1, 40, 16, 4, 4, 3),
    (2, 3, 16, 7, 7, 3, 1, 1),
    (1, 17, 24, 4, 13, 3, 1, 1),
    (2, 2, 20, 9, 9, 3, 2, 1),
    (1, 17, 8, 6, 7, 5, 2, 2),
    (1, 2, 16, 10, 11, 7, 2, 3),
    (1, 4, 16, 5, 5, 3, 1, 2),
    (1, 4, 8, 4, 5, 3, 1, 1, 2),
    (1, 16, 16, 8, 18, 3),
)
GRADIENTS = (
    (2, 3, 16, 8, 8, 3),
    (2, 17, 8, 5, 8, 3),
    (2, 2, 24, 9, 9, 3, 2),
    (1, 2, 8, 5, 34, 3),
    (1, 3, 16, 9, 20, 5, 2),
    (2, 20, 8, 3, 16, 1),
)


@pytest.mark.few(25)
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: str(target.name))
@pytest.mark.parametrize("sizes", FORWARD, ids=str)
def test_a_convolution(sizes: tuple[int, ...], target: Any) -> None:
    kernel = k.conv(*sizes)
    schedule = choose_schedule(kernel, target)
    assert parse_schedule(str(schedule)) == schedule
    check(kernel, schedule, target)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: str(target.name))
@pytest.mark.parametrize("sizes", GRADIENTS, ids=str)
def test_the_gradient_of_a_weight(sizes: tuple[int, ...], target: Any) -> None:
    kernel = k.conv_weight_gradient(*sizes)
    schedule = choose_schedule(kernel, target)
    assert parse_schedule(str(schedule)) == schedule
    check(kernel, schedule, target)


def test_lanes_are_channels_and_steps_are_columns() -> None:
    kernel = k.conv(8, 64, 64, 58, 58, 3)
    schedule = choose_schedule(kernel, AVX512)
    bound = [step for step in schedule.steps if isinstance(step, Bind)]
    lanes = [step.axis for step in bound if step.unit == "vector"]
    cut = {step.axis: step.parts for step in schedule.steps if isinstance(step, Split)}
    assert lanes == ["i1v"]
    # 56 columns, 14 at a time for two vectors of channels: 28 accumulators of 32 registers.
    assert cut["i3"][1] == ("i3u", 14)
    assert cut["i1"][1:] == (("i1v", 2 * 16),)
    copied = [step for step in schedule.steps if isinstance(step, StageInput)]
    assert [step.param for step in copied] == [2, 1]


def test_a_long_sum_is_cut_into_panels_of_the_first_cache() -> None:
    kernel = k.conv_weight_gradient(8, 64, 64, 58, 58, 3)
    schedule = choose_schedule(kernel, AVX512)
    assert any(isinstance(step, StageReduce) for step in schedule.steps)
    sizes = {
        name: size
        for step in schedule.steps if isinstance(step, Split)
        for name, size in step.parts
    }
    (panel,) = {step.axes for step in schedule.steps if isinstance(step, StageInput)}
    rows = 1
    for axis in panel:
        # The first part of what was cut has what is left of 56 rows or columns.
        rows *= sizes.get(axis) or 56 // sizes[f"{axis[:-1]}b"]
    assert rows * 4 <= AVX512.l1_bytes


def test_sums_wait_for_the_next_panel_where_lanes_are_neighbours() -> None:
    kernel = k.conv(4, 256, 256, 16, 16, 3)
    schedule = choose_schedule(kernel, AVX512)
    assert any(isinstance(step, StageReduce) for step in schedule.steps)
    # Channels lie far apart in the output: it is written once and never read.
    nodes = toposort(lower(kernel, AVX512, schedule))
    outputs = [node.op for node in nodes if node.src and is_output(node.src[0])]
    assert outputs == [Ops.STORE]


def is_output(node: Node) -> bool:
    return node.op is Ops.PARAM and node.arg.slot == 0


def test_sums_do_not_wait_for_what_threads_share() -> None:
    kernel = k.conv(8, 128, 32, 30, 30, 3)
    schedule = choose_schedule(kernel, replace(AVX512, cores=2))
    (shared,) = [step.axis for step in schedule.steps if is_shared(step)]
    assert shared == "i0"
    kept = [step for step in schedule.steps if isinstance(step, StageReduce)]
    assert all(shared not in step.axes for step in kept)


def is_shared(step: Any) -> bool:
    return isinstance(step, Bind) and step.unit == "pool"
